//! The status of a thread's turns and of an agent's queue, as the owner of their partition reports it.

use serde_json::Value;

use crate::{
    AgentId, BatchType, IdRange, MessageId, MessageTimes, Metadata, Position, Role, Seq, TaskId, ThreadId,
    Timestamp, TurnId, Unanswered,
};

/// What a status query is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueryTarget {
    /// An agent's queue, with the turns of its thread.
    Agent(AgentId),
    /// A thread's turns.
    Thread(ThreadId),
    /// One turn.
    Turn(TurnId),
    /// A thread's turns, with the batch of the one that is under way.
    Batch(ThreadId),
}

/// What the owner of a partition knows of a [`QueryTarget`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct QueueStatus {
    /// The turn that is under way, if there is one.
    pub active: Option<ActiveTurn>,
    /// Inputs that wait for the thread, in their order.
    pub waiting: Vec<WaitingTurn>,
    /// Why the agent's head does not start; `None` when there is no head or it is under way.
    pub reason: Option<WaitReason>,
    /// The agent is paused.
    pub paused: bool,
    /// The head of the queue.
    pub head: Option<TaskId>,
    /// Every command of the stream up to here is applied.
    pub applied_seq: Seq,
    /// Messages of the thread that have begun and not ended, the oldest first; at most 64.
    pub open: Vec<OpenMessageStatus>,
}

/// A message that has begun and not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenMessageStatus {
    /// Which.
    pub message: MessageId,
    /// The chunk that is released next.
    pub expected: u32,
    /// How many chunks have come.
    pub received: u32,
    /// How many of them were released.
    pub released: u32,
    /// Chunks that are missing below the highest that has come; at most 64 ranges.
    pub missing: Vec<IdRange>,
    /// While a chunk is missing: time left until the gap times out, ms.
    pub gap_for_ms: Option<i64>,
}

/// An input that waits for its thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingTurn {
    /// Its turn.
    pub turn: TurnId,
    /// Why it does not begin.
    pub reason: WaitReason,
    /// For how long its owner has known of it, ms.
    pub age_ms: i64,
    /// A postponed background turn: foreground inputs overtake it.
    pub steps_aside: bool,
}

/// A turn under way.
#[derive(Debug, Clone, PartialEq)]
pub struct ActiveTurn {
    /// Which.
    pub turn: TurnId,
    /// Where.
    pub thread: ThreadId,
    /// Its run.
    pub run: u32,
    /// The answer's id.
    pub message: MessageId,
    /// What it waits for; `None` while chunks come.
    pub waits_for: Option<WaitReason>,
    /// For how long nothing has come, ms.
    pub idle_ms: i64,
    /// What its owner has heard of its request.
    pub request: RequestInfo,
    /// When its input was accepted.
    pub accepted_at: Timestamp,
    /// When this run of it began; `None` while it waits.
    pub started_at: Option<Timestamp>,
    /// Only in the answer to [`QueryTarget::Batch`], and of a turn that people may see before it has ended.
    pub batch: Option<Box<OpenBatch>>,
}

/// The batch of a turn under way, as far as it has come.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenBatch {
    /// The stored batch that it goes on with.
    pub continues: Option<Position>,
    /// What it began with.
    pub batch_type: BatchType,
    /// The input, and what has come of the answer.
    pub messages: Vec<OpenBatchMessage>,
    /// Texts are longer than the answer to a query may be: their ends are left out.
    pub is_cut: bool,
}

/// A message of an [`OpenBatch`], with the id that it will be stored under.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenBatchMessage {
    /// Its id.
    pub id: MessageId,
    /// Who speaks.
    pub role: Role,
    /// Its text as far as it has come.
    pub content: String,
    /// `[{"id", "name", "arguments"}]`.
    pub tool_calls: Option<Value>,
    /// Of a tool's result: the call that it answers.
    pub tool_call_id: Option<String>,
    /// As far as it is known.
    pub metadata: Metadata,
    /// See [`MessageTimes`]; no `created_at`: it goes on.
    pub times: MessageTimes,
}

impl OpenBatch {
    /// Cuts the ends of texts, and leaves out the last messages, so that all of it has about this many bytes at most.
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
    /// Bytes that a message takes beside its texts, about.
    const OVERHEAD: usize = 256;
}

/// What is known of the request of a turn: as far as its owner has heard, for nothing of it is stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// How often it was delivered; 0: not once, or it is not known.
    pub deliveries: u32,
    /// How often it was handed back.
    pub handed_back: u32,
    /// In how many ms it is delivered again, when it was handed back.
    pub again_ms: Option<i64>,
    /// Time since a service has said last that it works on it, ms.
    pub alive_ms: Option<i64>,
    /// In how many ms the turn fails if no chunk comes; `None`: its deadline is not known yet.
    pub fails_ms: Option<i64>,
}

/// The wait notice of an unanswered turn, for viewers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitNotice {
    /// The thread.
    pub thread: ThreadId,
    /// The answer that is waited for.
    pub message: MessageId,
    /// What the turn waits for.
    pub reason: WaitReason,
}

/// Why something waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitReason {
    /// The agent is in backoff.
    Backoff {
        /// Time left, ms.
        for_ms: i64,
    },
    /// Something before it is under way.
    HeadOfLine,
    /// A chunk of the answer is missing.
    Gap,
    /// The agent is paused.
    Paused,
    /// No workflow service has taken the request.
    NoWorkflow,
    /// The partition runs as many turns as it may.
    Capacity,
    /// A new owner is reading what happened before it.
    CatchingUp,
    /// A budget is spent; the time left is that of its period.
    Budget {
        /// Time left, ms.
        for_ms: i64,
    },
    /// A limit on turns of its workflow, model or tenant is reached, in number or rate; the time left is until the next try.
    Limited {
        /// Time left, ms.
        for_ms: i64,
    },
    /// Its request is stored; what has become of it is not known yet.
    Requested,
    /// A workflow service has taken the request, and no chunk has come yet.
    Taken,
    /// Two chunks of the answer had one number and different content; nothing waits for that.
    ChunkConflict,
    /// Of a request that is not answered, more than that no service has taken it; never [`Unanswered::NoWorkflow`].
    Unanswered(Unanswered),
}

impl WaitReason {
    /// All of them, in the order of their numbers in protobuf, which begin with 1.
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

    /// The code in JSON.
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

    /// For people.
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

    /// Time left, ms, where that is known.
    pub fn for_ms(self) -> Option<i64> {
        match self {
            Self::Backoff { for_ms } | Self::Budget { for_ms } | Self::Limited { for_ms } => Some(for_ms),
            _ => None,
        }
    }

    /// The same reason with `for_ms` as the time left, if it is one with an end.
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

    /// The manual lists what services do wrong, as clients are shown it.
    #[test]
    fn mistakes_of_services_stand_in_the_manual() {
        let manual = include_str!("../../workflow/README.md");
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
