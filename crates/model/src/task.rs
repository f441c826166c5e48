//! Tasks of agents.

use serde_json::{Value, json};

use crate::{AgentId, BatchType, Bucket, Metadata, Position, TaskId, TaskKind, ThreadId, Timestamp};

/// A unit of work of an agent, as it was sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    pub agent: AgentId,
    /// Id of the task: the same id again is the same task.
    pub id: TaskId,
    pub kind: TaskKind,
    /// Text, which becomes the turn's input.
    pub content: String,
    /// Free-form; becomes the input's metadata.
    pub metadata: Metadata,
}

impl Task {
    /// Metadata key of the agent that sent the task.
    pub const FROM_AGENT: &'static str = "from_agent";

    /// Type of the task's batch, which depends on the sender.
    pub fn batch_type(&self) -> BatchType {
        let names_sender =
            self.metadata.get(Self::FROM_AGENT).and_then(Value::as_str).is_some_and(|id| !id.is_empty());
        match self.kind {
            TaskKind::WorkRequest | TaskKind::Memory | TaskKind::Compaction => BatchType::SystemTrigger,
            TaskKind::Task if self.is_of_schedule() => BatchType::SystemTrigger,
            TaskKind::Task if names_sender => BatchType::AgentToAgent,
            TaskKind::Task => BatchType::UserRequest,
        }
    }

    /// True if an occurrence of a schedule sent it; see
    /// [`TimerId::series`](crate::TimerId::series).
    fn is_of_schedule(&self) -> bool {
        let mut parts = self.id.as_str().split('-');
        let (bucket, schedule, occurrence) = (parts.next(), parts.next(), parts.next());
        let is_hex = |text: &str, length: usize| {
            text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        bucket.and_then(|bucket| bucket.strip_prefix('s')).is_some_and(|bucket| is_hex(bucket, 4))
            && schedule.is_some_and(|schedule| is_hex(schedule, 24))
            && occurrence.is_some_and(|at| at.parse::<u64>().is_ok())
            && parts.next().is_none()
    }

    pub fn bucket(&self) -> Bucket {
        Bucket::of_key(self.agent.as_str())
    }

    /// Thread whose text it carries; see [`origin`].
    pub fn origin(&self) -> Option<ThreadId> {
        origin(&self.agent, self.kind, &self.metadata)
    }

    /// Applies an operator's edit. In a task created by the system, the system's keys are neither
    /// changed nor added, so that it still belongs to the turn that it follows. The store does the
    /// same in SQL (`commit/task_changes.sql`).
    pub fn edit(&mut self, edit: &TaskEdit) {
        if let Some(content) = &edit.content {
            self.content.clone_from(content);
        }
        if let Some(metadata) = &edit.metadata {
            let is_of_system = self.kind != TaskKind::Task || self.metadata.is_synthetic();
            let kept: &[&str] = if is_of_system { &Metadata::OF_SYSTEM_TASKS } else { &[] };
            self.metadata = metadata.clone().with_keys_of(&self.metadata, kept);
        }
    }

    /// Distinguishes payloads of the same id.
    pub fn digest(&self) -> u64 {
        let json = match self.metadata.as_map() {
            Some(map) => serde_json::to_vec(map).unwrap_or_default(),
            None => Vec::new(),
        };
        let seed = xxhash_rust::xxh3::xxh3_64_with_seed(&json, self.kind as u64);
        let seed = xxhash_rust::xxh3::xxh3_64_with_seed(self.agent.as_str().as_bytes(), seed);
        xxhash_rust::xxh3::xxh3_64_with_seed(self.content.as_bytes(), seed)
    }

    /// Size in bytes for memory limits.
    pub fn size(&self) -> usize {
        self.content.len() + self.metadata.size() + 192
    }
}

/// An operator's change of a task. `None` keeps the value.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TaskEdit {
    pub content: Option<String>,
    pub metadata: Option<Metadata>,
}

impl TaskEdit {
    /// Size in bytes for memory limits.
    pub fn size(&self) -> usize {
        self.content.as_ref().map_or(0, String::len) + self.metadata.as_ref().map_or(0, Metadata::size)
    }
}

/// Thread whose turn a task follows, from the metadata that the system writes into such tasks. The
/// task is deleted when that thread is erased. `None` for work sent by a client. The store does the
/// same in SQL (`antiphon_origin_thread`).
pub fn origin(agent: &AgentId, kind: TaskKind, metadata: &Metadata) -> Option<ThreadId> {
    let is_ours = metadata.get("assistant_message_id").or_else(|| metadata.get("compaction_id")).is_some();
    let name = metadata.get("thread_id").and_then(Value::as_str)?;
    let thread = ThreadId::of_tenant(agent.tenant().as_ref(), name).ok();
    thread.filter(|_| is_ours && kind != TaskKind::Task)
}

/// A task that enters its agent's queue later.
#[derive(Debug, Clone, PartialEq)]
pub struct DelayedTask {
    /// The task, of kind [`TaskKind::Task`].
    pub task: Task,
    /// Earliest time at which it enters the queue, by the database's clock.
    pub not_before: Timestamp,
}

impl DelayedTask {
    /// Maximum delay of a task, ms.
    pub const MOST_DELAY_MS: i64 = 366 * 86_400_000;

