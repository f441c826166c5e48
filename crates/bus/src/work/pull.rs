//! Pulls turn requests one by one, over our own subscription.
//!
//! The client library has a stream that pulls in the same way. But when that stream ends, messages
//! that the server has sent or is about to send are lost. They are redelivered only after
//! [`super::ACK_WAIT`] without progress, so each restart of a busy service would delay clients by
//! that time. Here a pull is answered within a second, and a service that ends waits for the
//! answer.

use std::time::Duration;

use async_nats::jetstream::context::Context;
use async_nats::jetstream::message::Message;
use async_nats::{StatusCode, Subscriber};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use tokio::time::{Instant, timeout_at};

use crate::config::REQUEST_TIMEOUT;
use crate::connection::{ConnectionHandle, Disconnected, LivenessWatch};
use crate::error::BusError;

/// How long the server keeps a pull. It always answers, so a drain may have to wait this long. If
/// the server has not noticed a dead connection, it sends requests there for the same time.
const EXPIRES: Duration = Duration::from_secs(1);
/// Maximum time to wait for an answer. After this time none will arrive.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The messages of a consumer, each delivered for one pull.
pub(super) struct PullRequests {
    context: Context,
    connection: LivenessWatch,
    subscriber: Subscriber,
    /// The subject of pulls.
    subject: String,
    /// The prefix of reply subjects; a dot and the number of the pull follow.
    inbox: String,
    /// The number of pulls sent so far.
    pulls: u64,
    /// When the last pull was sent, if it has not been answered yet.
    asked_at: Option<Instant>,
    /// Until this time the server may still answer a pull that counts as lost.
    late_until: Instant,
}

impl PullRequests {
    pub(super) async fn open(
        link: &ConnectionHandle,
        context: Context,
        stream: &str,
        consumer: &str,
    ) -> Result<Self, BusError> {
        let inbox = link.client.new_inbox();
        let subscriber = link.client.subscribe(format!("{inbox}.*")).await;
        let subscriber = subscriber.map_err(|error| BusError::Unexpected(error.to_string()))?;
        Ok(Self {
            context,
            connection: link.watch(),
            subscriber,
            subject: format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"),
            inbox,
            pulls: 0,
            asked_at: None,
            late_until: Instant::now(),
        })
    }

    /// The connection of the subscription.
    pub(super) fn link(&self) -> &ConnectionHandle {
        self.connection.link()
    }

    /// The next message; waits until there is one. Cancel-safe: an unanswered pull is not repeated.
    ///
    /// # Errors
    /// No further message can arrive, so the caller must open the consumer again.
    pub(super) async fn next(&mut self) -> Result<Message, BusError> {
        loop {
            let answer = match self.asked_at {
                Some(asked_at) => self.answer(asked_at + ANSWER_TIMEOUT).await?,
                None => match self.subscriber.next().now_or_never() {
                    Some(late) => self.take(late)?,
                    None => {
                        self.ask().await?;
                        None
                    }
                },
            };
            if let Some(message) = answer {
                return Ok(message);
            }
        }
    }

    /// Stops pulling, and returns the messages that are still in transit.
    pub(super) async fn end(mut self) -> Vec<Message> {
        let mut messages = Vec::new();
        while self.link().is_connected() {
            let deadline = self.asked_at.map_or(self.late_until, |at| at + EXPIRES + REQUEST_TIMEOUT);
            match self.answer(deadline).await {
                Ok(message) => messages.extend(message),
                Err(_) => break,
            }
            if self.asked_at.is_none() && Instant::now() >= self.late_until {
                break;
            }
        }
        messages
    }

    async fn ask(&mut self) -> Result<(), BusError> {
        // Without a connection the client would keep the pull and send it on the reconnect.
        if !self.link().is_connected() {
            return Err(BusError::Away);
        }
        let payload = format!(r#"{{"batch":1,"expires":{}}}"#, EXPIRES.as_nanos());
        // Set before sending: if this future is dropped, the pull may have been sent.
        self.asked_at = Some(Instant::now());
        self.pulls += 1;
        self.connection.renew();
        let inbox = self.inbox_of_last();
        let client = &self.connection.link().client;
        let asked = client.publish_with_reply(self.subject.clone(), inbox, Bytes::from(payload));
        asked.await.map_err(|error| BusError::Unexpected(error.to_string()))
    }

    fn inbox_of_last(&self) -> String {
        format!("{}.{}", self.inbox, self.pulls)
    }

    /// The next answer; `None`: the answer has no message, or the pull may be lost. Cancel-safe.
    async fn answer(&mut self, deadline: Instant) -> Result<Option<Message>, BusError> {
        tokio::select! {
            biased;
            received = timeout_at(deadline, self.subscriber.next()) => match received {
                Ok(received) => self.take(received),
                Err(_) => Err(BusError::Timeout("a pull of turn requests")),
            },
            lost = self.connection.lost() => match lost {
                Disconnected::Reconnected => {
                    // The client has subscribed again, and the server may still have the pull.
                    self.connection.renew();
                    if self.asked_at.take().is_some() {
                        self.late_until = Instant::now() + 2 * EXPIRES;
                    }
                    Ok(None)
                }
                Disconnected::Closed => Err(BusError::Away),
            },
        }
    }

    fn take(&mut self, received: Option<async_nats::Message>) -> Result<Option<Message>, BusError> {
        let message = received.ok_or(BusError::Away)?;
        let status = match message.status {
            None | Some(StatusCode::OK) => {
                self.asked_at = None;
                return Ok(Some(Message { message, context: self.context.clone() }));
            }
            Some(status) => status,
        };
        // This answers a pull that counts as lost.
        if message.subject.as_str() != self.inbox_of_last() {
            return Ok(None);
        }
        self.asked_at = None;
        match status {
            StatusCode::TIMEOUT | StatusCode::NOT_FOUND => Ok(None),
            StatusCode::NO_RESPONDERS => Err(BusError::Away),
            // The consumer was deleted or has another leader, or its server is stopping.
            status => {
                Err(BusError::Unexpected(format!("{status}: {}", message.description.unwrap_or_default())))
            }
        }
    }
}
