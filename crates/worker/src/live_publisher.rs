//! Sends live frames: all that the partitions of this worker have for a gateway within a millisecond go in one message.
//!
//! What costs with many streams is not bytes but waking the processes on the way for each frame. So after a message was sent, what
//! comes within [`GATHER`] waits for the end of it and goes together; when nothing was sent lately, nothing waits.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bus::{Bus, BusError};
use model::{GatewayId, LiveFrame, PartitionId};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use wire::live::FrameBatch;

/// How long frames wait for others at most.
const GATHER: Duration = Duration::from_millis(1);
/// A message of this size is sent at once: a NATS message has at most 1 MB, and one frame may have a quarter of it.
const FULL_BYTES: usize = 256 << 10;

/// Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct LivePublisher {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    bus: Bus,
    gathered: Mutex<Gathered>,
    /// Held while messages are handed to the connection: they keep their order.
    sending: tokio::sync::Mutex<()>,
    /// Notified when frames wait for the end of [`GATHER`].
    waiting: Notify,
}

#[derive(Debug)]
struct Gathered {
    batches: HashMap<GatewayId, (FrameBatch, u64)>,
    sent_at: Option<Instant>,
}

impl LivePublisher {
    pub(crate) fn new(bus: Bus) -> Self {
        let gathered = Mutex::new(Gathered { batches: HashMap::new(), sent_at: None });
        let (sending, waiting) = (tokio::sync::Mutex::default(), Notify::new());
        Self { shared: Arc::new(Shared { bus, gathered, sending, waiting }) }
    }

    /// Puts a frame into the next message to each of these gateways. [`LivePublisher::send_soon`] must follow.
    pub(crate) async fn push(&self, gateways: &[GatewayId], frame: &LiveFrame) {
        if gateways.is_empty() {
            return;
        }
        let encoded = wire::live::encode(frame);
        let is_full = {
            let mut gathered = self.gathered();
            let mut is_full = false;
            for gateway in gateways {
                let (batch, frames) = gathered.batches.entry(gateway.clone()).or_default();
                batch.push(&encoded);
                *frames += 1;
                is_full |= batch.size() >= FULL_BYTES;
            }
            is_full
        };
        if is_full {
            self.send_now().await;
        }
    }

    /// Sends what was gathered: at once, unless something was sent within [`GATHER`]; then at its end.
    pub(crate) async fn send_soon(&self) {
        let is_due = {
            let gathered = self.gathered();
            if gathered.batches.is_empty() {
                return;
            }
            gathered.sent_at.is_none_or(|at| at.elapsed() >= GATHER)
        };
        match is_due {
            true => self.send_now().await,
            false => self.shared.waiting.notify_one(),
        }
    }

    /// Sends what was gathered: what is published after it comes behind it.
    pub(crate) async fn send_now(&self) {
        let _in_order = self.shared.sending.lock().await;
        let batches = {
            let mut gathered = self.gathered();
            if gathered.batches.is_empty() {
                return;
            }
            gathered.sent_at = Some(Instant::now());
            std::mem::take(&mut gathered.batches)
        };
        for (gateway, (batch, frames)) in batches {
            metrics::counter!(crate::metrics::LIVE_MESSAGES).increment(1);
            if let Err(error) = self.shared.bus.publish_live_frames(&gateway, batch.into_payload()).await {
                metrics::counter!(crate::metrics::LIVE_FRAMES_DROPPED).increment(frames);
                tracing::debug!(%gateway, frames, %error, "frames were not sent");
            }
        }
    }

    /// Says to all gateways that this worker owns a partition.
    pub(crate) async fn announce_owner(&self, partition: PartitionId, epoch: u64) -> Result<(), BusError> {
        self.shared.bus.announce_owner(partition, epoch).await
    }

    /// Sends what waits for others when it has waited long enough. Runs for as long as the worker.
    pub(crate) async fn run(self) {
        loop {
            self.shared.waiting.notified().await;
            let sent_at = self.gathered().sent_at;
            if let Some(at) = sent_at {
                sleep_until(at + GATHER).await;
            }
            self.send_now().await;
        }
    }

    fn gathered(&self) -> std::sync::MutexGuard<'_, Gathered> {
        self.shared.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
