//! Live frames from owners to gateways: core NATS, nothing stored.

use std::time::Duration;

use async_nats::subject::ToSubject;
use async_nats::{Client, RequestErrorKind, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use model::ThreadId;
use wire::subject;

use crate::connection::{Bus, ConnectionHandle};
use crate::error::BusError;

/// How long a publish waits for room on a connection that stands.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(1);

/// No process subscribes to it, so the server answers: a round trip behind everything sent before on the same connection.
/// Clients that may query owners may use it.
const WITHOUT_RESPONDERS: &str = "query.none";

impl Bus {
    /// Sends a frame to the gateways that follow `thread`. Not stored, not confirmed: gateways notice a hole by the ids
    /// in it and request what is missing, so a frame that cannot be sent now is dropped, not kept.
    ///
    /// # Errors
    /// [`BusError::Away`] or [`BusError::Timeout`]: dropped. [`BusError::TooLarge`]: must be split.
    pub async fn publish_live_frame(&self, thread: &ThreadId, payload: Bytes) -> Result<(), BusError> {
        self.shared.publishing.publish_unstored(subject::live(thread), payload).await
    }

    /// Listens to the frames of `thread`. When this returns, the server knows: what is published from now on comes.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn subscribe_live_frames(&self, thread: &ThreadId) -> Result<LiveSubscription, BusError> {
        let link = self.listening().await?;
        if !link.is_connected() {
            return Err(BusError::Away);
        }
        let subscriber = link.client.subscribe(subject::live(thread)).await?;
        round_trip(&link.client).await?;
        Ok(LiveSubscription { subscriber })
    }
}

impl ConnectionHandle {
    /// Publishes what is dropped when it cannot be sent now: without a connection the client queues, and then blocks without end.
    pub(crate) async fn publish_unstored(
        &self,
        subject: impl ToSubject,
        payload: Bytes,
    ) -> Result<(), BusError> {
        if !self.is_connected() {
            return Err(BusError::Away);
        }
        match tokio::time::timeout(PUBLISH_TIMEOUT, self.client.publish(subject, payload)).await {
            Ok(sent) => Ok(sent?),
            Err(_) => Err(BusError::Timeout("publish")),
        }
    }
}

/// Waits until the server has seen everything that was sent before. A flush does not: it ends at our own socket.
async fn round_trip(client: &Client) -> Result<(), BusError> {
    match client.request(WITHOUT_RESPONDERS, Bytes::new()).await {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == RequestErrorKind::NoResponders => Ok(()),
        Err(error) if error.kind() == RequestErrorKind::TimedOut => Err(BusError::Timeout("subscription")),
        Err(_) => Err(BusError::Away),
    }
}

/// The frames of one thread. Dropping it ends the subscription.
#[derive(Debug)]
pub struct LiveSubscription {
    subscriber: Subscriber,
}

impl LiveSubscription {
    /// The next frame; `None` when the connection has ended for good. After a reconnect the subscription stands
    /// again by itself, and what was sent meanwhile is missing. Cancel-safe.
    pub async fn next(&mut self) -> Option<Bytes> {
        Some(self.subscriber.next().await?.payload)
    }
}
