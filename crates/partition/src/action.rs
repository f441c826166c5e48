//! Inputs of a partition and the actions that it returns.

use std::sync::Arc;

use batches::memory::RecalledFacts;
use bytes::Bytes;
use model::{
    AgentId, AnswerReport, BatchType, Chunk, Command, Cut, DelayedTask, Frame, FrameNumber, GatewayId,
    IdRange, KnownMessage, LiveFrame, MessageEnd, MessageFailure, MessageKey, MessageOutcome, OpenInput,
    PartialText, Position, QueuedTask, RejectedEntry, Role, Seq, ThreadId, TimerId, Timestamp, TokenKeys,
    TurnId, TurnToken,
};

use crate::commit::{Commit, Lookup, Save, SavedItem};
use crate::noted_facts::InvalidFacts;
use crate::request_state::RequestNews;
use crate::timers::{TimerDecision, TimerPage};
use crate::types::{
    CommandKey, CommandVerdict, OutboxBatch, RawPayload, Start, Started, StatusQuery, StatusReply, TaskDelay,
};

/// One entry of the partition's stream, decoded.
#[derive(Debug, Clone, PartialEq)]
pub struct StreamEntry {
    /// Sequence in the stream.
    pub seq: Seq,
    /// When the stream stored it, by the stream's clock.
    pub stored_at: Timestamp,
    /// Approximate size in the stream.
    pub bytes: usize,
    /// Decoded content, or why it cannot be used.
    pub body: EntryBody,
}

/// The body of an entry.
#[derive(Debug, Clone, PartialEq)]
pub enum EntryBody {
    /// Chunks of one thread.
    Frame(Frame),
    /// A command, with its raw payload for the dead letter that it may become.
    Command(Command, RawPayload),
    /// An entry refused as a whole; becomes a dead letter.
    Refused {
        /// Subject on which it came.
        subject: String,
        /// Its raw payload.
        payload: Bytes,
        refusal: RejectedEntry,
        /// Answer that the payload was meant for, if the payload carries a token.
        answer: Option<RefusedAnswer>,
    },
}

/// The answer that a refused payload was meant for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedAnswer {
    /// The thread of its subject.
    pub thread: ThreadId,
    /// Token that the payload carries. Only the turn that has this token is affected.
    pub token: TurnToken,
    /// Description of the resulting dead letter, for people.
    pub dead_letter: String,
}

/// A gateway requests the part of a thread's open text that it lacks. From the reply on, the
/// gateway follows the thread.
#[derive(Debug, Clone, PartialEq)]
pub struct SnapshotRequest {
    /// Returned in the reply.
    pub token: u64,
    /// Gateway that asks.
    pub gateway: GatewayId,
    pub thread: ThreadId,
    /// Messages that the gateway has.
    pub known: Vec<KnownMessage>,
    /// Maximum number of messages in the reply; known messages are always included.
    pub max_messages: usize,
    /// Maximum bytes of chunks in the reply.
    pub max_bytes: usize,
}

/// A gateway asks which threads have had frames since a given frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedThreadsQuery {
    /// Returned in the reply.
    pub token: u64,
    /// Gateway that asks. A gateway that has not asked for
    /// [`FOLLOWER_EXPIRY_MS`](crate::FOLLOWER_EXPIRY_MS) no longer follows any thread.
    pub gateway: GatewayId,
    /// Threads that it no longer follows.
    pub unfollowed: Vec<ThreadId>,
    /// Epoch that `number` belongs to: the highest the gateway knows. If it is not the owner's,
    /// every frame counts as new.
    pub epoch: u64,
    /// Number of the last frame that the gateway received.
    pub number: u64,
}

