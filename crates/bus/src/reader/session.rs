//! One consumer, which is read until there is a doubt about it.

use std::fmt;
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use async_nats::{HeaderMap, Message, Subject, Subscriber};
use bytes::Bytes;
use futures_util::{FutureExt, Stream, StreamExt};
use model::Seq;
use tokio::task::coop;
use tokio::time::Instant;

use super::delivery::Delivery;
use super::entry::{CONTENT_TYPE, RawEntry};
use crate::connection::{ConnectionHandle, Disconnected, LivenessWatch};
use crate::metrics::RESTART_REASONS;

/// Without an entry or heartbeat for this time plus a round trip, the consumer, its host or the
/// connection is gone.
pub(crate) const SILENCE_LIMIT: Duration = Duration::from_secs(2);

/// Entries per request. Two requests are open when the stream is busy.
const PULL_MESSAGES: usize = 1000;
/// Bytes per request. It must exceed the largest entry, or that entry would never be delivered.
const PULL_BYTES: usize = 4 << 20;
/// 30 s and 1 s in nanoseconds.
const PULL_EXPIRES_NS: u64 = 30_000_000_000;
const PULL_HEARTBEAT_NS: u64 = 1_000_000_000;

/// The reason why a consumer is replaced by a new one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RestartReason {
    /// See [`SILENCE_LIMIT`].
    Silent,
    /// The connection was lost and is back; messages in transit are lost.
    Reconnected,
    /// The connection or the subscription has ended.
    Ended,
    /// An entry is missing between two deliveries.
    NotContiguous { expected: u64, got: u64 },
    /// The server ended the request because the consumer was deleted, the leader changed, or the
    /// server is shutting down.
    Status(String),
    /// For seconds the replica of the consumer has had no more entries, while the stream's leader
    /// has.
    ReplicaBehind { end: Seq },
}

impl RestartReason {
    /// The reason's name in the metric.
    pub(crate) fn name(&self) -> &'static str {
        let [silent, reconnected, ended, not_contiguous, status, replica_behind] = RESTART_REASONS;
        match self {
            Self::Silent => silent,
            Self::Reconnected => reconnected,
            Self::Ended => ended,
            Self::NotContiguous { .. } => not_contiguous,
            Self::Status(_) => status,
            Self::ReplicaBehind { .. } => replica_behind,
        }
    }
}

impl fmt::Display for RestartReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent => f.write_str("neither entries nor heartbeats"),
            Self::Reconnected => f.write_str("the connection was lost and is back"),
            Self::Ended => f.write_str("the connection has ended"),
            Self::NotContiguous { expected, got } => {
                write!(f, "delivery {got} came where {expected} was expected")
            }
            Self::Status(text) => f.write_str(text),
            Self::ReplicaBehind { end } => {
                write!(
                    f,
                    "the replica it reads stays behind the stream's leader, which has entries up to {end}"
                )
            }
        }
    }
}

/// The result of one receive call.
#[derive(Debug)]
pub(crate) enum SessionEvent {
    /// At least one entry.
    Entries(Vec<RawEntry>),
    /// A sign of life without an entry.
    Nothing,
}

pub(crate) struct ConsumerSession {
    link: ConnectionHandle,
    subscriber: Subscriber,
    watch: LivenessWatch,
    inbox: Subject,
    next_request: Subject,
    pub(crate) consumer: String,
    expected_delivery: u64,
    /// The messages of the sent requests that have not arrived yet.
    messages_open: usize,
    bytes_open: usize,
    /// Entries that the consumer has not delivered, according to its last report.
    unread: u64,
    beats: u32,
    heard_at: Instant,
    silence: Duration,
    doubt: Option<RestartReason>,
}

