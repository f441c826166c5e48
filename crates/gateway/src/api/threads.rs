//! Threads that clients name.

use std::time::Duration;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_server::error::{ErrorCode, Problem};
use http_server::extract::body::{JsonBody, MaxBodySize};
use http_server::extract::path::PathParam;
use model::{BusyPolicy, QueryTarget, QueueStatus, ThreadId, TimerId, WaitReason};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use store::{NamedThread, NewThread, ThreadRow};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::api::pending_inputs::{PendingInputView, PendingInputs};
use crate::api::places::WaitingLine;
use crate::api::respond::json_no_store;
use crate::api::views::ThreadView;
use crate::api::views::{InputView, OpenMessageView, TurnView};
use crate::app::request_context::RequestContext;
use crate::backend::Backend;
use crate::commands::owner_query::OwnerStatus;
use crate::commands::{owner_query, submit, thread_agent, validate};
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::schemas;
use crate::openapi::tags::THREADS;

pub(crate) fn operations() -> Vec<Operation> {
    let place = || json!({ "type": "string", "format": "uri-reference" });
    vec![
        Operation::post("/v1/threads", "createThread", "Create a thread", create)
            .tag(THREADS)
            .description(
                "A thread is also created by its first use. Repeating the same body returns the same thread.",
            )
            .scope(Scope::WriteThreads)
            .body::<ThreadBody>(json!({ "thread_id": "hello", "agent_id": "ann", "busy_policy": "enqueue" }))
            .response::<ThreadView>(201, "Created", thread_example())
            .with_header("Location", "The URL of the thread.", place())
            .response::<ThreadView>(200, "The thread already existed with the same values", thread_example())
            .with_header("Location", "The URL of the thread.", place())
            .errors(&[
                ErrorCode::InvalidBusyPolicy,
                ErrorCode::InvalidMetadata,
                ErrorCode::MetadataTooLarge,
                ErrorCode::ThreadExists,
                ErrorCode::ThreadErased,
            ])
            .errors(&[ErrorCode::UnknownThread]),
        Operation::get("/v1/threads/{thread}", "showThread", "Show a thread and its current turns", get)
            .tag(THREADS)
            .scope(Scope::ReadThreads)
            .response::<ThreadDetail>(200, "The thread", thread_now_example())
            .errors(&[ErrorCode::UnknownThread, ErrorCode::PartitionUnavailable]),
    ]
}

/// Pause before the second check of an unknown thread.
const SECOND_LOOK: Duration = Duration::from_millis(150);

/// The settings of a thread that a client creates.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ThreadBody {
    /// The id of the thread; generated when absent.
    #[schema(value_type = Option<schemas::ThreadIdSchema>)]
    thread_id: Option<String>,
    /// The agent that answers in the thread. By default the one of the first message, else the one
    /// with the thread's id, or the default agent if there is none.
    #[schema(value_type = Option<schemas::AgentIdSchema>)]
    agent_id: Option<String>,
    #[schema(value_type = Option<schemas::BusyPolicySchema>)]
    busy_policy: Option<String>,
    #[schema(value_type = Option<schemas::MetadataObject>)]
    metadata: Option<Map<String, Value>>,
}

/// A thread and its current turns.
#[derive(Serialize, ToSchema)]
pub(crate) struct ThreadDetail {
    #[serde(flatten)]
    thread: ThreadView,
    #[schema(value_type = schemas::OwnerStatusSchema)]
    owner_status: &'static str,
    #[schema(required)]
    active_turn: Option<TurnView>,
    /// Inputs that wait, in the order in which they will begin; without follow-ups, which no person
    /// has sent.
    waiting_turns: Vec<InputView>,
    /// Questions that are accepted and not in the history yet, in the order in which they will be
    /// answered.
    pending: Vec<PendingInputView>,
    /// Messages that have begun and not ended, oldest first; at most 64.
    open_messages: Vec<OpenMessageView>,
}

