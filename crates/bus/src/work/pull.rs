//! One turn request after the other, asked for over a subscription of our own.
//!
//! The client has a stream that asks in the same way, but it cannot be ended: a request that the server had sent by then is lost with it, and is delivered
//! again only when its service has said nothing for [`super::ACK_WAIT`]. So each restart of a busy service would have a client wait for so long.

use std::time::Duration;

use async_nats::jetstream::context::Context;
use async_nats::jetstream::message::Message;
use async_nats::{StatusCode, Subject, Subscriber};
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt};
use tokio::time::timeout;

use crate::config::REQUEST_TIMEOUT;
use crate::connection::{ConnectionHandle, Disconnected, LivenessWatch};
use crate::error::BusError;

/// How long the server keeps what is asked for.
const EXPIRES: Duration = Duration::from_secs(30);
/// How often it says that it still does.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// What a consumer delivers, one message at a time, each when it is asked for.
pub(super) struct PullRequests {
    context: Context,
    connection: LivenessWatch,
    subscriber: Subscriber,
    /// Where the consumer is asked.
    subject: String,
    /// Where it answers: below this, by the number of the request.
    inbox: String,
    /// How often it was asked.
    asked: u64,
    /// The last request has not been answered.
    is_asked: bool,
}

/// What the server has sent for one of the requests.
enum PullAnswer {
    Message(Box<Message>),
    /// It still keeps what was asked for.
    Waits,
    /// It keeps it no longer: nothing came.
    Expired,
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
        Ok(Self { context, connection: link.watch(), subscriber, subject, inbox, asked: 0, is_asked: false })
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
            // An earlier request may have been answered as well.
            let ready = self.subscriber.next().now_or_never();
            let received = match ready {
                Some(received) => received,
                None => {
                    if !self.is_asked {
                        self.ask().await?;
                    }
                    tokio::select! {
                        end = self.connection.lost() => {
                            self.reconnected(end)?;
                            continue;
                        }
                        received = timeout(HEARTBEAT * 2, self.subscriber.next()) => {
                            received.map_err(|_| BusError::Unexpected("missed idle heartbeat".to_owned()))?
                        }
                    }
                }
            };
            let received = received.ok_or(BusError::Away)?;
            let is_of_last = received.subject == self.reply();
            match answer(received, &self.context)? {
                PullAnswer::Message(message) => {
                    self.is_asked = false;
                    return Ok(*message);
                }
                PullAnswer::Expired if is_of_last => self.is_asked = false,
                PullAnswer::Expired | PullAnswer::Waits => {}
            }
        }
    }

    /// It is to be asked anew, and the subscription stays. To a server that does not know yet that the connection before is dead the request made over
    /// it stands: what is sent for it comes here as well, where another subscription would not have it before it is delivered again.
    fn reconnected(&mut self, end: Disconnected) -> Result<(), BusError> {
        match end {
            Disconnected::Reconnected => {
                self.connection = self.connection.link().watch();
                self.is_asked = false;
                Ok(())
            }
            Disconnected::Closed => Err(BusError::Away),
        }
    }

    /// Asks for nothing more, and gives back what was on its way.
    pub(super) async fn end(mut self) -> Vec<Message> {
        let mut messages = Vec::new();
        let draining = async {
            if self.subscriber.drain().await.is_err() {
                return;
            }
            while let Some(received) = self.subscriber.next().await {
                if let Ok(PullAnswer::Message(message)) = answer(received, &self.context) {
                    messages.push(*message);
                }
            }
        };
        // Without a connection nothing comes; a request that was sent is delivered again then.
        _ = timeout(REQUEST_TIMEOUT, draining).await;
        messages
    }

    async fn ask(&mut self) -> Result<(), BusError> {
        let (expires, heartbeat) = (EXPIRES.as_nanos(), HEARTBEAT.as_nanos());
        let payload = format!(r#"{{"batch":1,"expires":{expires},"idle_heartbeat":{heartbeat}}}"#);
        // Counted first: dropped meanwhile, it may have been sent, and is not to be taken for the next one.
        self.asked += 1;
        let client = &self.connection.link().client;
        let asked = client.publish_with_reply(self.subject.clone(), self.reply(), Bytes::from(payload));
        asked.await.map_err(|error| BusError::Unexpected(error.to_string()))?;
        self.is_asked = true;
        Ok(())
    }

    /// Where what the last request brings about is sent, but for messages, which keep their subject.
    fn reply(&self) -> Subject {
        Subject::from(format!("{}.{}", self.inbox, self.asked))
    }
}

fn answer(message: async_nats::Message, context: &Context) -> Result<PullAnswer, BusError> {
    match message.status {
        None | Some(StatusCode::OK) => {
            Ok(PullAnswer::Message(Box::new(Message { message, context: context.clone() })))
        }
        Some(StatusCode::IDLE_HEARTBEAT) => Ok(PullAnswer::Waits),
        Some(StatusCode::TIMEOUT | StatusCode::NOT_FOUND) => Ok(PullAnswer::Expired),
        Some(StatusCode::NO_RESPONDERS) => Err(BusError::Away),
        // The consumer is gone, or has another leader, or its server ends.
        Some(status) => {
            Err(BusError::Unexpected(format!("{status}: {}", message.description.unwrap_or_default())))
        }
    }
}
