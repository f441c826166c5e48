//! Live frames from owners to gateways, over core NATS, so they are not stored.

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

/// A subject without subscribers. The server itself answers a request to it, after everything sent
/// before on the same connection, so the request is a round trip. Clients that may query owners may
/// use the subject.
const WITHOUT_RESPONDERS: &str = "query.none";

impl Bus {
    /// Sends frames, collected by [`wire::live::FrameBatch`], to a gateway. They are neither stored
    /// nor confirmed. Gateways detect a gap by the frame numbers and request the missing frames.
    /// Frames that cannot be sent now are dropped.
    ///
    /// # Errors
    /// [`BusError::Away`] or [`BusError::Timeout`]: the frames are dropped. [`BusError::TooLarge`]:
    /// the caller must split them.
    pub async fn publish_live_frames(&self, gateway: &GatewayId, payload: Bytes) -> Result<(), BusError> {
        self.shared.publishing.publish_unstored(subject::live(gateway), payload).await
    }

    /// Announces to all gateways that this process now owns a partition. They then request the
    /// threads of the partition that they follow. Sent like frames.
    ///
    /// # Errors
    /// The errors of [`Bus::publish_live_frames`]. Without the announcement, gateways find the new
    /// owner within some seconds.
    pub async fn announce_owner(&self, partition: PartitionId, epoch: u64) -> Result<(), BusError> {
        self.shared
            .publishing
            .publish_unstored(subject::OWNERS, wire::live::encode_owner(partition, epoch))
            .await
    }

    /// Announces to all gateways that facts were found with an answer. Gateways that follow its
    /// thread then send the facts to subscribers. Sent like frames.
    ///
    /// # Errors
    /// The errors of [`Bus::publish_live_frames`]. The history has the facts in any case.
    pub async fn announce_remembered(&self, answer: &MessageKey) -> Result<(), BusError> {
        self.shared.publishing.publish_unstored(subject::FACTS, wire::live::encode_remembered(answer)).await
    }

    /// Subscribes to the messages that owners send to `gateway`. When this returns, the server has
    /// the subscription, so later messages arrive.
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
    /// Publishes a message, or drops it if it cannot be sent now. Without a connection the client
    /// would queue messages, and then block without end.
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

/// Waits until the server has received everything sent before. A flush is not enough, because it
/// ends at the local socket.
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
    /// Frames, to be decoded with [`wire::live::frames`].
    Frames(Bytes),
    /// A partition has a new owner; decode the payload with [`wire::live::decode_owner`].
    Owner(Bytes),
    /// Facts were found with an answer; decode the payload with [`wire::live::decode_remembered`].
    Remembered(Bytes),
}

/// The messages that owners send to one gateway. Dropping it ends the subscription.
#[derive(Debug)]
pub struct LiveSubscription {
    frames: Subscriber,
    owners: Subscriber,
    facts: Subscriber,
}

impl LiveSubscription {
    /// The next message; `None` when the connection has ended for good. A reconnect restores the
    /// subscription, but messages sent in the meantime are lost. Cancel-safe.
    pub async fn next(&mut self) -> Option<LiveMessage> {
        tokio::select! {
            biased;
            owner = self.owners.next() => Some(LiveMessage::Owner(owner?.payload)),
            frames = self.frames.next() => Some(LiveMessage::Frames(frames?.payload)),
            facts = self.facts.next() => Some(LiveMessage::Remembered(facts?.payload)),
        }
    }
}
