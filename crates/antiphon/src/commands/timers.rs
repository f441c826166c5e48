//! Looking at follow-ups and schedules.

use gateway::{FollowUpDetail, FollowUpView, ScheduleView};
use serde_json::{Value, json};
use store::{Store, TimerStatus};

use super::lookup::stored;
use super::timeouts::OWNER_TIMEOUT;
use super::timer_acts::connected;
use crate::exit::ExitError;
use crate::options::{ListFollowUps, ListSchedules, ShowFollowUp, ShowSchedule};
use crate::output::{self, Table, cell};

pub(super) async fn follow_ups(store: &Store, options: &ListFollowUps) -> Result<(), ExitError> {
    stored(store, &options.thread).await?;
    let rows = store.follow_ups(&options.thread, options.before.as_ref(), options.limit).await?;
    let views: Vec<Value> = rows.iter().map(|row| output::json(&FollowUpView::from(row))).collect();
    let json = json!({ "thread_id": options.thread.as_str(), "follow_ups": views });
    output::print(options.database.format, &json, || {
        let mut table = Table::new(["FOLLOW-UP", "STATUS", "BY", "TRIGGER", "DUE", "ARMED BY", "TURN"]);
        let columns =
            ["follow_up_id", "status", "decided_by", "trigger_type", "due_at", "armed_by", "turn_id"];
        views.iter().for_each(|view| table.row(columns.map(|column| cell(&view[column]))));
        table
    })
}

pub(super) async fn follow_up(store: &Store, options: &ShowFollowUp) -> Result<(), ExitError> {
    let (thread, timer) = (&options.thread, &options.follow_up);
    let row = store.follow_up(thread, timer).await?;
    let row =
        row.ok_or_else(|| ExitError::Failed(format!("there is no follow-up {timer} in thread {thread}")))?;
    let now = store.due_timers(None, std::slice::from_ref(timer)).await?;
    let has_open_input = match row.status {
        TimerStatus::Pending => has_open_input(store, options).await,
        TimerStatus::Fired | TimerStatus::Withdrawn | TimerStatus::Refused | TimerStatus::Cancelled => false,
    };
    let now = now.first().and_then(Option::as_ref);
    let json = output::json(&FollowUpDetail::new(&row, now, has_open_input));
    output::print(options.database.format, &json, || output::key_value_table(&json))
}

/// Whether an input that is not stored yet waits in the thread or is under way there. When that cannot be known it says so, and counts none.
async fn has_open_input(store: &Store, options: &ShowFollowUp) -> bool {
    // Nothing is changed, so no actor is needed.
    let why = match connected(store, &options.nats, "", OWNER_TIMEOUT).await {
        Ok(acts) => match acts.has_open_input(&options.thread).await {
            Some(has_open_input) => return has_open_input,
            None => "the thread's owner does not answer".to_owned(),
        },
        Err(ExitError::Configuration(line) | ExitError::Failed(line)) => line,
    };
    output::eprint_line(&format!("{why}: an input that is not stored yet is left out"));
    false
}

pub(super) async fn schedules(store: &Store, options: &ListSchedules) -> Result<(), ExitError> {
    let (rows, now) = (store.schedules(&options.agent).await?, store.database_time().await?);
    let views: Vec<Value> = rows.iter().map(|row| output::json(&ScheduleView::new(row, now))).collect();
    let json = json!({ "agent_id": options.agent.as_str(), "schedules": views });
    output::print(options.database.format, &json, || {
        let mut table = Table::new(["SCHEDULE", "CRON", "AT", "ZONE", "OVERLAP", "MISSED", "NEXT"]);
        let columns = ["name", "cron", "at", "time_zone", "overlap", "missed", "next_at"];
        views.iter().for_each(|view| table.row(columns.map(|column| cell(&view[column]))));
        table
    })
}

pub(super) async fn schedule(store: &Store, options: &ShowSchedule) -> Result<(), ExitError> {
    let (agent, name) = (&options.agent, &options.name);
    let row = store.schedule(agent, name).await?;
    let row =
        row.ok_or_else(|| ExitError::Failed(format!("agent {agent} has no schedule {}", name.as_str())))?;
    let json = output::json(&ScheduleView::new(&row, store.database_time().await?));
    output::print(options.database.format, &json, || output::key_value_table(&json))
}
