//! The JSON form of outbox entries, which are published after a commit.

use model::{
    AgentId, CommandId, MessageId, Metadata, Position, Task, TaskId, TaskKind, TaskOrigin, ThreadId, TurnId,
    TurnOptions,
};
use partition::{Outgoing, Pause, TurnEnded, TurnStatus};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// An entry of a batch. The names are short because every turn writes one.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum OutboxEntry {
    Task {
        agent: AgentId,
        id: TaskId,
        kind: String,
        content: String,
        /// A JSON object as text: jsonb would change the notation of numbers, and with it the
        /// digest of the task.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        metadata: Option<String>,
        /// As text, like metadata; absent in entries of earlier builds.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        origin: Option<String>,
    },
    Turn {
        id: String,
        thread: ThreadId,
        agent: AgentId,
        status: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        task: Option<TaskId>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        message: Option<MessageId>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        batch: Option<i64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        code: Option<String>,
    },
    Pause {
        id: CommandId,
        agent: AgentId,
        turn: String,
    },
}

/// Encodes a batch as JSON.
pub(crate) fn encoded(outgoing: &[Outgoing]) -> String {
    let entries: Vec<OutboxEntry> = outgoing.iter().map(OutboxEntry::from).collect();
    // Encoding cannot fail. Even if it did, the batch must stay readable, because an unreadable
    // batch would stop the next owner.
    serde_json::to_string(&entries).unwrap_or_else(|_| "[]".to_owned())
}

/// Decodes a batch written by [`encoded`], or describes what is wrong with it.
pub(crate) fn decoded(json: &str) -> Result<Vec<Outgoing>, String> {
    let entries: Vec<OutboxEntry> = serde_json::from_str(json).map_err(|error| error.to_string())?;
    entries.into_iter().map(Outgoing::try_from).collect()
}

impl From<&Outgoing> for OutboxEntry {
    fn from(outgoing: &Outgoing) -> Self {
        match outgoing {
            Outgoing::Task(task) => Self::Task {
                agent: task.agent.clone(),
                id: task.id.clone(),
                kind: task.kind.name().to_owned(),
                content: storable(&task.content),
                metadata: text(&task.task_metadata()),
                origin: serde_json::to_string(&task.origin).ok(),
            },
            Outgoing::TurnEnded(ended) => Self::Turn {
                id: ended.turn.as_str().to_owned(),
                thread: ended.thread.clone(),
                agent: ended.agent.clone(),
                status: ended.status.name().to_owned(),
                task: ended.task.clone(),
                message: ended.message.clone(),
                batch: ended.batch.map(Position::get),
                code: ended.code.as_deref().map(storable),
            },
            Outgoing::Pause(pause) => Self::Pause {
                id: pause.id.clone(),
                agent: pause.agent.clone(),
                turn: pause.turn.as_str().to_owned(),
            },
        }
    }
}

impl TryFrom<OutboxEntry> for Outgoing {
    type Error = String;
    fn try_from(entry: OutboxEntry) -> Result<Self, String> {
        Ok(match entry {
            OutboxEntry::Task { agent, id, kind, content, metadata, origin } => {
                let kind = TaskKind::from_name(&kind).ok_or_else(|| format!("no kind of task: {kind}"))?;
                let metadata = metadata.map_or(Ok(Metadata::EMPTY), |json| object(&json))?;
                let decoded = origin.map(|json| parsed(&json)).transpose()?;
                let (origin, metadata) = TaskOrigin::split(decoded, (&agent, &id, kind), metadata);
                Self::Task(Task { agent, id, kind, content, origin, metadata })
            }
            OutboxEntry::Turn { id, thread, agent, status, task, message, batch, code } => {
                Self::TurnEnded(TurnEnded {
                    turn: TurnId::parse(&id).map_err(|error| error.to_string())?,
                    thread,
                    agent,
                    status: turn_status(&status).ok_or_else(|| format!("no status of a turn: {status}"))?,
                    task,
                    message,
                    batch: batch.map(Position::from_stored),
                    code,
                })
            }
            OutboxEntry::Pause { id, agent, turn } => Self::Pause(Pause {
                turn: TurnId::parse(&turn).map_err(|error| error.to_string())?,
                id,
                agent,
            }),
        })
    }
}

fn text(metadata: &Metadata) -> Option<String> {
    metadata.as_map().and_then(|map| serde_json::to_string(map).ok())
}

/// Encodes the options of a turn as JSON.
pub(crate) fn options(options: &TurnOptions) -> String {
    // Encoding them cannot fail.
    serde_json::to_string(options).unwrap_or_else(|_| "{}".to_owned())
}

fn object(json: &str) -> Result<Metadata, String> {
    Metadata::new(parsed(json)?).map_err(|error| error.to_string())
}

fn parsed<T: DeserializeOwned>(json: &str) -> Result<T, String> {
    serde_json::from_str(json).map_err(|error| error.to_string())
}

fn turn_status(name: &str) -> Option<TurnStatus> {
    [TurnStatus::Completed, TurnStatus::Failed, TurnStatus::Stopped]
        .into_iter()
        .find(|status| status.name() == name)
}

/// Replaces NUL, which jsonb refuses: an outgoing entry must not stop a commit.
fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}
