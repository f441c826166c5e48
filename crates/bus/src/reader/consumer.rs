//! Creates the consumer of a reader and removes the consumers of earlier owners.

use std::sync::atomic::Ordering;
use std::time::Duration;

use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::response::Response;
use async_nats::jetstream::stream::RawMessage;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use futures_util::{StreamExt, TryStreamExt};
use model::{Mark, PartitionId, Seq};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use wire::subject;

use super::end::KnownEnd;
use super::entry::{CONTENT_TYPE, RawEntry};
use super::session::ConsumerSession;
use crate::connection::Bus;
use crate::error::BusError;
use crate::stream::{StreamState, to_ns};

/// The server deletes a consumer that no client has read from for this time.
const CONSUMER_INACTIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time to open a consumer. Opening takes several round trips, each with its own limit.
const OPEN_TIMEOUT: Duration = Duration::from_secs(20);
const CONNECTED_CHECK: Duration = Duration::from_millis(50);

/// The parameters of an opening. It owns its values, so that the work can continue when the caller
/// stops waiting.
pub(super) struct OpenConsumer {
    pub(super) bus: Bus,
    pub(super) partition: PartitionId,
    pub(super) epoch: u64,
    /// The first sequence to read.
    pub(super) from: Seq,
    /// True if this reader has read no entry yet, so that the consumers of earlier owners are
    /// deleted.
    pub(super) is_first: bool,
    /// The properties that the stream must still have.
    pub(super) same: ExpectedStream,
    /// The consumer that the new one replaces.
    pub(super) previous: Option<String>,
    pub(super) delay: Duration,
    /// True to fetch the next entry by request, because connections break on it.
    pub(super) fetch_one: bool,
}

/// The properties that a stream must still have.
#[derive(Debug, Clone, Default)]
pub struct ExpectedStream {
    /// The incarnation of the stream; `None`: any.
    pub incarnation: Option<String>,
    /// The last entry that was read. The stream must still have it, or have purged it.
    pub read: Option<Mark>,
}

pub(super) enum OpenResult {
    /// A new consumer, its stream, and the known end of that stream.
    Session(Box<ConsumerSession>, StreamState, KnownEnd),
    /// The stream is another one, or has lost its end.
    Changed(StreamState),
    /// An entry that was fetched by request.
    Fetched(RawEntry),
}

impl OpenConsumer {
    pub(super) async fn run(self) -> Result<OpenResult, BusError> {
        tokio::time::sleep(self.delay).await;
        // Without a connection requests would be queued, and all of them would be sent on the
        // reconnect.
        while !self.bus.shared.control.is_connected() {
            tokio::time::sleep(CONNECTED_CHECK).await;
        }
        let mut control = self.bus.shared.control.watch();
        tokio::select! {
            opened = self.open() => opened,
            // A request sent over a lost connection never gets an answer.
            _ = control.lost() => Err(BusError::Away),
            () = tokio::time::sleep(OPEN_TIMEOUT) => Err(BusError::Timeout("opening a reader")),
        }
    }

    async fn open(&self) -> Result<OpenResult, BusError> {
        if self.fetch_one
            && let Some(opened) = self.fetch().await?
        {
            return Ok(opened);
        }
        let (session, _) = tokio::join!(self.create(), self.delete_previous());
        let session = session?;
        // The state is read after the consumer was created. So a stream that was replaced before is
        // detected here. A stream that is replaced later is deleted together with the consumer.
        let asked_at = Instant::now();
        let (stream, ()) =
            tokio::try_join!(self.bus.stream_state(self.partition), self.evict_predecessors())?;
        if self.is_same(&stream).await? {
            let end = KnownEnd::new(&stream, asked_at);
            return Ok(OpenResult::Session(Box::new(session), stream, end));
        }
        self.delete(&session.consumer).await;
        Ok(OpenResult::Changed(stream))
    }

    /// True if the stream is the expected one. A stream that has lost its end and was then written
    /// to may be as long as before, so only its entries show the loss.
    async fn is_same(&self, stream: &StreamState) -> Result<bool, BusError> {
        let ExpectedStream { incarnation, read } = &self.same;
        if stream.last_seq < self.from.before()
            || incarnation.as_ref().is_some_and(|known| *known != stream.incarnation)
        {
            return Ok(false);
        }
        let Some(read) = read else { return Ok(true) };
        let found = self.bus.stored_at_ns(self.partition, read.seq).await?;
        Ok(read.seq <= stream.last_seq && read.agrees(stream.first_seq, found))
    }

