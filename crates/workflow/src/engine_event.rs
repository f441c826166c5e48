//! The output of engines: the parts of an answer, and how it ended.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use model::{ErrorClass, ListedCall};
use runtime::traces::TraceContext;
use serde_json::{Map, Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Events that an engine may send before the writer has taken them.
const AHEAD: usize = 256;

/// A tool call, identified as in its chunks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallName {
    /// Unique within the turn.
    pub(crate) id: Arc<str>,
    pub(crate) tool: Arc<str>,
}

/// A part of an answer, in the order in which clients see it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum EngineEvent {
    /// A piece of the text.
    Text(String),
    /// A piece of the reasoning.
    Reasoning(String),
    /// A piece of a call's arguments.
    Call(CallName, String),
    /// The result of a call.
    Result {
        call: CallName,
        text: String,
        is_error: bool,
    },
    /// The report of a model call that begins or has ended.
    ModelCall(ListedCall),
    /// An empty chunk that shows that the turn is being worked on.
    Alive,
    /// The metadata of a separate chunk that tells why the answer waits.
    Notice(Map<String, Value>),
    /// A model call begins; it belongs to this trace.
    CallStarted(TraceContext),
    /// The next part starts a new chunk.
    Break,
    /// A fault that only scripts inject.
    InjectedFault(InjectedFault),
    Ended(EngineEnd),
}

/// Faults that a script injects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InjectedFault {
    /// Publishes the previous frame again.
    Repeat,
    /// Publishes the next N frames in reverse order.
    Reverse(usize),
    /// `true`: no keep-alive chunks are sent while the engine is silent, from here on.
    Mute(bool),
}

/// How an engine ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum EngineEnd {
    /// The answer is complete. Holds the metadata of its last chunk.
    Complete(Map<String, Value>),
    Failed(Failure),
    /// Acts as if the process had died: publishes nothing more and does not acknowledge the
    /// request.
    Cut,
    /// Hands the request back so that another service takes it.
    HandBack,
}

/// Why an answer failed, and how the owner must react.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {text}")]
pub(crate) struct Failure {
    /// Decides whether the queue retries.
    pub(crate) class: ErrorClass,
    /// Machine-readable; sent as `metadata.code`.
    pub(crate) code: String,
    /// Human-readable; clients see it.
    pub(crate) text: String,
    /// Minimum delay before the next try.
    pub(crate) retry_after: Option<Duration>,
}

impl Failure {
    pub(crate) fn transient(code: impl Into<String>, text: impl Into<String>) -> Self {
        Self { class: ErrorClass::Transient, code: code.into(), text: text.into(), retry_after: None }
    }

    pub(crate) fn permanent(code: impl Into<String>, text: impl Into<String>) -> Self {
        Self { class: ErrorClass::Permanent, ..Self::transient(code, text) }
    }

    /// Metadata of the error chunk.
    pub(crate) fn metadata(&self) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("class".to_owned(), json!(self.class.name()));
        map.insert("retryable".to_owned(), json!(self.class == ErrorClass::Transient));
        map.insert("code".to_owned(), json!(self.code));
        if let Some(delay) = self.retry_after {
            map.insert("retry_after".to_owned(), json!(delay.as_secs_f64()));
        }
        map
    }
}

/// The receiver of the events is gone, so the engine stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReceiverDropped;

/// Sends the parts of an answer. It waits when the writer is too far behind.
#[derive(Clone)]
pub(crate) struct EngineSender {
    events: mpsc::Sender<EngineEvent>,
    slot: Arc<TurnSlot>,
}

impl EngineSender {
    pub(crate) fn channel(slot: Arc<TurnSlot>) -> (Self, mpsc::Receiver<EngineEvent>) {
        let (events, receiver) = mpsc::channel(AHEAD);
        (Self { events, slot }, receiver)
    }

    pub(crate) async fn send(&self, part: EngineEvent) -> Result<(), ReceiverDropped> {
        self.events.send(part).await.map_err(|_| ReceiverDropped)
    }

    /// Frees the turn's slot while the turn waits for a person.
    pub(crate) fn release_slot(&self) {
        self.slot.release();
    }

    /// Takes a slot again if one is free; the turn continues in either case.
    pub(crate) fn regain_slot(&self) {
        self.slot.regain();
    }
}

/// A turn's slot among those that a service answers concurrently.
#[derive(Default)]
pub(crate) struct TurnSlot {
    slots: Option<Arc<Semaphore>>,
    held: Mutex<Option<OwnedSemaphorePermit>>,
}

impl TurnSlot {
    pub(crate) fn new(slots: Arc<Semaphore>, held: Option<OwnedSemaphorePermit>) -> Self {
        Self { slots: Some(slots), held: Mutex::new(held) }
    }

    fn release(&self) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Never waits: the service holds a free slot while it waits for the next request, which may
    /// take hours.
    fn regain(&self) {
        let Some(slots) = &self.slots else { return };
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.is_none() {
            *held = slots.clone().try_acquire_owned().ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_goes_on_without_a_place_when_none_is_free() {
        let slots = Arc::new(Semaphore::new(1));
        let slot = TurnSlot::new(slots.clone(), slots.clone().try_acquire_owned().ok());
        slot.release();
        let of_next = slots.clone().try_acquire_owned().unwrap();
        slot.regain();
        assert!(slot.held.lock().unwrap().is_none());
        drop(of_next);
        slot.regain();
        slot.regain();
        assert_eq!(slots.available_permits(), 0, "it has one place");
        slot.release();
        assert_eq!(slots.available_permits(), 1);
    }
}
