//! Pulls turn requests one by one, over a subscription of our own.
//!
//! The client library has a stream that pulls in the same way, but ending it loses messages that the server has sent or is about to send: these are
//! delivered again only after [`super::ACK_WAIT`] without progress. So each restart of a busy service would have a client wait for that long. Here a
//! pull is answered within a second, and a service that ends waits for the answer.

use std::time::Duration;

use async_nats::jetstream::context::Context;
use async_nats::jetstream::message::Message;
use async_nats::{StatusCode, Subject, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::time::timeout;

use crate::config::REQUEST_TIMEOUT;
use crate::connection::{ConnectionHandle, LivenessWatch};
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
    /// The subject of the answers.
    inbox: Subject,
    /// A pull has not been answered yet.
    is_asked: bool,
}

impl PullRequests {
    pub(super) async fn open(
        link: &ConnectionHandle,
        context: Context,
        stream: &str,
        consumer: &str,
    ) -> Result<Self, BusError> {
        let inbox = Subject::from(link.client.new_inbox());
        let subscriber = link.client.subscribe(inbox.clone()).await;
        let subscriber = subscriber.map_err(|error| BusError::Unexpected(error.to_string()))?;
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}");
        Ok(Self { context, connection: link.watch(), subscriber, subject, inbox, is_asked: false })
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
        if !self.is_asked || !self.link().is_connected() {
            return None;
        }
        self.answer(EXPIRES + REQUEST_TIMEOUT).await.ok().flatten()
    }

    async fn ask(&mut self) -> Result<(), BusError> {
        // The client would send the pull after the reconnect, when nothing waits for its answer any more.
        if !self.link().is_connected() {
            return Err(BusError::Away);
        }
        // A reconnect since the last pull has lost nothing: the client has subscribed again.
        self.connection.renew();
        let payload = format!(r#"{{"batch":1,"expires":{}}}"#, EXPIRES.as_nanos());
        // Set first: if this future is dropped, the pull may have been sent.
        self.is_asked = true;
        let client = &self.connection.link().client;
        let asked = client.publish_with_reply(self.subject.clone(), self.inbox.clone(), Bytes::from(payload));
        asked.await.map_err(|error| BusError::Unexpected(error.to_string()))
    }

    /// The answer to the last pull; `None`: there was no message. Cancel-safe.
    async fn answer(&mut self, limit: Duration) -> Result<Option<Message>, BusError> {
        let received = tokio::select! {
            // A pull is lost with its connection.
            _ = self.connection.lost() => return Err(BusError::Away),
            received = timeout(limit, self.subscriber.next()) => received,
        };
        let received = received.map_err(|_| BusError::Timeout("a pull of turn requests"))?;
        let message = received.ok_or(BusError::Away)?;
        self.is_asked = false;
        match message.status {
            None | Some(StatusCode::OK) => Ok(Some(Message { message, context: self.context.clone() })),
            Some(StatusCode::TIMEOUT | StatusCode::NOT_FOUND) => Ok(None),
            Some(StatusCode::NO_RESPONDERS) => Err(BusError::Away),
            // The consumer is gone, or has another leader, or its server ends.
            Some(status) => {
                Err(BusError::Unexpected(format!("{status}: {}", message.description.unwrap_or_default())))
            }
        }
    }
}
