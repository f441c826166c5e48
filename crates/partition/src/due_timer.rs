//! A timer that is due, with everything that decides about it, as the store has it.

use model::{AgentId, Metadata, Position, ThreadId, TimerId, TimerKind, Timestamp};
use serde_json::{Map, Value};

/// How a timer stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimerState {
    /// It is to fire.
    Pending,
    /// It has fired.
    Fired,
    /// It never will, or what it fired was taken back.
    Ended,
}

/// A schedule as it was put, when its timer is due.
#[derive(Debug, Clone, PartialEq)]
pub struct DueSchedule {
    /// Five fields; or `at`.
    pub cron: Option<String>,
    /// One time, with its offset.
    pub at: Option<String>,
    /// IANA.
    pub time_zone: String,
    /// `skip` or `queue`.
    pub overlap: String,
    /// `skip` or `one`.
    pub missed: String,
    /// The text of its tasks.
    pub content: String,
    /// Their metadata.
    pub metadata: Metadata,
    /// Tasks of earlier occurrences that are neither done nor given up.
    pub unfinished: u32,
}

/// A timer that is due, or whose turn is about to start, with everything that decides about it.
#[derive(Debug, Clone, PartialEq)]
pub struct DueTimer {
    /// Which.
    pub id: TimerId,
    /// What it fires.
    pub kind: TimerKind,
    /// Where a follow-up takes place.
    pub thread: Option<ThreadId>,
    /// Whose it is.
    pub agent: AgentId,
    /// How it stands.
    pub state: TimerState,
    /// See the table.
    pub body: Metadata,
    /// By the database's clock.
    pub now: Timestamp,
    /// When it is due, by the same.
    pub due: Timestamp,
    /// It is.
    pub is_due: bool,
    /// The agent's settings; empty when it has none.
    pub settings: Map<String, Value>,
    /// The agent is paused.
    pub paused: bool,
    /// When its backoff ends, or has ended.
    pub backoff_until: Option<Timestamp>,
    /// The newest input of a person in the thread's history: its place, when it was written, its metadata.
    pub real_input: Option<(Position, Timestamp, Metadata)>,
    /// An input of a person has failed since the timer was set.
    pub has_failed_input: bool,
    /// The thread was erased.
    pub is_erased: bool,
    /// Follow-ups of the thread that were fired after that input.
    pub fired_since_real_input: u32,
    /// When follow-ups of the thread were fired, the newest first; at most 256.
    pub fired_at: Vec<Timestamp>,
    /// Of the timer of a schedule; `None` when there is no such schedule any more, or it is disabled.
    pub schedule: Option<DueSchedule>,
}

impl DueTimer {
    /// Where the thread stood when a follow-up was armed.
    pub fn armed_position(&self) -> Position {
        let text = self.body.get("armed_position").and_then(Value::as_str);
        Position::from_stored(text.and_then(|text| text.parse().ok()).unwrap_or(0))
    }

    /// A person has written since it was armed.
    pub fn is_answered(&self) -> bool {
        self.has_failed_input
            || self.real_input.as_ref().is_some_and(|(position, ..)| *position > self.armed_position())
    }

    /// What a follow-up has fired may not begin: it was cancelled, or a person has written.
    pub fn is_superseded(&self) -> bool {
        self.state == TimerState::Ended || self.is_erased || self.is_answered()
    }
}
