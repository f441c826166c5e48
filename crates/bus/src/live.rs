//! Live frames from owners to gateways: core NATS, nothing stored.

use std::time::Duration;

use async_nats::subject::ToSubject;
use async_nats::{Client, RequestErrorKind, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use model::{GatewayId, MessageKey, PartitionId};
use wire::subject;

use crate::connection::{Bus, ConnectionHandle};
use crate::error::BusError;

/// How long a publish waits for room on a connection that stands.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(1);

/// No process subscribes to it, so the server answers: a round trip behind everything sent before on the same connection.
/// Clients that may query owners may use it.
const WITHOUT_RESPONDERS: &str = "query.none";

impl Bus {
    /// Sends frames, as [`wire::live::FrameBatch`] gathers them, to a gateway. Not stored, not confirmed: gateways notice a hole by the numbers
    /// in them and request what is missing, so what cannot be sent now is dropped, not kept.
    ///
    /// # Errors
    /// [`BusError::Away`] or [`BusError::Timeout`]: dropped. [`BusError::TooLarge`]: must be split.
    pub async fn publish_live_frames(&self, gateway: &GatewayId, payload: Bytes) -> Result<(), BusError> {
        self.shared.publishing.publish_unstored(subject::live(gateway), payload).await
    }

    /// Says to all gateways that this process owns a partition from now on: they then ask it for what they follow there. Sent as frames are.
    ///
    /// # Errors
    /// As [`Bus::publish_live_frames`]; gateways find out within some seconds all the same.
    pub async fn announce_owner(&self, partition: PartitionId, epoch: u64) -> Result<(), BusError> {
        self.shared
            .publishing
            .publish_unstored(subject::OWNERS, wire::live::encode_owner(partition, epoch))
            .await
    }

    /// Says to all gateways that facts are remembered since an answer: those that show its thread show them. Sent as frames are.
    ///
    /// # Errors
    /// As [`Bus::publish_live_frames`]; the history has them all the same.
    pub async fn announce_remembered(&self, answer: &MessageKey) -> Result<(), BusError> {
        self.shared.publishing.publish_unstored(subject::FACTS, wire::live::encode_remembered(answer)).await
    }

    /// Listens to what owners send to `gateway`. When this returns, the server knows: what is published from now on comes.
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

/// What owners send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LiveMessage {
    /// Frames: [`wire::live::frames`] reads them.
    Frames(Bytes),
    /// A partition has an owner: [`wire::live::decode_owner`] reads it.
    Owner(Bytes),
    /// Facts are remembered: [`wire::live::decode_remembered`] reads it.
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
    /// The next message; `None` when the connection has ended for good. After a reconnect the subscription stands
    /// again by itself, and what was sent meanwhile is missing. Cancel-safe.
    pub async fn next(&mut self) -> Option<LiveMessage> {
        tokio::select! {
            biased;
            owner = self.owners.next() => Some(LiveMessage::Owner(owner?.payload)),
            frames = self.frames.next() => Some(LiveMessage::Frames(frames?.payload)),
            facts = self.facts.next() => Some(LiveMessage::Remembered(facts?.payload)),
        }
    }
}
