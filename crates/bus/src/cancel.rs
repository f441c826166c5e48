//! Notifies a workflow that a run of a turn is no longer awaited. Uses core NATS, so notices are
//! not stored. A workflow that misses the notice continues its work, but its output is dropped.

use std::time::Duration;

use async_nats::Subscriber;
use bytes::Bytes;
use futures_util::StreamExt;
use model::TurnId;
use wire::subject;

use crate::connection::Bus;
use crate::error::BusError;

const PUBLISH_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum time to send a subscription.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

impl Bus {
    /// Notifies the workflow that works on this run to stop. The notice is not confirmed.
    ///
    /// # Errors
    /// The notice was not sent.
    pub async fn publish_cancel(&self, turn: &TurnId, run: u32) -> Result<(), BusError> {
        let link = &self.shared.publishing;
        if !link.is_connected() {
            return Err(BusError::Away);
        }
        let publish = link.client.publish(subject::stop(turn, run), Bytes::from_static(subject::STOP));
        match tokio::time::timeout(PUBLISH_TIMEOUT, publish).await {
            Ok(sent) => Ok(sent?),
            Err(_) => Err(BusError::Timeout("publish")),
        }
    }

    /// Subscribes to stop notices for this run. Earlier notices are not received.
    ///
    /// # Errors
    /// There is no connection.
    pub async fn subscribe_cancel(&self, turn: &TurnId, run: u32) -> Result<CancelSubscription, BusError> {
        let link = self.listening().await?;
        if !link.is_connected() {
            return Err(BusError::Away);
        }
        let subscriber = link.client.subscribe(subject::stop(turn, run)).await?;
        // The first chunk is sent over another connection, and the answer to it may be a stop. So
        // the subscription must be sent before the chunk. If there is no connection, it is sent
        // with the next one.
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, link.client.flush()).await;
        Ok(CancelSubscription { subscriber })
    }
}

/// Receives the stop notice of a run. Dropping it ends the subscription.
#[derive(Debug)]
pub struct CancelSubscription {
    subscriber: Subscriber,
}

impl CancelSubscription {
    /// Waits for the stop notice of the run. Cancel-safe.
    pub async fn stopped(&mut self) {
        while let Some(notice) = self.subscriber.next().await {
            if notice.payload == subject::STOP {
                return;
            }
        }
        // The connection has ended for good, so no notice will arrive.
        std::future::pending().await
    }
}
