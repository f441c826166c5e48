//! Receives what owners send to this gateway.

use bus::{Bus, LiveMessage, LiveSubscription};
use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use model::{GatewayId, MessageKey, PartitionId, ThreadId};
use runtime::{Backoff, retry};

use crate::backend::Backend;
use crate::metrics;

/// A received event.
#[derive(Debug)]
pub(crate) enum LiveEvent {
    /// The subscription is active; what was sent before may be missing.
    Begun,
    /// Frames with their threads, in the order of each thread.
    Frames(Vec<(ThreadId, Bytes)>),
    /// A partition has an owner of this epoch.
    Owner(PartitionId, u64),
    /// Facts have been remembered since this answer.
    Remembered(MessageKey),
}

/// Listens while the gateway runs, and subscribes again when the subscription ends.
pub(crate) struct LiveListener {
    bus: Bus,
    id: GatewayId,
    state: ListenerState,
}

enum ListenerState {
    Subscribing(BoxFuture<'static, LiveSubscription>),
    Subscribed(LiveSubscription),
}

impl LiveListener {
    pub(crate) fn new(backend: &Backend) -> Self {
        let (bus, id) = (backend.bus.clone(), backend.id.clone());
        let state = subscribe(bus.clone(), id.clone());
        Self { bus, id, state }
    }

    /// The next event. Cancel-safe.
    pub(crate) async fn next(&mut self) -> LiveEvent {
        loop {
            match &mut self.state {
                ListenerState::Subscribing(subscription) => {
                    self.state = ListenerState::Subscribed(subscription.await);
                    return LiveEvent::Begun;
                }
                ListenerState::Subscribed(subscription) => match subscription.next().await.map(read) {
                    Some(Some(event)) => return event,
                    Some(None) => {}
                    None => self.state = subscribe(self.bus.clone(), self.id.clone()),
                },
            }
        }
    }
}

fn subscribe(bus: Bus, id: GatewayId) -> ListenerState {
    let subscription = async move {
        retry(Backoff::default(), "subscribing to live frames", || bus.subscribe_live_frames(&id)).await
    };
    ListenerState::Subscribing(subscription.boxed())
}

fn read(message: LiveMessage) -> Option<LiveEvent> {
    let event = match &message {
        LiveMessage::Frames(payload) => wire::live::frames(payload).map(LiveEvent::Frames),
        LiveMessage::Owner(payload) => {
            wire::live::decode_owner(payload).map(|(p, epoch)| LiveEvent::Owner(p, epoch))
        }
        LiveMessage::Remembered(payload) => wire::live::decode_remembered(payload).map(LiveEvent::Remembered),
    };
    event
        .inspect_err(|error| {
            metrics::frame_decode_error();
            tracing::warn!(%error, "what an owner has sent cannot be read");
        })
        .ok()
}
