//! Schedules of agents.

use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use http_server::error::{ErrorCode, Problem};
use http_server::extract::body::{EmptyBody, JsonBody, MaxBodySize};
use http_server::extract::path;
use http_server::extract::path::PathParam;
use model::{AgentId, Control, ControlKind, ScheduleName, Timestamp};
use scheduling::schedule::{MissedRule, OverlapRule, Schedule};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use store::{PutOutcome, PutSchedule, ScheduleRow, Store, StoredSchedule};
use utoipa::ToSchema;

use crate::api::respond::json_no_store;
use crate::api::{agents, views};
use crate::app::request_context::RequestContext;
use crate::backend::Backend;
use crate::commands::control::{self, ControlOutcome};
use crate::commands::{publish, submit, validate};
use crate::openapi::error_codes::{INPUT, PUBLISH};
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::schemas;
use crate::openapi::tags::TIMERS;

pub(crate) fn operations() -> Vec<Operation> {
    let one = "/v1/agents/{agent}/schedules/{schedule}";
    let body = || json!({ "cron": "0 9 * * 1-5", "time_zone": "Europe/Berlin", "content": "Write the report", "missed": "one" });
    vec![
        Operation::get("/v1/agents/{agent}/schedules", "listSchedules", "List the schedules of an agent", list)
            .tag(TIMERS)
            .scope(Scope::ReadAgents)
            .response::<SchedulesPage>(
                200,
                "Schedules, ordered by name",
                json!({ "agent_id": "ann", "schedules": [schedule_example()] }),
            )
            .errors(&[ErrorCode::UnknownAgent]),
        Operation::get(one, "showSchedule", "Show a schedule and its next five occurrences", get)
            .tag(TIMERS)
            .scope(Scope::ReadAgents)
            .response::<ScheduleView>(200, "The schedule", schedule_example())
            .errors(&[ErrorCode::UnknownSchedule]),
        Operation::put(one, "putSchedule", "Create or replace a schedule", put)
            .tag(TIMERS)
            .description("An agent may have 64 schedules. Each occurrence sends the agent a task whose id is derived from the occurrence.")
            .scope(Scope::OperateAgents)
            .actor_header()
            .body::<ScheduleBody>(body())
            .response::<ScheduleView>(201, "Created", schedule_example())
            .response::<ScheduleView>(200, "Replaced", schedule_example())
            .errors(&INPUT)
            .errors(&PUBLISH)
            .errors(&[
                ErrorCode::InvalidSchedule,
                ErrorCode::TooManySchedules,
                ErrorCode::ThreadErased,
                ErrorCode::AgentChanged,
                ErrorCode::UnknownAgent,
                ErrorCode::UnknownSchedule,
            ]),
        Operation::post(
            "/v1/agents/{agent}/schedules/{schedule}/dry-run",
            "tryScheduleOut",
            "Preview the next occurrences of a schedule", dry_run
        )
        .tag(TIMERS)
        .description("Nothing is stored.")
        .scope(Scope::ReadAgents)
        .body::<ScheduleBody>(body())
        .response::<ScheduleDryRun>(
            200,
            "The next five occurrences",
            json!({ "next_occurrences": ["2026-11-23T08:00:00Z"] }),
        )
        .errors(&INPUT)
        .errors(&[ErrorCode::InvalidSchedule]),
        Operation::delete(one, "deleteSchedule", "Delete a schedule", delete)
            .tag(TIMERS)
            .scope(Scope::OperateAgents)
            .actor_header()
            .no_body()
            .acts()
            .errors(&[ErrorCode::UnknownSchedule]),
    ]
}

/// Number of occurrences shown.
const SHOWN: usize = 5;

