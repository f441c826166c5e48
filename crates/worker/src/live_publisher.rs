//! Sends live frames: all that a turn of a partition's loop has for a gateway goes in one message, with what other partitions have ready by then.
//!
//! What costs with many streams is not bytes but waking the processes on the way for each frame. Under load a turn has many entries, so messages
//! become larger by themselves; nothing waits for a timer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bus::{Bus, BusError};
use model::{GatewayId, LiveFrame, MessageKey, PartitionId};
use wire::live::FrameBatch;

/// Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct LivePublisher {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    bus: Bus,
    gathered: Mutex<HashMap<GatewayId, (FrameBatch, u64)>>,
    /// Held while messages are handed to the connection: they keep their order.
    sending: tokio::sync::Mutex<()>,
}

impl LivePublisher {
    pub(crate) fn new(bus: Bus) -> Self {
        let (gathered, sending) = (Mutex::default(), tokio::sync::Mutex::default());
        Self { shared: Arc::new(Shared { bus, gathered, sending }) }
    }

    /// Puts a frame into the next message to each of these gateways. [`LivePublisher::send`] must follow.
    pub(crate) async fn push(&self, gateways: &[GatewayId], frame: &LiveFrame) {
        if !gateways.is_empty() {
            self.push_encoded(gateways, &wire::live::encode(frame)).await;
        }
    }

    /// The same with a frame or a notice that is encoded.
    pub(crate) async fn push_encoded(&self, gateways: &[GatewayId], encoded: &[u8]) {
        // A message of this size is sent at once.
        let full_bytes = self.shared.bus.page_bytes();
        let is_full = {
            let mut gathered = self.gathered();
            let mut is_full = false;
            for gateway in gateways {
                let (batch, frames) = gathered.entry(gateway.clone()).or_default();
                batch.push(encoded);
                *frames += 1;
                is_full |= batch.size() >= full_bytes;
            }
            is_full
        };
        if is_full {
            self.flush().await;
        }
    }

    /// Sends what was gathered; what another partition is sending already is left to it.
    pub(crate) async fn send(&self) {
        let is_empty = self.gathered().is_empty();
        if !is_empty {
            self.flush().await;
        }
    }

    /// Returns when all that was gathered has been handed to the connection: what is published after it comes behind it.
    pub(crate) async fn flush(&self) {
        let _in_order = self.shared.sending.lock().await;
        let batches = std::mem::take(&mut *self.gathered());
        for (gateway, (batch, frames)) in batches {
            metrics::counter!(crate::metrics::LIVE_MESSAGES).increment(1);
            if let Err(error) = self.shared.bus.publish_live_frames(&gateway, batch.into_payload()).await {
                metrics::counter!(crate::metrics::LIVE_FRAMES_DROPPED).increment(frames);
                match error {
                    BusError::TooLarge(_) => tracing::warn!(%gateway, frames, %error, "frames were not sent"),
                    _ => tracing::debug!(%gateway, frames, %error, "frames were not sent"),
                }
            }
        }
    }

    /// Says to all gateways that this worker owns a partition.
    pub(crate) async fn announce_owner(&self, partition: PartitionId, epoch: u64) -> Result<(), BusError> {
        self.shared.bus.announce_owner(partition, epoch).await
    }

    /// Says to all gateways since which answers facts are remembered. What cannot be sent now is in the history.
    pub(crate) async fn announce_remembered(&self, answers: &[MessageKey]) {
        for answer in answers {
            if let Err(error) = self.shared.bus.announce_remembered(answer).await {
                tracing::debug!(%answer, %error, "gateways do not hear of facts at once");
            }
        }
    }

    fn gathered(&self) -> std::sync::MutexGuard<'_, HashMap<GatewayId, (FrameBatch, u64)>> {
        self.shared.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
