//! Incidents: what stores and streams that went back in time have lost, and tool calls of unknown outcome. Lists, acknowledges and decides them.

use gateway::ToolDecisionBody;
use serde_json::{Value, json};
use store::{IncidentRow, Store};

use super::command_id::new_command_id;
use super::timeouts::SERVER_TIMEOUT;
use super::timer_acts;
use crate::exit::ExitError;
use crate::options::{AcknowledgeIncidents, DecideToolCall, ListIncidents, ListToolCalls};
use crate::output;

pub(super) async fn list(store: &Store, options: &ListIncidents) -> Result<(), ExitError> {
    let incidents: Vec<Value> = store.incidents(options.all).await?.iter().map(shown).collect();
    let json = json!({ "incidents": incidents });
    output::print(options.database.format, &json, || {
        let mut table = output::Table::new([
            "PARTITION",
            "WHAT",
            "FIRST",
            "LAST",
            "NOTICED",
            "ACKNOWLEDGED",
            "BY",
            "DETAIL",
        ]);
        for incident in &incidents {
            let cells = [
                &incident["partition"],
                &incident["kind"],
                &incident["first_seq"],
                &incident["last_seq"],
                &incident["detected_at"],
                &incident["acknowledged_at"],
                &incident["acknowledged_by"],
                &incident["detail"],
            ];
            table.row(cells.map(output::cell));
        }
        table
    })
}

pub(super) async fn acknowledge(store: &Store, options: &AcknowledgeIncidents) -> Result<(), ExitError> {
    let count = store.acknowledge_incidents(options.which.0, &new_command_id()?, &options.by).await?;
    output::print(options.database.format, &json!({ "acknowledged": count }), || {
        let mut table = output::Table::new(["ACKNOWLEDGED"]);
        table.row([count.to_string()]);
        table
    })
}

pub(super) async fn tool_calls(store: &Store, options: &ListToolCalls) -> Result<(), ExitError> {
    let acts = timer_acts::connected(store, &options.nats, "command", SERVER_TIMEOUT).await?;
    let found = acts.tool_incidents(options.all).await?;
    let found: Vec<Value> = found.iter().map(output::json).collect();
    output::print(options.database.format, &json!({ "tool_calls": found }), || {
        let mut table =
            output::Table::new(["THREAD", "TURN", "CALL", "TOOL", "STARTED", "DECISION", "BY", "ARGUMENTS"]);
        for call in &found {
            let cells = [
                &call["thread_id"],
                &call["turn_id"],
                &call["call"],
                &call["tool"],
                &call["started_at"],
                &call["decision"],
                &call["decided_by"],
                &call["arguments"],
            ];
            table.row(cells.map(output::cell));
        }
        table
    })
}

pub(super) async fn decide(store: &Store, options: &DecideToolCall) -> Result<(), ExitError> {
    let act = &options.act;
    let acts = timer_acts::connected(store, &act.nats, &act.actor, SERVER_TIMEOUT).await?;
    let body = ToolDecisionBody {
        run_again: options.run_again.then_some(true),
        result: options.result.clone(),
        is_error: options.error,
    };
    let decided = acts.decide_tool_call(&options.thread, &options.turn, &options.call, body).await?;
    let json = output::json(&decided);
    output::print(act.database.format, &json, || output::key_value_table(&json))
}

fn shown(row: &IncidentRow) -> Value {
    let (at, by) = row.acknowledged.clone().unzip();
    json!({
        "partition": row.partition.0,
        "kind": row.kind,
        "stream": row.incarnation,
        "first_seq": row.first.0,
        "last_seq": row.last.map(|last| last.0),
        "detail": row.detail,
        "detected_at": row.detected_at,
        "acknowledged_at": at,
        "acknowledged_by": by,
    })
}
