//! Forms in which things appear in JSON: those of the HTTP API.

use batches::{Batch, State, Why, tokens};
use model::{BatchType, Position, Timestamp};
use serde_json::{Value, json};
use store::{StoredMessage, ThreadRow};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

pub(super) fn rfc3339(at: Timestamp) -> Option<String> {
    let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(at.0) * 1_000_000).ok()?;
    at.format(&Rfc3339).ok()
}

pub(super) fn thread(row: &ThreadRow) -> Value {
    let named = &row.named;
    let agent = named.agent.clone().unwrap_or_else(|| named.thread.agent());
    json!({
        "thread_id": named.thread.as_str(),
        "agent_id": agent.as_str(),
        "busy_policy": named.policy.unwrap_or_default().name(),
        "metadata": named.metadata.to_value(),
        "message_count": row.messages,
        "last_position": row.head.as_ref().map(Position::to_string),
        "created_at": rfc3339(row.created_at),
    })
}

pub(super) fn batch(batch: &Batch) -> Value {
    let why = match batch.state() {
        State::Complete => None,
        State::Incomplete(why) => Some(why),
    };
    let input: Option<String> = batch.items().first().map(|item| item.content.chars().take(120).collect());
    json!({
        "batch_id": batch.id(),
        "batch_type": batch.batch_type().map(BatchType::name),
        "state": if why.is_none() { "complete" } else { "incomplete" },
        "incomplete_code": why.as_ref().map(Why::code),
        "incomplete": why.map(|why| why.to_string()),
        "parent_batch": batch.parent(),
        "message_count": batch.items().len(),
        "tokens": tokens::of_batch(batch, &batches::Estimate),
        "input": input,
        "last_at": rfc3339(batch.last_at()),
    })
}

pub(super) fn calls(batch: &Batch) -> Value {
    let exchanges = batch.exchanges();
    let shown = exchanges.iter().map(|exchange| {
        json!({
            "tool_call_id": exchange.id,
            "name": exchange.name,
            "call_at": exchange.call_at,
            "result_at": exchange.result.map(|(at, _)| at),
            "is_answered": exchange.is_answered,
        })
    });
    shown.collect()
}

pub(super) fn message(message: &StoredMessage) -> Value {
    json!({
        "position": message.position,
        "message_id": message.message_id.as_str(),
        "batch_id": message.batch_id,
        "sequence_num": message.sequence_num,
        "batch_type": message.batch_type.name(),
        "role": message.role.name(),
        "content": message.content,
        "tool_calls": message.tool_calls,
        "tool_call_id": message.tool_call_id,
        "metadata": message.metadata,
        "token_count": message.token_count,
        "parent_id": message.parent,
        "created_at": rfc3339(message.created_at),
    })
}
