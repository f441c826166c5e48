//! Threads of turns with one tool call each.

use std::time::SystemTime;

use anyhow::{Context as _, Result};
use model::{AgentId, Position, Positions, ThreadId, Timestamp};

/// Messages of a turn: input, call, result and answer.
pub(super) const MESSAGES: u32 = 4;
/// Time between two turns.
const APART_MS: i64 = 60_000;
/// Number of positions per millisecond, over all buckets.
const POSITIONS_PER_MS: i64 = 1 << 22;

/// A complete thread whose positions are known without a query.
#[derive(Debug)]
pub(super) struct BenchThread {
    pub(super) id: ThreadId,
    pub(super) batches: u32,
    /// When its first batch was written. Its last one was written a minute ago.
    pub(super) first_at: Timestamp,
}

impl BenchThread {
    pub(super) fn new(name: &str, batches: u32) -> Result<Self> {
        let first_at = now()?.plus_ms(-i64::from(batches) * APART_MS);
        Ok(Self { id: ThreadId::parse(name)?, batches, first_at })
    }

    pub(super) fn bucket(&self) -> i16 {
        self.id.bucket().get() as i16
    }

    pub(super) fn messages(&self) -> u64 {
        u64::from(self.batches) * u64::from(MESSAGES)
    }

    /// The id of the batch with this number, from 0. For a number after the last batch, the id is
    /// above all positions in the thread.
    pub(super) fn batch(&self, number: u32) -> Position {
        let first = Positions::above(Timestamp(0)).next(self.id.bucket(), self.first_at);
        Position::from_stored(first.get() + i64::from(number) * self.stride())
    }

    /// Distance of positions from one batch to the next.
    pub(super) fn stride(&self) -> i64 {
        APART_MS * POSITIONS_PER_MS
    }

    /// Time from one batch to the next.
    pub(super) fn apart_ms(&self) -> i64 {
        APART_MS
    }
}

/// An agent whose contexts have this budget.
pub(super) fn agent(budget: u64) -> Result<AgentId> {
    Ok(AgentId::parse(&format!("agent-{budget}"))?)
}

/// The time of this machine's clock.
pub(super) fn now() -> Result<Timestamp> {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).context("before 1970")?;
    Ok(Timestamp(i64::try_from(since.as_millis())?))
}
