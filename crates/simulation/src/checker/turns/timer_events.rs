//! The evidence of timers: the rules that they follow, and the events of each.

use model::{TaskId, ThreadId, TimerId, TurnId};

/// The rules for follow-ups. All users are in the Berlin time zone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FollowUpLimits {
    /// Consecutive follow-ups without a message of a person.
    pub max_in_a_row: u32,
    /// Follow-ups within one day of the user.
    pub max_per_day: u32,
    /// Minimum time between two follow-ups, ms.
    pub cooldown_ms: i64,
    /// Start and end of the quiet hours, in minutes of the day.
    pub quiet: Option<(i64, i64)>,
    /// When clocks go forward and back, ms: in between they are one hour further ahead.
    pub summer: [i64; 2],
}

/// One event of a timer.
#[derive(Debug, Clone, PartialEq)]
pub struct TimerEvent {
    pub timer: TimerId,
    /// The thread of a follow-up; `None` for other timers.
    pub thread: Option<ThreadId>,
    /// Simulation time, ms.
    pub at_ms: i64,
    /// The same time by the database's clock, ms.
    pub database_ms: i64,
    pub number: u64,
    pub step: TimerStep,
}

/// The content of a [`TimerEvent`].
#[derive(Debug, Clone, PartialEq)]
pub enum TimerStep {
    Armed {
        /// The turn whose end armed the timer; `None`: a client created it.
        by: Option<TurnId>,
        due_ms: i64,
    },
    Fired {
        /// The turn of a follow-up.
        turn: Option<TurnId>,
        /// The task of any other timer.
        task: Option<TaskId>,
        due_ms: i64,
        /// When the rules were evaluated, ms.
        decided_ms: i64,
    },
    /// The timer's due time was moved to later.
    Postponed {
        /// The rule that postpones it.
        by: Option<String>,
    },
    Ended {
        /// The final state.
        state: &'static str,
        by: String,
        /// If the rules ended the timer: the last transaction before the rules were evaluated. The
        /// rules did not know later transactions.
        decided_after: u64,
    },
}
