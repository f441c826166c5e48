//! What engines produce: the parts of an answer, and how it ended.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use model::{ErrorClass, ListedCall};
use runtime::traces::TraceContext;
use serde_json::{Map, Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// How far an engine may be ahead of what is stored.
const AHEAD: usize = 256;

/// A tool call, as the chunks that belong to it name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallName {
    /// Unique in the turn.
    pub(crate) id: Arc<str>,
    /// The tool.
    pub(crate) tool: Arc<str>,
}

/// A part of an answer, in the order in which clients are to see it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum EngineEvent {
    /// A piece of the text.
    Text(String),
    /// A piece of the reasoning.
    Reasoning(String),
    /// A piece of a call's arguments.
    Call(CallName, String),
    /// The result of a call.
    Result { call: CallName, text: String, is_error: bool },
    /// What is known of a call of a model that begins or has ended.
    ModelCall(ListedCall),
    /// A sign of life before anything is said.
    Alive,
    /// Why the answer waits: the metadata of a chunk of its own.
    Notice(Map<String, Value>),
    /// A call of a model begins, which belongs to this trace.
    CallStarted(TraceContext),
    /// What follows is not joined with what came before.
    Break,
    /// Something that only scripts do.
    InjectedFault(InjectedFault),
    /// The end.
    Ended(EngineEnd),
}

/// Faults that a script plays on the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InjectedFault {
    /// The frame before is published once more.
    Repeat,
    /// So many frames are published in reverse order.
    Reverse(usize),
    /// From here on, a silent engine is not covered up for, or is again.
    Mute(bool),
}

/// How an engine ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum EngineEnd {
    /// The answer is whole; the metadata of its last chunk.
    Complete(Map<String, Value>),
    /// It failed.
    Failed(Failure),
    /// As if the process had died: nothing more is published, and the request is not acknowledged.
    Cut,
    /// The request is handed back, for another service to try.
    HandBack,
}

/// Why an answer failed, and what that means.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {text}")]
pub(crate) struct Failure {
    /// What it means for the queue.
    pub(crate) class: ErrorClass,
    /// For programs.
    pub(crate) code: String,
    /// For people; clients see it.
    pub(crate) text: String,
    /// Not sooner than this.
    pub(crate) retry_after: Option<Duration>,
}

impl Failure {
    pub(crate) fn transient(code: impl Into<String>, text: impl Into<String>) -> Self {
        Self { class: ErrorClass::Transient, code: code.into(), text: text.into(), retry_after: None }
    }

    pub(crate) fn permanent(code: impl Into<String>, text: impl Into<String>) -> Self {
        Self { class: ErrorClass::Permanent, ..Self::transient(code, text) }
    }

    /// The metadata of the error chunk.
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

/// The receiver is gone: the engine stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReceiverDropped;

/// Where an engine says its parts; it waits when what it said is not yet stored.
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

    /// Leaves the turn's place to another one while it waits for a person.
    pub(crate) fn release_slot(&self) {
        self.slot.release();
    }

    /// Takes a place again if one is free; the turn goes on in either case.
    pub(crate) fn regain_slot(&self) {
        self.slot.regain();
    }
}

/// A turn's place among those that a service answers at a time.
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

    /// Never waits: the service holds a free place while it waits for the next request, which may come after hours.
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
