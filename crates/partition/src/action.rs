//! The inputs of a partition, and the actions that it decides on.

use std::sync::Arc;

use batches::memory::RecalledFacts;
use bytes::Bytes;
use model::{
    AgentId, AnswerReport, BatchType, Chunk, Command, Cut, DelayedTask, Frame, FrameNumber, GatewayId,
    IdRange, LiveFrame, MessageEnd, MessageFailure, MessageId, MessageKey, MessageOutcome, PartialText,
    Position, QueuedTask, RejectedEntry, Role, Seq, ThreadId, TimerId, Timestamp, TokenKeys, TurnId,
    TurnToken,
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
    /// Its sequence in the stream.
    pub seq: Seq,
    /// When the stream stored it, by the stream's clock.
    pub stored_at: Timestamp,
    /// Bytes that it takes in the stream, about.
    pub bytes: usize,
    /// What it says, or why it cannot be used.
    pub body: EntryBody,
}

/// The body of an entry.
#[derive(Debug, Clone, PartialEq)]
pub enum EntryBody {
    /// Chunks of one thread.
    Frame(Frame),
    /// Something to be done. Kept raw as well, for the dead letter that it may become.
    Command(Command, RawPayload),
    /// Refused as a whole; becomes a dead letter.
    Refused {
        /// The subject that it came on.
        subject: String,
        /// Its raw payload.
        payload: Bytes,
        /// Why.
        refusal: RejectedEntry,
        /// The answer that it was meant for, if it bears a token.
        answer: Option<RefusedAnswer>,
    },
}

/// What a refused payload was meant for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedAnswer {
    /// The thread of its subject.
    pub thread: ThreadId,
    /// The token that it bears. Only a turn of which it is the token is concerned.
    pub token: TurnToken,
    /// The dead letter that it becomes, for people.
    pub dead_letter: String,
}

/// A gateway asks for the open text of a thread, beyond what it has. From the answer on it follows the thread.
#[derive(Debug, Clone, PartialEq)]
pub struct SnapshotRequest {
    /// Comes back with the answer.
    pub token: u64,
    /// Who asks.
    pub gateway: GatewayId,
    /// The thread.
    pub thread: ThreadId,
    /// What the gateway has: message, attempt, next id.
    pub known: Vec<(MessageId, u32, u32)>,
    /// The answer names at most so many messages, and all that are known.
    pub max_messages: usize,
    /// The answer holds at most this many bytes of chunks.
    pub max_bytes: usize,
}

/// A gateway asks of which threads frames were sent after this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedThreadsQuery {
    /// Comes back with the answer.
    pub token: u64,
    /// Who asks. A gateway that does not ask for [`FOLLOWER_EXPIRY_MS`](crate::FOLLOWER_EXPIRY_MS) follows nothing any more.
    pub gateway: GatewayId,
    /// Threads that it does not follow any more.
    pub unfollowed: Vec<ThreadId>,
    /// The epoch in which the number counts, the highest that the gateway knows; another one's are all news.
    pub epoch: u64,
    /// The last frame that the gateway has received.
    pub number: u64,
}

/// Everything that can happen to a partition.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// Entries of the stream in its order, and how many more messages may be opened meanwhile.
    Entries {
        /// The entries.
        entries: Vec<StreamEntry>,
        /// New messages beyond this many wait in the stream.
        room: usize,
    },
    /// The reader has seen everything that is in the stream (true), or is behind or cut off (false). Clocks of gaps
    /// and stalls follow real time only while nothing unread could close them, else the stream's time.
    CaughtUp(bool),
    /// The answer to [`Action::Lookup`].
    Found(Vec<(MessageKey, Lookup)>),
    /// The commit that was in flight has been applied, but for these turns: the store refused their messages, and what
    /// [`TurnWrite::on_refusal`](crate::TurnWrite::on_refusal) says was written with this text.
    Committed(Vec<(TurnId, String)>),
    /// The answer to [`Action::Check`], in the order of its keys.
    Checked(Vec<(CommandKey, CommandVerdict)>),
    /// The answer to [`Action::Start`].
    Started {
        /// The turn.
        turn: TurnId,
        /// Its run.
        run: u32,
        /// What came of it.
        started: Started,
    },
    /// The facts that a turn is given, before the answer to its [`Action::Start`]. Without it the turn is given none.
    Recalled {
        /// The turn.
        turn: TurnId,
        /// Its run.
        run: u32,
        /// What it is given.
        facts: RecalledFacts,
    },
    /// What was heard of the requests of turns, by turn and run; see [`Partition::silent_turns`](crate::Partition::silent_turns).
    Requests(Vec<(TurnId, u32, RequestNews)>),
    /// A workflow inside this process has answered a turn: all chunks of the answer, in order.
    Answered {
        /// The turn.
        turn: TurnId,
        /// Its run.
        run: u32,
        /// Consecutive ids from 0, the last one final.
        chunks: Vec<Arc<Chunk>>,
    },
    /// The answer to [`Action::LoadTasks`]: the next tasks after the position that was asked for.
    Tasks {
        /// Whose.
        agent: AgentId,
        /// The position that was asked for.
        after: Position,
        /// At most as many as were asked for.
        tasks: Vec<QueuedTask>,
        /// There are more.
        more: bool,
    },
    /// The answer to [`Action::DecideTimers`].
    TimersDecided(Vec<TimerDecision>),
    /// The answer to [`Action::LoadTimers`].
    Timers(TimerPage),
    /// The answer to [`Action::DelayTask`].
    TaskDelayed {
        /// Its entry.
        seq: Seq,
        /// What came of it; `None`: the store refuses it for good.
        outcome: Option<TaskDelay>,
    },
    /// The answer to [`Action::Save`]: all of it is stored, but for what the store refuses for good, with what it says of it. That fails.
    Saved(Vec<(SavedItem, String)>),
    /// Others than the owner have written timers of the partition.
    TimersChanged,
    /// The keys of turn tokens were rotated, or the one before counts no longer.
    TokenKeys(TokenKeys),
    /// All of this batch of the outbox has been published.
    Sent(Position),
    /// A gateway asks how a queue stands.
    Status(StatusQuery),
    /// A gateway asks for the open text of a thread.
    Snapshot(SnapshotRequest),
    /// A gateway asks which threads have changed.
    ChangedThreads(ChangedThreadsQuery),
    /// Time has passed: send it when [`crate::Partition::poll_timeout`] says so.
    Tick,
    /// There is room again for messages that wait in the stream; see [`Action::Reread`].
    Room,
    /// Memory is short: forget open messages of at least this many bytes; they are read again later.
    Shed(usize),
}

