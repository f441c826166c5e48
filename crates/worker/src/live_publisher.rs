//! Sends live frames. The frames that one iteration of a partition's loop has for a gateway go into
//! one message, together with those that other partitions have ready.
//!
//! With many streams, bytes are not the main cost: every message wakes the processes on its way.
//! Under load an iteration has many entries, so messages grow by themselves; nothing waits for a
//! timer.

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
    /// Held while messages are passed to the connection, to keep their order.
    sending: tokio::sync::Mutex<()>,
}

impl LivePublisher {
    pub(crate) fn new(bus: Bus) -> Self {
        let (gathered, sending) = (Mutex::default(), tokio::sync::Mutex::default());
        Self { shared: Arc::new(Shared { bus, gathered, sending }) }
    }

    /// Adds a frame to the next message for each of these gateways. [`LivePublisher::send`] must
    /// follow.
    pub(crate) async fn push(&self, gateways: &[GatewayId], frame: &LiveFrame) {
        if !gateways.is_empty() {
            self.push_encoded(gateways, &wire::live::encode(frame)).await;
        }
    }

    /// Like [`LivePublisher::push`], for an encoded frame or notice.
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

    /// Sends the collected frames; frames that another partition is already sending are left to it.
    pub(crate) async fn send(&self) {
        let is_empty = self.gathered().is_empty();
        if !is_empty {
            self.flush().await;
        }
    }

    /// Passes all collected frames to the connection before it returns, so that anything published
    /// afterwards follows them.
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

    /// Announces to all gateways that this worker owns a partition.
    pub(crate) async fn announce_owner(&self, partition: PartitionId, epoch: u64) -> Result<(), BusError> {
        self.shared.bus.announce_owner(partition, epoch).await
    }

    /// Announces to all gateways the answers for which facts are now remembered. If an announcement
    /// is lost, the history still shows the facts.
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
