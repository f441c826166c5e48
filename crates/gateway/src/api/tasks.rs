//! Tasks of agents.

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_server::error::{ErrorCode, Problem};
use http_server::extract::body::{EmptyBody, JsonBody, MaxBodySize};
use http_server::extract::path;
use http_server::extract::path::PathParam;
use http_server::extract::query;
use http_server::extract::query::QueryParams;
use model::{AgentId, ControlKind, Metadata, Position, Task, TaskEdit, TaskId, TaskKind, TaskOrigin};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use store::{TaskRow, TaskStatus};
use utoipa::{IntoParams, ToSchema};
use uuid::Uuid;

use crate::api::agents;
use crate::api::agents::ErrorView;
use crate::api::delayed_tasks;
use crate::api::places;
use crate::api::respond::json_no_store;
use crate::api::views;
use crate::api::views::PlaceView;
use crate::app::request_context::RequestContext;
use crate::backend::Backend;
use crate::commands::validate;
use crate::commands::validate::MAX_INPUT_BODY;
use crate::commands::{control, publish, submit};
use crate::openapi::error_codes::{INPUT, PUBLISH};
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::schemas;
use crate::openapi::tags::TASKS;

pub(crate) fn operations() -> Vec<Operation> {
    let accepted = json!({ "task_id": "t-1", "agent_id": "ann", "task_url": "/v1/agents/ann/tasks/t-1" });
    let one = "/v1/agents/{agent}/tasks/{task}";
    vec![
        Operation::post("/v1/agents/{agent}/tasks", "sendTask", "Send a task to an agent", enqueue_task)
            .tag(TASKS)
            .description("For seven days a repeated `task_id` means the same task. With `not_before` the task enters the queue at that time.")
            .scope(Scope::SendTasks)
            .actor_header()
            .body::<TaskBody>(json!({ "task_id": "t-1", "content": "Write the report" }))
            .response::<TaskAccepted>(202, "Stored durably; the task will be queued", accepted)
            .with_header("Location", "The URL of the task.", json!({ "type": "string", "format": "uri-reference" }))
            .errors(&INPUT)
            .errors(&PUBLISH)
            .errors(&[
                ErrorCode::TaskConflict,
                ErrorCode::ThreadErased,
                ErrorCode::InvalidNotBefore,
                ErrorCode::TooManyDelayedTasks,
                ErrorCode::AgentChanged,
            ]),
        Operation::get("/v1/agents/{agent}/tasks", "listTasks", "List the task queue of an agent", list)
            .tag(TASKS)
            .scope(Scope::ReadAgents)
            .query::<TasksQuery>()
            .response::<TasksPage>(
                200,
                "Tasks, in queue order",
                json!({ "agent_id": "ann", "tasks": [task_example()], "next": null }),
            )
            .errors(&[ErrorCode::UnknownAgent, ErrorCode::InvalidPosition, ErrorCode::InvalidLimit]),
        Operation::get(one, "showTask", "Show a task and its outcome", get)
            .tag(TASKS)
            .scope(Scope::ReadAgents)
            .response::<TaskDetail>(200, "The task", task_now_example())
            .errors(&[ErrorCode::UnknownTask]),
        Operation::patch(one, "editTask", "Edit a pending task", edit)
            .tag(TASKS)
            .description("Omitted fields are unchanged. Metadata that Antiphon wrote into its own tasks is also unchanged.")
            .scope(Scope::OperateAgents)
            .actor_header()
            .body::<EditBody>(json!({ "content": "Write a short report" }))
            .acts()
            .errors(&INPUT)
            .errors(&[ErrorCode::UnknownTask]),
        Operation::delete(one, "dropTask", "Drop a task", delete)
            .tag(TASKS)
            .scope(Scope::OperateAgents)
            .actor_header()
            .no_body()
            .acts()
            .errors(&[ErrorCode::UnknownTask]),
        Operation::post(
            "/v1/agents/{agent}/tasks/{task}/retry",
            "retryTask",
            "Retry a failed task", retry
        )
        .tag(TASKS)
        .scope(Scope::OperateAgents)
        .actor_header()
        .no_body()
        .acts()
        .errors(&[ErrorCode::UnknownTask]),
    ]
}

/// A task to add to an agent's queue.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TaskBody {
    /// The id of the task: a repeated request with it yields the same task. Generated when absent.
    #[schema(value_type = Option<schemas::TaskIdSchema>)]
    task_id: Option<String>,
    #[schema(value_type = schemas::InputSchema)]
    content: String,
    #[schema(value_type = Option<schemas::MetadataObject>)]
    metadata: Option<Map<String, Value>>,
    /// The task enters the queue at this time and not before; at most 366 days from now. By default
    /// it enters at once.
    #[schema(value_type = Option<schemas::TimestampSchema>)]
    not_before: Option<String>,
}