/// Everything that can happen to a partition.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// Entries of the stream in order, and how many more messages may be opened.
    Entries {
        entries: Vec<StreamEntry>,
        /// Number of new messages that may be opened; further ones wait in the stream.
        room: usize,
    },
    /// True: the reader has seen everything in the stream; false: it is behind or cut off. Gaps and
    /// stalls age by real time only while nothing unread could close them, otherwise by the
    /// stream's time.
    CaughtUp(bool),
    /// Reply to [`Action::Lookup`].
    Found(Vec<(MessageKey, Lookup)>),
    /// The commit in flight was applied, except for these turns: the store refused their messages.
    /// For each of them [`TurnWrite::on_refusal`](crate::TurnWrite::on_refusal) was written with
    /// this text.
    Committed(Vec<(TurnId, String)>),
    /// Reply to [`Action::Check`], in the order of its keys.
    Checked(Vec<(CommandKey, CommandVerdict)>),
    /// Reply to [`Action::Start`].
    Started {
        turn: TurnId,
        run: u32,
        /// Result of the start.
        started: Started,
    },
    /// Facts given to a turn, sent before the reply to its [`Action::Start`]. Without this input
    /// the turn gets none.
    Recalled {
        turn: TurnId,
        run: u32,
        /// Facts given to the turn.
        facts: RecalledFacts,
    },
    /// News about the requests of turns, by turn and run; see
    /// [`Partition::silent_turns`](crate::Partition::silent_turns).
    Requests(Vec<(TurnId, u32, RequestNews)>),
    /// A workflow inside this process answered a turn: all chunks of the answer, in order.
    Answered {
        turn: TurnId,
        run: u32,
        /// Consecutive ids from 0, the last one final.
        chunks: Vec<Arc<Chunk>>,
    },
    /// Reply to [`Action::LoadTasks`]: the next tasks after the requested position.
    Tasks {
        agent: AgentId,
        after: Position,
        /// At most the requested number.
        tasks: Vec<QueuedTask>,
        /// True if the store has more.
        more: bool,
    },
    /// Reply to [`Action::DecideTimers`].
    TimersDecided(Vec<TimerDecision>),
    /// Reply to [`Action::LoadTimers`].
    Timers(TimerPage),
    /// Reply to [`Action::DelayTask`].
    TaskDelayed {
        seq: Seq,
        /// Result; `None`: the store permanently refuses the task.
        outcome: Option<TaskDelay>,
    },
    /// Reply to [`Action::Save`]: everything is stored except these items, which the store
    /// permanently refuses with these errors. These items fail.
    Saved(Vec<(SavedItem, String)>),
    /// Another process has written timers of this partition.
    TimersChanged,
    /// The keys of turn tokens were rotated, or the previous key has expired.
    TokenKeys(TokenKeys),
    /// All of this outbox batch has been published.
    Sent(Position),
    /// A gateway asks for the state of a queue.
    Status(StatusQuery),
    /// A gateway requests the open text of a thread.
    Snapshot(SnapshotRequest),
    /// A gateway asks which threads have changed.
    ChangedThreads(ChangedThreadsQuery),
    /// Time has passed. Send this when [`crate::Partition::poll_timeout`] asks for it.
    Tick,
    /// There is room again for messages that wait in the stream; see [`Action::Reread`].
    Room,
    /// Memory is short: drop open messages with at least this many bytes in total; they are read
    /// again later.
    Shed(usize),
}

/// An action of a partition. The driver performs the actions in order.
#[expect(clippy::large_enum_variant, reason = "there is one commit at a time, and it is moved once")]
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Look up these messages in the store; answer with [`Input::Found`].
    Lookup(Vec<MessageKey>),
    /// Send these chunks to the gateways.
    Publish(ReadyChunks),
    /// Apply this commit; answer with [`Input::Committed`], or drop the partition. One at a time.
    Commit(Commit),
    /// Save this, independently of commits, retrying until it is stored; answer with
    /// [`Input::Saved`]. One at a time.
    Save(Save),
    /// Notify the gateways that the message has ended.
    End(MessageEnded),
    /// A gateway knows an owner with this higher epoch. Ask the store whether the lease is still
    /// held; if so, raise the lease's epoch above this one. A store that went back in time may have
    /// forgotten the other owner.
    CheckLease(u64),
    /// Reply to a [`SnapshotRequest`].
    Snapshot(SnapshotReply),
    /// Reply to a [`ChangedThreadsQuery`].
    ChangedThreads(ChangedThreads),
    /// Look up these commands in the store; answer with [`Input::Checked`], in the same order.
    Check(Vec<CommandKey>),
    /// Start a turn.
    Start(Box<Start>),
    /// Tell the workflow that this run is abandoned, and delete its request if no workflow has
    /// taken it.
    Abandon { turn: TurnId, run: u32 },
    /// Load more of an agent's queue; answer with [`Input::Tasks`].
    LoadTasks {
        agent: AgentId,
        /// Load tasks after this position that are not marked failed.
        after: Position,
        /// Maximum number of tasks.
        limit: usize,
    },
    /// Decide these due timers from the stored data; answer with [`Input::TimersDecided`].
    DecideTimers(Vec<TimerId>),
    /// Load more timers; answer with [`Input::Timers`].
    LoadTimers {
        /// Load timers that are due this many ms from now or later.
        from_ms: i64,
        /// Maximum number of timers.
        limit: usize,
    },
    /// Store a task that enters its queue later, unless it is stored already; answer with
    /// [`Input::TaskDelayed`].
    DelayTask { seq: Seq, delayed: Box<DelayedTask> },
    /// Publish this batch; answer with [`Input::Sent`]. Its ids are derived from the turns, so a
    /// repetition is harmless.
    Send(OutboxBatch),
    /// Reply to a [`StatusQuery`].
    Status(Box<StatusReply>),
    /// Set the reader back to this sequence: messages that had to wait in the stream have room now.
    Reread(Seq),
    /// Write a line to the log.
    Report(MachineReport),
}

