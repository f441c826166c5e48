//! A commit as a value: what one partition wants written, whole or not at all.

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
/// Storing it is one call; what it decides can be tested without a database. Applying the same commit twice has the
/// effect of applying it once: messages and dead letters have unique keys, the rest is absolute.
#[derive(Debug, Clone, PartialEq)]
pub struct Commit {
    /// The partition.
    pub partition: PartitionId,
    /// The epoch under which it was decided; the store refuses it under any other.
    pub epoch: u64,
    /// Complete messages in the order of their positions.
    pub messages: Vec<Message>,
    /// Inputs given up on.
    pub dead_letters: Vec<DeadLetter>,
    /// Messages that failed, for clients that come later: every end that clients are sent has a row here or is a message.
    pub failed_messages: Vec<FailedMessage>,
    /// Messages that were spilled and have ended with this commit: their saved chunks go.
    pub ended_spills: Vec<MessageKey>,
    /// Finished turns.
    pub turns: Vec<TurnWrite>,
    /// What the ended turns have used.
    pub usage: Vec<UsageWrite>,
    /// Queues of agents, at most one item an agent.
    pub agents: Vec<AgentWrite>,
    /// Tasks that enter queues.
    pub tasks: Vec<TaskWrite>,
    /// Tasks marked failed.
    pub failed_tasks: Vec<FailedTask>,
    /// What operators do to stored tasks.
    pub task_changes: Vec<TaskChange>,
    /// Turns that failed; a row that is there already is replaced.
    pub failed_turns: Vec<FailedTurn>,
    /// Failed turns that were dropped by a command.
    pub dropped_turns: Vec<(ThreadId, TurnId)>,
    /// Inputs that were saved and have ended.
    pub ended_turns: Vec<(ThreadId, TurnId)>,
    /// Control commands.
    pub audit: Vec<AuditWrite>,
    /// Timers that are set, fired or ended.
    pub timers: Vec<TimerWrite>,
    /// What is published after this commit.
    pub outbox: Option<OutboxBatch>,
    /// Batches of the outbox that have been published.
    pub sent: Vec<Position>,
    /// Nothing at or below this sequence is needed again once the commit is applied.
    pub checkpoint: Seq,
    /// The highest millisecond used in a position; the next owner starts above it.
    pub position_high_water: Timestamp,
}

impl Commit {
    /// A commit that writes nothing but the checkpoint.
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
            outbox: None,
            sent: Vec::new(),
            checkpoint,
            position_high_water,
        }
    }

    /// A turn has failed. Where a person has made its input, what was answered before in the thread is not followed up.
    pub(crate) fn fail_turn(&mut self, failed: FailedTurn) {
        if !failed.opened.metadata.is_synthetic() {
            let is_before = |write: &TimerWrite| {
                matches!(write, TimerWrite::Arm(armed) if armed.id.kind() == TimerKind::FollowUp
                    && armed.thread.as_ref() == Some(&failed.opened.thread))
            };
            self.timers.retain(|write| !is_before(write));
        }
        self.failed_turns.push(failed);
    }

    /// Number of finished inputs in it, by which a commit is full.
    pub fn weight(&self) -> usize {
        self.messages.len()
            + self.dead_letters.len()
            + self.turns.len()
            + self.tasks.len()
            + self.agents.len()
    }

    /// True when there is nothing to write but the checkpoint.
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
            && self.outbox.is_none()
            && self.sent.is_empty()
    }

    /// Approximate size in bytes of what is written.
    pub fn size(&self) -> usize {
        self.messages.iter().map(Message::size).sum::<usize>()
            + self.dead_letters.iter().map(DeadLetter::size).sum::<usize>()
            + self.turns.iter().flat_map(|turn| &turn.messages).map(Message::size).sum::<usize>()
            + self.tasks.iter().map(|task| task.queued.task.size()).sum::<usize>()
            + self.failed_turns.iter().map(|failed| failed.opened.size()).sum::<usize>()
    }
}

/// What is saved in one statement of messages and inputs that are open, so that the checkpoint can pass their entries.
///
/// It is written beside the commits and holds none of them up. Saving the same twice has the effect of saving it once. What is saved
/// goes with the commit of its end, which the machine hands out only after the save was answered.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Save {
    /// Parts of open messages, one a message.
    pub messages: Vec<SpilledMessage>,
    /// Inputs whose turns have not ended.
    pub turns: Vec<OpenTurn>,
}

/// What is saved in one row.
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

/// A part of an open message that is saved: the released chunks from `first_chunk` on and, in the last part, those that wait behind a gap.
/// Loaded by a new owner, it is the whole message as far as it was saved.
///
/// Ages and not instants are kept, so that clocks of different machines do not matter.
#[derive(Debug, Clone, PartialEq)]
pub struct SpilledMessage {
    /// Which message.
    pub key: MessageKey,
    /// Its attempt; saved chunks of lower attempts do not count any more.
    pub attempt: u32,
    /// The chunks below this id were saved before.
    pub first_chunk: u32,
    /// The author's role.
    pub role: Role,
    /// The first entry of the message, for the dead letter that it may become.
    pub first_seq: Seq,
    /// For how long it has been open, ms.
    pub open_ms: i64,
    /// For how long the oldest gap has been open, ms; `None` without a gap.
    pub gap_ms: Option<i64>,
    /// For how long no chunk has come, ms.
    pub idle_ms: i64,
    /// The chunks; those that wait behind a gap come last.
    pub chunks: Vec<Arc<Chunk>>,
    /// All calls of models that attempts before this one have made.
    pub earlier_calls: Vec<ModelCall>,
}

/// What a new owner starts from.
#[derive(Debug, Clone, PartialEq)]
pub struct Takeover {
    /// The partition.
    pub partition: PartitionId,
    /// The epoch of the new lease.
    pub epoch: u64,
    /// Everything up to here has been used.
    pub checkpoint: Seq,
    /// See [`Commit::position_high_water`].
    pub position_high_water: Timestamp,
    /// The database's clock at the grant. Positions are of its time and not of the owner's: a store that has gone back grants
    /// positions above its clock, and so above all that were shown, however wrong the clock of an earlier owner was.
    pub granted_at: Timestamp,
    /// Messages that are open and saved.
    pub spilled_messages: Vec<SpilledMessage>,
    /// The keys of turn tokens.
    pub token_keys: TokenKeys,
    /// Agents with pending tasks, in backoff, or paused.
    pub agents: Vec<SavedAgent>,
    /// Inputs that are open and saved, in the order in which they came.
    pub open_turns: Vec<OpenTurn>,
    /// What has not been published yet, oldest first.
    pub outbox: Vec<OutboxBatch>,
    /// How many batches are not published beyond these. The driver reads and publishes them by itself, after
    /// these and before any other, and says [`Input::Sent`](crate::Input::Sent) of each.
    pub outbox_beyond: usize,
    /// The timers that are due next.
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

/// What the store knows of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// Neither persisted nor failed.
    Absent,
    /// Persisted, or failed and kept as a dead letter.
    Ended,
    /// Its thread does not exist, and chunks may not create threads.
    NoThread,
    /// The store refuses for good to look it up. The message fails.
    Refused,
}
