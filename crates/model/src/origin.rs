//! What opens a turn or a task, as a type; and its keys in metadata, which people, models and
//! exports see.
//!
//! This file alone knows these keys. [`TurnOrigin::metadata`] and [`TaskOrigin::metadata`] write
//! them. [`TurnOrigin::split`] and [`TaskOrigin::split`] read them in data of earlier builds, which
//! have no typed origin.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{
    AgentId, MessageId, Metadata, Position, Task, TaskId, TaskKind, ThreadId, TimerId, TriggerType, TurnId,
    TurnOpened,
};

const SYNTHETIC: &str = "synthetic";
const TRIGGER_TYPE: &str = "trigger_type";
const TRIGGER_REASON: &str = "trigger_reason";
const TIMER: &str = "timer_id";
const CONTINUES: &str = "continues";
const NUMBER: &str = "continuation_number";
const HEARTBEAT: &str = "heartbeat";
const THREAD: &str = "thread_id";
const TURN: &str = "turn_id";
const ANSWER: &str = "assistant_message_id";
const BATCH: &str = "batch_id";
const COMPACTION: &str = "compaction_id";

/// Keys that the system sets on messages it creates.
pub(crate) const RESERVED: [&str; 3] = [SYNTHETIC, TRIGGER_TYPE, TRIGGER_REASON];

/// Keys that the system sets on its own tasks. The same list is in SQL (`antiphon_edited_task`).
const OF_SYSTEM_TASKS: [&str; 8] = [THREAD, TURN, ANSWER, BATCH, COMPACTION, CONTINUES, NUMBER, SYNTHETIC];

/// The batch that a sender requests for its own input: `continues` and `heartbeat` in its metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RequestedBatch {
    /// A batch of its own.
    #[default]
    New,
    /// This batch, whatever its state is.
    Continue(Position),
    /// This batch. The turn is refused unless it is complete and the last of its thread.
    Heartbeat(Position),
}

impl RequestedBatch {
    /// Reads the metadata of a sender. Anything but a position in decimal digits, as a string,
    /// requests no batch.
    pub fn of(metadata: &Metadata) -> Self {
        match (position(metadata, CONTINUES), is_true(metadata, HEARTBEAT)) {
            (None, _) => Self::New,
            (Some(batch), false) => Self::Continue(batch),
            (Some(batch), true) => Self::Heartbeat(batch),
        }
    }

    fn continues(self) -> Option<Position> {
        match self {
            Self::New => None,
            Self::Continue(batch) | Self::Heartbeat(batch) => Some(batch),
        }
    }

    fn heartbeat_of(self) -> Option<Position> {
        match self {
            Self::New | Self::Continue(_) => None,
            Self::Heartbeat(batch) => Some(batch),
        }
    }
}

/// The next input of a batch, requested by the answer before it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContinuedBatch {
    pub batch: Position,
    /// Number of continuations in a row, including this one.
    pub number: u64,
    /// Turn whose answer requested it.
    pub turn: TurnId,
}

impl ContinuedBatch {
    fn of_stored(metadata: &Metadata) -> Option<Self> {
        Some(Self {
            batch: position(metadata, CONTINUES)?,
            number: metadata.get(NUMBER)?.as_u64()?,
            turn: turn(metadata)?,
        })
    }

    fn entries(&self) -> Vec<(&'static str, Value)> {
        vec![
            (SYNTHETIC, json!(true)),
            (CONTINUES, json!(self.batch.to_string())),
            (NUMBER, json!(self.number)),
            (TURN, json!(self.turn.as_str())),
        ]
    }
}

/// The turn with a person that a background task follows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FollowedTurn {
    pub thread: ThreadId,
    pub turn: TurnId,
    /// The last message of the turn.
    pub answer: MessageId,
    pub batch: Position,
}

/// What opens a turn that answers an input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum TurnOrigin {
    /// A person, or a client for a person.
    Person {
        /// Read from the metadata, and so not encoded.
        #[serde(skip)]
        requested: RequestedBatch,
    },
    /// A client's request to continue a batch. The turn is refused unless the batch is complete and
    /// the last of its thread.
    Heartbeat { batch: Position },
    /// The answer before it.
    Continuation(ContinuedBatch),
    /// A timer: the agent writes without being asked.
    FollowUp {
        timer: TimerId,
        trigger: TriggerType,
        /// For people who investigate.
        reason: Box<str>,
    },
}

impl TurnOrigin {
    /// The origin of a person's input with this metadata.
    pub fn of_person(metadata: &Metadata) -> Self {
        Self::Person { requested: RequestedBatch::of(metadata) }
    }

