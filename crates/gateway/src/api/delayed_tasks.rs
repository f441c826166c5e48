//! Delayed tasks: tasks that enter the queue of their agent later.

use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use http_server::error::{ErrorCode, Problem};
use http_server::extract::body::EmptyBody;
use http_server::extract::path;
use http_server::extract::path::PathParam;
use http_server::extract::query;
use http_server::extract::query::QueryParams;
use model::{ControlKind, DelayedTask, Task, TaskId, TimerId, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::{MOST_DELAYED_TASKS, TaskDelay};
use utoipa::{IntoParams, ToSchema};

use crate::api::respond::json_no_store;
use crate::api::{agents, schedules, views};
use crate::app::request_context::RequestContext;
use crate::commands::control;
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::schemas;
use crate::openapi::tags::TIMERS;

pub(crate) fn operations() -> Vec<Operation> {
    let one = "/v1/agents/{agent}/delayed-tasks/{task}";
    vec![
        Operation::get("/v1/agents/{agent}/delayed-tasks", "listDelayedTasks", "List delayed tasks", list)
            .tag(TIMERS)
            .description("Tasks that were sent with `not_before` and are not queued yet.")
            .scope(Scope::ReadAgents)
            .query::<DelayedQuery>()
            .response::<DelayedTasksPage>(
                200,
                "Delayed tasks, ordered by due time",
                json!({ "agent_id": "ann", "delayed_tasks": [delayed_task_example()], "next": null }),
            )
            .errors(&[ErrorCode::UnknownAgent, ErrorCode::InvalidLimit]),
        Operation::get(one, "showDelayedTask", "Show a delayed task", get)
            .tag(TIMERS)
            .scope(Scope::ReadAgents)
            .response::<DelayedTaskView>(200, "The task", delayed_task_example())
            .errors(&[ErrorCode::UnknownTask]),
        Operation::delete(one, "cancelDelayedTask", "Cancel a delayed task", delete)
            .tag(TIMERS)
            .scope(Scope::OperateAgents)
            .actor_header()
            .no_body()
            .acts()
            .errors(&[ErrorCode::UnknownTask]),
    ]
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct DelayedQuery {
    /// `next` of the previous page.
    #[param(value_type = Option<schemas::TaskIdSchema>)]
    next: Option<String>,
    #[param(value_type = Option<schemas::Limit>)]
    limit: Option<String>,
}

/// A task that is not in its queue yet because it waits for its time.
#[derive(Serialize, ToSchema)]
pub(crate) struct DelayedTaskView {
    #[schema(value_type = schemas::TaskIdSchema)]
    task_id: String,
    /// When the task enters the queue, at its end.
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    not_before: Option<String>,
    content: String,
    #[schema(value_type = Object)]
    metadata: Value,
}

/// A page of an agent's delayed tasks, in the order in which they are due.
#[derive(Serialize, ToSchema)]
pub(crate) struct DelayedTasksPage {
    #[schema(value_type = schemas::AgentIdSchema)]
    agent_id: String,
    delayed_tasks: Vec<DelayedTaskView>,
    #[schema(value_type = schemas::NextPage, required)]
    next: Option<String>,
}

fn unknown() -> Problem {
    Problem::new(ErrorCode::UnknownTask, "the agent has no such task that waits for its time")
}

/// Stores a task that was sent with `not_before` and notifies its owner. Returns the URL of the
/// task.
pub(crate) async fn delay(
    ctx: &RequestContext,
    task: Task,
    not_before: &str,
    actor: String,
) -> Result<String, Problem> {
    let backend = ctx.backend()?;
    let invalid = |detail: &str| Problem::new(ErrorCode::InvalidNotBefore, detail.to_owned());
    let not_before = wire::parse_rfc3339(not_before)
        .ok_or_else(|| invalid("not_before must be a time like 2026-12-24T18:00:00Z"))?;
    if not_before.0 < 0 {
        return Err(invalid("not_before must not be before 1970"));
    }
    if not_before.since_ms(backend.store().database_time().await?) > DelayedTask::MOST_DELAY_MS {
        return Err(invalid("not_before must be within 366 days from now"));
    }
    let (agent, id) = (task.agent.clone(), task.id.clone());
    match backend.store().delay_task(&DelayedTask { task, not_before }).await? {
        TaskDelay::Stored => {}
        TaskDelay::Conflict => {
            let detail = "the agent knows a task of that id with another payload or time";
            return Err(Problem::new(ErrorCode::TaskConflict, detail));
        }
        TaskDelay::Full => {
            let detail =
                format!("{MOST_DELAYED_TASKS} delayed tasks of the agent are pending, which is the maximum");
            return Err(Problem::new(ErrorCode::TooManyDelayedTasks, detail));
        }
        TaskDelay::Erased => return Err(schedules::erased(backend, &agent).await),
    }
    // The task is stored, and its owner reads timers again within a minute. An error now would make
    // clients send it again under another id.
    if let Err(error) = control::send(backend, actor, agent.clone(), ControlKind::DelayTask(id.clone())).await
    {
        tracing::warn!(%agent, task = %id, ?error, "a delayed task was not announced to its owner");
    }
    Ok(format!("/v1/agents/{}/delayed-tasks/{id}", agent.name()))
}

pub(crate) async fn list(
    ctx: RequestContext,
    PathParam(agent): PathParam<String>,
    QueryParams(query): QueryParams<DelayedQuery>,
) -> Result<Response, Problem> {
    let agent = ctx.agent(&agent)?;
    let after = query.next.map(|id| path::id("next", &id, TaskId::parse)).transpose()?;
    let limit = query::limit(query.limit.as_deref())?;
    let store = ctx.store()?;
    let mut delayed = store.delayed_tasks(&agent, after.as_ref(), limit + 1).await?;
    if delayed.is_empty() && store.agent(&agent).await?.is_none() {
        return Err(agents::unknown());
    }
    let next = query::next(&mut delayed, limit, |last| last.task.id.as_str().to_owned());
    let delayed_tasks = delayed.iter().map(DelayedTaskView::from).collect();
    Ok(json_no_store(DelayedTasksPage { agent_id: agent.name().to_owned(), delayed_tasks, next }))
}

pub(crate) async fn get(
    ctx: RequestContext,
    PathParam((agent, task)): PathParam<(String, String)>,
) -> Result<Response, Problem> {
    let (agent, task) = (ctx.agent(&agent)?, path::id("task", &task, TaskId::parse)?);
    let delayed = ctx.store()?.delayed_task(&agent, &task).await?.ok_or_else(unknown)?;
    Ok(json_no_store(DelayedTaskView::from(&delayed)))
}

/// The owner executes the deletion, because only the owner knows what fires at this moment.
pub(crate) async fn delete(
    ctx: RequestContext,
    PathParam((agent, task)): PathParam<(String, String)>,
    headers: HeaderMap,
    _: EmptyBody,
) -> Result<Response, Problem> {
    let (agent, task) = (ctx.agent(&agent)?, path::id("task", &task, TaskId::parse)?);
    let (actor, backend) = (ctx.actor(&headers)?, ctx.backend()?);
    backend.store().delayed_task(&agent, &task).await?.ok_or_else(unknown)?;
    let cancel = ControlKind::CancelTimer(TimerId::of_task(&agent, &task));
    Ok(control::execute(backend, actor, agent, cancel).await?.into_response())
}

impl From<&DelayedTask> for DelayedTaskView {
    fn from(delayed: &DelayedTask) -> Self {
        let at: Timestamp = delayed.not_before;
        Self {
            task_id: delayed.task.id.as_str().to_owned(),
            not_before: views::rfc3339(at),
            content: delayed.task.content.clone(),
            metadata: delayed.task.metadata.to_value(),
        }
    }
}

fn delayed_task_example() -> Value {
    json!({ "task_id": "t-1", "not_before": "2026-11-23T08:00:00Z", "content": "Write the report", "metadata": {} })
}
