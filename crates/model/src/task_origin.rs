//! What puts a task into a queue, as a type. [`TaskOrigin::metadata`] writes the keys that people,
//! models and exports see. [`TaskOrigin::split`] reads them in data of earlier builds.

use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::origin::{position, turn};
use crate::origin_keys::{ANSWER, BATCH, COMPACTION, THREAD, TURN};
use crate::{
    AgentId, ContinuedBatch, MessageId, Metadata, Position, RequestedBatch, TaskId, TaskKind, ThreadId,
    TurnId,
};

/// The turn with a person that a background task follows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FollowedTurn {
    pub thread: ThreadId,
    pub turn: TurnId,
    /// The last message of the turn.
    pub answer: MessageId,
    pub batch: Position,
}

/// What puts a task into a queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TaskOrigin {
    /// A client, an agent or a publisher that sent it, at once or with a delay.
    Sent {
        /// Read from the metadata, and so not encoded.
        #[serde(skip)]
        requested: RequestedBatch,
    },
    /// A schedule. The task's id names it, and the occurrence.
    Scheduled {
        /// Read from the schedule's metadata, and so not encoded.
        #[serde(skip)]
        requested: RequestedBatch,
    },
    /// A turn with a person that has ended.
    AfterTurn(FollowedTurn),
    /// A compaction that needs a summary of a part of this thread.
    Summary { thread: ThreadId, compaction: Position },
    /// The answer of the task that it continues.
    Continuation(ContinuedBatch),
    /// The answer of a task that follows a turn of this thread.
    ContinuationAfterTurn {
        thread: ThreadId,
        /// The last message of that turn.
        answer: MessageId,
        continued: ContinuedBatch,
    },
}

impl TaskOrigin {
    /// The origin of a task that was sent and begins a batch.
    pub const SENT: Self = Self::Sent { requested: RequestedBatch::New };

    /// The origin of a task that was sent with this metadata.
    pub fn of_sender(metadata: &Metadata) -> Self {
        Self::Sent { requested: RequestedBatch::of(metadata) }
    }

    /// The origin of a schedule's task with this metadata.
    pub fn of_schedule(metadata: &Metadata) -> Self {
        Self::Scheduled { requested: RequestedBatch::of(metadata) }
    }

    /// Separates the origin of a task from its whole metadata, and returns it with the rest.
    /// `decoded` is `None` in data of earlier builds, and in the store for a task that was sent.
    pub fn split(
        decoded: Option<Self>,
        (agent, id, kind): (&AgentId, &TaskId, TaskKind),
        task: Metadata,
    ) -> (Self, Metadata) {
        let origin = match decoded.or_else(|| Self::of_stored(agent, id, kind, &task)) {
            None | Some(Self::Sent { .. }) => Self::of_sender(&task),
            Some(Self::Scheduled { .. }) => Self::of_schedule(&task),
            Some(origin) => origin,
        };
        let rest = task.without(&origin.metadata());
        (origin, rest)
    }

    fn of_stored(agent: &AgentId, id: &TaskId, kind: TaskKind, metadata: &Metadata) -> Option<Self> {
        let continued = || ContinuedBatch::of_stored(metadata).filter(|_| metadata.is_synthetic());
        match kind {
            TaskKind::Task => {
                let scheduled = || is_of_schedule(id).then(|| Self::of_schedule(metadata));
                continued().map(Self::Continuation).or_else(scheduled)
            }
            TaskKind::WorkRequest | TaskKind::Memory => match (continued(), answered(agent, metadata)) {
                (Some(continued), Some((thread, answer))) => {
                    Some(Self::ContinuationAfterTurn { thread, answer, continued })
                }
                (Some(continued), None) => Some(Self::Continuation(continued)),
                (None, answered) => followed(answered, metadata).map(Self::AfterTurn),
            },
            TaskKind::Compaction => Some(Self::Summary {
                thread: thread(agent, metadata)?,
                compaction: position(metadata, COMPACTION)?,
            }),
        }
    }

    /// True if the system writes all of the task.
    pub fn is_of_system(&self) -> bool {
        !matches!(self, Self::Sent { .. } | Self::Scheduled { .. })
    }

    /// True if the previous answer requested the task's turn, and not a sender.
    pub fn is_continuation(&self) -> bool {
        matches!(self, Self::Continuation(_) | Self::ContinuationAfterTurn { .. })
    }

    /// True if a task of this id and kind can have this origin. The ids of continuations are
    /// derived, and each kind of background work has its own origin.
    pub fn fits(&self, id: &TaskId, kind: TaskKind) -> bool {
        match self {
            Self::Sent { .. } => true,
            Self::Scheduled { .. } => kind == TaskKind::Task,
            Self::AfterTurn(_) => matches!(kind, TaskKind::WorkRequest | TaskKind::Memory),
            Self::Summary { .. } => kind == TaskKind::Compaction,
            Self::Continuation(continued) => continued.task().as_ref() == Some(id),
            Self::ContinuationAfterTurn { continued, .. } => {
                kind != TaskKind::Task && continued.task().as_ref() == Some(id)
            }
        }
    }

    /// The stored batch that the task's turn continues.
    pub fn continues(&self) -> Option<Position> {
        match self {
            Self::Sent { requested } | Self::Scheduled { requested } => requested.continues(),
            Self::AfterTurn(_) | Self::Summary { .. } => None,
            Self::Continuation(continued) | Self::ContinuationAfterTurn { continued, .. } => {
                Some(continued.batch)
            }
        }
    }

