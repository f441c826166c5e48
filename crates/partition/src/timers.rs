//! Values for durable timers that pass between the machine and its driver.

use model::{AgentId, Metadata, ThreadId, TimerId, Timestamp, TurnId};

use crate::types::NewWork;

/// A pending timer as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PendingTimer {
    pub id: TimerId,
    /// Time until the timer is due, ms by the database's clock; negative when it is overdue.
    pub wait_ms: i64,
}

/// The next timers of a partition, in the order in which they are due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimerPage {
    pub timers: Vec<PendingTimer>,
    /// True if no timers follow these.
    pub is_all: bool,
}

impl TimerPage {
    /// An empty page: no timer is pending.
    pub const NONE: Self = Self { timers: Vec::new(), is_all: true };
}

/// Next due time of a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextDue {
    /// Due time by the database's clock.
    pub at: Timestamp,
    /// Time until then from the decision, ms.
    pub wait_ms: i64,
}

/// Decision on a due timer, before a model is called.
#[derive(Debug, Clone, PartialEq)]
pub enum TimerVerdict {
    /// The timer fires: `work` is added to the commit that marks the timer.
    Fire {
        /// A turn for a follow-up, otherwise a task.
        work: NewWork,
        /// Next occurrence of a schedule.
        next: Option<NextDue>,
    },
    /// The timer is delayed.
    Later {
        next: NextDue,
        /// Rule that delays the timer; `None`: the timer was not due by the database's clock, and
        /// nothing is written.
        by: Option<String>,
    },
    /// The timer never fires.
    End {
        /// State in which it ends.
        state: TimerEnd,
        /// Rule that refused it, or what cancelled it.
        by: String,
    },
    /// The timer is no longer pending.
    Gone,
}

/// Cause of the end of a timer whose data the store permanently refuses to read.
const REJECTED: &str = "rejected_by_database";

/// Decision on one timer.
#[derive(Debug, Clone, PartialEq)]
pub struct TimerDecision {
    pub id: TimerId,
    /// Thread of the follow-up, if it is one.
    pub thread: Option<ThreadId>,
    pub verdict: TimerVerdict,
}

impl TimerDecision {
    /// Decision for a timer that cannot be read: it ends.
    pub fn unreadable(id: TimerId) -> Self {
        Self {
            id,
            thread: None,
            verdict: TimerVerdict::End { state: TimerEnd::Refused, by: REJECTED.to_owned() },
        }
    }
}

/// End of a timer that did not fire, or whose turn was withdrawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimerEnd {
    /// Cancelled by a person's message, a client, or a newer timer.
    Cancelled,
    /// The timer had fired, but its turn was withdrawn without a visible effect.
    Withdrawn,
    /// Refused by a rule.
    Refused,
}

impl TimerEnd {
    /// Name in Postgres and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cancelled => "cancelled",
            Self::Withdrawn => "withdrawn",
            Self::Refused => "refused",
        }
    }
}

/// A timer to set.
#[derive(Debug, Clone, PartialEq)]
pub struct ArmedTimer {
    /// Derived from the turn or request that armed it, so that it is set once. A follow-up replaces
    /// the pending one in its thread.
    pub id: TimerId,
    /// Thread of the follow-up, if it is one.
    pub thread: Option<ThreadId>,
    /// Agent that the timer belongs to.
    pub agent: AgentId,
    /// Due this many ms after the commit, by the database's clock.
    pub wait_ms: i64,
    /// Content of the column `timers.body`.
    pub body: Metadata,
    /// Turn whose end arms the timer; if the store refuses that turn, the timer is not set. `None`:
    /// no turn arms it.
    pub armed_by: Option<TurnId>,
}

/// Change of a timer in a commit. Except for [`TimerWrite::Arm`], it applies only while the timer
/// is pending, or withdraws the turn or task that it fired.
#[derive(Debug, Clone, PartialEq)]
pub enum TimerWrite {
    /// Sets the timer.
    Arm(ArmedTimer),
    /// The timer has fired; the same commit has the turn or task that it fired.
    Fire {
        id: TimerId,
        /// Turn of a follow-up.
        turn: Option<TurnId>,
        /// `Some`: it stays pending until then.
        next: Option<NextDue>,
    },
    /// Delays the timer.
    Postpone {
        id: TimerId,
        /// New due time.
        next: NextDue,
        /// Rule that delays it.
        by: Option<String>,
    },
    /// Ends the timer without firing, or withdraws the turn or task that it fired.
    End {
        id: TimerId,
        /// State in which it ends.
        state: TimerEnd,
        /// Person, client or rule that ended it.
        by: String,
    },
}

impl TimerWrite {
    pub fn id(&self) -> &TimerId {
        match self {
            Self::Arm(armed) => &armed.id,
            Self::Fire { id, .. } | Self::Postpone { id, .. } | Self::End { id, .. } => id,
        }
    }

    /// The turn on which this write depends: without the turn's messages it is not written.
    pub(crate) fn armed_by(&self) -> Option<&TurnId> {
        match self {
            Self::Arm(armed) => armed.armed_by.as_ref(),
            Self::Fire { .. } | Self::Postpone { .. } | Self::End { .. } => None,
        }
    }

    /// True if the timer was already stored, with its due time by the database's clock: the window
    /// reads it from the store.
    pub(crate) fn is_stored(&self) -> bool {
        matches!(self, Self::Arm(armed) if armed.armed_by.is_none())
    }

    /// Time in ms until the timer is due once this change is written; `None`: the timer is not
    /// pending.
    pub(crate) fn waits_ms(&self) -> Option<i64> {
        match self {
            Self::Arm(armed) => Some(armed.wait_ms),
            Self::Fire { next, .. } => next.map(|next| next.wait_ms),
            Self::Postpone { next, .. } => Some(next.wait_ms),
            Self::End { .. } => None,
        }
    }
}
