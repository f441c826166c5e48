//! Status of a thread's turns and of an agent's queue, as reported by the owner of their partition.

use serde_json::Value;

use crate::{
    AgentId, BatchType, IdRange, MessageId, MessageTimes, Metadata, OpenInput, Position, Role, Seq, TaskId,
    Tenant, ThreadId, Timestamp, TurnId, Unanswered,
};

/// Subject of a status query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueryTarget {
    /// An agent's queue, with the turns of its thread.
    Agent(AgentId),
    /// A thread's turns.
    Thread(ThreadId),
    Turn(TurnId),
    /// A thread's turns, with the batch of the active one.
    Batch(ThreadId),
    /// A thread's turns, with the inputs that are accepted and not committed.
    Inputs(ThreadId),
    /// The threads of a tenant (`None`: the default one) in which a turn runs or waits.
    BusyThreads(Option<Tenant>),
}

/// Status of a [`QueryTarget`], as known to the owner of its partition.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QueueStatus {
    /// The active turn, if any.
    pub active: Option<ActiveTurn>,
    /// Inputs that wait for the thread, in order.
    pub waiting: Vec<WaitingTurn>,
    /// Why the agent's head does not start; `None` if there is no head or it is running.
    pub reason: Option<WaitReason>,
    /// True if the agent is paused.
    pub paused: bool,
    /// First task of the queue.
    pub head: Option<TaskId>,
    /// All commands of the stream up to here are applied.
    pub applied_seq: Seq,
    /// Open messages of the thread, oldest first; at most 64.
    pub open: Vec<OpenMessageStatus>,
    /// Only in the reply to [`QueryTarget::Inputs`].
    pub inputs: Option<OpenInputs>,
    /// Only in the reply to [`QueryTarget::BusyThreads`].
    pub busy: Option<BusyThreads>,
}

/// The threads of a tenant in which a turn runs or waits, in one partition.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BusyThreads {
    /// In no order.
    pub threads: Vec<BusyThread>,
    /// True if there are more.
    pub is_cut: bool,
}

impl BusyThreads {
    /// The maximum number of threads in a reply.
    pub const MAX: usize = 1_000;
}

/// A thread in which a turn runs or waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BusyThread {
    pub thread: ThreadId,
    /// False if inputs wait and none of them runs.
    pub is_running: bool,
}

/// The inputs of a thread that are accepted and not committed.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenInputs {
    /// In the order in which they will be answered.
    pub inputs: Vec<OpenInput>,
    /// True if the last inputs were left out to limit the size.
    pub is_cut: bool,
}

impl OpenInputs {
    /// Drops the last inputs, so that the whole has about this many bytes at most.
    pub fn cut_to(&mut self, bytes: usize) {
        let mut left = bytes;
        let fits = |input: &&OpenInput| {
            let fits = input.size() <= left;
            left = left.saturating_sub(input.size());
            fits
        };
        let count = self.inputs.iter().take_while(fits).count();
        self.is_cut |= count < self.inputs.len();
        self.inputs.truncate(count);
    }
}

/// A message that has begun and not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenMessageStatus {
    pub message: MessageId,
    /// Id of the chunk released next.
    pub expected: u32,
    /// Number of chunks received.
    pub received: u32,
    /// Number of chunks released.
    pub released: u32,
    /// Missing chunks below the highest received; at most 64 ranges.
    pub missing: Vec<IdRange>,
    /// Time left until an open gap times out, ms; `None` without a gap.
    pub gap_for_ms: Option<i64>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingTurn {
    pub turn: TurnId,
    pub reason: WaitReason,
    /// Time since its arrival, ms.
    pub age_ms: i64,
    /// True for a postponed background turn, which foreground inputs overtake.
    pub yields: bool,
}

/// An active turn.
#[derive(Debug, Clone, PartialEq)]
pub struct ActiveTurn {
    pub turn: TurnId,
    pub thread: ThreadId,
    pub run: u32,
    /// Message id of the answer.
    pub message: MessageId,
    /// What it waits for; `None` while chunks come.
    pub waits_for: Option<WaitReason>,
    /// Time without a chunk, ms.
    pub idle_ms: i64,
    /// Known state of its request.
    pub request: RequestInfo,
    /// Time at which its input was accepted.
    pub accepted_at: Timestamp,
    /// Start of this run; `None` while it waits.
    pub started_at: Option<Timestamp>,
    /// Only in the reply to [`QueryTarget::Batch`], and only for a turn that people may see before
    /// it has ended.
    pub batch: Option<Box<OpenBatch>>,
}