/// A schedule: either `cron`, or a single time in `at`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScheduleBody {
    /// A cron pattern of five fields: minute, hour, day of the month, month, day of the week.
    #[schema(max_length = 256)]
    pub(crate) cron: Option<String>,
    /// The time of a single occurrence: an instant, or a local time in `time_zone`.
    #[schema(max_length = 64)]
    pub(crate) at: Option<String>,
    /// The time zone of the schedule: a zone of the IANA database.
    #[schema(default = "UTC")]
    pub(crate) time_zone: Option<String>,
    /// What happens to an occurrence while the task of the previous one is not done.
    #[schema(value_type = Option<schemas::OverlapSchema>)]
    pub(crate) overlap: Option<String>,
    /// What happens to occurrences that fell due while no worker was running.
    #[schema(value_type = Option<schemas::MissedSchema>)]
    pub(crate) missed: Option<String>,
    /// The text of each task.
    #[schema(value_type = schemas::InputSchema)]
    pub(crate) content: String,
    /// The metadata of each task.
    #[schema(value_type = Option<schemas::MetadataObject>)]
    pub(crate) metadata: Option<Map<String, Value>>,
    /// Whether the schedule is active; `true` by default.
    pub(crate) enabled: Option<bool>,
}

impl MaxBodySize for ScheduleBody {
    const MAX_BYTES: usize = validate::MAX_INPUT_BODY;
}

/// A schedule and its next occurrences.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ScheduleView {
    #[schema(value_type = schemas::ScheduleNameSchema)]
    name: String,
    #[schema(required)]
    cron: Option<String>,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    at: Option<String>,
    time_zone: String,
    #[schema(value_type = schemas::OverlapSchema)]
    overlap: String,
    #[schema(value_type = schemas::MissedSchema)]
    missed: String,
    content: String,
    #[schema(value_type = Object)]
    metadata: Value,
    enabled: bool,
    /// Version of the schedule, from 1; rises by one with each change.
    version: u64,
    created_by: String,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    created_at: Option<String>,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    updated_at: Option<String>,
    /// When the next task is sent; null when there are no further occurrences.
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    next_at: Option<String>,
    /// The next occurrences, at most five.
    #[schema(value_type = Vec<schemas::TimestampSchema>)]
    next_occurrences: Vec<String>,
}

/// The schedules of an agent, ordered by name.
#[derive(Serialize, ToSchema)]
pub(crate) struct SchedulesPage {
    #[schema(value_type = schemas::AgentIdSchema)]
    agent_id: String,
    schedules: Vec<ScheduleView>,
}

/// The occurrences of a schedule that was not stored.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ScheduleDryRun {
    #[schema(value_type = Vec<schemas::TimestampSchema>)]
    next_occurrences: Vec<String>,
}

fn unknown() -> Problem {
    Problem::from(ErrorCode::UnknownSchedule)
}

fn invalid(detail: String) -> Problem {
    Problem::new(ErrorCode::InvalidSchedule, detail)
}

fn name_of(text: &str) -> Result<ScheduleName, Problem> {
    path::id("schedule", text, ScheduleName::parse)
}

pub(crate) async fn list(
    ctx: RequestContext,
    PathParam(agent): PathParam<String>,
) -> Result<Response, Problem> {
    let (agent, store) = (ctx.agent(&agent)?, ctx.store()?);
    let (rows, now) = (store.schedules(&agent).await?, store.database_time().await?);
    if rows.is_empty() && store.agent(&agent).await?.is_none() {
        return Err(agents::unknown());
    }
    let schedules = rows.iter().map(|row| ScheduleView::new(row, now)).collect();
    Ok(json_no_store(SchedulesPage { agent_id: agent.name().to_owned(), schedules }))
}

pub(crate) async fn get(
    ctx: RequestContext,
    PathParam((agent, name)): PathParam<(String, String)>,
) -> Result<Response, Problem> {
    let (agent, name) = (ctx.agent(&agent)?, name_of(&name)?);
    Ok(json_no_store(shown(ctx.store()?, &agent, &name).await?))
}

