//! What is compared of turns, besides the evidence of messages.

use std::collections::BTreeSet;

use crate::checker::turns::timer_events::{FollowUpLimits, TimerEvent};
use bytes::Bytes;
use model::{
    AgentId, BatchType, Command, CommandId, MessageId, MessageKey, ModelCall, PartitionId, TaskId, ThreadId,
    TurnId,
};

/// What is compared besides the evidence of messages.
#[derive(Debug, Clone, Default)]
pub struct Turns {
    /// What may be expected.
    pub rules: TurnRules,
    /// Commands that the streams hold, in the order of the stream for each partition.
    pub ledger: Vec<Ordered>,
    /// Where the messages of turns stand, in the order of their transactions.
    pub rows: Vec<TurnRow>,
    /// What happened, in the order of time.
    pub history: Vec<Transition>,
    /// What happened to timers, in the order of their transactions.
    pub timers: Vec<TimerEvent>,
    /// The audit.
    pub audit: Vec<Audited>,
    /// Failed turns that are kept, with the run that failed.
    pub failed_turns: Vec<(ThreadId, TurnId, u32)>,
    /// What was published of the outbox, repetitions included.
    pub published: Vec<TurnEvent>,
    /// For how long each run's request was with the workflow.
    pub requests: Vec<RequestRecord>,
    /// Runs that the workflow could not be asked for, and turns that the store refused.
    pub refused: BTreeSet<(TurnId, u32)>,
    /// What should be gone at the end: rows of the outbox, saved inputs.
    pub left: Vec<String>,
    /// The ledger of model calls, by answer and number.
    pub usage: Vec<UsageRow>,
    /// Answers that clients may see as failed.
    pub dead: BTreeSet<MessageKey>,
}

/// What may be expected of turns.
#[derive(Debug, Clone, Default)]
pub struct TurnRules {
    /// A run whose workflow was never silent for longer, ms, may not fail for its deadline.
    pub deadline_safe_ms: i64,
    /// First backoff, ms.
    pub backoff_base_ms: i64,
    /// Longest backoff, ms.
    pub backoff_cap_ms: i64,
    /// A task that has failed so often is given up.
    pub max_attempts: Option<u32>,
    /// What the rules say of follow-ups; `None`: there are none.
    pub follow_ups: Option<FollowUpLimits>,
    /// Agents that do not exist and may not be created by use, nor may the threads of their ids.
    pub missing: BTreeSet<AgentId>,
    /// Inputs of persons, and tasks, that the store refuses to look up.
    pub refused_turns: BTreeSet<TurnId>,
    /// The same of tasks.
    pub refused_tasks: BTreeSet<(AgentId, TaskId)>,
    /// Queues of which tasks were deleted with an erased thread: their order is not known any more.
    pub unordered: BTreeSet<AgentId>,
    /// Turns of erased threads, and of what followed them.
    pub erased_turns: BTreeSet<TurnId>,
}

/// A command in the stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Ordered {
    /// The partition.
    pub partition: PartitionId,
    /// Its sequence in the stream.
    pub seq: u64,
    /// When the stream stored it, ms.
    pub at_ms: i64,
    /// Its raw payload.
    pub payload: Bytes,
    /// What it asks for.
    pub command: Command,
}

/// Where a message of a turn stands.
#[derive(Debug, Clone, PartialEq)]
pub struct TurnRow {
    /// Its message.
    pub key: MessageKey,
    /// Number of the transaction.
    pub commit: u64,
    /// The batch.
    pub batch_id: i64,
    /// Its number in the batch.
    pub sequence_num: i32,
    /// What the batch began with.
    pub batch_type: BatchType,
    /// Ids of the calls of an assistant message.
    pub calls: Vec<String>,
    /// The call that a tool message answers.
    pub answers: Option<String>,
}

/// One thing that happened.
#[derive(Debug, Clone, PartialEq)]
pub struct Transition {
    /// When, by the database's clock, ms.
    pub at_ms: i64,
    /// Where.
    pub partition: PartitionId,
    /// Number of the transaction; of a start the epoch of the owner.
    pub number: u64,
    /// What.
    pub what: TransitionKind,
}

