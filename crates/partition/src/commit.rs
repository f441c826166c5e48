//! Commits, saves and takeovers as values.

use std::sync::Arc;

use model::{
    Chunk, DeadLetter, FailedMessage, Message, MessageKey, ModelCall, PartitionId, Position, Role, Seq,
    ThreadId, TimerKind, Timestamp, TokenKeys, TurnId,
};

use self::single::Single;
use crate::timers::{TimerPage, TimerWrite};
use crate::types::{
    AgentWrite, AuditWrite, FailedTask, FailedTurn, OpenTurn, OutboxBatch, SavedAgent, TaskChange, TaskWrite,
    TurnWrite, UsageWrite,
};

pub(crate) mod single;

/// Defines [`Commit`] from the list of its rows. `weight` is how many finished inputs a row counts
/// as, and `size` its approximate size in bytes; without them, a row does not count. `with` selects
/// the rows that are written together with a message or turn, when it is written alone.
macro_rules! commit_of_rows {
    ($(
        $(#[$doc:meta])*
        $rows:ident: $list:ty $(, weight $weight:literal)? $(, size $size:expr)? $(, with $with:expr)?;
    )+) => {
        /// Everything that one partition writes in one transaction, under the epoch of its lease.
        ///
        /// A commit is stored in one call, and its decisions can be tested without a database.
        /// Applying a commit twice equals applying it once: messages and dead letters have unique
        /// keys, and all other values are absolute.
        ///
        /// Of each stored row a commit has at most one change, because the parts of the statement
        /// do not see each other's rows. The methods that add rows combine changes of the same row.
        #[derive(Debug, Clone, PartialEq)]
        pub struct Commit {
            pub partition: PartitionId,
            /// Epoch under which it was decided; the store refuses it under any other.
            pub epoch: u64,
            $($(#[$doc])* pub $rows: $list,)+
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
                    $($rows: Default::default(),)+
                    checkpoint,
                    position_high_water,
                }
            }

            /// Number of finished inputs, which decides whether the commit is full.
            pub fn weight(&self) -> usize {
                0 $($(+ $weight * self.$rows.iter().len())?)+
            }

            /// True if there is nothing to write except the checkpoint.
            pub fn is_empty(&self) -> bool {
                true $(&& self.$rows.iter().next().is_none())+
            }

            /// Approximate size of the written data in bytes.
            pub fn size(&self) -> usize {
                0 $($(+ self.$rows.iter().map($size).sum::<usize>())?)+
            }

            /// A commit of the rows that must be written together with this message or turn. It
            /// does not move the checkpoint.
            pub(crate) fn rows_with(&self, single: Single<'_>) -> Self {
                let mut rows = Self::empty(self.partition, self.epoch, Seq(0), self.position_high_water);
                $($(rows.$rows.extend(self.$rows.iter().filter(|row| $with(single, row)).cloned());)?)+
                rows
            }

            /// Removes the rows that were written together with this message or turn.
            pub(crate) fn remove_with(&mut self, single: Single<'_>) {
                $($(self.$rows.retain(|row| !$with(single, row));)?)+
            }
        }
    };
}

commit_of_rows! {
    /// Complete messages in the order of their positions.
    messages: Vec<Message>, weight 1, size Message::size;
    /// Inputs given up on.
    dead_letters: Vec<DeadLetter>, weight 1, size DeadLetter::size;
    /// Failed messages, for clients that connect later. Every end that was sent to clients is
    /// either a row here or a message.
    failed_messages: Vec<FailedMessage>;
    /// Saved messages that end with this commit; their saved chunks are deleted.
    ended_spills: Vec<MessageKey>, with Single::ends;
    /// Turns that have finished, with their messages.
    turns: Vec<TurnWrite>, weight 1, size |turn| turn.messages.iter().map(Message::size).sum::<usize>();
    /// Model calls of the ended turns. If a call comes twice, the first one is stored.
    usage: Vec<UsageWrite>, with Single::uses;
    /// Queues of agents, at most one item per agent.
    agents: Vec<AgentWrite>, weight 1;
    /// Tasks that enter queues.
    tasks: Vec<TaskWrite>, weight 1, size |task| task.queued.task.size(), with Single::continues;
    /// Tasks marked failed.
    failed_tasks: Vec<FailedTask>, with Single::marks;
    /// Changes of stored tasks by operators, at most one per task.
    task_changes: Vec<TaskChange>;
    /// Failed turns; an existing row is replaced. One that is also dropped is not written: it has
    /// failed, and nothing of it is kept.
    failed_turns: Vec<FailedTurn>, size |failed| failed.opened.size();
    /// Failed turns dropped by a command.
    dropped_turns: Vec<(ThreadId, TurnId)>;
    /// Saved inputs that have ended.
    ended_turns: Vec<(ThreadId, TurnId)>, with Single::ends_turn;
    /// Acts of operators and clients.
    audit: Vec<AuditWrite>, with Single::is_acted_on;
    /// Timers that are set, fired or ended.
    timers: Vec<TimerWrite>, with Single::arms;
    /// Inputs that the commit itself opens: continuations and follow-ups.
    opened: Vec<OpenTurn>, size |open| open.opened.size(), with Single::opens;
    /// Published after this commit.
    outbox: Option<OutboxBatch>;
    /// Outbox batches that have been published.
    sent: Vec<Position>;
}

impl Commit {
    /// Adds a finished turn. An earlier failure of the same turn is not written any more.
    pub fn add_turn(&mut self, write: TurnWrite) {
        if let Some(thread) = &write.ends_failed {
            self.failed_turns.retain(|failed| !failed.is_of(thread, &write.turn));
        }
        self.turns.push(write);
    }

    /// Adds a failed turn, which replaces an earlier failure of the same turn. It is left out if
    /// its retry has succeeded. If its input came from a person, follow-ups to earlier answers in
    /// the thread are dropped from this commit.
    pub fn fail_turn(&mut self, failed: FailedTurn) {
        if !failed.opened.origin.is_synthetic() {
            let is_before = |write: &TimerWrite| {
                matches!(write, TimerWrite::Arm(armed) if armed.id.kind() == TimerKind::FollowUp
                    && armed.thread.as_ref() == Some(&failed.opened.thread))
            };
            self.timers.retain(|write| !is_before(write));
        }
        let (thread, turn) = (&failed.opened.thread, &failed.opened.turn);
        self.failed_turns.retain(|other| !other.is_of(thread, turn));
        let is_ended = |write: &TurnWrite| write.turn == *turn && write.ends_failed.as_ref() == Some(thread);
        if !self.turns.iter().any(is_ended) {
            self.failed_turns.push(failed);
        }
    }

    /// True if a command drops the turn, also one that fails in this commit.
    pub fn drops(&self, failed: &FailedTurn) -> bool {
        self.dropped_turns.iter().any(|(thread, turn)| failed.is_of(thread, turn))
    }

    /// Adds a task that enters its queue. A second task with the same id is the same command.
    pub fn add_task(&mut self, write: TaskWrite) {
        let task = &write.queued.task;
        let is_it =
            |known: &TaskWrite| known.queued.task.id == task.id && known.queued.task.agent == task.agent;
        if !self.tasks.iter().any(is_it) {
            self.tasks.push(write);
        }
    }

    /// Adds the failure mark of a task. The first mark of a task stays. A mark is left out if an
    /// operator has moved or deleted the task since.
    pub fn fail_task(&mut self, mark: FailedTask) {
        let is_known = self.failed_tasks.iter().any(|other| other.is_of(&mark.agent, mark.position));
        if !is_known && !self.task_changes.iter().any(|change| change.lifts(&mark)) {
            self.failed_tasks.push(mark);
        }
    }

    /// Adds a change of a stored task. Changes of the same task are combined, and a mark that the
    /// change lifts is not written.
    pub fn change_task(&mut self, change: TaskChange) {
        self.failed_tasks.retain(|mark| !change.lifts(mark));
        match self.task_changes.iter_mut().find(|known| known.is_of(&change)) {
            Some(known) => known.then(change),
            None => self.task_changes.push(change),
        }
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

#[cfg(test)]
mod tests;