async fn shown(store: &Store, agent: &AgentId, name: &ScheduleName) -> Result<ScheduleView, Problem> {
    let row = store.schedule(agent, name).await?.ok_or_else(unknown)?;
    Ok(ScheduleView::new(&row, store.database_time().await?))
}

/// Parses the body. Returns the schedule and its occurrences after `now`, of which there is at
/// least one.
fn checked(body: ScheduleBody, now: Timestamp) -> Result<(StoredSchedule, Vec<Timestamp>), Problem> {
    let time_zone = body.time_zone.unwrap_or_else(|| "UTC".to_owned());
    let overlap = match body.overlap.as_deref() {
        None => OverlapRule::default(),
        Some(name) => {
            OverlapRule::from_name(name).ok_or_else(|| invalid("overlap must be skip or queue".to_owned()))?
        }
    };
    let missed = match body.missed.as_deref() {
        None => MissedRule::default(),
        Some(name) => {
            MissedRule::from_name(name).ok_or_else(|| invalid("missed must be skip or one".to_owned()))?
        }
    };
    validate::content(&body.content)?;
    let metadata = validate::metadata(body.metadata)?;
    let schedule = Schedule::parse_new(body.cron.as_deref(), body.at.as_deref(), &time_zone, overlap, missed)
        .map_err(|error| invalid(error.to_string()))?;
    let occurrences = schedule.occurrences(now, SHOWN);
    let Some(first) = occurrences.first() else {
        return Err(invalid("at: it is past, so the schedule never occurs".to_owned()));
    };
    let stored = StoredSchedule {
        at: body.at.map(|_| *first),
        cron: body.cron,
        time_zone,
        overlap: overlap.name().to_owned(),
        missed: missed.name().to_owned(),
        content: body.content,
        metadata,
        enabled: body.enabled.unwrap_or(true),
    };
    Ok((stored, occurrences))
}

pub(crate) async fn put(
    ctx: RequestContext,
    PathParam((agent, name)): PathParam<(String, String)>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<ScheduleBody>,
) -> Result<Response, Problem> {
    let (agent, name, actor) = (ctx.agent(&agent)?, name_of(&name)?, ctx.actor(&headers)?);
    let (version, view) = store_checked(ctx.backend()?, actor, &agent, &name, body).await?;
    let status = if version == 1 { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, json_no_store(view)).into_response())
}

/// Stores a valid schedule and notifies its owner. Returns its version and its view.
async fn store_checked(
    backend: &Backend,
    actor: String,
    agent: &AgentId,
    name: &ScheduleName,
    body: ScheduleBody,
) -> Result<(u64, ScheduleView), Problem> {
    let store = backend.store();
    let (schedule, occurrences) = checked(body, store.database_time().await?)?;
    // A schedule does not create its agent: a schedule under a misspelt name would create tasks
    // forever.
    store.agent(agent).await?.ok_or_else(agents::unknown)?;
    let command = control::new_id()?;
    let put = PutSchedule {
        agent: agent.clone(),
        name: name.clone(),
        schedule,
        next_due: occurrences.first().copied(),
        command: command.clone(),
        actor: actor.clone(),
    };
    let version = match store.put_schedule(&put).await? {
        PutOutcome::Stored(version) => version,
        PutOutcome::Full => {
            let detail = format!(
                "the agent already has {} schedules, the maximum: delete one first",
                store::MOST_SCHEDULES
            );
            return Err(Problem::new(ErrorCode::TooManySchedules, detail));
        }
        PutOutcome::Erased => return Err(erased(backend, agent).await),
    };
    let kind = ControlKind::PutSchedule(name.clone());
    let said = Control { id: command, actor: actor.into(), subject: agent.clone(), kind };
    publish::publish_control(backend, &said).await?;
    Ok((version, shown(store, agent, name).await?))
}

