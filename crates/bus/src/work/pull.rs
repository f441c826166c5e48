//! One turn request after the other, asked for over a subscription of our own.
//!
//! The client has a stream that asks in the same way, but it cannot be ended without losing what the server has sent by then, or is about to send: that
//! is delivered again only when its service has said nothing for [`super::ACK_WAIT`]. So each restart of a busy service would have a client wait for
//! so long. Here a question is answered within a second, and a service that ends waits for the answer.

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

/// How long the server keeps what is asked for. It answers in any case, so this is also how long a drain may have to wait, and how long a server that
/// does not know yet that a connection is dead sends requests there.
const EXPIRES: Duration = Duration::from_secs(1);
/// After which no answer comes any more.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// What a consumer delivers, one message at a time, each when it is asked for.
pub(super) struct PullRequests {
    context: Context,
    connection: LivenessWatch,
    subscriber: Subscriber,
    /// Where the consumer is asked.
    subject: String,
    /// Where it answers.
    inbox: Subject,
    /// No answer has come yet.
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

    /// The next message; waits for as long as there is none. Cancel-safe: what is asked for once is not asked for twice.
    ///
    /// # Errors
    /// Nothing will come of it any more.
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

    /// Asks for nothing more, and gives back what comes of the last question.
    pub(super) async fn end(mut self) -> Option<Message> {
        if !self.is_asked || !self.link().is_connected() {
            return None;
        }
        self.answer(EXPIRES + REQUEST_TIMEOUT).await.ok().flatten()
    }

    async fn ask(&mut self) -> Result<(), BusError> {
        let payload = format!(r#"{{"batch":1,"expires":{}}}"#, EXPIRES.as_nanos());
        // First: dropped meanwhile, it may have been sent.
        self.is_asked = true;
        let client = &self.connection.link().client;
        let asked = client.publish_with_reply(self.subject.clone(), self.inbox.clone(), Bytes::from(payload));
        asked.await.map_err(|error| BusError::Unexpected(error.to_string()))
    }

    /// What comes of the last question; `None`: there was nothing. Cancel-safe.
    async fn answer(&mut self, limit: Duration) -> Result<Option<Message>, BusError> {
        let received = tokio::select! {
            // What was asked for is forgotten with the connection.
            _ = self.connection.lost() => return Err(BusError::Away),
            received = timeout(limit, self.subscriber.next()) => received,
        };
        let received = received.map_err(|_| BusError::Timeout("a question for turn requests"))?;
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
