//! The rows of the timers' table.

use std::collections::BTreeMap;

use model::{AgentId, Metadata, ThreadId, TimerId};
use partition::DueSchedule;

use crate::checker::turns::TimerEvent;

/// A row of the timers.
#[derive(Debug, Clone)]
pub(crate) struct TimerRow {
    pub(crate) thread: Option<ThreadId>,
    pub(crate) agent: AgentId,
    /// As the column has it.
    pub(crate) state: &'static str,
    /// By the database's clock, ms, like all times here.
    pub(crate) due: i64,
    pub(crate) body: Metadata,
    /// The transaction that has written it. The times of rows give the order of transactions in Postgres; milliseconds do not.
    pub(crate) created_in: u64,
    pub(crate) ended: Option<i64>,
}

impl TimerRow {
    pub(crate) fn is_pending(&self) -> bool {
        self.state == "pending"
    }
}

/// When the rules were asked about a timer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DecidedAt {
    pub(crate) database_ms: i64,
    /// The last transaction before that.
    pub(crate) after: u64,
}

/// What is known of timers besides the rows of partitions.
#[derive(Debug, Default, Clone)]
pub(crate) struct Timers {
    /// By how much the database's clock is ahead of the simulation's, ms.
    pub(crate) ahead_ms: i64,
    /// Schedules as they were put, by the ids of their timers.
    pub(crate) schedules: BTreeMap<TimerId, DueSchedule>,
    /// When it was last decided that a timer fires, or never will.
    pub(crate) decided: BTreeMap<TimerId, DecidedAt>,
    pub(crate) events: Vec<TimerEvent>,
}
