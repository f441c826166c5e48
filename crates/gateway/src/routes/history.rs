//! What is committed in a thread.

use axum::extract::State;
use axum::response::Response;
use model::Position;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use store::{Range, StoredMessage};

use super::{Desk, fresh, thread_id, threads};
use crate::params::{self, Asked, Params};
use crate::problem::Problem;
use crate::shown;

#[derive(Debug, Deserialize)]
pub(super) struct HistoryQuery {
    after: Option<String>,
    before: Option<String>,
    limit: Option<String>,
    /// Also what the system made up: for operators.
    synthetic: Option<bool>,
}

#[derive(Serialize)]
struct HistoryPage {
    session_id: String,
    messages: Vec<HistoryMessage>,
    has_more: bool,
}

#[derive(Serialize)]
pub(super) struct HistoryMessage {
    position: Position,
    message_id: String,
    batch_id: Position,
    sequence_num: i32,
    batch_type: &'static str,
    role: &'static str,
    content: String,
    tool_calls: Option<Value>,
    tool_call_id: Option<String>,
    metadata: Value,
    token_count: Option<i64>,
    parent_id: Option<Position>,
    created_at: Option<String>,
}

pub(super) async fn page(
    State(desk): State<Desk>,
    Params(thread): Params<String>,
    Asked(query): Asked<HistoryQuery>,
) -> Result<Response, Problem> {
    let thread = thread_id(&thread)?;
    let range = Range {
        after: params::position("after", query.after)?,
        before: params::position("before", query.before)?,
        with_synthetic: query.synthetic.unwrap_or(false),
    };
    let limit = params::limit(query.limit.as_deref())?;
    let read = desk.hub()?.store().history(&thread, range, limit + 1).await?;
    let mut messages = read.ok_or_else(threads::unknown)?;
    let has_more = messages.len() > limit as usize;
    if has_more {
        // One more was read to know; it stands at the far end.
        let backwards = range.before.is_some() && range.after.is_none();
        let _ = if backwards { messages.remove(0) } else { messages.remove(limit as usize) };
    }
    let messages = messages.into_iter().map(shown_message).collect();
    Ok(fresh(HistoryPage { session_id: thread.to_string(), messages, has_more }))
}

pub(super) fn shown_message(message: StoredMessage) -> HistoryMessage {
    HistoryMessage {
        position: message.position,
        message_id: message.message_id.into(),
        batch_id: message.batch_id,
        sequence_num: message.sequence_num,
        batch_type: message.batch_type.name(),
        role: message.role.name(),
        content: message.content,
        tool_calls: message.tool_calls,
        tool_call_id: message.tool_call_id,
        metadata: message.metadata,
        token_count: message.token_count,
        parent_id: message.parent,
        created_at: shown::rfc3339(message.created_at),
    }
}