/// A task that is stored durably and will be in the agent's queue.
#[derive(Serialize, ToSchema)]
pub(crate) struct TaskAccepted {
    #[schema(value_type = schemas::TaskIdSchema)]
    task_id: String,
    #[schema(value_type = schemas::AgentIdSchema)]
    agent_id: String,
    /// The URL of the task.
    #[schema(format = "uri-reference")]
    task_url: String,
}

impl MaxBodySize for TaskBody {
    const MAX_BYTES: usize = MAX_INPUT_BODY;
}

fn unknown() -> Problem {
    Problem::from(ErrorCode::UnknownTask)
}

fn task_id(text: &str) -> Result<TaskId, Problem> {
    path::id("task", text, TaskId::parse)
}

pub(crate) async fn enqueue_task(
    ctx: RequestContext,
    PathParam(agent): PathParam<String>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<TaskBody>,
) -> Result<Response, Problem> {
    let (agent, actor) = (ctx.agent(&agent)?, ctx.actor(&headers)?);
    let id = body.task_id.unwrap_or_else(|| Uuid::now_v7().simple().to_string());
    let id = path::id("task_id", &id, TaskId::parse)?;
    validate::content(&body.content)?;
    let metadata = validate::metadata(body.metadata)?;
    let backend = ctx.backend()?;
    let (content, origin) = (body.content, TaskOrigin::of_sender(&metadata));
    let task = Task { agent, id, kind: TaskKind::Task, content, origin, metadata };
    let task = publish::task_as_read(backend, &task)?;
    submit::refuse_erased(backend, &task.agent.thread()).await?;
    if backend.store().task_digest(&task.agent, &task.id).await?.is_some_and(|known| known != task.digest()) {
        let detail = "the agent knows a task of that id with another payload";
        return Err(Problem::new(ErrorCode::TaskConflict, detail));
    }
    let (agent, id) = (task.agent.clone(), task.id.clone());
    let place = match body.not_before {
        Some(not_before) => delayed_tasks::delay(&ctx, task, &not_before, actor).await?,
        None => {
            publish::publish_task(backend, &task).await?;
            format!("/v1/agents/{}/tasks/{id}", agent.name())
        }
    };
    let shown = TaskAccepted {
        task_id: id.as_str().to_owned(),
        agent_id: agent.name().to_owned(),
        task_url: place.clone(),
    };
    Ok((StatusCode::ACCEPTED, [(header::LOCATION, place)], json_no_store(shown)).into_response())
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct TasksQuery {
    /// Only tasks with this status.
    #[param(value_type = Option<schemas::TaskStatusSchema>)]
    status: Option<String>,
    /// `next` of the previous page.
    #[param(value_type = Option<schemas::PositionSchema>)]
    next: Option<String>,
    #[param(value_type = Option<schemas::Limit>)]
    limit: Option<String>,
}

/// A page of an agent's tasks, in the order of the queue.
#[derive(Serialize, ToSchema)]
pub(crate) struct TasksPage {
    #[schema(value_type = schemas::QueueIdSchema)]
    agent_id: String,
    tasks: Vec<TaskView>,
    #[schema(value_type = schemas::NextPage, required)]
    next: Option<String>,
}

/// A task and its state.
#[derive(Serialize, ToSchema)]
pub(crate) struct TaskView {
    #[schema(value_type = schemas::TaskIdSchema)]
    task_id: String,
    /// The task's position in the queue.
    #[schema(value_type = schemas::PositionSchema)]
    position: Position,
    #[schema(value_type = schemas::TaskKindSchema)]
    kind: &'static str,
    #[schema(value_type = schemas::TaskStatusSchema)]
    status: &'static str,
    content: String,
    #[schema(value_type = Object)]
    metadata: Metadata,
    /// Why the task failed; null when it has not.
    #[schema(required)]
    failure: Option<ErrorView>,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    created_at: Option<String>,
}

/// A task and its place in the queue.
#[derive(Serialize, ToSchema)]
pub(crate) struct TaskDetail {
    #[serde(flatten)]
    task: TaskView,
    /// Null when the task is not pending.
    #[schema(required)]
    place: Option<PlaceView>,
}

pub(crate) async fn list(
    ctx: RequestContext,
    PathParam(agent): PathParam<String>,
    QueryParams(query): QueryParams<TasksQuery>,
) -> Result<Response, Problem> {
    let agent = ctx.queue(&agent)?;
    let known = |name: &str| {
        let all = TaskStatus::ALL.map(TaskStatus::name).join(", ");
        let detail = format!("status must be one of {all}");
        TaskStatus::from_name(name).ok_or_else(|| Problem::new(ErrorCode::InvalidQuery, detail))
    };
    let status = query.status.as_deref().map(known).transpose()?;
    let after = query::position("next", query.next)?.unwrap_or(Position::from_stored(i64::MIN));
    let limit = query::limit(query.limit.as_deref())?;
    let of = &agent;
    let tasks = ctx.read(move |store| async move { store.tasks(of, status, after, limit + 1).await });
    let mut tasks = tasks.await?;
    if tasks.is_empty() && ctx.store()?.agent(&agent).await?.is_none() {
        return Err(agents::unknown());
    }
    let next = query::next(&mut tasks, limit, |last| last.position.to_string());
    let tasks = tasks.into_iter().map(TaskView::from).collect();
    Ok(json_no_store(TasksPage { agent_id: agent.name().to_owned(), tasks, next }))
}

pub(crate) async fn get(
    ctx: RequestContext,
    PathParam((agent, task)): PathParam<(String, String)>,
) -> Result<Response, Problem> {
    let (agent, task) = (ctx.queue(&agent)?, task_id(&task)?);
    let backend = ctx.backend()?;
    let row = backend.store().task(&agent, &task).await?.ok_or_else(unknown)?;
    let place = places::of_task(backend, &agent, &row).await?;
    Ok(json_no_store(TaskDetail { task: TaskView::from(row), place }))
}

impl From<TaskRow> for TaskView {
    fn from(row: TaskRow) -> Self {
        let failure = row.failure.map(|failure| ErrorView {
            code: failure.code,
            message: Some(failure.text),
            at: views::rfc3339(failure.at),
        });
        Self {
            task_id: row.task.as_str().to_owned(),
            position: row.position,
            kind: row.kind.name(),
            status: row.status.name(),
            content: row.content,
            metadata: row.metadata,
            failure,
            created_at: views::rfc3339(row.created_at),
        }
    }
}

/// The changes of a task: `content`, `metadata`, or both.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EditBody {
    #[schema(value_type = Option<schemas::InputSchema>)]
    content: Option<String>,
    #[schema(value_type = Option<schemas::MetadataObject>)]
    metadata: Option<Map<String, Value>>,
}

