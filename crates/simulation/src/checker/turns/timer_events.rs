//! What is known of timers: the rules that they follow, and what happened to each.

use model::{TaskId, ThreadId, TimerId, TurnId};

/// What the rules say of follow-ups; all users are in the zone of Berlin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowUpLimits {
    /// In a row without a message of a person.
    pub max_in_a_row: u32,
    /// Within a day of the user.
    pub max_per_day: u32,
    /// Between two, ms.
    pub cooldown_ms: i64,
    /// Minutes of the day from which on, and until which, none is sent.
    pub quiet: Option<(i64, i64)>,
    /// When clocks go forward and back, ms: in between they are ahead by one hour more.
    pub summer: [i64; 2],
}

/// One thing that happened to a timer.
#[derive(Debug, Clone, PartialEq)]
pub struct TimerEvent {
    /// Which.
    pub timer: TimerId,
    /// Of a follow-up: where it takes place.
    pub thread: Option<ThreadId>,
    /// When, ms, and by the database's clock.
    pub at_ms: i64,
    /// See `at_ms`.
    pub database_ms: i64,
    /// Number of the transaction.
    pub number: u64,
    /// What.
    pub step: TimerStep,
}

/// See [`TimerEvent`].
#[derive(Debug, Clone, PartialEq)]
pub enum TimerStep {
    /// It was set.
    Armed {
        /// The turn whose end has set it; `None`: a client has put it.
        by: Option<TurnId>,
        /// When it is due.
        due_ms: i64,
    },
    /// It fired.
    Fired {
        /// The turn of a follow-up.
        turn: Option<TurnId>,
        /// The task of anything else.
        task: Option<TaskId>,
        /// When it was due.
        due_ms: i64,
        /// When the rules were asked.
        decided_ms: i64,
    },
    /// It waits longer.
    Postponed {
        /// The rule that keeps it.
        by: Option<String>,
    },
    /// It is over.
    Ended {
        /// What it became.
        state: &'static str,
        /// Why.
        by: String,
        /// Of one that was decided: the last transaction before the rules were asked. Those since were not known to them.
        decided_after: u64,
    },
}
