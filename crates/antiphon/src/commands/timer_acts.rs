//! Changing follow-ups and schedules, as the HTTP API does: through the owner, which alone knows what fires at the moment.

use std::time::Duration;

use gateway::views::ControlResult;
use gateway::{ActRefusal, OperatorActs, ScheduleBody, SnoozeBody, dry_run_schedule};
use serde_json::json;
use store::Store;

use super::timeouts::SERVER_TIMEOUT;
use crate::connect::connect_own_bus;
use crate::exit::ExitError;
use crate::options::{
    Act, CancelFollowUp, DeleteSchedule, DryRunSchedule, NatsArguments, NewSchedule, OutputFormat,
    PutSchedule, SnoozeFollowUp,
};
use crate::output::{self, Table, cell};

impl From<ActRefusal> for ExitError {
    fn from(refusal: ActRefusal) -> Self {
        match refusal {
            ActRefusal::Invalid(line) => Self::Configuration(line),
            ActRefusal::Refused(line) => Self::Failed(line),
        }
    }
}

pub(super) async fn snooze(store: &Store, options: &SnoozeFollowUp) -> Result<(), ExitError> {
    let body = SnoozeBody { seconds: options.seconds, until: options.until.clone() };
    let acts = acts(store, &options.act).await?;
    let result = acts.snooze(&options.thread, &options.follow_up, &body).await?;
    print(&result, options.act.database.format)
}

pub(super) async fn cancel(store: &Store, options: &CancelFollowUp) -> Result<(), ExitError> {
    let result = acts(store, &options.act).await?.cancel(&options.thread, &options.follow_up).await?;
    print(&result, options.act.database.format)
}

pub(super) async fn put(store: &Store, options: &PutSchedule) -> Result<(), ExitError> {
    let NewSchedule { agent, name, .. } = &options.what;
    let view = acts(store, &options.act).await?.put_schedule(agent, name, body(&options.what)).await?;
    let json = output::json(&view);
    output::print(options.act.database.format, &json, || output::key_value_table(&json))
}

pub(super) async fn delete(store: &Store, options: &DeleteSchedule) -> Result<(), ExitError> {
    let result = acts(store, &options.act).await?.delete_schedule(&options.agent, &options.name).await?;
    print(&result, options.act.database.format)
}

pub(super) async fn dry_run(store: &Store, options: &DryRunSchedule) -> Result<(), ExitError> {
    let json = output::json(&dry_run_schedule(store, body(&options.what)).await?);
    output::print(options.database.format, &json, || {
        let mut table = Table::new(["NEXT"]);
        let next = json["next_occurrences"].as_array().into_iter().flatten();
        next.for_each(|at| table.row([cell(at)]));
        table
    })
}

/// The acts, once NATS has answered within `timeout`.
pub(super) async fn connected(
    store: &Store,
    nats: &NatsArguments,
    actor: &str,
    timeout: Duration,
) -> Result<OperatorActs, ExitError> {
    let bus = connect_own_bus(store, nats, "antiphon command", timeout).await?;
    let count = store.partition_count().await?;
    let count = count.ok_or_else(|| ExitError::Failed("the database is not laid out".to_owned()))?;
    Ok(OperatorActs::new(bus, store.clone(), count, actor))
}

async fn acts(store: &Store, act: &Act) -> Result<OperatorActs, ExitError> {
    connected(store, &act.nats, &act.actor, SERVER_TIMEOUT).await
}

fn body(new: &NewSchedule) -> ScheduleBody {
    ScheduleBody {
        cron: new.cron.clone(),
        at: new.at.clone(),
        time_zone: new.time_zone.clone(),
        overlap: new.overlap.clone(),
        missed: new.missed.clone(),
        content: new.content.clone(),
        metadata: new.metadata.clone(),
        enabled: Some(!new.disabled),
    }
}

/// What became of it. What its owner rejected is an error; what no owner has done yet is done by the next one.
fn print(result: &ControlResult, format: OutputFormat) -> Result<(), ExitError> {
    if let Some(why) = result.error() {
        return Err(ExitError::Failed(why.to_owned()));
    }
    let json = json!(result);
    output::print(format, &json, || output::key_value_table(&json))
}
