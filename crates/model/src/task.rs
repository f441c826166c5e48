//! Tasks of agents.

use std::borrow::Cow;

use serde_json::{Value, json};

use crate::origin_keys;
use crate::{
    AgentId, BatchType, Bucket, Metadata, Position, RequestedBatch, TaskId, TaskKind, TaskOrigin, Timestamp,
};

/// A unit of work of an agent, as it was sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    pub agent: AgentId,
    /// Id of the task: a repeated task with the same id is the same task.
    pub id: TaskId,
    pub kind: TaskKind,
    /// Text, which becomes the turn's input.
    pub content: String,
    /// What sent it.
    pub origin: TaskOrigin,
    /// The sender's own, without the keys of the origin; see [`Task::task_metadata`].
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
            TaskKind::Task if matches!(self.origin, TaskOrigin::Scheduled { .. }) => BatchType::SystemTrigger,
            TaskKind::Task if names_sender => BatchType::AgentToAgent,
            TaskKind::Task => BatchType::UserRequest,
        }
    }

    pub fn bucket(&self) -> Bucket {
        Bucket::of_key(self.agent.as_str())
    }

    /// Metadata of the task: the sender's, with the keys of its origin.
    pub fn task_metadata(&self) -> Cow<'_, Metadata> {
        self.metadata.joined(self.origin.metadata())
    }

    /// Metadata of the input of the task's turn.
    pub fn input_metadata(&self) -> Metadata {
        let mut map = self.task_metadata().into_owned().into_map();
        let mut note = |key: &str, value: Value| map.insert(key.to_owned(), value);
        if self.kind != TaskKind::Task {
            note(origin_keys::SYNTHETIC, json!(true));
            note(origin_keys::TRIGGER_TYPE, json!(self.kind.name()));
        }
        note("task_id", json!(self.id.as_str()));
        note("task_kind", json!(self.kind.name()));
        Metadata::new(map).unwrap_or_default()
    }

    /// Replaces the metadata by an operator's. In a task created by the system, the system's keys
    /// are neither changed nor added, so that it still belongs to the turn that it follows. The
    /// store does the same in SQL (`antiphon_edited_task`).
    fn edit_metadata(&mut self, edited: &Metadata) {
        let is_of_system = self.kind != TaskKind::Task || self.origin.is_of_system();
        let kept: &[&str] = if is_of_system { &origin_keys::OF_SYSTEM_TASKS } else { &[] };
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

    /// Applies an operator's edit.
    pub fn edit(&mut self, edit: &TaskEdit) {
        if let Some(content) = &edit.content {
            self.content.clone_from(content);
        }
        if let Some(metadata) = &edit.metadata {
            self.edit_metadata(metadata);
        }
    }

    /// Distinguishes payloads of the same id.
    pub fn digest(&self) -> u64 {
        let json = match self.task_metadata().as_map() {
            Some(map) => serde_json::to_vec(map).unwrap_or_default(),
            None => Vec::new(),
        };
        let seed = xxhash_rust::xxh3::xxh3_64_with_seed(&json, self.kind as u64);
        let seed = xxhash_rust::xxh3::xxh3_64_with_seed(self.agent.as_str().as_bytes(), seed);
        xxhash_rust::xxh3::xxh3_64_with_seed(self.content.as_bytes(), seed)
    }

    /// Size in bytes for memory limits.
    pub fn size(&self) -> usize {
        self.content.len() + self.metadata.size() + self.origin.metadata().size() + 192
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

/// A task that enters its agent's queue later.
#[derive(Debug, Clone, PartialEq)]
pub struct DelayedTask {
    /// The task, of kind [`TaskKind::Task`].
    pub task: Task,
    /// Earliest time at which the task enters the queue, by the database's clock.
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
    fn the_type_of_a_batch_says_who_began_it() {
        let agent = AgentId::parse("a").unwrap();
        let of = |id: &str, kind, metadata: Value| {
            let metadata = Metadata::new(metadata.as_object().unwrap().clone()).unwrap();
            let (agent, id) = (agent.clone(), TaskId::parse(id).unwrap());
            let (origin, metadata) = TaskOrigin::split(None, (&agent, &id, kind), metadata);
            Task { agent, id, kind, content: String::new(), origin, metadata }.batch_type()
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
}
