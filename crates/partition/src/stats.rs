//! Figures of a partition, for metrics.

use model::Timestamp;

use crate::turn_state::TrackedTurn;
use crate::wait_counts::WaitCounts;

/// What happened since the counters were last taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Stream entries read.
    pub entries: u64,
    /// Chunks accepted.
    pub chunks: u64,
    /// Chunks that arrived before one with a lower id.
    pub out_of_order: u64,
    /// Same id, same content.
    pub duplicates: u64,
    /// Same id, other content.
    pub conflicts: u64,
    /// Chunks of a message that has ended.
    pub late: u64,
    /// Chunks of a lower attempt.
    pub fenced: u64,
    /// Stops that were repeated, because a workflow goes on with a run that is over.
    pub late_stops: u64,
    /// Calls of models by attempts that began after the end of their run.
    pub late_calls: u64,
    /// Messages reset by a higher attempt.
    pub resets: u64,
    /// Entries refused as a whole.
    pub refused: u64,
    /// Of these, entries that asked for more than their subject gives a right to.
    pub forbidden: u64,
    /// Messages that failed because a gap stayed open.
    pub gap_timeouts: u64,
    /// Messages that failed for any reason.
    pub failed: u64,
    /// Messages completed and committed.
    pub completed: u64,
    /// Chunks of new messages that had to wait in the stream.
    pub deferred: u64,
    /// Open messages forgotten for want of memory, to be read again.
    pub shed: u64,
    /// Saves of spilled messages.
    pub spills: u64,
    /// Stream sequences that never came.
    pub holes: u64,
    /// Chunks of turns without the turn's token.
    pub unauthorized: u64,
    /// Chunks of bare messages that name another role than the message has.
    pub other_roles: u64,
    /// Commands that had been taken before.
    pub duplicate_commands: u64,
    /// Commands of threads that were erased: dropped.
    pub erased_commands: u64,
    /// Tasks that entered queues.
    pub tasks: u64,
    /// Turns begun, each run once.
    pub turns_started: u64,
    /// Turns that were not begun because their agent backed off or was paused; each time that they were looked at.
    pub postponed: u64,
    /// Turns completed and committed.
    pub turns_completed: u64,
    /// Turns stopped and committed.
    pub turns_stopped: u64,
    /// Runs of turns that failed.
    pub turns_failed: u64,
    /// Tasks given up.
    pub tasks_failed: u64,
    /// Backoffs begun.
    pub backoffs: u64,
    /// Batches that went on with a continuation.
    pub continuations: u64,
    /// Continuations that were not sent: too many in a row.
    pub continuations_rejected: u64,
    /// Calls of tools in finished messages that cannot be distinguished by their ids: they have none, or that of another call.
    pub ambiguous_calls: u64,
    /// Facts that memory tasks have found.
    pub facts: u64,
    /// Facts of memory tasks that were left out because the turn had been given them.
    pub repeated_facts: u64,
    /// Facts of memory tasks that cannot be used, and answers without a list of facts.
    pub invalid_facts: u64,
    /// Control commands taken.
    pub control_commands: u64,
}

/// How long turns of inputs took that have come on since the times were last taken, ms from when this owner read the input. Of turns
/// that an owner before it has begun there is nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TurnTimes {
    /// Until the first chunk of the answer was read.
    pub first_chunk_ms: Vec<i64>,
    /// Until the whole answer was committed.
    pub committed_ms: Vec<i64>,
}

impl TurnTimes {
    /// More than that between two times that they are taken are not kept.
    const MOST: usize = 10_000;

    pub(crate) fn heard(&mut self, turn: &TrackedTurn, now: Timestamp) {
        note(&mut self.first_chunk_ms, turn, now);
    }

    pub(crate) fn committed(&mut self, turn: &TrackedTurn, now: Timestamp) {
        note(&mut self.committed_ms, turn, now);
    }
}

fn note(times: &mut Vec<i64>, turn: &TrackedTurn, now: Timestamp) {
    let is_own = !(turn.is_task() || turn.is_restored || turn.is_adopted);
    if is_own && times.len() < TurnTimes::MOST {
        times.push(now.since_ms(turn.known_at).max(0));
    }
}

/// How it stands now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Messages in memory.
    pub open: usize,
    /// Chunks of these.
    pub chunks: usize,
    /// Bytes of these.
    pub bytes: usize,
    /// Age of the oldest, ms.
    pub oldest_ms: i64,
    /// What a new owner would have to read again, in thousandths of what is allowed: of entries, of bytes or of keys of commands, whichever is
    /// most.
    pub replay_permille: u64,
    /// What waits for the store: ended messages and dead letters for their commit, new messages for its word whether they have ended
    /// already. Without it they do not end, so an outage that begins in a quiet moment would not show.
    pub uncommitted: usize,
    /// The last sequence read.
    pub last_seq: u64,
    /// The last checkpoint handed out in a commit.
    pub checkpoint: u64,
    /// True while new messages wait in the stream.
    pub deferring: bool,
    /// Turns under way.
    pub active_turns: usize,
    /// Inputs that wait for their thread, by why.
    pub waiting_turns: WaitCounts,
    /// Agents whose first task may not begin, by why.
    pub waiting_agents: WaitCounts,
    /// Agents that have failed and whose backoff has not run out.
    pub backing_off: usize,
    /// Timers in memory.
    pub timers: usize,
    /// Tasks in memory.
    pub queued_tasks: usize,
    /// Agents whose first task is under way or may begin.
    pub runnable_agents: usize,
    /// Age of the oldest task that may begin and has not begun, ms.
    pub oldest_runnable_ms: i64,
    /// Batches of the outbox that have not been published.
    pub unsent: usize,
    /// Bytes of the keys of messages and commands that were done lately.
    pub remembered_bytes: usize,
}