/// See [`Transition`].
#[derive(Debug, Clone, PartialEq)]
pub enum TransitionKind {
    /// The owner of record began a turn.
    Started {
        /// The turn.
        turn: TurnId,
        /// Its run.
        run: u32,
        /// Its thread.
        thread: ThreadId,
        /// It was under way already, begun by an owner before.
        is_adopted: bool,
    },
    /// A run of a turn ended.
    Ended {
        /// The turn.
        turn: TurnId,
        /// Its run.
        run: u32,
        /// Its thread.
        thread: ThreadId,
        /// How.
        end: RunEnd,
    },
    /// A task entered its queue.
    Queued {
        /// Its agent.
        agent: AgentId,
        /// Its id.
        task: TaskId,
        /// Its place.
        position: i64,
    },
    /// The row of an agent was written.
    Agent {
        /// Which.
        agent: AgentId,
        /// The row afterwards.
        row: AgentRow,
        /// The wait that was asked for, ms.
        wait_ms: Option<i64>,
    },
    /// A task was marked failed.
    Marked {
        /// Its agent.
        agent: AgentId,
        /// Its place.
        position: i64,
        /// Why.
        code: String,
    },
    /// A failed task went to the end of its queue.
    Requeued {
        /// Its agent.
        agent: AgentId,
        /// From here.
        from: i64,
        /// To here.
        to: i64,
    },
    /// A failed task went.
    Removed {
        /// Its agent.
        agent: AgentId,
        /// Its place.
        position: i64,
    },
    /// A failed turn went by command.
    Dropped {
        /// Its thread.
        thread: ThreadId,
        /// Which.
        turn: TurnId,
    },
    /// The turn of a follow-up ended and left nothing.
    TakenBack {
        /// Which.
        turn: TurnId,
    },
    /// A control command was audited.
    Acted {
        /// Whom it concerned.
        subject: AgentId,
        /// The command.
        control: CommandId,
        /// It was done.
        is_done: bool,
    },
}

/// The row of an agent.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AgentRow {
    /// All tasks up to here are done or marked failed.
    pub head: i64,
    /// The run of the next turn.
    pub run: u32,
    /// Failures since the last success.
    pub failures: u32,
    /// No task starts before then, ms by the database's clock.
    pub next_run_at: Option<i64>,
    /// No task starts.
    pub is_paused: bool,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub enum RunEnd {
    /// Its messages are in the history.
    Completed,
    /// Its messages are, as far as they came.
    Stopped,
    /// Nothing is; a code.
    Failed(String),
}

/// A row of the audit.
#[derive(Debug, Clone, PartialEq)]
pub struct Audited {
    /// The command.
    pub id: CommandId,
    /// Whom it concerned.
    pub subject: AgentId,
    /// Who did it.
    pub actor: String,
    /// What.
    pub what: String,
    /// The task or turn.
    pub target: Option<String>,
}

/// A row of the ledger of model calls.
#[derive(Debug, Clone, PartialEq)]
pub struct UsageRow {
    /// The answer for which the model was called.
    pub answer: MessageKey,
    /// Number of the call among those of the answer, from 0.
    pub number: u16,
    /// What it has used.
    pub call: ModelCall,
    /// The answer did not come to its end.
    pub is_partial: bool,
}

/// A turn's end as it was published.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TurnEvent {
    /// The turn.
    pub turn: TurnId,
    /// The batch of the outbox: with the turn it is the id.
    pub batch: i64,
    /// `completed`, `failed` or `stopped`.
    pub status: &'static str,
    /// The answer.
    pub message: Option<MessageId>,
    /// Why it failed.
    pub code: Option<String>,
}

/// A turn request.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestRecord {
    /// The turn.
    pub turn: TurnId,
    /// Its run.
    pub run: u32,
    /// When it was stored, ms.
    pub from_ms: i64,
    /// When it was done or taken back, ms.
    pub until_ms: Option<i64>,
}

/// What a message is to its turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TurnPart {
    /// The input.
    Input,
    /// A message of a step before the answer.
    Step(u32),
    /// The answer of a run.
    Answer(u32),
}

/// The turn that a message belongs to, from its id alone.
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

/// The ends of runs with their places in the history.
pub(super) fn ends(turns: &Turns) -> impl Iterator<Item = (&Transition, &TurnId, u32, &ThreadId, &RunEnd)> {
    turns.history.iter().filter_map(|happened| match &happened.what {
        TransitionKind::Ended { turn, run, thread, end } => Some((happened, turn, *run, thread, end)),
        _ => None,
    })
}