impl Action {
    /// Name in metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Lookup(_) => "lookup",
            Self::Publish(_) => "publish",
            Self::Commit(_) => "commit",
            Self::Save(_) => "save",
            Self::End(_) => "end",
            Self::Snapshot(_) => "snapshot",
            Self::ChangedThreads(_) => "changed_threads",
            Self::CheckLease(_) => "check_lease",
            Self::Check(_) => "check",
            Self::Start(_) => "start",
            Self::Abandon { .. } => "abandon",
            Self::LoadTasks { .. } => "load_tasks",
            Self::DecideTimers(_) => "decide_timers",
            Self::LoadTimers { .. } => "load_timers",
            Self::DelayTask { .. } => "delay_task",
            Self::Send(_) => "send",
            Self::Status(_) => "status",
            Self::Reread(_) => "reread",
            Self::Report(_) => "report",
        }
    }
}

/// Chunks that became ready, with consecutive ids. Each chunk of an attempt is sent once and in
/// order.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadyChunks {
    pub key: MessageKey,
    /// Attempt. If it is higher than in the previous frame of this message, the text starts again.
    pub attempt: u32,
    /// The author's role.
    pub role: Role,
    /// Type of the message's batch.
    pub batch_type: BatchType,
    /// Chunks that fit into one frame. Empty for an input, and if the frame only announces a higher
    /// attempt.
    pub chunks: Vec<Arc<Chunk>>,
    /// Set if the frame announces an accepted input: the input that the message answers.
    pub input: Option<Arc<OpenInput>>,
    /// Number of the frame.
    pub frame: FrameNumber,
}

/// The end of a message, decided by its commit.
#[derive(Debug, Clone, PartialEq)]
pub struct MessageEnded {
    pub key: MessageKey,
    pub attempt: u32,
    /// The author's role.
    pub role: Role,
    /// Type of the message's batch.
    pub batch_type: BatchType,
    /// Position in the order in which messages of the thread end. A persisted message keeps it.
    pub position: Position,
    /// Number of released chunks.
    pub chunks: u32,
    /// How it ended.
    pub outcome: MessageOutcome,
    /// For a persisted answer: its finish reason and usage.
    pub report: AnswerReport,
    /// Number of the frame.
    pub frame: FrameNumber,
}

impl From<ReadyChunks> for LiveFrame {
    fn from(ready: ReadyChunks) -> Self {
        Self {
            thread: ready.key.thread,
            message: ready.key.message,
            attempt: ready.attempt,
            role: ready.role,
            batch_type: ready.batch_type,
            number: ready.frame,
            chunks: ready.chunks,
            terminal: None,
            input: ready.input,
        }
    }
}

impl From<MessageEnded> for LiveFrame {
    fn from(ended: MessageEnded) -> Self {
        let MessageEnded { position, chunks, outcome, report, .. } = ended;
        Self {
            thread: ended.key.thread,
            message: ended.key.message,
            attempt: ended.attempt,
            role: ended.role,
            batch_type: ended.batch_type,
            number: ended.frame,
            chunks: Vec::new(),
            terminal: Some(MessageEnd { position, chunks, outcome, report }),
            input: None,
        }
    }
}

/// Reply to a [`SnapshotRequest`].
#[derive(Debug, Clone, PartialEq)]
pub struct SnapshotReply {
    /// Token of the request.
    pub token: u64,
    /// State of the thread that the text belongs to.
    pub cut: Cut,
    /// Open messages. For a message that the gateway knows, only the text that it lacks.
    pub open: Vec<PartialText>,
    /// True if more messages are open than the reply contains.
    pub left_out: bool,
    /// True if the size limit cut the reply: request the rest.
    pub more: bool,
}

