//! Commits, saves and takeovers as values.

use std::sync::Arc;

use model::{
    Chunk, DeadLetter, FailedMessage, Message, MessageKey, ModelCall, PartitionId, Position, Role, Seq,
    ThreadId, TimerKind, Timestamp, TokenKeys, TurnId,
};

use crate::timers::{TimerPage, TimerWrite};
use crate::types::{
    AgentWrite, AuditWrite, FailedTask, FailedTurn, OpenTurn, OutboxBatch, SavedAgent, TaskChange, TaskWrite,
    TurnWrite, UsageWrite,
};

/// Everything that one partition writes in one transaction, under the epoch of its lease.
///
/// A commit is stored in one call, and its decisions can be tested without a database. Applying a
/// commit twice equals applying it once: messages and dead letters have unique keys, and all other
/// values are absolute.
#[derive(Debug, Clone, PartialEq)]
pub struct Commit {
    pub partition: PartitionId,
    /// Epoch under which it was decided; the store refuses it under any other.
    pub epoch: u64,
    /// Complete messages in the order of their positions.
    pub messages: Vec<Message>,
    /// Inputs given up on.
    pub dead_letters: Vec<DeadLetter>,
    /// Failed messages, for clients that connect later. Every end that was sent to clients is
    /// either a row here or a message.
    pub failed_messages: Vec<FailedMessage>,
    /// Saved messages that end with this commit; their saved chunks are deleted.
    pub ended_spills: Vec<MessageKey>,
    pub turns: Vec<TurnWrite>,
    /// Model calls of the ended turns.
    pub usage: Vec<UsageWrite>,
    /// Queues of agents, at most one item per agent.
    pub agents: Vec<AgentWrite>,
    /// Tasks that enter queues.
    pub tasks: Vec<TaskWrite>,
    /// Tasks marked failed.
    pub failed_tasks: Vec<FailedTask>,
    /// Changes of stored tasks by operators.
    pub task_changes: Vec<TaskChange>,
    /// Failed turns; an existing row is replaced.
    pub failed_turns: Vec<FailedTurn>,
    /// Failed turns dropped by a command.
    pub dropped_turns: Vec<(ThreadId, TurnId)>,
    /// Saved inputs that have ended.
    pub ended_turns: Vec<(ThreadId, TurnId)>,
    pub audit: Vec<AuditWrite>,
    /// Timers that are set, fired or ended.
    pub timers: Vec<TimerWrite>,
    /// Inputs that the commit itself opens: continuations and follow-ups.
    pub opened: Vec<OpenTurn>,
    /// Published after this commit.
    pub outbox: Option<OutboxBatch>,
    /// Outbox batches that have been published.
    pub sent: Vec<Position>,
    /// Nothing up to this sequence is needed again once the commit is applied.
    pub checkpoint: Seq,
    /// Highest millisecond used in a position; the next owner starts above it.
    pub position_high_water: Timestamp,
}

impl Commit {
    /// A commit that writes only the checkpoint.
    pub fn empty(
        partition: PartitionId,
        epoch: u64,
        checkpoint: Seq,
        position_high_water: Timestamp,
    ) -> Self {
        Self {
            partition,
            epoch,
            messages: Vec::new(),
            dead_letters: Vec::new(),
            failed_messages: Vec::new(),
            ended_spills: Vec::new(),
            turns: Vec::new(),
            usage: Vec::new(),
            agents: Vec::new(),
            tasks: Vec::new(),
            failed_tasks: Vec::new(),
            task_changes: Vec::new(),
            failed_turns: Vec::new(),
            dropped_turns: Vec::new(),
            ended_turns: Vec::new(),
            audit: Vec::new(),
            timers: Vec::new(),
            opened: Vec::new(),
            outbox: None,
            sent: Vec::new(),
            checkpoint,
            position_high_water,
        }
    }

    /// Adds a failed turn. If its input came from a person, follow-ups to earlier answers in the
    /// thread are dropped from this commit.
    pub(crate) fn fail_turn(&mut self, failed: FailedTurn) {
        if !failed.opened.origin.is_synthetic() {
            let is_before = |write: &TimerWrite| {
                matches!(write, TimerWrite::Arm(armed) if armed.id.kind() == TimerKind::FollowUp
                    && armed.thread.as_ref() == Some(&failed.opened.thread))
            };
            self.timers.retain(|write| !is_before(write));
        }
        self.failed_turns.push(failed);
    }

    /// Number of finished inputs, which decides whether the commit is full.
    pub fn weight(&self) -> usize {
        self.messages.len()
            + self.dead_letters.len()
            + self.turns.len()
            + self.tasks.len()
            + self.agents.len()
    }

    /// True if there is nothing to write except the checkpoint.
    pub fn is_empty(&self) -> bool {
        self.weight() == 0
            && self.failed_messages.is_empty()
            && self.failed_tasks.is_empty()
            && self.task_changes.is_empty()
            && self.failed_turns.is_empty()
            && self.dropped_turns.is_empty()
            && self.ended_turns.is_empty()
            && self.audit.is_empty()
            && self.timers.is_empty()
            && self.usage.is_empty()
            && self.opened.is_empty()
            && self.outbox.is_none()
            && self.sent.is_empty()
    }