    async fn create(&self) -> Result<ConsumerSession, BusError> {
        let link = self.bus.reading().await?;
        let watch = link.watch();
        let inbox = link.client.new_inbox();
        let subscriber = link.client.subscribe(inbox.clone()).await?;
        let stream = subject::stream_name(self.partition);
        let number = self.bus.shared.consumers_named.fetch_add(1, Ordering::Relaxed);
        let name = consumer_name(self.partition, self.epoch, number);
        let config = pull::Config {
            name: Some(name.clone()),
            deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: self.from.0.max(1) },
            ack_policy: AckPolicy::None,
            inactive_threshold: CONSUMER_INACTIVE_TIMEOUT,
            num_replicas: 1,
            memory_storage: true,
            ..pull::Config::default()
        };
        let asked = Instant::now();
        let made = self.bus.shared.api.create_consumer_on_stream(config, stream.as_str()).await?;
        let (unread, round_trip) = (made.cached_info().num_pending, asked.elapsed());
        Ok(ConsumerSession::new(watch, inbox.into(), subscriber, &stream, name, unread, round_trip))
    }

    async fn delete_previous(&self) {
        if let Some(previous) = &self.previous {
            self.delete(previous).await;
        }
    }

    /// Deletes a consumer if possible; otherwise it expires on the server.
    async fn delete(&self, consumer: &str) {
        let stream = subject::stream_name(self.partition);
        let _ = self.bus.shared.api.delete_consumer_from_stream(consumer, stream).await;
    }

    /// Deletes the consumers of lower epochs, once. So an earlier owner that is only slow can no
    /// longer read.
    async fn evict_predecessors(&self) -> Result<(), BusError> {
        if !self.is_first {
            return Ok(());
        }
        let names = self.bus.stream(self.partition).await?.consumer_names();
        let names =
            names.try_collect::<Vec<_>>().await.map_err(|error| BusError::Unexpected(error.to_string()))?;
        let older =
            names.iter().filter(|name| epoch_of(self.partition, name).is_some_and(|it| it < self.epoch));
        futures_util::stream::iter(older).for_each_concurrent(None, |name| self.delete(name)).await;
        Ok(())
    }

    /// Fetches the next entry by request. Its headers arrive encoded, so that the client cannot
    /// fail on them.
    async fn fetch(&self) -> Result<Option<OpenResult>, BusError> {
        let stream = self.bus.stream_state(self.partition).await?;
        if !self.is_same(&stream).await? {
            return Ok(Some(OpenResult::Changed(stream)));
        }
        let next = NextAt { seq: self.from.0.max(1), next_by_subj: Some(">") };
        let stored = self.bus.stored(self.partition, &next).await?;
        Ok(stored.map(RawEntry::try_from).transpose()?.map(OpenResult::Fetched))
    }
}

impl Bus {
    /// When the stream stored the entry with this sequence, in ns of Unix time; `None` if it has no
    /// such entry.
    ///
    /// # Errors
    /// The errors of [`Self::stream_state`].
    pub async fn stored_at_ns(&self, partition: PartitionId, seq: Seq) -> Result<Option<i64>, BusError> {
        let stored = self.stored(partition, &NextAt { seq: seq.0.max(1), next_by_subj: None }).await?;
        Ok(stored.map(|stored| to_ns(stored.message.time.unix_timestamp_nanos())))
    }

    /// Reads an entry from the stream's leader.
    async fn stored(&self, partition: PartitionId, at: &NextAt) -> Result<Option<Stored>, BusError> {
        let subject = format!("STREAM.MSG.GET.{}", subject::stream_name(partition));
        match self.shared.api.request::<_, _, Response<Stored>>(subject, at).await? {
            Response::Ok(stored) => Ok(Some(stored)),
            Response::Err { error } if error.error_code() == ErrorCode::NO_MESSAGE_FOUND => Ok(None),
            Response::Err { error } => Err(BusError::api(&error)),
        }
    }
}

/// Selects the entry with a sequence, or the first entry at or after the sequence with any subject.
#[derive(Serialize)]
struct NextAt {
    seq: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_by_subj: Option<&'static str>,
}

#[derive(Deserialize)]
struct Stored {
    message: RawMessage,
}

impl TryFrom<Stored> for RawEntry {
    type Error = BusError;

    fn try_from(Stored { message }: Stored) -> Result<Self, BusError> {
        let payload =
            BASE64.decode(message.payload).map_err(|error| BusError::Unexpected(error.to_string()))?;
        Ok(Self {
            seq: Seq(message.sequence),
            subject: message.subject.into(),
            content_type: message.headers.as_deref().and_then(content_type),
            payload: payload.into(),
            headers: None,
            stored_at_ns: to_ns(message.time.unix_timestamp_nanos()),
            // For a requested entry the server does not report the number of unread entries.
            unread: 0,
        })
    }
}

/// The content type from encoded headers, the only header that is needed.
fn content_type(encoded: &str) -> Option<String> {
    let headers = BASE64.decode(encoded).ok()?;
    let mut lines = std::str::from_utf8(&headers).ok()?.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = lines.find(|(name, _)| name.eq_ignore_ascii_case(CONTENT_TYPE))?;
    Some(value.trim().to_owned())
}

/// The consumer's name, `p<partition>-e<epoch>-<number>`. A worker that takes over a partition
/// recognises older consumers by it.
fn consumer_name(partition: PartitionId, epoch: u64, number: u64) -> String {
    format!("p{partition}-e{epoch}-{number}")
}

/// The epoch in a consumer's name; `None` for consumers that are not readers.
fn epoch_of(partition: PartitionId, name: &str) -> Option<u64> {
    let rest = name.strip_prefix(&format!("p{partition}-e"))?;
    let (epoch, _) = rest.split_once('-')?;
    epoch.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consumer_name_has_partition_and_epoch() {
        let name = consumer_name(PartitionId(3), 17, 4);
        assert_eq!(name, "p3-e17-4");
        assert_eq!(epoch_of(PartitionId(3), &name), Some(17));
        for other in ["p31-e17-4", "p3-e-4", "p3-e17", "nats-cli", ""] {
            assert_eq!(epoch_of(PartitionId(3), other), None, "{other}");
        }
    }
}
