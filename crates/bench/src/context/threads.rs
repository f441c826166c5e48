//! Threads as turns with one call of a tool leave them.

use std::time::SystemTime;

use anyhow::{Context as _, Result};
use model::{AgentId, Position, Positions, ThreadId, Timestamp};

/// Input, call, result and answer.
pub(super) const MESSAGES: u32 = 4;
/// Between two turns.
const APART_MS: i64 = 60_000;
/// Positions in a millisecond, of all buckets.
const POSITIONS_PER_MS: i64 = 1 << 22;

/// A thread that is complete, and whose positions are known without asking.
#[derive(Debug)]
pub(super) struct BenchThread {
    pub(super) id: ThreadId,
    pub(super) batches: u32,
    /// When its first batch was written; its last one was a minute ago.
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

    /// How many messages it has.
    pub(super) fn messages(&self) -> u64 {
        u64::from(self.batches) * u64::from(MESSAGES)
    }

    /// The id of a batch, from 0; of one after the last: above everything in the thread.
    pub(super) fn batch(&self, number: u32) -> Position {
        let first = Positions::above(Timestamp(0)).next(self.id.bucket(), self.first_at);
        Position::from_stored(first.get() + i64::from(number) * self.stride())
    }

    /// From one batch to the next.
    pub(super) fn stride(&self) -> i64 {
        APART_MS * POSITIONS_PER_MS
    }

    /// From one batch to the next, in time.
    pub(super) fn apart_ms(&self) -> i64 {
        APART_MS
    }
}

/// An agent whose contexts have this budget.
pub(super) fn agent(budget: u64) -> Result<AgentId> {
    Ok(AgentId::parse(&format!("agent-{budget}"))?)
}

/// Of this machine's clock.
pub(super) fn now() -> Result<Timestamp> {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).context("before 1970")?;
    Ok(Timestamp(i64::try_from(since.as_millis())?))
}
