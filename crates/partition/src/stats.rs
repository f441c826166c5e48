//! Counters and gauges of a partition, for metrics.

use model::Timestamp;

use crate::turn_state::TrackedTurn;
use crate::wait_counts::WaitCounts;

/// Counts since they were last taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Stream entries read.
    pub entries: u64,
    pub chunks: u64,
    /// Chunks that arrived before one with a lower id.
    pub out_of_order: u64,
    /// Chunks with the id and content of an earlier one.
    pub duplicates: u64,
    /// Chunks with the id of an earlier one and other content.
    pub conflicts: u64,
    /// Chunks of a message that has ended.
    pub late: u64,
    /// Chunks of a lower attempt.
    pub fenced: u64,
    /// Stops that were repeated because a workflow continued a run that is over.
    pub late_stops: u64,
    /// Model calls by attempts that began after the end of their run.
    pub late_calls: u64,
    /// Messages reset by a higher attempt.
    pub resets: u64,
    /// Entries refused as a whole.
    pub refused: u64,
    /// Refused entries that asked for more than their subject permits.
    pub forbidden: u64,
    /// Messages that failed because a gap stayed open.
    pub gap_timeouts: u64,
    /// Messages that failed for any reason.
    pub failed: u64,
    /// Messages completed and committed.
    pub completed: u64,
    /// Chunks of new messages that had to wait in the stream.
    pub deferred: u64,
    /// Open messages dropped from memory for lack of room, to be read again.
    pub shed: u64,
    /// Saves of spilled messages.
    pub spills: u64,
    /// Stream sequences that never came.
    pub holes: u64,
    /// Chunks of turns without the turn's token.
    pub unauthorized: u64,
    /// Chunks of bare messages whose role differs from the message's.
    pub other_roles: u64,
    /// Commands that had already been taken.
    pub duplicate_commands: u64,
    /// Commands of erased threads, dropped.
    pub erased_commands: u64,
    /// Tasks that entered queues.
    pub tasks: u64,
    /// Runs of turns started.
    pub turns_started: u64,
    /// Turns not started because their agent backed off or was paused, counted at each try.
    pub postponed: u64,
    /// Turns completed and committed.
    pub turns_completed: u64,
    /// Turns stopped and committed.
    pub turns_stopped: u64,
    /// Runs of turns that failed.
    pub turns_failed: u64,
    /// Tasks given up.
    pub tasks_failed: u64,
    pub backoffs: u64,
    /// Batches that continued with a continuation.
    pub continuations: u64,
    /// Continuations that were not sent: too many in a row.
    pub continuations_rejected: u64,
    /// Tool calls in finished messages that have no id, or the id of another call.
    pub ambiguous_calls: u64,
    /// Facts found by memory tasks.
    pub facts: u64,
    /// Facts of memory tasks left out because the turn had been given them.
    pub repeated_facts: u64,
    /// Unusable facts of memory tasks, and answers without a list of facts.
    pub invalid_facts: u64,
    /// Control commands taken.
    pub control_commands: u64,
}

/// Durations for the turns of inputs since the previous collection, in ms from when this owner read
/// the input. Tasks and turns that a previous owner started are not measured.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TurnTimes {
    /// Time until the first chunk of the answer was read.
    pub first_chunk_ms: Vec<i64>,
    /// Time until the whole answer was committed.
    pub committed_ms: Vec<i64>,
}

impl TurnTimes {
    /// Maximum number of durations kept between two collections.
    const MOST: usize = 10_000;

    pub(crate) fn heard(&mut self, turn: &TrackedTurn, now: Timestamp) {
        note(&mut self.first_chunk_ms, turn, now);
    }

    pub(crate) fn committed(&mut self, turn: &TrackedTurn, now: Timestamp) {
        note(&mut self.committed_ms, turn, now);
    }
}

fn note(times: &mut Vec<i64>, turn: &TrackedTurn, now: Timestamp) {
    let is_own = !(turn.is_task() || turn.request.may_be_repeated || turn.times.began_at.is_none());
    if is_own && times.len() < TurnTimes::MOST {
        times.push(now.since_ms(turn.times.known_at).max(0));
    }
}

/// Current state of a partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Messages in memory.
    pub open: usize,
    /// Chunks of open messages.
    pub chunks: usize,
    /// Bytes of open messages.
    pub bytes: usize,
    /// Age of the oldest open message, ms.
    pub oldest_ms: i64,
    /// Size of the replay that a new owner would need, in thousandths of the bound: the highest of
    /// entries, bytes, and bytes of command keys.
    pub replay_permille: u64,
    /// Items that wait for the store: ended messages and dead letters for their commit, new
    /// messages for their look-up. Look-ups are included because new messages cannot end without
    /// them. Otherwise the number would not show an outage that begins in a quiet moment.
    pub uncommitted: usize,
    /// The last sequence read.
    pub last_seq: u64,
    /// Last checkpoint in a commit.
    pub checkpoint: u64,
    /// True while new messages wait in the stream.
    pub deferring: bool,
    /// Turns under way.
    pub active_turns: usize,
    /// Inputs waiting for their thread, by reason.
    pub waiting_turns: WaitCounts,
    /// Agents whose first task cannot start, by reason.
    pub waiting_agents: WaitCounts,
    /// Agents whose backoff has not expired.
    pub backing_off: usize,
    /// Timers in memory.
    pub timers: usize,
    /// Tasks in memory.
    pub queued_tasks: usize,
    /// Agents whose first task is running or may start.
    pub runnable_agents: usize,
    /// Age of the oldest task that may start and has not started, ms.
    pub oldest_runnable_ms: i64,
    /// Outbox batches that have not been published.
    pub unsent: usize,
    /// Bytes of the remembered keys of recent messages and commands.
    pub remembered_bytes: usize,
}
