//! Pulls turn requests one by one, over a subscription of our own.
//!
//! The client library has a stream that pulls in the same way, but ending it loses messages that the server has sent or is about to send: these are
//! delivered again only after [`super::ACK_WAIT`] without progress. So each restart of a busy service would have a client wait for that long. Here a
//! pull is answered within a second, and a service that ends waits for the answer.

use std::time::Duration;

use async_nats::jetstream::context::Context;
use async_nats::jetstream::message::Message;
use async_nats::{StatusCode, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::time::timeout;

use crate::config::REQUEST_TIMEOUT;
use crate::connection::{ConnectionHandle, Disconnected, LivenessWatch};
use crate::error::BusError;

/// How long the server keeps a pull. It answers in any case, so this is also how long a drain may have to wait, and how long a server that does not
/// know yet that a connection is dead sends requests there.
const EXPIRES: Duration = Duration::from_secs(1);
/// After this time no answer comes any more.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The messages of a consumer, each delivered by a pull.
pub(super) struct PullRequests {
    context: Context,
    connection: LivenessWatch,
    subscriber: Subscriber,
    /// The subject of pulls.
    subject: String,
    /// The subject of the answers is this, a dot and the number of the pull.
    inbox: String,
    /// How many pulls were sent.
    pulls: u64,
    /// The last pull has not been answered yet.
    is_asked: bool,
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
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}");
        Ok(Self { context, connection: link.watch(), subscriber, subject, inbox, pulls: 0, is_asked: false })
    }

    /// The connection on which it is read.
    pub(super) fn link(&self) -> &ConnectionHandle {
        self.connection.link()
    }

    /// The next message; waits until there is one. Cancel-safe: a pull that is not answered yet is not repeated.
    ///
    /// # Errors
    /// No further message can come: it must be opened again.
    pub(super) async fn next(&mut self) -> Result<Message, BusError> {
        loop {
            if !self.is_asked {
                self.ask().await?;
            }
            if let Some(message) = self.answer(ANSWER_TIMEOUT).await? {
                return Ok(message);
            }
        }
    }

    /// Stops pulling, and returns the message that answers the last pull.
    pub(super) async fn end(mut self) -> Option<Message> {
        while self.is_asked && self.link().is_connected() {
            if let Some(message) = self.answer(EXPIRES + REQUEST_TIMEOUT).await.ok()? {
                return Some(message);
            }
        }
        None
    }

    async fn ask(&mut self) -> Result<(), BusError> {
        // The client would keep the pull until the reconnect.
        if !self.link().is_connected() {
            return Err(BusError::Away);
        }
        let payload = format!(r#"{{"batch":1,"expires":{}}}"#, EXPIRES.as_nanos());
        // Set first: if this future is dropped, the pull may have been sent.
        self.is_asked = true;
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

    /// The answer to the last pull; `None`: there was no message, or the pull may be lost. Cancel-safe.
    async fn answer(&mut self, limit: Duration) -> Result<Option<Message>, BusError> {
        let received = tokio::select! {
            biased;
            received = timeout(limit, self.subscriber.next()) => received,
            // The client has subscribed again. The server may still have the pull, so that the subscription must stay.
            lost = self.connection.lost() => match lost {
                Disconnected::Reconnected => {
                    self.is_asked = false;
                    return Ok(None);
                }
                Disconnected::Closed => return Err(BusError::Away),
            },
        };
        let received = received.map_err(|_| BusError::Timeout("a pull of turn requests"))?;
        let message = received.ok_or(BusError::Away)?;
        let status = match message.status {
            None | Some(StatusCode::OK) => {
                self.is_asked = false;
                return Ok(Some(Message { message, context: self.context.clone() }));
            }
            Some(status) => status,
        };
        // Of a pull that counted as lost.
        if message.subject.as_str() != self.inbox_of_last() {
            return Ok(None);
        }
        self.is_asked = false;
        match status {
            StatusCode::TIMEOUT | StatusCode::NOT_FOUND => Ok(None),
            StatusCode::NO_RESPONDERS => Err(BusError::Away),
            // The consumer is gone, or has another leader, or its server ends.
            status => {
                Err(BusError::Unexpected(format!("{status}: {}", message.description.unwrap_or_default())))
            }
        }
    }
}
