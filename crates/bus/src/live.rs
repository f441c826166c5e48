//! Live frames from owners to gateways: core NATS, nothing is stored.

use std::time::Duration;

use async_nats::subject::ToSubject;
use async_nats::{Client, RequestErrorKind, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use model::{GatewayId, MessageKey, PartitionId};
use wire::subject;

use crate::connection::{Bus, ConnectionHandle};
use crate::error::BusError;

/// How long a publish waits for room on an open connection.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(1);

/// A subject without subscribers, which the server answers itself: the request is a round trip
/// behind everything sent before on the same connection. Clients that may query owners may use it.
const WITHOUT_RESPONDERS: &str = "query.none";

impl Bus {
    /// Sends frames, as gathered by [`wire::live::FrameBatch`], to a gateway. Not stored and not
    /// confirmed: gateways detect a gap by the frame numbers and request what is missing. Frames
    /// that cannot be sent now are dropped.
    ///
    /// # Errors
    /// [`BusError::Away`] or [`BusError::Timeout`]: dropped. [`BusError::TooLarge`]: must be split.
    pub async fn publish_live_frames(&self, gateway: &GatewayId, payload: Bytes) -> Result<(), BusError> {
        self.shared.publishing.publish_unstored(subject::live(gateway), payload).await
    }

    /// Announces to all gateways that this process now owns a partition, so that they request the
    /// threads that they follow there. Sent like frames.
    ///
    /// # Errors
    /// As [`Bus::publish_live_frames`]; gateways find out within some seconds anyway.
    pub async fn announce_owner(&self, partition: PartitionId, epoch: u64) -> Result<(), BusError> {
        self.shared
            .publishing
            .publish_unstored(subject::OWNERS, wire::live::encode_owner(partition, epoch))
            .await
    }

    /// Announces to all gateways that facts were found with an answer, so that those that follow
    /// its thread show them. Sent like frames.
    ///
    /// # Errors
    /// As [`Bus::publish_live_frames`]; the history has the facts anyway.
    pub async fn announce_remembered(&self, answer: &MessageKey) -> Result<(), BusError> {
        self.shared.publishing.publish_unstored(subject::FACTS, wire::live::encode_remembered(answer)).await
    }

    /// Subscribes to what owners send to `gateway`. When this returns, the server has the
    /// subscription: later messages arrive.
    ///
    /// # Errors
    /// The server does not answer.
    pub async fn subscribe_live_frames(&self, gateway: &GatewayId) -> Result<LiveSubscription, BusError> {
        let link = self.listening().await?;
        if !link.is_connected() {
            return Err(BusError::Away);
        }
        let frames = link.client.subscribe(subject::live(gateway)).await?;
        let owners = link.client.subscribe(subject::OWNERS).await?;
        let facts = link.client.subscribe(subject::FACTS).await?;
        round_trip(&link.client).await?;
        Ok(LiveSubscription { frames, owners, facts })
    }
}

impl ConnectionHandle {
    /// Publishes a message, or drops it if it cannot be sent now: without a connection the client
    /// queues, and then blocks without end.
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

/// Waits until the server has received everything sent before. A flush does not: it ends at the
/// local socket.
async fn round_trip(client: &Client) -> Result<(), BusError> {
    match client.request(WITHOUT_RESPONDERS, Bytes::new()).await {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == RequestErrorKind::NoResponders => Ok(()),
        Err(error) if error.kind() == RequestErrorKind::TimedOut => Err(BusError::Timeout("subscription")),
        Err(_) => Err(BusError::Away),
    }
}

/// A message from an owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LiveMessage {
    /// Frames: read with [`wire::live::frames`].
    Frames(Bytes),
    /// A partition has a new owner: read with [`wire::live::decode_owner`].
    Owner(Bytes),
    /// Facts were found with an answer: read with [`wire::live::decode_remembered`].
    Remembered(Bytes),
}

/// What owners send to one gateway. Dropping it ends the subscription.
#[derive(Debug)]
pub struct LiveSubscription {
    frames: Subscriber,
    owners: Subscriber,
    facts: Subscriber,
}

impl LiveSubscription {
    /// The next message; `None` when the connection has ended for good. After a reconnect the
    /// subscription is restored, and messages sent in between are missing. Cancel-safe.
    pub async fn next(&mut self) -> Option<LiveMessage> {
        tokio::select! {
            biased;
            owner = self.owners.next() => Some(LiveMessage::Owner(owner?.payload)),
            frames = self.frames.next() => Some(LiveMessage::Frames(frames?.payload)),
            facts = self.facts.next() => Some(LiveMessage::Remembered(facts?.payload)),
        }
    }
}
