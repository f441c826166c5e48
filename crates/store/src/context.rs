//! What a turn starts from: the agent's settings and the end of the thread.

use model::{AgentId, Bucket, ThreadId};
use serde_json::{Map, Value};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::history::message;
use crate::row::unreadable;
use crate::{Store, StoreError, StoredMessage};

const DEFAULT_MESSAGES: i64 = 50;
const MOST_MESSAGES: i64 = 1_000;

/// A turn that is to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextWanted {
    /// Where it takes place.
    pub thread: ThreadId,
    /// Whose settings count.
    pub agent: AgentId,
}

/// What a turn starts from.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct StartContext {
    /// Whose services think for the agent; `None` when the agent has no settings.
    pub workflow: Option<String>,
    /// The agent's settings; empty when it has none.
    pub settings: Map<String, Value>,
    /// The last messages of the thread, the oldest first: as many as `context_messages` of the settings says, 50 without
    /// it, 1,000 at most.
    pub messages: Vec<StoredMessage>,
}

impl Store {
    /// What each of these turns starts from, in the order of the question, in two statements for all of them.
    pub async fn contexts(&self, wanted: &[ContextWanted]) -> Result<Vec<StartContext>, StoreError> {
        let mut contexts = vec![StartContext::default(); wanted.len()];
        if wanted.is_empty() {
            return Ok(contexts);
        }
        let settings = sqlx::query(include_str!("context/settings.sql"))
            .bind(wanted.iter().map(|one| bucket(one.agent.as_str())).collect::<Vec<_>>())
            .bind(wanted.iter().map(|one| one.agent.as_str()).collect::<Vec<_>>());
        for row in self.rows(settings).await? {
            if let Some(context) = numbered(&mut contexts, &row)? {
                context.workflow = Some(row.try_get("workflow")?);
                context.settings = object(row.try_get("settings")?)?;
            }
        }
        let messages = sqlx::query(include_str!("context/messages.sql"))
            .bind(wanted.iter().map(|one| bucket(one.thread.as_str())).collect::<Vec<_>>())
            .bind(wanted.iter().map(|one| one.thread.as_str()).collect::<Vec<_>>())
            .bind(contexts.iter().map(|context| most(&context.settings)).collect::<Vec<_>>());
        for row in self.rows(messages).await? {
            if let Some(context) = numbered(&mut contexts, &row)? {
                context.messages.extend(message(&row)?);
            }
        }
        Ok(contexts)
    }
}

/// `context_messages`; what is no number of messages counts as absent.
fn most(settings: &Map<String, Value>) -> i64 {
    let said = settings.get("context_messages").and_then(Value::as_i64);
    said.map_or(DEFAULT_MESSAGES, |most| most.clamp(0, MOST_MESSAGES))
}

fn numbered<'a>(
    contexts: &'a mut [StartContext],
    row: &PgRow,
) -> Result<Option<&'a mut StartContext>, StoreError> {
    let number: i64 = row.try_get("number")?;
    Ok(usize::try_from(number - 1).ok().and_then(|at| contexts.get_mut(at)))
}

fn object(value: Value) -> Result<Map<String, Value>, StoreError> {
    match value {
        Value::Object(map) => Ok(map),
        other => Err(unreadable("settings", &other)),
    }
}

fn bucket(key: &str) -> i16 {
    Bucket::of_key(key).get() as i16
}