/// What a partition decides. The driver performs the actions in order.
#[expect(clippy::large_enum_variant, reason = "there is one commit at a time, and it is moved once")]
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Look up in the store what it knows of these messages; answer with [`Input::Found`].
    Lookup(Vec<MessageKey>),
    /// Send these chunks to the gateways.
    Publish(ReadyChunks),
    /// Write this; answer with [`Input::Committed`], or drop the partition. One at a time.
    Commit(Commit),
    /// Save this beside the commits, until the store has it; answer with [`Input::Saved`]. One at a time.
    Save(Save),
    /// Send the end of the message to the gateways.
    End(MessageEnded),
    /// A gateway knows of an owner with this higher epoch: ask the store whether the partition is held still, and by which epoch it would be
    /// above that one. A store that went back in time may have forgotten the other owner.
    CheckLease(u64),
    /// Answer a [`SnapshotRequest`].
    Snapshot(SnapshotReply),
    /// Answer a [`ChangedThreadsQuery`].
    ChangedThreads(ChangedThreads),
    /// Look up in the store what it knows of these commands; answer with [`Input::Checked`], in their order.
    Check(Vec<CommandKey>),
    /// Begin a turn.
    Start(Box<Start>),
    /// Notify the workflow that this run is not waited for any more, and take its request back if no workflow has it yet.
    Abandon {
        /// The turn.
        turn: TurnId,
        /// Its run.
        run: u32,
    },
    /// Read on in an agent's queue; answer with [`Input::Tasks`].
    LoadTasks {
        /// Whose.
        agent: AgentId,
        /// Tasks after this position that are not marked failed.
        after: Position,
        /// At most so many.
        limit: usize,
    },
    /// Decide what becomes of these timers, which are due, by what the store knows; answer with [`Input::TimersDecided`].
    DecideTimers(Vec<TimerId>),
    /// Read on in the timers; answer with [`Input::Timers`].
    LoadTimers {
        /// Those that are due in so many ms or later.
        from_ms: i64,
        /// At most so many.
        limit: usize,
    },
    /// Store a task that enters its queue later, unless it is there; answer with [`Input::TaskDelayed`].
    DelayTask {
        /// Its entry.
        seq: Seq,
        /// The task.
        delayed: Box<DelayedTask>,
    },
    /// Publish this; answer with [`Input::Sent`]. Ids derived from the turns make a repetition harmless.
    Send(OutboxBatch),
    /// Answer a [`StatusQuery`].
    Status(Box<StatusReply>),
    /// Set the reader back to this sequence: messages that had to wait in the stream have room now.
    Reread(Seq),
    /// Worth a line in the log.
    Report(MachineReport),
}

impl Action {
    /// The name in metrics.
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

/// Chunks that became ready, with consecutive ids, each once in order per attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct ReadyChunks {
    /// The message.
    pub key: MessageKey,
    /// Its attempt. Higher than the last one of this message: the text starts again.
    pub attempt: u32,
    /// The author's role.
    pub role: Role,
    /// What its batch began with.
    pub batch_type: BatchType,
    /// The chunks; may be empty when only the attempt rose. As many as fit into one frame.
    pub chunks: Vec<Arc<Chunk>>,
    /// The number of the frame.
    pub frame: FrameNumber,
}

