//! Looking at batches.

use gateway::shown::{ShownBatch, WholeBatch};
use serde_json::{Value, json};
use store::Store;

use super::options::{List, ShowBatch};
use super::output::{self, Table, cell};
use super::unknown;
use crate::roles::Stop;

pub(super) async fn list(store: &Store, options: &List) -> Result<(), Stop> {
    let (thread, most) = (&options.thread, options.limit);
    let ids = store.batch_ids(thread, options.before, most + 1).await?;
    let mut ids = ids.ok_or_else(|| unknown(thread))?;
    let has_more = ids.len() > most as usize;
    ids.truncate(most as usize);
    let messages = store.batches(thread, &ids).await?;
    let batches = batches::group(messages.into_iter().map(Into::into));
    let batches: Vec<Value> =
        batches.iter().rev().map(|batch| output::json(&ShownBatch::from(batch))).collect();
    let table = || {
        let mut table = Table::new(["BATCH", "TYPE", "STATE", "MESSAGES", "TOKENS", "LAST", "INPUT"]);
        for batch in &batches {
            let state = if batch["state"] == "complete" { "state" } else { "incomplete_code" };
            let input = cell(&batch["input"]).chars().take(40).collect();
            let at = |key: &str| cell(&batch[key]);
            let [id, kind, state] = ["batch_id", "batch_type", state].map(at);
            let [messages, tokens, last] = ["message_count", "tokens", "last_at"].map(at);
            table.row([id, kind, state, messages, tokens, last, input]);
        }
        table
    };
    let json = json!({ "thread_id": thread.as_str(), "batches": batches, "has_more": has_more });
    output::print(options.database.format, &json, table)
}

pub(super) async fn show(store: &Store, options: &ShowBatch) -> Result<(), Stop> {
    let (thread, id) = (&options.thread, options.batch);
    let messages = store.batches(thread, &[id]).await?;
    let batches = batches::group(messages.iter().cloned().map(Into::into));
    let none = || Stop::Failed(format!("there is no batch {id} in thread {thread}"));
    let batch = batches.first().ok_or_else(none)?;
    let json = output::json(&WholeBatch::new(batch, messages.clone()));
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