    /// Body of the task's timer, which the timer's owner reads when it is due.
    pub fn timer_body(&self) -> Value {
        let Self { task, not_before } = self;
        // Stored as text: jsonb changes the notation of numbers, and the task's digest would
        // differ.
        let metadata = task.metadata.as_map().map(|map| Value::Object(map.clone()).to_string());
        json!({
            "task": { "id": task.id.as_str(), "content": task.content, "metadata": metadata },
            "not_before_ms": not_before.0,
        })
    }
}

/// A task in its agent's queue.
#[derive(Debug, Clone, PartialEq)]
pub struct QueuedTask {
    /// Position, which is the order of the queue.
    pub position: Position,
    pub task: Task,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_edit_keeps_what_the_system_wrote() {
        let map = |value: Value| Metadata::new(value.as_object().unwrap().clone()).unwrap();
        let edited = |kind, before: Value, after: Value| {
            let (agent, id) = (AgentId::parse("a").unwrap(), TaskId::parse("x").unwrap());
            let mut task = Task { agent, id, kind, content: "old".to_owned(), metadata: map(before) };
            let unchanged = task.clone();
            task.edit(&TaskEdit::default());
            assert_eq!(task, unchanged);
            task.edit(&TaskEdit { content: Some("new".to_owned()), metadata: None });
            assert_eq!((&*task.content, &task.metadata), ("new", &unchanged.metadata));
            task.edit(&TaskEdit { content: None, metadata: Some(map(after)) });
            assert_eq!(task.content, "new");
            task.metadata.to_value()
        };
        let follows =
            json!({"thread_id": "t", "turn_id": "u", "assistant_message_id": "u-a", "batch_id": "7"});
        let wanted = json!({"thread_id": "other", "continues": "7", "note": 1});
        let both = json!({"thread_id": "t", "turn_id": "u", "assistant_message_id": "u-a", "batch_id": "7", "note": 1});
        assert_eq!(edited(TaskKind::Memory, follows.clone(), json!({})), follows);
        assert_eq!(edited(TaskKind::WorkRequest, follows.clone(), wanted.clone()), both);
        assert_eq!(edited(TaskKind::Task, follows, wanted.clone()), wanted, "a client wrote all of it");
        let continuation =
            json!({"synthetic": true, "continues": "7", "continuation_number": 1, "turn_id": "u"});
        assert_eq!(edited(TaskKind::Task, continuation.clone(), json!({})), continuation);
        assert_eq!(edited(TaskKind::Task, json!({"a": 1}), json!({})), json!({}));
    }

    #[test]
    fn the_type_of_a_batch_says_who_began_it() {
        let agent = AgentId::parse("a").unwrap();
        let of = |id: &str, kind, metadata: Value| {
            let metadata = Metadata::new(metadata.as_object().unwrap().clone()).unwrap();
            let (agent, id) = (agent.clone(), TaskId::parse(id).unwrap());
            Task { agent, id, kind, content: String::new(), metadata }.batch_type()
        };
        assert_eq!(of("k1", TaskKind::Task, json!({})), BatchType::UserRequest);
        assert_eq!(of("k1", TaskKind::Task, json!({"from_agent": "bob"})), BatchType::AgentToAgent);
        assert_eq!(of("k1", TaskKind::Task, json!({"from_agent": 7})), BatchType::UserRequest);
        assert_eq!(of("k1", TaskKind::Memory, json!({"from_agent": "bob"})), BatchType::SystemTrigger);
        let name = crate::ScheduleName::parse("daily").unwrap();
        let timer = crate::TimerId::of_schedule(&agent, &name, &crate::CommandId::parse("c").unwrap());
        let occurrence = format!("{}-1795950000000", timer.series());
        assert_eq!(of(&occurrence, TaskKind::Task, json!({"from_agent": "bob"})), BatchType::SystemTrigger);
        for id in [timer.series().to_owned(), format!("{occurrence}-1"), occurrence.replacen('s', "x", 1)] {
            assert_eq!(of(&id, TaskKind::Task, json!({})), BatchType::UserRequest, "{id}");
        }
    }

    #[test]
    fn only_what_follows_a_turn_carries_its_text() {
        let of = |agent: &str, kind, metadata: Value| {
            let metadata = Metadata::new(metadata.as_object().unwrap().clone()).unwrap();
            origin(&AgentId::parse(agent).unwrap(), kind, &metadata).map(|thread| thread.as_str().to_owned())
        };
        let follows = json!({"thread_id": "t", "turn_id": "u", "assistant_message_id": "u-a"});
        assert_eq!(of("a", TaskKind::Memory, follows.clone()).as_deref(), Some("t"));
        assert_eq!(of("acme~a", TaskKind::WorkRequest, follows.clone()).as_deref(), Some("acme~t"));
        let summary = json!({"thread_id": "t", "compaction_id": "7"});
        assert_eq!(of("a", TaskKind::Compaction, summary).as_deref(), Some("t"));
        assert_eq!(of("a", TaskKind::Task, follows), None, "it was sent from outside, whatever it says");
        assert_eq!(of("a", TaskKind::Memory, json!({"thread_id": "t"})), None);
        assert_eq!(of("a", TaskKind::Memory, json!({"thread_id": "b~t", "compaction_id": "7"})), None);
    }
}