impl ConsumerSession {
    /// `watch` must have been created before `subscriber`, so that no reconnect in between is
    /// missed. `round_trip` is the current duration of a round trip. The first answer to a request
    /// takes that much longer than the following ones.
    pub(crate) fn new(
        watch: LivenessWatch,
        inbox: Subject,
        subscriber: Subscriber,
        stream: &str,
        consumer: String,
        unread: u64,
        round_trip: Duration,
    ) -> Self {
        Self {
            link: watch.link().clone(),
            subscriber,
            watch,
            inbox,
            next_request: format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}").into(),
            consumer,
            expected_delivery: 1,
            messages_open: 0,
            bytes_open: 0,
            unread,
            beats: 0,
            heard_at: Instant::now(),
            silence: SILENCE_LIMIT + round_trip,
            doubt: None,
        }
    }

    /// True while no entry is unread. A purge may remove unread entries, so two consecutive
    /// heartbeats also prove this.
    pub(crate) fn is_clear(&self) -> bool {
        self.unread == 0 || self.beats >= 2
    }

    /// True after two consecutive heartbeats without an entry.
    pub(crate) fn is_idle(&self) -> bool {
        self.beats >= 2
    }

    /// How long silence is normal.
    pub(crate) fn silence(&self) -> Duration {
        self.silence
    }

    /// True once anything was delivered.
    pub(crate) fn has_delivered(&self) -> bool {
        self.expected_delivery > 1
    }

    /// Waits for the next message of the consumer and takes all available messages, up to `max`
    /// entries. Cancel-safe: it takes none before the last await point.
    pub(crate) async fn receive(&mut self, max: usize) -> Result<SessionEvent, RestartReason> {
        if let Some(doubt) = self.doubt.take() {
            return Err(doubt);
        }
        match tokio::time::timeout(SILENCE_LIMIT, self.request_more()).await {
            Ok(requested) => requested?,
            Err(_) => return Err(RestartReason::Silent),
        }
        let first = self.wait().await?;
        let entries = self.take_ready(first, max);
        // Usually there is room for a request, and the next entries are in transit while these are
        // processed.
        let _ = self.request_more().now_or_never();
        match (entries.is_empty(), &self.doubt) {
            (false, _) => Ok(SessionEvent::Entries(entries)),
            (true, None) => Ok(SessionEvent::Nothing),
            (true, Some(_)) => Err(self.doubt.take().unwrap_or(RestartReason::Ended)),
        }
    }

    async fn wait(&mut self) -> Result<Message, RestartReason> {
        tokio::select! {
            biased;
            message = self.subscriber.next() => message.ok_or(RestartReason::Ended),
            lost = self.watch.lost() => Err(match lost {
                Disconnected::Reconnected => RestartReason::Reconnected,
                Disconnected::Closed => RestartReason::Ended,
            }),
            () = tokio::time::sleep_until(self.heard_at + self.silence) => Err(RestartReason::Silent),
        }
    }

    /// Sends a request when less than one is open. Cancel-safe: the request is counted only after
    /// it was sent.
    async fn request_more(&mut self) -> Result<(), RestartReason> {
        if self.messages_open >= PULL_MESSAGES && self.bytes_open >= PULL_BYTES {
            return Ok(());
        }
        let request = format!(
            r#"{{"batch":{PULL_MESSAGES},"max_bytes":{PULL_BYTES},"expires":{PULL_EXPIRES_NS},"idle_heartbeat":{PULL_HEARTBEAT_NS}}}"#
        );
        let sent = self.link.client.publish_with_reply(
            self.next_request.clone(),
            self.inbox.clone(),
            Bytes::from(request),
        );
        sent.await.map_err(|_| RestartReason::Ended)?;
        if self.messages_open == 0 {
            // Without an open request no message could arrive, so the time before this request does
            // not count as silence. The consumer may have been created long ago.
            self.heard_at = Instant::now();
        }
        self.messages_open += PULL_MESSAGES;
        self.bytes_open += PULL_BYTES;
        Ok(())
    }

    fn take_ready(&mut self, first: Message, max: usize) -> Vec<RawEntry> {
        let mut entries = Vec::with_capacity(max.min(self.unread.min(256) as usize + 1));
        self.heard_at = Instant::now();
        self.take(first, &mut entries);
        // Without `unconstrained` the scheduler's budget would end this loop after 128 entries, as
        // if none were left.
        let drain = std::future::poll_fn(|cx| {
            while self.doubt.is_none() && entries.len() < max {
                match Pin::new(&mut self.subscriber).poll_next(cx) {
                    Poll::Ready(Some(message)) => self.take(message, &mut entries),
                    Poll::Ready(None) => self.doubt = Some(RestartReason::Ended),
                    Poll::Pending => break,
                }
            }
            Poll::Ready(())
        });
        let _ = coop::unconstrained(drain).now_or_never();
        entries
    }

    fn take(&mut self, message: Message, entries: &mut Vec<RawEntry>) {
        match message.reply.as_ref().and_then(|reply| Delivery::parse(reply)) {
            Some(delivery) => self.take_entry(message, delivery, entries),
            None => self.take_status(&message),
        }
    }

    fn take_entry(&mut self, message: Message, delivery: Delivery, entries: &mut Vec<RawEntry>) {
        if delivery.consumer_seq != self.expected_delivery {
            let (expected, got) = (self.expected_delivery, delivery.consumer_seq);
            self.doubt = Some(RestartReason::NotContiguous { expected, got });
            return;
        }
        self.expected_delivery += 1;
        self.unread = delivery.unread;
        self.beats = 0;
        self.messages_open = self.messages_open.saturating_sub(1);
        self.bytes_open = self.bytes_open.saturating_sub(message.length);
        entries.push(RawEntry {
            seq: Seq(delivery.stream_seq),
            content_type: message.headers.as_ref().and_then(content_type),
            subject: message.subject,
            payload: message.payload,
            headers: message.headers,
            stored_at_ns: delivery.stored_at_ns,
            unread: delivery.unread,
        });
    }

    fn take_status(&mut self, message: &Message) {
        let status = message.status.map_or(0, u16::from);
        let text = message.description.as_deref().unwrap_or_default();
        match status {
            100 => self.take_heartbeat(message.headers.as_ref()),
            408 => self.close_request(message.headers.as_ref()),
            409 if text.starts_with("Message Size Exceeds MaxBytes") || text == "Batch Completed" => {
                self.close_request(message.headers.as_ref());
            }
            _ => self.doubt = Some(RestartReason::Status(format!("{status} {text}"))),
        }
    }

    /// Handles a heartbeat. If it counts deliveries that were not received here, these were lost in
    /// transit.
    fn take_heartbeat(&mut self, headers: Option<&HeaderMap>) {
        self.beats += 1;
        if let Some(delivered) = number(headers, "Nats-Last-Consumer")
            && delivered as u64 >= self.expected_delivery
        {
            self.doubt = Some(RestartReason::NotContiguous {
                expected: self.expected_delivery,
                got: delivered as u64 + 1,
            });
        }
    }

    /// Handles the end of a request that was not used up: its rest will not arrive.
    fn close_request(&mut self, headers: Option<&HeaderMap>) {
        let messages = number(headers, "Nats-Pending-Messages").unwrap_or(PULL_MESSAGES);
        let bytes = number(headers, "Nats-Pending-Bytes").unwrap_or(PULL_BYTES);
        self.messages_open = self.messages_open.saturating_sub(messages);
        self.bytes_open = self.bytes_open.saturating_sub(bytes);
    }
}

fn content_type(headers: &HeaderMap) -> Option<String> {
    let mut named =
        headers.iter().filter(|(name, _)| AsRef::<str>::as_ref(name).eq_ignore_ascii_case(CONTENT_TYPE));
    named.next()?.1.first().map(|value| value.as_str().to_owned())
}

fn number(headers: Option<&HeaderMap>, name: &str) -> Option<usize> {
    headers?.get(name)?.as_str().parse().ok()
}
