//! The format of follow-ups in an export.

use model::{AgentId, Metadata, ThreadId, TimerId, Timestamp, TurnId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use store::{FollowUpRow, TimerStatus};

/// A line of the file; times are in ms since 1970.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FollowUpLine {
    follow_up_id: String,
    agent_id: AgentId,
    status: String,
    body: Map<String, Value>,
    armed_ms: i64,
    due_ms: i64,
    ended_ms: Option<i64>,
    decided_by: Option<String>,
    turn_id: Option<String>,
}

/// Converts a follow-up into a line.
pub(crate) fn written(row: &FollowUpRow) -> Map<String, Value> {
    let line = FollowUpLine {
        follow_up_id: row.timer.to_string(),
        agent_id: row.agent.clone(),
        status: row.status.name().to_owned(),
        body: row.body.as_map().cloned().unwrap_or_default(),
        armed_ms: row.created_at.0,
        due_ms: row.due_at.0,
        ended_ms: row.ended_at.map(|at| at.0),
        decided_by: row.ended_by.clone(),
        turn_id: row.fired_turn.as_ref().map(TurnId::to_string),
    };
    match serde_json::to_value(line) {
        Ok(Value::Object(map)) => map,
        // Unreachable: a plain structure serializes as an object.
        Ok(_) | Err(_) => Map::new(),
    }
}

/// Converts a line into a follow-up.
///
/// # Errors
/// The line is no follow-up of this thread.
pub(crate) fn read(thread: &ThreadId, row: Map<String, Value>) -> Result<FollowUpRow, String> {
    let line: FollowUpLine =
        serde_json::from_value(Value::Object(row)).map_err(|error| wrong(thread, &error))?;
    let timer = TimerId::parse(&line.follow_up_id).map_err(|error| wrong(thread, &error))?;
    if timer.bucket() != thread.bucket() || timer.turn().is_err() {
        return Err(wrong(thread, &format!("{timer} is no follow-up of this thread")));
    }
    let armed_at = line.body.get("armed_position");
    if armed_at.is_some_and(|at| at.as_str().is_none_or(|text| text.parse::<i64>().is_err())) {
        return Err(wrong(thread, &"armed_position must be a position, as text"));
    }
    if line.decided_by.as_deref().is_some_and(|by| by.contains('\0')) {
        return Err(wrong(thread, &"decided_by holds a NUL character"));
    }
    let turn = line.turn_id.as_deref().map(TurnId::parse).transpose();
    Ok(FollowUpRow {
        timer,
        thread: thread.clone(),
        agent: line.agent_id,
        status: TimerStatus::from_name(&line.status)
            .ok_or_else(|| wrong(thread, &format!("there is no status {:?}", line.status)))?,
        body: Metadata::new(line.body).map_err(|error| wrong(thread, &error))?,
        created_at: Timestamp(line.armed_ms),
        due_at: Timestamp(line.due_ms),
        ended_at: line.ended_ms.map(Timestamp),
        ended_by: line.decided_by,
        fired_turn: turn.map_err(|error| wrong(thread, &error))?,
    })
}

fn wrong(thread: &ThreadId, why: &dyn std::fmt::Display) -> String {
    format!("a follow-up of thread {thread} cannot be read: {why}")
}
