//! Looking at batches.

use batches::context::ContextRules;
use gateway::views::{BatchView, WholeBatch};
use model::{Position, ThreadId, Timestamp};
use runtime::Clock;
use serde_json::{Value, json};
use store::Store;

use super::lookup::unknown;
use crate::exit::ExitError;
use crate::options::{List, ShowBatch};
use crate::output::{self, Table, cell};

pub(super) async fn list(store: &Store, options: &List) -> Result<(), ExitError> {
    let (thread, most) = (&options.thread, options.limit);
    let ids = store.batch_ids(thread, options.before, most + 1).await?;
    let mut ids = ids.ok_or_else(|| unknown(thread))?;
    let has_more = ids.len() > most as usize;
    ids.truncate(most as usize);
    let next = ids.last().filter(|_| has_more).map(Position::to_string);
    let (now, timeout_ms) = (now(), timeout_ms(store, thread).await?);
    let messages = store.batches(thread, &ids).await?;
    let batches = batches::group(messages.into_iter().map(Into::into));
    let batches: Vec<Value> =
        batches.iter().rev().map(|batch| output::json(&BatchView::new(batch, now, timeout_ms))).collect();
    let table = || {
        let mut table = Table::new(["BATCH", "TYPE", "STATE", "MESSAGES", "TOKENS", "LAST", "INPUT"]);
        for batch in &batches {
            let state = if batch["state"] == "incomplete" { "incomplete_code" } else { "state" };
            let input = cell(&batch["input"]).chars().take(40).collect();
            let at = |key: &str| cell(&batch[key]);
            let [id, kind, state] = ["batch_id", "batch_type", state].map(at);
            let [messages, tokens, last] = ["message_count", "tokens", "last_at"].map(at);
            table.row([id, kind, state, messages, tokens, last, input]);
        }
        table
    };
    let json = json!({ "thread_id": thread.as_str(), "batches": batches, "next": next });
    output::print(options.database.format, &json, table)
}

fn now() -> Timestamp {
    Timestamp(Clock::start().now_ms())
}

/// After which an incomplete batch of the thread counts as abandoned.
async fn timeout_ms(store: &Store, thread: &ThreadId) -> Result<i64, ExitError> {
    let row = store.thread(thread).await?;
    let agent = row.and_then(|row| row.named.agent).unwrap_or_else(|| thread.agent());
    let settings = store.agent(&agent).await?.and_then(|row| row.settings);
    let settings = settings.map(|settings| settings.settings).unwrap_or_default();
    Ok(ContextRules::of(&settings).0.timeout_ms)
}

pub(super) async fn show(store: &Store, options: &ShowBatch) -> Result<(), ExitError> {
    let (thread, id) = (&options.thread, options.batch);
    let messages = store.batches(thread, &[id]).await?;
    let batches = batches::group(messages.iter().cloned().map(Into::into));
    let none = || ExitError::Failed(format!("there is no batch {id} in thread {thread}"));
    let batch = batches.first().ok_or_else(none)?;
    let shown = BatchView::new(batch, now(), timeout_ms(store, thread).await?);
    let json = output::json(&WholeBatch::new(shown, batch, messages.clone()));
    let table = || {
        let mut table = Table::new(["NUMBER", "POSITION", "ROLE", "WHAT"]);
        for message in &messages {
            let said = match (&message.tool_call_id, &message.tool_calls) {
                (Some(call), _) => format!("result of {call}: {}", message.content),
                (None, Some(calls)) => format!("{} calls {calls}", message.content),
                (None, None) => message.content.clone(),
            };
            let (number, at) = (message.sequence_num.to_string(), message.position.to_string());
            table.row([number, at, message.role.name().to_owned(), said.chars().take(160).collect()]);
        }
        let why = json["incomplete"].as_str().map_or(String::new(), |why| format!(": {why}"));
        table.row([String::new(), String::new(), String::new(), format!("{}{why}", cell(&json["state"]))]);
        table
    };
    output::print(options.database.format, &json, table)
}
