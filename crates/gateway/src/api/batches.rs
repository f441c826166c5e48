//! Batches: their messages, their tool calls and results, and whether they are complete.

use std::collections::VecDeque;

use axum::response::Response;
use http_server::error::{ErrorCode, Problem};
use http_server::extract::path::PathParam;
use http_server::extract::query;
use http_server::extract::query::QueryParams;
use model::{Position, ThreadId, TurnId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::Store;
use utoipa::{IntoParams, ToSchema};

use crate::api::additions::Additions;
use crate::api::open_batch::{self, RunningBatch};
use crate::api::respond::json_no_store;
use crate::api::views::{self, BatchView, WholeBatch};
use crate::api::{context, threads};
use crate::app::request_context::RequestContext;
use crate::backend::Backend;
use crate::commands::owner_query::OwnerStatus;
use crate::commands::thread_agent;
use crate::openapi::examples::message_example;
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::schemas;
use crate::openapi::tags::{AGENTS, THREADS};

pub(crate) fn operations() -> Vec<Operation> {
    vec![
        Operation::get(
            "/v1/agents/{agent}/batches",
            "listIncompleteBatches",
            "List incomplete turns in all threads of an agent",
            incomplete_of_agent,
        )
        .tag(AGENTS)
        .scope(Scope::ReadThreads)
        .query::<IncompleteQuery>()
        .response::<IncompletePage>(
            200,
            "Incomplete batches, grouped by thread",
            json!({ "agent_id": "ann", "batches": [incomplete_example()], "next": null }),
        )
        .errors(&[ErrorCode::InvalidLimit, ErrorCode::InvalidId, ErrorCode::InvalidPosition]),
        Operation::get(
            "/v1/threads/{thread}/batches",
            "listBatches",
            "List the batches (turns) of a thread, with the reasons for incomplete ones",
            list,
        )
        .description(
            "The first page begins with the batch of the turn in progress, if any. Its state is `open`, it has a `batch_id` only if it continues a stored batch, and it does not count toward `limit`. `parent_batch` lists the batches within a batch.",
        )
        .tag(THREADS)
        .scope(Scope::ReadThreads)
        .query::<BatchesQuery>()
        .response::<BatchesPage>(
            200,
            "Batches, newest first",
            json!({ "thread_id": "hello", "owner_status": "available", "batches": [batch_example()], "next": null }),
        )
        .errors(&[
            ErrorCode::UnknownThread,
            ErrorCode::PartitionUnavailable,
            ErrorCode::InvalidPosition,
            ErrorCode::InvalidLimit,
        ]),
        Operation::get(
            "/v1/threads/{thread}/batches/{batch}",
            "showBatch",
            "Show a batch with its messages and tool calls",
            get,
        )
        .description(
            "By its id, or by the id of its first turn, also before the commit. While its state is `open` it contains the input and the answer so far. Messages with `created_at` are complete; `incomplete_code` applies if it ended now.",
        )
        .tag(THREADS)
        .scope(Scope::ReadThreads)
        .response::<WholeBatch>(200, "The batch", whole_batch_example())
        .errors(&[ErrorCode::UnknownBatch, ErrorCode::InvalidPosition, ErrorCode::PartitionUnavailable]),
    ]
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct BatchesQuery {
    /// `next` of the previous page.
    #[param(value_type = Option<schemas::PositionSchema>)]
    next: Option<String>,
    #[param(value_type = Option<schemas::Limit>)]
    limit: Option<String>,
    /// Only batches with this parent batch.
    #[param(value_type = Option<schemas::PositionSchema>)]
    parent_batch: Option<String>,
}

/// A page of batches, newest first. The first page begins with the batch of the turn in progress,
/// which does not count towards the limit.
#[derive(Serialize, ToSchema)]
pub(crate) struct BatchesPage {
    #[schema(value_type = schemas::ThreadIdSchema)]
    thread_id: String,
    /// Whether the owner of the thread answered about a turn in progress; null after the first
    /// page, which alone shows that turn.
    #[schema(value_type = Option<schemas::OwnerStatusSchema>, required)]
    owner_status: Option<&'static str>,
    batches: Vec<BatchView>,
    #[schema(value_type = schemas::NextPage, required)]
    next: Option<String>,
}

/// Newest first: the batch of the turn in progress, then the stored ones.
pub(crate) async fn list(
    ctx: RequestContext,
    PathParam(thread): PathParam<String>,
    QueryParams(query): QueryParams<BatchesQuery>,
) -> Result<Response, Problem> {
    let (thread, before) = (ctx.thread(&thread)?, query::position("next", query.next)?);
    let parent = query::position("parent_batch", query.parent_batch)?;
    let (limit, backend) = (query::limit(query.limit.as_deref())?, ctx.backend()?);
    // The owner is asked before the store is read: a turn that is committed in between is then
    // found in the store.
    let (owner_status, running) = match before {
        None => open_batch::ask(backend, &thread).await,
        Some(_) => (None, None),
    };
    let of = &thread;
    let read = move |store: Store| async move {
        match parent {
            Some(parent) => store.batches_within(of, parent, before, limit + 1).await,
            None => store.batch_ids(of, before, limit + 1).await,
        }
    };
    let ids = match running {
        // A standby may lack what the owner has just committed.
        Some(_) => read(ctx.store()?.clone()).await?,
        None => ctx.read_known(read).await?,
    };
    let mut ids = match ids {
        Some(ids) => ids,
        None => threads::check_begun(backend, &thread).await.map(|()| Vec::new())?,
    };
    // A turn that continues a batch has the same parent as that batch. The first message of the
    // batch names the parent.
    let goes_on_with = |running: &RunningBatch| running.continues().is_some_and(|batch| ids.contains(&batch));
    let is_within = |running: &RunningBatch| running.parent() == parent || goes_on_with(running);
    let running = running.filter(|running| parent.is_none() || is_within(running));
    let next = query::next(&mut ids, limit, Position::to_string);
    let store = ctx.store()?;
    let messages = store.batches(&thread, &ids).await?;
    let running = running.filter(|running| !running.is_in(&messages));
    let (now, timeout_ms) = (backend.now(), timeout_ms(backend, &thread).await?);
    let mut shown = Vec::new();
    let continued = running.as_ref().and_then(RunningBatch::continues);
    if let Some(running) = running {
        shown.push(running.show(store, &thread, now).await?.batch);
    }
    let stored = batches::group(messages.into_iter().map(Into::into));
    let stored = stored.iter().rev().filter(|batch| Some(batch.id()) != continued);
    let stored = stored.filter(|batch| parent.is_none() || batch.parent() == parent);
    shown.extend(stored.map(|batch| BatchView::new(batch, now, timeout_ms)));
    let (thread_id, owner_status) = (thread.name().to_owned(), owner_status.map(OwnerStatus::name));
    Ok(json_no_store(BatchesPage { thread_id, owner_status, batches: shown, next }))
}

pub(crate) async fn get(
    ctx: RequestContext,
    PathParam((thread, batch)): PathParam<(String, String)>,
) -> Result<Response, Problem> {
    let unknown = || Problem::from(ErrorCode::UnknownBatch);
    let (thread, turn) = (ctx.thread(&thread)?, TurnId::parse(&batch).ok());
    let named = match turn {
        Some(_) => None,
        None => query::position("batch", Some(batch))?,
    };
    let (store, backend) = (ctx.store()?, ctx.backend()?);
    let (owner_status, running) = open_batch::ask(backend, &thread).await;
    let stored = match &turn {
        Some(turn) => store.batch_of(&thread, &turn.input()).await?,
        None => named,
    };
    let mut messages = match stored {
        Some(batch) => store.batches(&thread, &[batch]).await?,
        None => Vec::new(),
    };
    let is_wanted = |running: &RunningBatch| match (stored, &turn) {
        (Some(batch), _) => running.continues() == Some(batch) && !running.is_in(&messages),
        (None, turn) => turn.as_ref() == Some(running.turn()),
    };
    if let Some(running) = running.filter(is_wanted) {
        return Ok(json_no_store(running.show(store, &thread, backend.now()).await?));
    }
    let batches = batches::group(messages.iter().cloned().map(Into::into));
    views::withhold(&mut messages);
    let Some(found) = batches.first() else {
        return Err(match owner_status {
            Some(OwnerStatus::Unavailable) if turn.is_some() => {
                let detail = "no worker owns the thread at the moment, and the batch is not stored";
                Problem::new(ErrorCode::PartitionUnavailable, detail)
            }
            _ => unknown(),
        });
    };
    let additions = Additions::read(store, &thread, &messages).await?;
    let shown = BatchView::new(found, backend.now(), timeout_ms(backend, &thread).await?);
    let mut whole = WholeBatch::new(shown, found, messages);
    additions.add_to(&mut whole.messages);
    Ok(json_no_store(whole))
}

/// Time after which an incomplete batch of the thread counts as abandoned, ms.
async fn timeout_ms(backend: &Backend, thread: &ThreadId) -> Result<i64, Problem> {
    let row = backend.store().thread(thread).await?;
    let agent = thread_agent::of_thread(backend, thread, row.as_ref()).await?;
    Ok(context::rules(backend.store(), &agent).await?.0.timeout_ms)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct IncompleteQuery {
    /// Only incomplete batches, or only abandoned ones.
    #[param(value_type = Option<schemas::IncompleteSchema>)]
    state: Option<String>,
    /// `next` of the previous page.
    next: Option<String>,
    #[param(value_type = Option<schemas::Limit>)]
    limit: Option<String>,
}

/// A page of incomplete batches in the threads of an agent, thread by thread, newest first.
#[derive(Serialize, ToSchema)]
pub(crate) struct IncompletePage {
    #[schema(value_type = schemas::AgentIdSchema)]
    agent_id: String,
    batches: Vec<BatchOfThread>,
    /// Value of `next` for the next page; null on the last page. A page may be shorter than the
    /// limit, or empty, and still have a next one.
    #[schema(required)]
    next: Option<String>,
}

/// A batch and its thread.
#[derive(Serialize, ToSchema)]
pub(crate) struct BatchOfThread {
    #[schema(value_type = schemas::ThreadIdSchema)]
    thread_id: String,
    #[serde(flatten)]
    batch: BatchView,
}

/// Maximum number of messages that one request reads. Each thread counts as `READ_OF_THREAD`
/// additional messages.
const MOST_READ: usize = 5_000;
const READ_OF_THREAD: usize = 50;
/// Number of batches that are read at once.
const BATCHES_AT_ONCE: u32 = 50;
const THREADS_AT_ONCE: u32 = 100;

/// Reads the threads of the agent until the page is full, or the maximum was read.
pub(crate) async fn incomplete_of_agent(
    ctx: RequestContext,
    PathParam(agent): PathParam<String>,
    QueryParams(query): QueryParams<IncompleteQuery>,
) -> Result<Response, Problem> {
    let agent = ctx.agent(&agent)?;
    let wanted: &[&str] = match query.state.as_deref() {
        None => &schemas::INCOMPLETE,
        Some("incomplete") => &schemas::INCOMPLETE[..1],
        Some("abandoned") => &schemas::INCOMPLETE[1..],
        Some(_) => {
            return Err(Problem::new(ErrorCode::InvalidQuery, "state must be incomplete or abandoned"));
        }
    };
    let limit = query::limit(query.limit.as_deref())? as usize;
    let place = query.next.map(|next| place(&ctx, &next)).transpose()?;
    let (store, now) = (ctx.store()?, ctx.backend()?.now());
    let timeout_ms = context::rules(store, &agent).await?.0.timeout_ms;
    let (mut found, mut read) = (Vec::new(), 0);
    let page = |batches, next: Option<(ThreadId, Position)>| {
        let next = next.map(|(thread, before)| format!("{}.{before}", thread.name()));
        Ok(json_no_store(IncompletePage { agent_id: agent.name().to_owned(), batches, next }))
    };
    let mut last = place.as_ref().map(|(thread, _)| thread.clone());
    let mut threads: VecDeque<(ThreadId, Position)> = place.into_iter().collect();
    loop {
        let Some((thread, before)) = threads.pop_front() else {
            let more = store.threads_of_agent(&agent, last.as_ref(), THREADS_AT_ONCE).await?;
            let Some(newest) = more.last() else { return page(found, None) };
            last = Some(newest.clone());
            threads.extend(more.into_iter().map(|thread| (thread, Position::MAX)));
            continue;
        };
        if read >= MOST_READ {
            return page(found, Some((thread, before)));
        }
        let ids = store.batch_ids(&thread, Some(before), BATCHES_AT_ONCE).await?.unwrap_or_default();
        // A thread without batches counts, too, because the query itself has a cost.
        read += READ_OF_THREAD;
        let Some(oldest) = ids.last().copied() else { continue };
        let messages = store.batches(&thread, &ids).await?;
        read += messages.len();
        for batch in batches::group(messages.into_iter().map(Into::into)).iter().rev() {
            let shown = BatchView::new(batch, now, timeout_ms);
            if wanted.contains(&shown.state) {
                found.push(BatchOfThread { thread_id: thread.name().to_owned(), batch: shown });
            }
            if found.len() == limit {
                return page(found, Some((thread, batch.id())));
            }
        }
        threads.push_front((thread, oldest));
    }
}

/// Parses `next`: a thread, and one of its batches. The page begins before that batch.
fn place(ctx: &RequestContext, next: &str) -> Result<(ThreadId, Position), Problem> {
    let invalid = || Problem::new(ErrorCode::InvalidId, "next: no page ended like this");
    let (thread, before) = next.rsplit_once('.').ok_or_else(invalid)?;
    let before = query::position("next", Some(before.to_owned()))?.ok_or_else(invalid)?;
    Ok((ctx.thread_in("next", thread)?, before))
}

fn incomplete_example() -> Value {
    let mut batch = batch_example();
    batch["thread_id"] = json!("hello");
    batch["state"] = json!("abandoned");
    batch["incomplete_code"] = json!("unanswered_calls");
    batch["incomplete"] = json!("calls have no results: call-1");
    batch["abandoned_since"] = json!("2026-11-22T12:49:44.123Z");
    batch
}

fn batch_example() -> Value {
    json!({
        "batch_id": "7524873984012345344", "turn_id": "u01f3-0198c4d2e5f5", "batch_type": "user_request", "state": "complete",
        "incomplete_code": null, "incomplete": null, "abandoned_since": null, "parent_batch": null, "message_count": 2, "tokens": 12,
        "finish_reason": "stop", "usage": {"input_tokens": 120, "output_tokens": 3},
        "input": "How is the weather?", "created_at": "2026-11-22T11:49:44.123Z", "started_at": "2026-11-22T11:49:44.125Z",
        "last_at": "2026-11-22T11:49:47.300Z",
    })
}

fn whole_batch_example() -> Value {
    let mut batch = batch_example();
    batch["messages"] = json!([message_example()]);
    batch["is_cut"] = json!(false);
    batch["calls"] = json!([{
        "tool_call_id": "call-1", "name": "weather", "call_at": "7524873984012345345",
        "result_at": "7524873984012345346", "is_answered": true,
    }]);
    batch
}