    /// Separates the origin of an input from its whole metadata, and returns it with the rest.
    /// `decoded` is `None` in data of earlier builds, and for a person's input in the store.
    pub fn split(decoded: Option<Self>, input: Metadata) -> (Self, Metadata) {
        let origin = match decoded.or_else(|| Self::of_stored(&input)) {
            None | Some(Self::Person { .. }) => Self::of_person(&input),
            Some(origin) => origin,
        };
        let rest = without(input, &origin.metadata());
        (origin, rest)
    }

    fn of_stored(metadata: &Metadata) -> Option<Self> {
        if !metadata.is_synthetic() {
            return None;
        }
        let text = |key: &str| metadata.get(key).and_then(Value::as_str);
        if let Some(timer) = text(TIMER) {
            return Some(Self::FollowUp {
                timer: TimerId::parse(timer).ok()?,
                trigger: TriggerType::from_name(text(TRIGGER_TYPE)?)?,
                reason: text(TRIGGER_REASON)?.into(),
            });
        }
        match RequestedBatch::of(metadata) {
            RequestedBatch::Heartbeat(batch) => Some(Self::Heartbeat { batch }),
            _ => ContinuedBatch::of_stored(metadata).map(Self::Continuation),
        }
    }

    /// True if the system created the input. It is not shown to people.
    pub fn is_synthetic(&self) -> bool {
        !matches!(self, Self::Person { .. })
    }

    /// True if the origin can have opened a turn of this id. The ids of inputs that the system
    /// creates are derived.
    pub fn fits(&self, turn: &TurnId) -> bool {
        match self {
            Self::Person { .. } => true,
            Self::Heartbeat { .. } | Self::Continuation(_) => turn.is_continuation(),
            Self::FollowUp { timer, .. } => timer.turn().as_ref() == Ok(turn),
        }
    }

    /// The stored batch that the turn continues.
    pub fn continues(&self) -> Option<Position> {
        match self {
            Self::Person { requested } => requested.continues(),
            Self::Heartbeat { batch } => Some(*batch),
            Self::Continuation(continued) => Some(continued.batch),
            Self::FollowUp { .. } => None,
        }
    }

    /// The batch of [`TurnOrigin::continues`] if the turn is refused unless that batch is complete
    /// and the last one.
    pub fn heartbeat_of(&self) -> Option<Position> {
        match self {
            Self::Person { requested } => requested.heartbeat_of(),
            Self::Heartbeat { batch } => Some(*batch),
            Self::Continuation(_) | Self::FollowUp { .. } => None,
        }
    }

    /// Number of continuations in a row, including this one.
    pub fn continuation_number(&self) -> u64 {
        match self {
            Self::Person { .. } | Self::FollowUp { .. } => 0,
            Self::Heartbeat { .. } => 1,
            Self::Continuation(continued) => continued.number,
        }
    }

    /// The turn whose answer requested the input.
    pub fn turn(&self) -> Option<&TurnId> {
        match self {
            Self::Continuation(continued) => Some(&continued.turn),
            Self::Person { .. } | Self::Heartbeat { .. } | Self::FollowUp { .. } => None,
        }
    }

    /// Timer that fired the input; `Some` means that the turn is a follow-up.
    pub fn timer(&self) -> Option<&TimerId> {
        match self {
            Self::FollowUp { timer, .. } => Some(timer),
            Self::Person { .. } | Self::Heartbeat { .. } | Self::Continuation(_) => None,
        }
    }

    /// The keys by which people, models and exports see the origin. A person's input has none: its
    /// metadata are the sender's.
    pub fn metadata(&self) -> Metadata {
        of_entries(match self {
            Self::Person { .. } => return Metadata::EMPTY,
            Self::Heartbeat { batch } => vec![
                (SYNTHETIC, json!(true)),
                (CONTINUES, json!(batch.to_string())),
                (NUMBER, json!(1)),
                (HEARTBEAT, json!(true)),
            ],
            Self::Continuation(continued) => continued.entries(),
            Self::FollowUp { timer, trigger, reason } => vec![
                (SYNTHETIC, json!(true)),
                (TRIGGER_TYPE, json!(trigger.name())),
                (TRIGGER_REASON, json!(reason.replace('\0', ""))),
                (TIMER, json!(timer.as_str())),
            ],
        })
    }
}

impl TurnOpened {
    /// Metadata of the input: the sender's, with the keys of its origin.
    pub fn input_metadata(&self) -> Metadata {
        joined(&self.metadata, &self.origin.metadata())
    }
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
    /// The answer of a task before it.
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
    /// The origin of a task that was sent with this metadata.
    pub fn of_sender(metadata: &Metadata) -> Self {
        Self::Sent { requested: RequestedBatch::of(metadata) }
    }

    /// The origin of a schedule's task with this metadata.
    pub fn of_schedule(metadata: &Metadata) -> Self {
        Self::Scheduled { requested: RequestedBatch::of(metadata) }
    }

