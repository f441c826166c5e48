//! What becomes of an occurrence that is due.

use model::Timestamp;

use super::{MissedRule, OverlapRule, Schedule};

/// What is stored about a schedule when it is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScheduleFacts {
    /// By the database's clock.
    pub now: Timestamp,
    /// The occurrence that its timer was set for.
    pub due: Timestamp,
    /// Tasks of earlier occurrences that are neither done nor given up.
    pub unfinished: u32,
}

/// Why an occurrence does not take place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SkipReason {
    /// The one before is not done.
    Overlap,
    /// It fell due while there was no worker.
    Missed,
}

impl SkipReason {
    /// The name in JSON, Postgres and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Overlap => "overlap",
            Self::Missed => "missed",
        }
    }
}

/// What a schedule does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScheduleVerdict {
    /// Its task is queued.
    Fire {
        /// As this occurrence, which its id is made from.
        occurrence: Timestamp,
        /// When it is due again; `None` when it is over.
        next_due: Option<Timestamp>,
    },
    /// It does nothing.
    Skip {
        /// Why.
        reason: SkipReason,
        /// When it is due again; `None` when it is over.
        next_due: Option<Timestamp>,
    },
    /// It is not due; it is then.
    Wait(Timestamp),
}

impl Schedule {
    /// An occurrence that begins so much later than it should has been missed.
    pub const GRACE_MS: i64 = 60_000;
    /// Most unfinished tasks of a schedule that queues them.
    pub const MOST_UNFINISHED: u32 = 100;
}

/// Decides about a schedule whose timer is due. However long there was no worker, at most one occurrence takes place.
pub fn decide_schedule(schedule: &Schedule, facts: &ScheduleFacts) -> ScheduleVerdict {
    if facts.due > facts.now {
        return ScheduleVerdict::Wait(facts.due);
    }
    let next_due = schedule.next_occurrence(facts.now);
    let most = match schedule.overlap {
        OverlapRule::Skip => 1,
        OverlapRule::Queue => Schedule::MOST_UNFINISHED,
    };
    match occurrence(schedule, facts) {
        None => ScheduleVerdict::Skip { reason: SkipReason::Missed, next_due },
        Some(_) if facts.unfinished >= most => {
            ScheduleVerdict::Skip { reason: SkipReason::Overlap, next_due }
        }
        Some(occurrence) => ScheduleVerdict::Fire { occurrence, next_due },
    }
}

/// The occurrence that takes place now: the oldest that is in time; else one that was missed, where that is wanted.
fn occurrence(schedule: &Schedule, facts: &ScheduleFacts) -> Option<Timestamp> {
    let in_time = facts.now.plus_ms(-Schedule::GRACE_MS);
    if facts.due >= in_time || schedule.missed == MissedRule::One {
        return Some(facts.due);
    }
    schedule.next_occurrence(in_time.plus_ms(-1)).filter(|found| *found <= facts.now)
}