/// Reply to a [`ChangedThreadsQuery`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedThreads {
    /// Token of the query.
    pub token: u64,
    /// Epoch of the lease.
    pub epoch: u64,
    /// Number of the last frame sent.
    pub number: u64,
    /// Threads that have had frames after the frame that the query names, with the last frame of
    /// each.
    pub threads: Vec<(ThreadId, u64)>,
    /// False if there may be other threads.
    pub is_complete: bool,
}

/// Something to log; it has no other effect.
#[derive(Debug, Clone, PartialEq)]
pub enum MachineReport {
    /// Two chunks have the same id but different content. The first one is kept.
    Conflict {
        key: MessageKey,
        chunk_id: u32,
        /// Digest of the chunk that stays.
        kept: u64,
        /// Digest of the dropped chunk.
        dropped: u64,
    },
    /// A message without a turn has failed.
    GivenUp {
        key: MessageKey,
        failure: MessageFailure,
        /// State of its buffer.
        buffer: BufferState,
        /// Correlation id for tracing across services, from its highest chunk that has one.
        correlation_id: Option<Box<str>>,
    },
    /// A chunk came before one with a lower id, which is still missing; see
    /// [`PartitionLimits::reports_chunks`](crate::PartitionLimits::reports_chunks).
    OutOfOrder {
        key: MessageKey,
        chunk_id: u32,
        /// State of the buffer, with the missing ids.
        buffer: BufferState,
    },
    /// A message is stored. Reported under the same condition as [`Self::OutOfOrder`].
    Finalized {
        key: MessageKey,
        /// Number of chunks.
        chunks: u32,
        /// Tokens of its model calls, where known.
        tokens: Option<u64>,
        /// Bytes of the chunks' text.
        bytes: usize,
    },
    /// Sequences that are missing in the stream, because the stream lost their entries.
    Hole {
        /// First missing sequence.
        first: Seq,
        /// Last missing sequence.
        last: Seq,
    },
    /// At capacity: new messages from this sequence on wait in the stream.
    Deferring(Seq),
    /// Chunks of a turn came without its token: their publisher is not authorized.
    Unauthorized(MessageKey),
    /// A chunk of a bare message has another role than the message: it is dropped.
    OtherRole(MessageKey),
    /// Some facts in the answer to a memory task cannot be used, or the answer has no list of
    /// facts. Unusable facts are left out.
    InvalidFacts {
        /// Turn of the task.
        turn: TurnId,
        /// Number of invalid facts and what is wrong.
        invalid: InvalidFacts,
    },
    /// A timer changed state.
    Timer {
        timer: TimerId,
        outcome: TimerOutcome,
        /// Rule or other cause of the change.
        by: Option<String>,
    },
    /// A run of a turn failed.
    TurnFailed {
        turn: TurnId,
        run: u32,
        /// Thread in which the turn runs.
        thread: ThreadId,
        /// Agent whose workflow was asked.
        agent: AgentId,
        code: String,
        text: String,
        /// Backoff of the agent in ms; `None`: it does not back off.
        backoff_ms: Option<i64>,
        /// State of the answer's buffer; `None` when no chunk had come.
        buffer: Option<BufferState>,
        /// Correlation id for tracing across services, from its input.
        correlation_id: Option<Box<str>>,
    },
}

/// Change of a timer's state, for metrics and the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimerOutcome {
    /// A timer is set.
    Armed,
    /// A timer was requested but cannot be set.
    NotArmed,
    /// The timer fires.
    Fired,
    /// The timer is delayed.
    Postponed,
    /// A rule refused it.
    Refused,
    /// The timer was cancelled before it fired.
    Cancelled,
    /// The turn that the timer started was withdrawn.
    Withdrawn,
}

impl TimerOutcome {
    /// Name in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Self::Armed => "armed",
            Self::NotArmed => "not_armed",
            Self::Fired => "fired",
            Self::Postponed => "postponed",
            Self::Refused => "refused",
            Self::Cancelled => "cancelled",
            Self::Withdrawn => "withdrawn",
        }
    }
}

/// Buffer of a message, for the log and for status queries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BufferState {
    /// Chunk id expected next.
    pub expected: u32,
    /// Number of chunks received.
    pub received: u32,
    /// Number of chunks released.
    pub released: u32,
    /// Missing ids below the highest received; at most 64 ranges.
    pub missing: Vec<IdRange>,
    /// Time since the last counted chunk, ms.
    pub idle_ms: i64,
}