/// The end of a message, decided by its commit.
#[derive(Debug, Clone, PartialEq)]
pub struct MessageEnded {
    /// The message.
    pub key: MessageKey,
    /// Its attempt.
    pub attempt: u32,
    /// The author's role.
    pub role: Role,
    /// What its batch began with.
    pub batch_type: BatchType,
    /// Its place among the ends of the thread, which is that of the message if it is persisted.
    pub position: Position,
    /// How many chunks were released.
    pub chunks: u32,
    /// How it ended.
    pub outcome: MessageOutcome,
    /// Of an answer that is persisted: why it ended and what it used.
    pub report: AnswerReport,
    /// The number of the frame.
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
        }
    }
}

/// The answer to a [`SnapshotRequest`].
#[derive(Debug, Clone, PartialEq)]
pub struct SnapshotReply {
    /// The token of the query.
    pub token: u64,
    /// As of when.
    pub cut: Cut,
    /// What is open, from what is known on.
    pub open: Vec<PartialText>,
    /// More messages are open than it names.
    pub left_out: bool,
    /// True when the size limit cut it: request the rest again.
    pub more: bool,
}

/// The answer to a [`ChangedThreadsQuery`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedThreads {
    /// The token of the query.
    pub token: u64,
    /// The epoch of the lease.
    pub epoch: u64,
    /// The last frame that was sent.
    pub number: u64,
    /// The threads of which frames were sent after the one that the query names, with the last frame of each.
    pub threads: Vec<(ThreadId, u64)>,
    /// False when there may be other threads.
    pub is_complete: bool,
}

/// Something worth a line in the log and nothing else.
#[derive(Debug, Clone, PartialEq)]
pub enum MachineReport {
    /// Same id, other content: the first one stays.
    Conflict {
        /// The message.
        key: MessageKey,
        /// The chunk.
        chunk_id: u32,
        /// Digest of the one that stays.
        kept: u64,
        /// Digest of the one that is dropped.
        dropped: u64,
    },
    /// A message that belongs to no turn was given up.
    GivenUp {
        /// The message.
        key: MessageKey,
        /// Why.
        failure: MessageFailure,
        /// What had come of it.
        buffer: BufferState,
        /// For tracing across services, as its last chunk says it.
        correlation_id: Option<Box<str>>,
    },
    /// A chunk has come before one with a lower id, which is waited for; see
    /// [`PartitionLimits::reports_chunks`](crate::PartitionLimits::reports_chunks).
    OutOfOrder {
        /// The message.
        key: MessageKey,
        /// The chunk.
        chunk_id: u32,
        /// The lowest id that is missing, and what else is.
        buffer: BufferState,
    },
    /// A message is stored. It is reported under the same condition as [`Self::OutOfOrder`].
    Finalized {
        /// The message.
        key: MessageKey,
        /// Its chunks.
        chunks: u32,
        /// Tokens of its calls of models, where any are known.
        tokens: Option<u64>,
        /// Bytes of its chunks' text.
        bytes: usize,
    },
    /// Stream sequences that never came: the stream lost them.
    Hole {
        /// First missing sequence.
        first: Seq,
        /// Last missing sequence.
        last: Seq,
    },
    /// At capacity: messages new from this sequence on wait in the stream.
    Deferring(Seq),
    /// Chunks of a turn came without its token: their publisher is not authorized.
    Unauthorized(MessageKey),
    /// A chunk of a bare message names another role than the message has: it is dropped.
    OtherRole(MessageKey),
    /// Facts of an answer to a memory task cannot be used, or it has no list of facts: they are left out.
    InvalidFacts {
        /// The task's turn.
        turn: TurnId,
        /// How many, and what is wrong.
        invalid: InvalidFacts,
    },
    /// Something became of a timer.
    Timer {
        /// Which.
        timer: TimerId,
        /// What.
        outcome: TimerOutcome,
        /// The rule, or whatever else decided it.
        by: Option<String>,
    },
    /// A run of a turn failed.
    TurnFailed {
        /// The turn.
        turn: TurnId,
        /// The run.
        run: u32,
        /// Where it takes place.
        thread: ThreadId,
        /// Whose workflow was asked.
        agent: AgentId,
        /// Code.
        code: String,
        /// For people.
        text: String,
        /// How long the agent backs off, ms; `None` when it does not.
        backoff_ms: Option<i64>,
        /// What had come of its answer; `None` when nothing had.
        buffer: Option<BufferState>,
        /// For tracing across services, as its input says it.
        correlation_id: Option<Box<str>>,
    },
}

/// What became of a timer, for metrics and the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimerOutcome {
    /// It is set.
    Armed,
    /// Something asked for one that cannot be set.
    NotArmed,
    /// It fires.
    Fired,
    /// It waits longer.
    Postponed,
    /// It was refused by a rule.
    Refused,
    /// It was cancelled before it fired.
    Cancelled,
    /// What it fired was taken back.
    Withdrawn,
}

impl TimerOutcome {
    /// The name in metrics.
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

/// The buffer of a message that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BufferState {
    /// The id that was expected next.
    pub expected: u32,
    /// How many chunks had been received.
    pub received: u32,
    /// How many had been released.
    pub released: u32,
    /// The ids that were missing below the highest that had come; at most 64 ranges are named.
    pub missing: Vec<IdRange>,
    /// For how long no chunk had come that counted, ms.
    pub idle_ms: i64,
}