    /// Separates the origin of a task from its whole metadata, and returns it with the rest.
    /// `decoded` is `None` in data of earlier builds, and for a task that was sent in the store.
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
        let rest = without(task, &origin.metadata());
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

    /// True if the task's turn was not wanted by its sender, but by the answer before it.
    pub fn is_continuation(&self) -> bool {
        matches!(self, Self::Continuation(_) | Self::ContinuationAfterTurn { .. })
    }

    /// True if the origin can have sent a task of this id and kind. The ids of continuations are
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
        of_entries(match self {
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

impl ContinuedBatch {
    /// Id of the task that continues a task's turn.
    pub fn task(&self) -> Option<TaskId> {
        TaskId::parse(&format!("{}-h", self.turn)).ok().filter(|_| !self.turn.is_foreground())
    }
}

impl Task {
    /// Metadata of the task: the sender's, with the keys of its origin.
    pub fn task_metadata(&self) -> Metadata {
        joined(&self.metadata, &self.origin.metadata())
    }

    /// Metadata of the input of the task's turn.
    pub fn input_metadata(&self) -> Metadata {
        let mut map = self.task_metadata().into_map();
        let mut note = |key: &str, value: Value| map.insert(key.to_owned(), value);
        if self.kind != TaskKind::Task {
            note(SYNTHETIC, json!(true));
            note(TRIGGER_TYPE, json!(self.kind.name()));
        }
        note("task_id", json!(self.id.as_str()));
        note("task_kind", json!(self.kind.name()));
        Metadata::new(map).unwrap_or_default()
    }

    /// Replaces the metadata by an operator's. In a task created by the system, the system's keys
    /// are neither changed nor added, so that it still belongs to the turn that it follows. The
    /// store does the same in SQL (`antiphon_edited_task`).
    pub(crate) fn edit_metadata(&mut self, edited: &Metadata) {
        let is_of_system = self.kind != TaskKind::Task || self.origin.is_of_system();
        let kept: &[&str] = if is_of_system { &OF_SYSTEM_TASKS } else { &[] };
        self.metadata = edited.clone().with_keys_of(&self.metadata, kept);
        match &mut self.origin {
            TaskOrigin::Sent { requested } | TaskOrigin::Scheduled { requested } => {
                *requested = RequestedBatch::of(&self.metadata);
            }
            TaskOrigin::AfterTurn(_)
            | TaskOrigin::Summary { .. }
            | TaskOrigin::Continuation(_)
            | TaskOrigin::ContinuationAfterTurn { .. } => {}
        }
    }
}

impl Metadata {
    /// True if the stored message was created by the system, not by a person. Only the boolean
    /// `true` counts; the text is not interpreted.
    pub fn is_synthetic(&self) -> bool {
        is_true(self, SYNTHETIC)
    }

    /// Metadata with the mark of messages that people do not see.
    #[must_use]
    pub(crate) fn with_synthetic(self) -> Self {
        joined(&of_entries(vec![(SYNTHETIC, json!(true))]), &self)
    }

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

/// True if an occurrence of a schedule has this task id; see [`TimerId::series`].
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

fn turn(metadata: &Metadata) -> Option<TurnId> {
    TurnId::parse(metadata.get(TURN)?.as_str()?).ok()
}

/// A position as a decimal string, like all positions in JSON.
fn position(metadata: &Metadata, key: &str) -> Option<Position> {
    let number = metadata.get(key)?.as_str()?.parse().ok().filter(|number: &i64| *number > 0)?;
    Some(Position::from_stored(number))
}

fn is_true(metadata: &Metadata, key: &str) -> bool {
    metadata.get(key) == Some(&Value::Bool(true))
}

fn of_entries(entries: Vec<(&'static str, Value)>) -> Metadata {
    let map: Map<String, Value> =
        entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    // Flat, finite and without NUL characters.
    Metadata::new(map).unwrap_or_default()
}

/// Both objects in one. A key that both have keeps the value of `own`.
fn joined(own: &Metadata, more: &Metadata) -> Metadata {
    let (Some(map), Some(more)) = (own.as_map(), more.as_map()) else {
        return if own.is_empty() { more.clone() } else { own.clone() };
    };
    let mut map = map.clone();
    for (key, value) in more {
        map.entry(key).or_insert_with(|| value.clone());
    }
    Metadata::new(map).unwrap_or_default()
}

/// The entries of `whole` that `part` does not have, so that [`joined`] gives `whole` again.
fn without(whole: Metadata, part: &Metadata) -> Metadata {
    let Some(part) = part.as_map() else { return whole };
    let mut map = whole.into_map();
    map.retain(|key, value| part.get(key) != Some(value));
    Metadata::new(map).unwrap_or_default()
}

#[cfg(test)]
mod tests;
