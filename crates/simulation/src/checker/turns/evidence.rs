//! The data that is compared for turns, besides the evidence of messages.

use std::collections::BTreeSet;

use crate::checker::turns::timer_events::{FollowUpLimits, TimerEvent};
use bytes::Bytes;
use model::{
    AgentId, BatchType, Command, CommandId, MessageId, MessageKey, ModelCall, PartitionId, TaskId, ThreadId,
    TurnId,
};

/// The data that is compared besides the evidence of messages.
#[derive(Debug, Clone, Default)]
pub struct Turns {
    pub rules: TurnRules,
    /// The commands in the streams, in stream order for each partition.
    pub ledger: Vec<Ordered>,
    /// The places of the messages of turns, in transaction order.
    pub rows: Vec<TurnRow>,
    /// The transitions, in order of time.
    pub history: Vec<Transition>,
    /// The events of timers, in transaction order.
    pub timers: Vec<TimerEvent>,
    pub audit: Vec<Audited>,
    /// The failed turns that are kept, with the run that failed.
    pub failed_turns: Vec<(ThreadId, TurnId, u32)>,
    /// What was published from the outbox, including repetitions.
    pub published: Vec<TurnEvent>,
    /// The time that each run's request was with the workflow.
    pub requests: Vec<RequestRecord>,
    /// Runs that could not be requested from the workflow, and turns that the store refused.
    pub refused: BTreeSet<(TurnId, u32)>,
    /// Rows that should be gone at the end: outbox, saved inputs.
    pub left: Vec<String>,
    /// The ledger of model calls, by answer and number.
    pub usage: Vec<UsageRow>,
    /// Answers that clients may see as failed.
    pub dead: BTreeSet<MessageKey>,
}

/// What the checker may expect of turns.
#[derive(Debug, Clone, Default)]
pub struct TurnRules {
    /// A run whose workflow was never silent for longer than this, ms, must not fail for its
    /// deadline.
    pub deadline_safe_ms: i64,
    /// First backoff, ms.
    pub backoff_base_ms: i64,
    /// Longest backoff, ms.
    pub backoff_cap_ms: i64,
    /// Failures after which a task is given up; `None`: never.
    pub max_attempts: Option<u32>,
    /// The rules for follow-ups; `None`: there are none.
    pub follow_ups: Option<FollowUpLimits>,
    /// Agents that do not exist and must not be created by use; the same holds for the threads with
    /// their ids.
    pub missing: BTreeSet<AgentId>,
    /// Inputs of persons, and tasks, whose look-up the store refuses.
    pub refused_turns: BTreeSet<TurnId>,
    /// Tasks whose look-up the store refuses.
    pub refused_tasks: BTreeSet<(AgentId, TaskId)>,
    /// Queues that lost tasks with an erased thread: their order is no longer known.
    pub unordered: BTreeSet<AgentId>,
    /// Turns of erased threads, and turns that followed them.
    pub erased_turns: BTreeSet<TurnId>,
}

/// A command in the stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Ordered {
    pub partition: PartitionId,
    pub seq: u64,
    /// When the stream stored it, ms.
    pub at_ms: i64,
    pub payload: Bytes,
    pub command: Command,
}