/// The refusal of an operation on an erased agent.
pub(crate) async fn erased(backend: &Backend, agent: &AgentId) -> Problem {
    let refused = submit::refuse_erased(backend, &agent.thread()).await;
    // The agent was created again after the erasure.
    refused.err().unwrap_or_else(|| Problem::from(ErrorCode::AgentChanged))
}

pub(crate) async fn dry_run(
    ctx: RequestContext,
    PathParam((agent, name)): PathParam<(String, String)>,
    JsonBody(body): JsonBody<ScheduleBody>,
) -> Result<Response, Problem> {
    let (_, _) = (ctx.agent(&agent)?, name_of(&name)?);
    Ok(json_no_store(would_occur(ctx.store()?, body).await?))
}

/// The occurrences of a valid schedule; nothing is stored.
async fn would_occur(store: &Store, body: ScheduleBody) -> Result<ScheduleDryRun, Problem> {
    let (_, occurrences) = checked(body, store.database_time().await?)?;
    let next_occurrences = occurrences.into_iter().filter_map(views::rfc3339).collect();
    Ok(ScheduleDryRun { next_occurrences })
}

pub(crate) async fn delete(
    ctx: RequestContext,
    PathParam((agent, name)): PathParam<(String, String)>,
    headers: HeaderMap,
    _: EmptyBody,
) -> Result<Response, Problem> {
    let (agent, name, actor) = (ctx.agent(&agent)?, name_of(&name)?, ctx.actor(&headers)?);
    Ok(drop_stored(ctx.backend()?, actor, agent, name).await?.into_response())
}

/// Deletes a schedule with its waiting occurrences.
async fn drop_stored(
    backend: &Backend,
    actor: String,
    agent: AgentId,
    name: ScheduleName,
) -> Result<ControlOutcome, Problem> {
    if !backend.store().delete_schedule(&agent, &name).await? {
        return Err(unknown());
    }
    control::execute(backend, actor, agent, ControlKind::DeleteSchedule(name)).await
}

impl ScheduleView {
    /// `now` is the time of the database's clock.
    pub(crate) fn new(row: &ScheduleRow, now: Timestamp) -> Self {
        let schedule = &row.schedule;
        let at = schedule.at.and_then(views::rfc3339);
        let (overlap, missed) = (OverlapRule::default(), MissedRule::default());
        let parsed =
            Schedule::parse(schedule.cron.as_deref(), at.as_deref(), &schedule.time_zone, overlap, missed);
        // A schedule that no longer waits has no occurrences, whatever its pattern.
        let occurrences = match (parsed, row.next_due) {
            (Ok(parsed), Some(_)) => parsed.occurrences(now, SHOWN),
            (Ok(_) | Err(_), _) => Vec::new(),
        };
        Self {
            name: row.name.as_str().to_owned(),
            cron: schedule.cron.clone(),
            at,
            time_zone: schedule.time_zone.clone(),
            overlap: schedule.overlap.clone(),
            missed: schedule.missed.clone(),
            content: schedule.content.clone(),
            metadata: schedule.metadata.to_value(),
            enabled: schedule.enabled,
            version: row.version,
            created_by: row.created_by.clone(),
            created_at: views::rfc3339(row.created_at),
            updated_at: views::rfc3339(row.updated_at),
            next_at: row.next_due.and_then(views::rfc3339),
            next_occurrences: occurrences.into_iter().filter_map(views::rfc3339).collect(),
        }
    }
}

fn schedule_example() -> Value {
    json!({
        "name": "daily", "cron": "0 9 * * 1-5", "at": null, "time_zone": "Europe/Berlin", "overlap": "skip", "missed": "one",
        "content": "Write the report", "metadata": {}, "enabled": true, "version": 1, "created_by": "ann@example.org",
        "created_at": "2026-11-22T11:49:44.123Z", "updated_at": "2026-11-22T11:49:44.123Z", "next_at": "2026-11-23T08:00:00Z",
        "next_occurrences": ["2026-11-23T08:00:00Z", "2026-11-24T08:00:00Z"],
    })
}