impl ThreadDetail {
    fn new(
        backend: &Backend,
        thread: ThreadView,
        explained: Option<&QueueStatus>,
        line: &WaitingLine,
    ) -> Self {
        let active = explained.and_then(|explained| explained.active.as_ref());
        let waiting = explained.iter().flat_map(|explained| &explained.waiting);
        let waiting = waiting.filter(|waiting| TimerId::of_turn(&waiting.turn).is_none());
        let open = explained.iter().flat_map(|explained| &explained.open);
        Self {
            thread,
            owner_status: OwnerStatus::of(explained.as_ref()).name(),
            active_turn: active.map(|active| TurnView::new(backend, active)),
            waiting_turns: waiting
                .map(|waiting| {
                    let place = explained.and_then(|explained| line.place(backend, explained, &waiting.turn));
                    InputView::new(backend, waiting, place)
                })
                .collect(),
            pending: PendingInputs::of(explained).into_views(),
            open_messages: open.map(|open| OpenMessageView::new(backend, open)).collect(),
        }
    }
}

impl MaxBodySize for ThreadBody {
    const MAX_BYTES: usize = 512 << 10;
}

pub(crate) fn unknown() -> Problem {
    Problem::from(ErrorCode::UnknownThread)
}

/// Parses the policy for an input while another turn is in progress.
pub(crate) fn policy(text: Option<&str>) -> Result<Option<BusyPolicy>, Problem> {
    let known = |name: &str| {
        let all = BusyPolicy::ALL.map(BusyPolicy::name).join(", ");
        let detail = format!("busy_policy must be one of {all}");
        BusyPolicy::from_name(name).ok_or_else(|| Problem::new(ErrorCode::InvalidBusyPolicy, detail))
    };
    text.map(known).transpose()
}

pub(crate) async fn create(
    ctx: RequestContext,
    JsonBody(body): JsonBody<ThreadBody>,
) -> Result<Response, Problem> {
    let thread = match &body.thread_id {
        Some(name) => ctx.thread_in("thread_id", name)?,
        None => ctx.thread(&Uuid::now_v7().simple().to_string())?,
    };
    let named = body.agent_id.map(|id| ctx.agent_in("agent_id", &id)).transpose()?;
    let policy = policy(body.busy_policy.as_deref())?;
    let metadata = validate::metadata(body.metadata)?;
    let backend = ctx.backend()?;
    let names_agent = named.is_some();
    let mut new = NewThread { thread, agent: named, policy, metadata };
    let named = backend.store().upsert_thread(&new).await?;
    if named == NamedThread::BeingErased {
        return Err(submit::being_erased());
    }
    let row = backend.store().thread(&new.thread).await?.ok_or_else(unknown)?;
    if !names_agent {
        // Its first turn gave it an agent.
        new.agent.clone_from(&row.named.agent);
    }
    if row.named != new {
        let detail = "there is a thread of that id already, and it is not the same";
        return Err(Problem::new(ErrorCode::ThreadExists, detail));
    }
    let status = if named == NamedThread::New { StatusCode::CREATED } else { StatusCode::OK };
    let place = [(header::LOCATION, format!("/v1/threads/{}", new.thread.name()))];
    Ok((status, place, shown(backend, &row).await?).into_response())
}

pub(crate) async fn get(
    ctx: RequestContext,
    PathParam(thread): PathParam<String>,
) -> Result<Response, Problem> {
    let (thread, backend) = (ctx.thread(&thread)?, ctx.backend()?);
    let mut row = backend.store().thread(&thread).await?;
    let mut explained = ask(backend, &thread).await;
    if row.is_none() && !is_begun(explained.as_ref()) {
        // The first query can miss a new thread: a thread that no request created is stored with
        // the end of its first turn, and an input is stored before its owner has read it.
        tokio::time::sleep(SECOND_LOOK).await;
        (row, explained) = (backend.store().thread(&thread).await?, ask(backend, &thread).await);
        if row.is_none() && !is_begun(explained.as_ref()) {
            known_otherwise(backend, &thread, explained.as_ref()).await?;
        }
    }
    let agent = thread_agent::of_thread(backend, &thread, row.as_ref()).await?;
    let workflows = backend.store().workflows_of(std::slice::from_ref(&agent)).await?;
    let workflow = workflows.get(&agent);
    let shown = match &row {
        Some(row) => ThreadView::new(row, &agent, workflow),
        None => {
            let listing = backend.store().listing(&thread).await?;
            ThreadView::begun(&thread, &agent, listing.as_ref(), workflow)
        }
    };
    let line = match &explained {
        Some(explained) => WaitingLine::read(backend, &thread, explained).await?,
        None => WaitingLine::default(),
    };
    let tag = [(header::ETAG, tag(shown.version))];
    Ok((tag, json_no_store(ThreadDetail::new(backend, shown, explained.as_ref(), &line))).into_response())
}