    /// Approximate size of the written data in bytes.
    pub fn size(&self) -> usize {
        self.messages.iter().map(Message::size).sum::<usize>()
            + self.dead_letters.iter().map(DeadLetter::size).sum::<usize>()
            + self.turns.iter().flat_map(|turn| &turn.messages).map(Message::size).sum::<usize>()
            + self.tasks.iter().map(|task| task.queued.task.size()).sum::<usize>()
            + self.failed_turns.iter().map(|failed| failed.opened.size()).sum::<usize>()
            + self.opened.iter().map(|open| open.opened.size()).sum::<usize>()
    }
}

/// Open messages and inputs saved in one statement, so that the checkpoint can pass their entries.
///
/// A save runs beside the commits and delays none of them. Saving the same twice equals saving it
/// once. The commit that ends a message or input deletes its saved rows. The machine returns this
/// commit only after the save was answered.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Save {
    /// Parts of open messages, one per message.
    pub messages: Vec<SpilledMessage>,
    /// Inputs whose turns have not ended.
    pub turns: Vec<OpenTurn>,
}

/// An item saved in one row.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum SavedItem {
    /// A part of a message.
    Message(MessageKey),
    /// The input of a turn.
    Turn(TurnId),
}

impl std::fmt::Display for SavedItem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Message(key) => write!(f, "{key}"),
            Self::Turn(turn) => write!(f, "{turn}"),
        }
    }
}

/// A saved part of an open message: the released chunks from `first_chunk` on and, in the last
/// part, those that wait behind a gap. When a new owner loads it, it is the whole message as far as
/// it was saved.
///
/// It keeps ages instead of instants, so that differing clocks of machines do not matter.
#[derive(Debug, Clone, PartialEq)]
pub struct SpilledMessage {
    pub key: MessageKey,
    /// Attempt; saved chunks of lower attempts are void.
    pub attempt: u32,
    /// Chunks below this id were saved before.
    pub first_chunk: u32,
    /// The author's role.
    pub role: Role,
    /// First entry of the message, for the dead letter that it may become.
    pub first_seq: Seq,
    /// Time since it was opened, ms.
    pub open_ms: i64,
    /// Age of the oldest gap, ms; `None` without a gap.
    pub gap_ms: Option<i64>,
    /// Time since the last chunk, ms.
    pub idle_ms: i64,
    /// Chunks of this part; those that wait behind a gap come last.
    pub chunks: Vec<Arc<Chunk>>,
    /// All model calls of earlier attempts.
    pub earlier_calls: Vec<ModelCall>,
}

/// State from which a new owner starts.
#[derive(Debug, Clone, PartialEq)]
pub struct Takeover {
    pub partition: PartitionId,
    /// Epoch of the new lease.
    pub epoch: u64,
    /// Every entry up to here has been used.
    pub checkpoint: Seq,
    /// See [`Commit::position_high_water`].
    pub position_high_water: Timestamp,
    /// The database's clock at the grant. Positions use this clock, not the owner's. After a store
    /// has gone back in time, new positions are therefore above all positions shown before, however
    /// wrong an earlier owner's clock was.
    pub granted_at: Timestamp,
    /// Open messages that are saved.
    pub spilled_messages: Vec<SpilledMessage>,
    /// The keys of turn tokens.
    pub token_keys: TokenKeys,
    /// Agents with pending tasks, in backoff, or paused.
    pub agents: Vec<SavedAgent>,
    /// Open inputs that are saved, in order of arrival.
    pub open_turns: Vec<OpenTurn>,
    /// Unpublished outbox batches, oldest first.
    pub outbox: Vec<OutboxBatch>,
    /// Number of further unpublished batches. The driver reads and publishes them itself, after
    /// `outbox` and before any other batch, and sends [`Input::Sent`](crate::Input::Sent) for each.
    pub outbox_beyond: usize,
    /// Timers that are due next.
    pub timers: TimerPage,
}

impl Takeover {
    /// A partition in which nothing is open.
    pub fn bare(
        partition: PartitionId,
        epoch: u64,
        checkpoint: Seq,
        position_high_water: Timestamp,
        granted_at: Timestamp,
        token_keys: impl Into<TokenKeys>,
    ) -> Self {
        Self {
            partition,
            epoch,
            checkpoint,
            position_high_water,
            granted_at,
            token_keys: token_keys.into(),
            spilled_messages: Vec::new(),
            agents: Vec::new(),
            open_turns: Vec::new(),
            outbox: Vec::new(),
            outbox_beyond: 0,
            timers: TimerPage::NONE,
        }
    }
}

/// State of a message in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// Neither persisted nor failed.
    Absent,
    /// Persisted, or failed and kept as a dead letter.
    Ended,
    /// Its thread does not exist, and chunks are not allowed to create threads.
    NoThread,
    /// The store permanently refuses the look-up. The message fails.
    Refused,
}