/// The part of an active turn's batch that has arrived.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenBatch {
    /// Stored batch that it continues.
    pub continues: Option<Position>,
    pub batch_type: BatchType,
    /// The input, and the answer received so far.
    pub messages: Vec<OpenBatchMessage>,
    /// True if the ends of texts were cut to fit into the reply.
    pub is_cut: bool,
}

/// A message of an [`OpenBatch`], with the id under which it will be stored.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenBatchMessage {
    pub id: MessageId,
    pub role: Role,
    /// Text received so far.
    pub content: String,
    /// JSON array `[{"id", "name", "arguments"}]`.
    pub tool_calls: Option<Value>,
    /// For a tool's result: the call that it answers.
    pub tool_call_id: Option<String>,
    /// Metadata as far as known.
    pub metadata: Metadata,
    /// See [`MessageTimes`]; without `created_at` the message continues.
    pub times: MessageTimes,
}

impl OpenBatch {
    /// Cuts the ends of texts and drops the last messages, so that the whole has about this many
    /// bytes at most.
    pub fn cut_to(&mut self, bytes: usize) {
        let mut left = bytes;
        for index in 0..self.messages.len() {
            let message = &mut self.messages[index];
            let calls = message.tool_calls.as_ref().map_or(0, |calls| calls.to_string().len());
            let beside = calls + message.metadata.size() + OpenBatchMessage::OVERHEAD;
            if beside > left {
                self.messages.truncate(index);
                self.is_cut = true;
                return;
            }
            left -= beside;
            if message.content.len() > left {
                let end = (0..=left).rev().find(|end| message.content.is_char_boundary(*end));
                message.content.truncate(end.unwrap_or_default());
                self.is_cut = true;
            }
            left -= message.content.len();
        }
    }
}

impl OpenBatchMessage {
    /// Approximate bytes of a message besides its texts.
    const OVERHEAD: usize = 256;
}

/// Known state of a turn's request. The owner learns it only from news; it is not stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// Number of deliveries; 0: none, or not known.
    pub deliveries: u32,
    /// Number of times it was handed back.
    pub handed_back: u32,
    /// Time until the request is delivered again, ms, if it was handed back.
    pub again_ms: Option<i64>,
    /// Time since a service last reported progress, ms.
    pub alive_ms: Option<i64>,
    /// Time until the turn fails if no chunk comes, ms; `None`: its deadline is not known yet.
    pub fails_ms: Option<i64>,
}

/// Notice to subscribers about an unanswered turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitNotice {
    pub thread: ThreadId,
    /// Message id of the answer.
    pub message: MessageId,
    pub reason: WaitReason,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitReason {
    /// The agent is in backoff.
    Backoff {
        /// Time left, ms.
        for_ms: i64,
    },
    /// An earlier turn or task is not finished.
    HeadOfLine,
    /// A chunk of the answer is missing.
    Gap,
    /// The agent is paused.
    Paused,
    /// No workflow service has taken the request.
    NoWorkflow,
    /// The partition already runs the maximum number of turns.
    Capacity,
    /// A new owner is still reading the stream.
    CatchingUp,
    /// A budget is spent; the time left is the rest of its period.
    Budget {
        /// Time left, ms.
        for_ms: i64,
    },
    /// A limit on the number or rate of turns of its workflow, model or tenant is reached; the time
    /// left is until the next try.
    Limited {
        /// Time left, ms.
        for_ms: i64,
    },
    /// The request is stored; its state is not known yet.
    Requested,
    /// A workflow service has taken the request, and no chunk has come yet.
    Taken,
    /// Two chunks of the answer have the same number and different content; nothing waits for that.
    ChunkConflict,
    /// A known problem of an unanswered request; never [`Unanswered::NoWorkflow`].
    Unanswered(Unanswered),
}

impl WaitReason {
    /// In the order of their numbers in protobuf, which begin with 1.
    pub const ALL: [Self; 17] = [
        Self::Backoff { for_ms: 0 },
        Self::HeadOfLine,
        Self::Gap,
        Self::Paused,
        Self::NoWorkflow,
        Self::Capacity,
        Self::CatchingUp,
        Self::Budget { for_ms: 0 },
        Self::Limited { for_ms: 0 },
        Self::Requested,
        Self::Taken,
        Self::Unanswered(Unanswered::HandedBack),
        Self::Unanswered(Unanswered::LostService),
        Self::Unanswered(Unanswered::NoAnswer),
        Self::Unanswered(Unanswered::Unfinished),
        Self::Unanswered(Unanswered::NoToken),
        Self::ChunkConflict,
    ];

