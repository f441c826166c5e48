//! Decides a due occurrence of a schedule.

use model::Timestamp;

use super::{MissedRule, OverlapRule, Schedule};

/// Stored facts about a schedule when it is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScheduleFacts {
    /// Current time by the database's clock.
    pub now: Timestamp,
    /// Occurrence for which its timer was set.
    pub due: Timestamp,
    /// Number of tasks of earlier occurrences that are neither done nor given up.
    pub unfinished: u32,
}

/// Why an occurrence is skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SkipReason {
    /// The previous one is not done.
    Overlap,
    /// The occurrence was due while there was no worker.
    Missed,
}

impl SkipReason {
    /// Name in JSON, Postgres and metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Overlap => "overlap",
            Self::Missed => "missed",
        }
    }
}

/// Decision on a due schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScheduleVerdict {
    /// The task of the occurrence is queued.
    Fire {
        /// Occurrence from which the task's id is derived.
        occurrence: Timestamp,
        /// Next due time; `None` if the schedule is over.
        next_due: Option<Timestamp>,
    },
    /// No task is queued.
    Skip {
        reason: SkipReason,
        /// Next due time; `None` if the schedule is over.
        next_due: Option<Timestamp>,
    },
    /// The schedule is not due before this time.
    Wait(Timestamp),
}

impl Schedule {
    /// Lateness after which an occurrence counts as missed.
    pub const GRACE_MS: i64 = 60_000;
    /// Maximum unfinished tasks of a schedule that queues them.
    pub const MOST_UNFINISHED: u32 = 100;
}

/// Decides a schedule whose timer is due. At most one occurrence takes place, however long there
/// was no worker.
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

/// The occurrence that takes place now: the oldest that is in time, or else a missed one if the
/// rule allows it.
fn occurrence(schedule: &Schedule, facts: &ScheduleFacts) -> Option<Timestamp> {
    let in_time = facts.now.plus_ms(-Schedule::GRACE_MS);
    if facts.due >= in_time || schedule.missed == MissedRule::One {
        return Some(facts.due);
    }
    schedule.next_occurrence(in_time.plus_ms(-1)).filter(|found| *found <= facts.now)
}