/// A stored thread, with its ETag.
pub(crate) async fn shown(backend: &Backend, row: &ThreadRow) -> Result<Response, Problem> {
    let agent = thread_agent::of_thread(backend, &row.named.thread, Some(row)).await?;
    let workflows = backend.store().workflows_of(std::slice::from_ref(&agent)).await?;
    let view = ThreadView::new(row, &agent, workflows.get(&agent));
    Ok(([(header::ETAG, tag(view.version))], json_no_store(view)).into_response())
}

fn tag(version: u32) -> String {
    format!("\"{version}\"")
}

/// For a thread unknown to the store: fails unless the thread's first turn waits or is in progress.
/// In that case there is nothing to show yet.
pub(crate) async fn check_begun(backend: &Backend, thread: &ThreadId) -> Result<(), Problem> {
    if is_begun(ask(backend, thread).await.as_ref()) {
        return Ok(());
    }
    tokio::time::sleep(SECOND_LOOK).await;
    let explained = ask(backend, thread).await;
    match is_begun(explained.as_ref()) || backend.store().thread(thread).await?.is_some() {
        true => Ok(()),
        false => known_otherwise(backend, thread, explained.as_ref()).await,
    }
}

/// The state of the thread's turns, as its owner knows it.
async fn ask(backend: &Backend, thread: &ThreadId) -> Option<QueueStatus> {
    owner_query::explain_soon(backend, thread, &QueryTarget::Inputs(thread.clone())).await
}

/// Whether anything in the thread is in progress or waits.
fn is_begun(explained: Option<&QueueStatus>) -> bool {
    explained.is_some_and(|explained| {
        explained.active.is_some() || !explained.waiting.is_empty() || !explained.open.is_empty()
    })
}

/// Fails unless the thread is known from a failed turn. Only the owner can report that there is no
/// such thread.
async fn known_otherwise(
    backend: &Backend,
    thread: &ThreadId,
    explained: Option<&QueueStatus>,
) -> Result<(), Problem> {
    if backend.store().failed_turns(thread, None, 1).await?.is_some() {
        return Ok(());
    }
    Err(match explained {
        Some(explained) if !owner_query::is_catching_up(explained) => unknown(),
        _ => {
            let detail = "nothing is stored of this thread, and no worker owns it at the moment";
            Problem::new(ErrorCode::PartitionUnavailable, detail)
        }
    })
}

pub(crate) fn thread_example() -> Value {
    json!({
        "thread_id": "hello", "title": "How is the weather?", "agent_id": "ann", "workflow": "default",
        "busy_policy": "enqueue", "user_id": null, "metadata": {}, "archived": false, "version": 0, "message_count": 2,
        "last_position": "7524873984012345345", "created_at": "2026-11-22T11:49:44.123Z",
        "last_activity_at": "2026-11-22T11:49:44.123Z",
    })
}

fn thread_now_example() -> Value {
    let mut thread = thread_example();
    thread["owner_status"] = json!("available");
    thread["active_turn"] = active_turn_example();
    thread["waiting_turns"] = json!([]);
    thread["pending"] = json!([{
        "message_id": "u01f3-0198c4d2e5f5-q", "turn_id": "u01f3-0198c4d2e5f5", "answer_id": "u01f3-0198c4d2e5f5-a",
        "role": "user", "content": "How is the weather?", "metadata": {}, "created_at": "2026-11-22T11:49:44.123Z",
    }]);
    thread["open_messages"] = json!([{
        "message_id": "m-7", "expected": 3, "received": 4, "released": 3, "missing": [{ "first": 3, "last": 3 }],
        "until": "2026-11-22T11:50:14.123Z",
    }]);
    thread
}

fn active_turn_example() -> Value {
    json!({
        "turn_id": "u01f3-0198c4d2e5f5", "thread_id": "hello", "run": 0,
        "message_id": "u01f3-0198c4d2e5f5-a", "idle_ms": 40,
        "fails_at": "2026-11-22T11:51:44.123Z",
        "request": {"deliveries": 0, "handed_back": 0, "again_at": null, "alive_at": null},
        "waiting": {"reason": "no_workflow", "until": "2026-11-22T11:51:44.123Z", "message": WaitReason::NoWorkflow.message()},
    })
}
