//! The rows of the timers table.

use std::collections::BTreeMap;

use model::{AgentId, Metadata, ThreadId, TimerId};
use partition::DueSchedule;

use crate::checker::turns::TimerEvent;

/// A row of the timers table.
#[derive(Debug, Clone)]
pub(crate) struct TimerRow {
    pub(crate) thread: Option<ThreadId>,
    pub(crate) agent: AgentId,
    /// The value of the state column.
    pub(crate) state: &'static str,
    /// By the database's clock, ms, like all times here.
    pub(crate) due: i64,
    pub(crate) body: Metadata,
    /// Number of the transaction that wrote the row. Postgres orders transactions by the times of
    /// their rows; milliseconds are too coarse for that.
    pub(crate) created_in: u64,
    pub(crate) ended: Option<i64>,
}

impl TimerRow {
    pub(crate) fn is_pending(&self) -> bool {
        self.state == "pending"
    }
}

/// When the rules were evaluated for a timer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DecidedAt {
    pub(crate) database_ms: i64,
    /// The last transaction before that.
    pub(crate) after: u64,
}

/// The state of timers besides the rows of partitions.
#[derive(Debug, Default, Clone)]
pub(crate) struct Timers {
    /// How far the database's clock is ahead of the simulation's, ms.
    pub(crate) ahead_ms: i64,
    /// Schedules as they were created, by timer id.
    pub(crate) schedules: BTreeMap<TimerId, DueSchedule>,
    /// When it was last decided that a timer fires, or never will.
    pub(crate) decided: BTreeMap<TimerId, DecidedAt>,
    pub(crate) events: Vec<TimerEvent>,
}
