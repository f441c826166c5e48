//! Durable timers as values between the machine and its driver.

use model::{AgentId, Metadata, ThreadId, TimerId, Timestamp, TurnId};

use crate::types::Outgoing;

/// A timer that waits, as the store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingTimer {
    /// Which.
    pub id: TimerId,
    /// How long still, ms by the database's clock; below 0 when it is overdue.
    pub wait_ms: i64,
}

/// The next timers of a partition, in the order in which they are due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimerPage {
    /// These.
    pub timers: Vec<PendingTimer>,
    /// There are no others after them.
    pub is_all: bool,
}

impl TimerPage {
    /// No timer waits.
    pub const NONE: Self = Self { timers: Vec::new(), is_all: true };
}

/// When a timer is due again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextDue {
    /// By the database's clock.
    pub at: Timestamp,
    /// From when it was decided, ms.
    pub wait_ms: i64,
}

/// What becomes of a timer that is due, before a model is called.
#[derive(Debug, Clone, PartialEq)]
pub enum TimerVerdict {
    /// This is sent, in the commit that marks the timer; one that fires again says when.
    Fire {
        /// A turn for a follow-up, a task for anything else.
        outgoing: Box<Outgoing>,
        /// Of a schedule: the next occurrence.
        next: Option<NextDue>,
    },
    /// Not now.
    Later {
        /// Then.
        next: NextDue,
        /// The rule that keeps it; `None`: it was not due by the database's clock, and nothing is written.
        by: Option<String>,
    },
    /// It never fires.
    End {
        /// What it becomes.
        state: TimerEnd,
        /// The rule that refused it, or what cancelled it.
        by: String,
    },
    /// It does not wait any more.
    Gone,
}

/// Why a timer ends of which the store refuses for good to say what decides about it.
const REJECTED: &str = "rejected_by_database";

/// A timer that was decided about.
#[derive(Debug, Clone, PartialEq)]
pub struct TimerDecision {
    /// Which.
    pub id: TimerId,
    /// Where a follow-up would take place.
    pub thread: Option<ThreadId>,
    /// What becomes of it.
    pub verdict: TimerVerdict,
}

impl TimerDecision {
    /// Of a timer that cannot be read: it ends.
    pub fn unreadable(id: TimerId) -> Self {
        Self {
            id,
            thread: None,
            verdict: TimerVerdict::End { state: TimerEnd::Refused, by: REJECTED.to_owned() },
        }
    }
}

/// How a timer ended that did not fire, or whose turn was taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimerEnd {
    /// By a message of a person, a client, or a newer timer.
    Cancelled,
    /// It had fired, and what it fired left nothing.
    Withdrawn,
    /// By a rule.
    Refused,
}

impl TimerEnd {
    /// The name in Postgres and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled",
            Self::Withdrawn => "withdrawn",
            Self::Refused => "refused",
        }
    }
}

/// A timer that is set.
#[derive(Debug, Clone, PartialEq)]
pub struct ArmedTimer {
    /// From what armed it, so that it is set once. A follow-up takes the place of the one that waits in its thread.
    pub id: TimerId,
    /// Where a follow-up takes place.
    pub thread: Option<ThreadId>,
    /// Whose it is.
    pub agent: AgentId,
    /// Due so many ms after the commit, by the database's clock.
    pub wait_ms: i64,
    /// See the table.
    pub body: Metadata,
    /// The turn whose end sets it: where the store refuses that, it is not set. `None`: no turn does.
    pub armed_by: Option<TurnId>,
}

/// What a commit writes of a timer; but for [`TimerWrite::Arm`] only while it waits, or to take back what it fired.
#[derive(Debug, Clone, PartialEq)]
pub enum TimerWrite {
    /// It is set.
    Arm(ArmedTimer),
    /// It has fired; what it fired is in the outbox of the same commit.
    Fire {
        /// Which.
        id: TimerId,
        /// The turn, of a follow-up.
        turn: Option<TurnId>,
        /// It goes on waiting, until then.
        next: Option<NextDue>,
    },
    /// It waits longer.
    Postpone {
        /// Which.
        id: TimerId,
        /// Until then.
        next: NextDue,
        /// Because of this rule.
        by: Option<String>,
    },
    /// It is over.
    End {
        /// Which.
        id: TimerId,
        /// What it becomes.
        state: TimerEnd,
        /// Who or what ended it.
        by: String,
    },
}

impl TimerWrite {
    /// Which timer.
    pub fn id(&self) -> &TimerId {
        match self {
            Self::Arm(armed) => &armed.id,
            Self::Fire { id, .. } | Self::Postpone { id, .. } | Self::End { id, .. } => id,
        }
    }

    /// The turn without whose messages it is not written.
    pub(crate) fn armed_by(&self) -> Option<&TurnId> {
        match self {
            Self::Arm(armed) => armed.armed_by.as_ref(),
            Self::Fire { .. } | Self::Postpone { .. } | Self::End { .. } => None,
        }
    }

    /// The timer was stored before, by the database's clock: the window reads it from there.
    pub(crate) fn is_stored(&self) -> bool {
        matches!(self, Self::Arm(armed) if armed.armed_by.is_none())
    }

    /// In how many ms it is due once this is written; `None`: it does not wait.
    pub(crate) fn waits_ms(&self) -> Option<i64> {
        match self {
            Self::Arm(armed) => Some(armed.wait_ms),
            Self::Fire { next, .. } => next.map(|next| next.wait_ms),
            Self::Postpone { next, .. } => Some(next.wait_ms),
            Self::End { .. } => None,
        }
    }
}