    /// The turn that requested the task, if the task is its continuation.
    pub fn continued_turn(&self) -> Option<&TurnId> {
        match self {
            Self::Sent { .. } | Self::Scheduled { .. } | Self::AfterTurn(_) | Self::Summary { .. } => None,
            Self::Continuation(continued) | Self::ContinuationAfterTurn { continued, .. } => {
                Some(&continued.turn)
            }
        }
    }

    /// The batch of [`TaskOrigin::continues`] if the turn is refused unless that batch is complete
    /// and the last one.
    pub fn heartbeat_of(&self) -> Option<Position> {
        match self {
            Self::Sent { requested } | Self::Scheduled { requested } => requested.heartbeat_of(),
            Self::AfterTurn(_)
            | Self::Summary { .. }
            | Self::Continuation(_)
            | Self::ContinuationAfterTurn { .. } => None,
        }
    }

    /// Number of continuations in a row, including this one.
    pub fn continuation_number(&self) -> u64 {
        match self {
            Self::Sent { .. } | Self::Scheduled { .. } | Self::AfterTurn(_) | Self::Summary { .. } => 0,
            Self::Continuation(continued) | Self::ContinuationAfterTurn { continued, .. } => continued.number,
        }
    }

    /// The turn that the task follows or continues.
    pub fn turn(&self) -> Option<&TurnId> {
        match self {
            Self::Sent { .. } | Self::Scheduled { .. } | Self::Summary { .. } => None,
            Self::AfterTurn(followed) => Some(&followed.turn),
            Self::Continuation(continued) | Self::ContinuationAfterTurn { continued, .. } => {
                Some(&continued.turn)
            }
        }
    }

    /// Thread whose text the task carries. The task is deleted when that thread is erased.
    pub fn source_thread(&self) -> Option<&ThreadId> {
        match self {
            Self::Sent { .. } | Self::Scheduled { .. } | Self::Continuation(_) => None,
            Self::AfterTurn(followed) => Some(&followed.thread),
            Self::Summary { thread, .. } | Self::ContinuationAfterTurn { thread, .. } => Some(thread),
        }
    }

    /// The keys by which people, models and exports see the origin. A task that was sent or
    /// scheduled has none: its metadata are the sender's.
    pub fn metadata(&self) -> Metadata {
        Metadata::of_entries(match self {
            Self::Sent { .. } | Self::Scheduled { .. } => return Metadata::EMPTY,
            Self::AfterTurn(followed) => vec![
                (THREAD, json!(followed.thread.name())),
                (TURN, json!(followed.turn.as_str())),
                (ANSWER, json!(followed.answer.as_str())),
                (BATCH, json!(followed.batch.to_string())),
            ],
            Self::Summary { thread, compaction } => {
                vec![(THREAD, json!(thread.name())), (COMPACTION, json!(compaction.to_string()))]
            }
            Self::Continuation(continued) => continued.entries(),
            Self::ContinuationAfterTurn { thread, answer, continued } => {
                let mut entries = continued.entries();
                entries.extend([(THREAD, json!(thread.name())), (ANSWER, json!(answer.as_str()))]);
                entries
            }
        })
    }
}

impl Metadata {
    /// The thread whose turn a stored message or task follows, and the last message of that turn.
    /// `agent` is the owner of the queue.
    pub fn answer_followed(&self, agent: &AgentId) -> Option<(ThreadId, MessageId)> {
        answered(agent, self)
    }
}

/// Thread whose text a stored task of `agent` carries, or the input of its turn, from the metadata
/// that the system writes there. `None` for work sent by a client. The store does the same in SQL
/// (`antiphon_origin_thread`).
pub fn stored_source_thread(agent: &AgentId, kind: TaskKind, metadata: &Metadata) -> Option<ThreadId> {
    let is_ours = metadata.get(ANSWER).or_else(|| metadata.get(COMPACTION)).is_some();
    thread(agent, metadata).filter(|_| is_ours && kind != TaskKind::Task)
}

/// True if an occurrence of a schedule has this task id; see `TimerId::series`.
fn is_of_schedule(id: &TaskId) -> bool {
    let mut parts = id.as_str().split('-');
    let (bucket, schedule, occurrence) = (parts.next(), parts.next(), parts.next());
    let is_hex =
        |text: &str, length: usize| text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    bucket.and_then(|bucket| bucket.strip_prefix('s')).is_some_and(|bucket| is_hex(bucket, 4))
        && schedule.is_some_and(|schedule| is_hex(schedule, 24))
        && occurrence.is_some_and(|at| at.parse::<u64>().is_ok())
        && parts.next().is_none()
}

fn followed(answered: Option<(ThreadId, MessageId)>, metadata: &Metadata) -> Option<FollowedTurn> {
    let (thread, answer) = answered?;
    Some(FollowedTurn { thread, answer, turn: turn(metadata)?, batch: position(metadata, BATCH)? })
}

fn answered(agent: &AgentId, metadata: &Metadata) -> Option<(ThreadId, MessageId)> {
    let answer = MessageId::parse(metadata.get(ANSWER)?.as_str()?).ok()?;
    Some((thread(agent, metadata)?, answer))
}

fn thread(agent: &AgentId, metadata: &Metadata) -> Option<ThreadId> {
    let name = metadata.get(THREAD)?.as_str()?;
    ThreadId::of_tenant(agent.tenant().as_ref(), name).ok()
}

#[cfg(test)]
mod tests;