impl MaxBodySize for EditBody {
    const MAX_BYTES: usize = MAX_INPUT_BODY;
}

/// Omitted fields keep their values.
pub(crate) async fn edit(
    ctx: RequestContext,
    PathParam((agent, task)): PathParam<(String, String)>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<EditBody>,
) -> Result<Response, Problem> {
    let (agent, task, actor) = (ctx.queue(&agent)?, task_id(&task)?, ctx.actor(&headers)?);
    if body.content.is_none() && body.metadata.is_none() {
        return Err(Problem::new(ErrorCode::InvalidBody, "there is neither content nor metadata to change"));
    }
    body.content.as_deref().map(validate::content).transpose()?;
    let metadata = body.metadata.map(|map| validate::metadata(Some(map))).transpose()?;
    let edit = TaskEdit { content: body.content, metadata };
    act(ctx.backend()?, agent, &task, actor, ControlKind::EditTask { task: task.clone(), edit }).await
}

pub(crate) async fn delete(
    ctx: RequestContext,
    PathParam((agent, task)): PathParam<(String, String)>,
    headers: HeaderMap,
    _: EmptyBody,
) -> Result<Response, Problem> {
    let (agent, task, actor) = (ctx.queue(&agent)?, task_id(&task)?, ctx.actor(&headers)?);
    act(ctx.backend()?, agent, &task, actor, ControlKind::DropTask(task.clone())).await
}

pub(crate) async fn retry(
    ctx: RequestContext,
    PathParam((agent, task)): PathParam<(String, String)>,
    headers: HeaderMap,
    _: EmptyBody,
) -> Result<Response, Problem> {
    let (agent, task, actor) = (ctx.queue(&agent)?, task_id(&task)?, ctx.actor(&headers)?);
    act(ctx.backend()?, agent, &task, actor, ControlKind::RetryTask(task.clone())).await
}

/// The owner decides, because it may know a task that is not written yet. If it refuses and the
/// store does not know the task either, the task does not exist.
async fn act(
    backend: &Backend,
    agent: AgentId,
    task: &TaskId,
    actor: String,
    what: ControlKind,
) -> Result<Response, Problem> {
    let acted = control::execute(backend, actor, agent.clone(), what).await?;
    if acted.refused().is_some() && backend.store().task(&agent, task).await?.is_none() {
        return Err(unknown());
    }
    Ok(acted.into_response())
}

fn task_now_example() -> Value {
    let mut task = task_example();
    task["place"] = Value::Null;
    task
}

fn task_example() -> Value {
    json!({
        "task_id": "t-1", "position": "7524873984012345344", "kind": "task", "status": "failed",
        "content": "Write the report", "metadata": {}, "created_at": "2026-11-22T11:49:44.123Z",
        "failure": { "code": "workflow", "message": "there is no report", "at": "2026-11-22T11:49:44.123Z" },
    })
}