/// The place of a message of a turn.
#[derive(Debug, Clone, PartialEq)]
pub struct TurnRow {
    pub key: MessageKey,
    pub commit: u64,
    pub batch_id: i64,
    pub sequence_num: i32,
    /// The kind of input that the batch began with.
    pub batch_type: BatchType,
    /// Ids of the calls of an assistant message.
    pub calls: Vec<String>,
    /// The call that a tool message answers.
    pub answers: Option<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Transition {
    /// By the database's clock, ms.
    pub at_ms: i64,
    pub partition: PartitionId,
    /// Number of the transaction; for a start, the epoch of the owner.
    pub number: u64,
    pub what: TransitionKind,
}

/// The content of a [`Transition`].
#[derive(Debug, Clone, PartialEq)]
pub enum TransitionKind {
    /// The owner of record began a turn.
    Started {
        turn: TurnId,
        run: u32,
        thread: ThreadId,
        /// The turn was already in progress, begun by an earlier owner.
        is_adopted: bool,
    },
    /// A run of a turn ended.
    Ended { turn: TurnId, run: u32, thread: ThreadId, end: RunEnd },
    /// A task entered its queue.
    Queued {
        agent: AgentId,
        task: TaskId,
        /// Position in the queue.
        position: i64,
    },
    /// The row of an agent was written.
    Agent {
        agent: AgentId,
        /// The row after the write.
        row: AgentRow,
        /// The requested wait, ms.
        wait_ms: Option<i64>,
    },
    /// A task was marked failed.
    Marked {
        agent: AgentId,
        /// Position in the queue.
        position: i64,
        code: String,
    },
    /// A failed task moved to the end of its queue.
    Requeued {
        agent: AgentId,
        /// The old position.
        from: i64,
        /// The new position.
        to: i64,
    },
    /// A failed task was removed.
    Removed {
        agent: AgentId,
        /// Position in the queue.
        position: i64,
    },
    /// A failed turn was dropped by command.
    Dropped { thread: ThreadId, turn: TurnId },
    /// The turn of a follow-up was withdrawn: none of its messages are stored.
    TakenBack { turn: TurnId },
    /// A control command was audited.
    Acted {
        /// The agent that was concerned.
        subject: AgentId,
        control: CommandId,
        /// The command was executed.
        is_done: bool,
    },
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct AgentRow {
    /// All tasks up to this position are done or marked failed.
    pub head: i64,
    /// The run of the next turn.
    pub run: u32,
    /// Failures since the last success.
    pub failures: u32,
    /// No task starts before this time, ms by the database's clock.
    pub next_run_at: Option<i64>,
    /// No task starts while this is set.
    pub is_paused: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum RunEnd {
    /// Its messages are in the history.
    Completed,
    /// Its messages are in the history, as far as they arrived.
    Stopped,
    /// Nothing is in the history; the value is the failure code.
    Failed(String),
}

/// A row of the audit.
#[derive(Debug, Clone, PartialEq)]
pub struct Audited {
    pub id: CommandId,
    /// The agent that was concerned.
    pub subject: AgentId,
    pub actor: String,
    pub what: String,
    pub target: Option<String>,
}

/// A row of the ledger of model calls.
#[derive(Debug, Clone, PartialEq)]
pub struct UsageRow {
    /// The answer for which the model was called.
    pub answer: MessageKey,
    /// Number of the call within the answer, from 0.
    pub number: u16,
    pub call: ModelCall,
    /// The answer did not complete.
    pub is_partial: bool,
}

/// The published end of a turn.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TurnEvent {
    pub turn: TurnId,
    /// The batch of the outbox; with the turn it forms the event id.
    pub batch: i64,
    /// `completed`, `failed` or `stopped`.
    pub status: &'static str,
    pub message: Option<MessageId>,
    pub code: Option<String>,
}

/// A turn request.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestRecord {
    pub turn: TurnId,
    pub run: u32,
    /// When it was stored, ms.
    pub from_ms: i64,
    /// When it was done or withdrawn, ms; `None`: never.
    pub until_ms: Option<i64>,
}

/// The role of a message within its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TurnPart {
    Input,
    /// A message of a step before the answer.
    Step(u32),
    /// The answer of a run.
    Answer(u32),
}

/// The turn that a message belongs to, derived from its id alone.
pub fn part_of(message: &MessageId) -> Option<(TurnId, TurnPart)> {
    if let Some((turn, run)) = TurnId::of_answer(message) {
        return Some((turn, TurnPart::Answer(run)));
    }
    let text = message.as_str();
    if let Some(turn) = text.strip_suffix("-q") {
        return Some((TurnId::parse(turn).ok()?, TurnPart::Input));
    }
    let answer = MessageId::parse(text.rsplit_once("-s")?.0).ok()?;
    let (turn, run) = TurnId::of_answer(&answer)?;
    Some((turn, TurnPart::Step(run)))
}

/// The ends of runs, with their transitions.
pub(super) fn ends(turns: &Turns) -> impl Iterator<Item = (&Transition, &TurnId, u32, &ThreadId, &RunEnd)> {
    turns.history.iter().filter_map(|happened| match &happened.what {
        TransitionKind::Ended { turn, run, thread, end } => Some((happened, turn, *run, thread, end)),
        _ => None,
    })
}