    /// Code in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Backoff { .. } => "backoff",
            Self::HeadOfLine => "head_of_line",
            Self::Gap => "gap",
            Self::Paused => "paused",
            Self::NoWorkflow => "no_workflow",
            Self::Capacity => "capacity",
            Self::CatchingUp => "catching_up",
            Self::Budget { .. } => "budget",
            Self::Limited { .. } => "limited",
            Self::Requested => "requested",
            Self::Taken => "taken",
            Self::ChunkConflict => "chunk_conflict",
            Self::Unanswered(why) => why.code(),
        }
    }

    /// Description for people.
    pub fn message(self) -> &'static str {
        match self {
            Self::Backoff { .. } => "the agent backs off after a failure",
            Self::HeadOfLine => "an earlier turn or task is not finished",
            Self::Gap => "a chunk of the answer is missing",
            Self::Paused => "the agent is paused",
            Self::NoWorkflow => Unanswered::NoWorkflow.text(),
            Self::Capacity => "the partition runs as many turns as it may",
            Self::CatchingUp => "a new owner is still reading the partition's stream",
            Self::Budget { .. } => "a budget of the agent, the user or the tenant is spent",
            Self::Limited { .. } => "a limit of the workflow, the model or the tenant is reached",
            Self::Requested => "the request is stored for the workflow's services",
            Self::Taken => "a workflow service has taken the request and has not published a chunk yet",
            Self::ChunkConflict => {
                "two chunks of the answer have one `chunk_id` and different content; the first one counts"
            }
            Self::Unanswered(why) => why.text(),
        }
    }

    /// Time left in ms, if known.
    pub fn for_ms(self) -> Option<i64> {
        match self {
            Self::Backoff { for_ms } | Self::Budget { for_ms } | Self::Limited { for_ms } => Some(for_ms),
            _ => None,
        }
    }

    /// The same reason with `for_ms` as the time left, if it has one.
    #[must_use]
    pub fn lasting(self, for_ms: i64) -> Self {
        match self {
            Self::Backoff { .. } => Self::Backoff { for_ms },
            Self::Budget { .. } => Self::Budget { for_ms },
            Self::Limited { .. } => Self::Limited { for_ms },
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_batch_is_cut_to_what_one_answer_may_hold() {
        let message = |content: &str| OpenBatchMessage {
            id: MessageId::parse("m").unwrap(),
            role: Role::Assistant,
            content: content.to_owned(),
            tool_calls: None,
            tool_call_id: None,
            metadata: Metadata::EMPTY,
            times: MessageTimes::default(),
        };
        let cut = |bytes| {
            let messages = vec![message("ab"), message("\u{e4}\u{e4}"), message("c")];
            let mut batch =
                OpenBatch { continues: None, batch_type: BatchType::UserRequest, messages, is_cut: false };
            batch.cut_to(bytes);
            let texts: Vec<String> = batch.messages.into_iter().map(|message| message.content).collect();
            (texts.join("|"), batch.is_cut)
        };
        let beside = OpenBatchMessage::OVERHEAD;
        assert_eq!(cut(3 * beside + 7), ("ab|\u{e4}\u{e4}|c".to_owned(), false));
        assert_eq!(cut(3 * beside + 6), ("ab|\u{e4}\u{e4}|".to_owned(), true));
        assert_eq!(cut(2 * beside + 5), ("ab|\u{e4}".to_owned(), true));
        assert_eq!(cut(beside - 1), (String::new(), true));
    }

    /// The manual lists these mistakes of services in the words that clients see.
    #[test]
    fn mistakes_of_services_stand_in_the_manual() {
        let manual = include_str!("../../../deploy/docs/src/reference/workflow-contract.md");
        let shown = WaitReason::ALL.into_iter().filter(|reason| {
            matches!(
                reason,
                WaitReason::Unanswered(_)
                    | WaitReason::NoWorkflow
                    | WaitReason::Gap
                    | WaitReason::ChunkConflict
            )
        });
        for reason in shown {
            let is_row = |row: &&str| row.contains(&format!("| `{}`", reason.name()));
            let row = manual.lines().find(is_row).unwrap_or_else(|| panic!("{} has no row", reason.name()));
            assert!(row.contains(reason.message()), "{}: {row}", reason.name());
        }
    }
}
