//! The list of threads, and changes of threads by clients.

use axum::http::HeaderMap;
use axum::response::Response;
use http_server::error::{ErrorCode, Problem};
use http_server::extract::body::{JsonBody, MaxBodySize};
use http_server::extract::headers;
use http_server::extract::path::PathParam;
use http_server::extract::query;
use http_server::extract::query::QueryParams;
use model::{AgentId, Metadata, ThreadTitle, WorkflowName};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};
use store::{ListCursor, ListedThread, MAX_LISTED_USER, PatchOutcome, ThreadFilter, ThreadPatch};
use utoipa::{IntoParams, ToSchema};

use crate::api::respond::json_no_store;
use crate::api::threads;
use crate::api::views::{self, ThreadView};
use crate::app::request_context::RequestContext;
use crate::backend::Backend;
use crate::commands::thread_states::{ThreadState, ThreadStates};
use crate::commands::{submit, thread_agent, validate};
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::schemas;
use crate::openapi::tags::THREADS;

pub(crate) fn operations() -> Vec<Operation> {
    vec![
        Operation::get("/v1/threads", "listThreads", "List threads", list)
            .tag(THREADS)
            .description(
                "The newest activity first. A thread is listed from its first message on. A page can have fewer threads than `limit`, \
                 or none, although `next` is not null.",
            )
            .scope(Scope::ReadThreads)
            .query::<ThreadsQuery>()
            .response::<ThreadsPage>(
                200,
                "Threads, newest activity first",
                json!({ "threads": [listed_example()], "next": null }),
            )
            .errors(&[ErrorCode::InvalidLimit, ErrorCode::InvalidMetadata]),
        Operation::patch("/v1/threads/{thread}", "changeThread", "Change a thread", change)
            .tag(THREADS)
            .description(
                "Fields that are left out keep their values. With `If-Match`, the thread changes only if its `version` is still the same.",
            )
            .scope(Scope::WriteThreads)
            .header(
                headers::IF_MATCH,
                "The ETag of the thread, which is its `version` in quotation marks.",
                &json!({ "type": "string", "maxLength": headers::MAX_HEADER_LEN, "examples": ["\"3\""] }),
            )
            .body::<ThreadChangeBody>(json!({ "title": "A trip to Lyon", "archived": false }))
            .response::<ThreadView>(200, "The changed thread", threads::thread_example())
            .with_header("ETag", "The version of the thread.", json!({ "type": "string" }))
            .errors(&[
                ErrorCode::InvalidTitle,
                ErrorCode::InvalidIfMatch,
                ErrorCode::InvalidMetadata,
                ErrorCode::MetadataTooLarge,
                ErrorCode::ThreadChanged,
                ErrorCode::ThreadErased,
                ErrorCode::UnknownThread,
                ErrorCode::PartitionUnavailable,
            ]),
    ]
}

/// How often a change is tried again after another change came first.
const MAX_TRIES: usize = 8;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct ThreadsQuery {
    /// Only threads whose titles contain all of these words, in any case.
    #[param(min_length = 1, max_length = 256, example = "trip lyon")]
    q: Option<String>,
    /// Only threads of this user.
    #[param(min_length = 1, max_length = 1024)]
    user_id: Option<String>,
    /// Only threads that this agent answers in.
    #[param(value_type = Option<schemas::AgentIdSchema>)]
    agent_id: Option<String>,
    /// Only threads in this state.
    #[param(value_type = Option<schemas::ThreadStateSchema>)]
    state: Option<String>,
    /// `true`: only archived threads; by default only the others.
    #[param(value_type = Option<bool>)]
    archived: Option<String>,
    /// Only threads whose metadata contain these keys with these values: a JSON object.
    #[param(max_length = 4096, example = "{\"project\":\"lyon\"}")]
    metadata: Option<String>,
    /// `next` of the previous page.
    #[param(max_length = 160)]
    next: Option<String>,
    #[param(value_type = Option<schemas::Limit>)]
    limit: Option<String>,
}

/// A page of threads.
#[derive(Serialize, ToSchema)]
pub(crate) struct ThreadsPage {
    threads: Vec<ListedThreadView>,
    #[schema(value_type = schemas::NextPage, required)]
    next: Option<String>,
}

/// A thread in a list.
#[derive(Serialize, ToSchema)]
pub(crate) struct ListedThreadView {
    #[serde(flatten)]
    thread: ThreadView,
    /// What the thread is doing; null if its owner does not answer. `failed`: its last turn failed.
    #[schema(value_type = Option<schemas::ThreadStateSchema>, required)]
    state: Option<&'static str>,
    /// The beginning of the last message of a person or an agent; null when there is none.
    #[schema(required)]
    preview: Option<PreviewView>,
}

/// The beginning of a message.
#[derive(Serialize, ToSchema)]
pub(crate) struct PreviewView {
    #[schema(value_type = schemas::RoleSchema)]
    role: &'static str,
    text: String,
}

/// A change of a thread. Fields that are left out keep their values.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ThreadChangeBody {
    /// One line. Null removes the title; the next message or the workflow then sets one.
    #[schema(min_length = 1, max_length = 256)]
    #[serde(default, deserialize_with = "given")]
    title: Option<Option<String>>,
    /// True: only lists of archived threads show the thread.
    archived: Option<bool>,
    /// Keys to set; null removes a key. Other keys stay.
    #[schema(value_type = Option<schemas::MetadataObject>)]
    metadata: Option<Map<String, Value>>,
    /// The user whose thread it is; null: no user. The same as `user_id` in `metadata`.
    #[schema(min_length = 1, max_length = 1024)]
    #[serde(default, deserialize_with = "given")]
    user_id: Option<Option<String>>,
    /// The agent that answers from the next turn on; null: as for a new thread.
    #[schema(value_type = Option<schemas::AgentIdSchema>)]
    #[serde(default, deserialize_with = "given")]
    agent_id: Option<Option<String>>,
}

impl MaxBodySize for ThreadChangeBody {
    const MAX_BYTES: usize = 512 << 10;
}

/// A field that is there, even if it is null.
fn given<'de, D: Deserializer<'de>>(field: D) -> Result<Option<Option<String>>, D::Error> {
    Option::deserialize(field).map(Some)
}

pub(crate) async fn list(
    ctx: RequestContext,
    QueryParams(query): QueryParams<ThreadsQuery>,
) -> Result<Response, Problem> {
    let limit = query::limit(query.limit.as_deref())?;
    let state = query.state.as_deref().map(state).transpose()?;
    let mut filter = filter(&ctx, query)?;
    let backend = ctx.backend()?;
    let tenant = ctx.tenant();
    let states = match state {
        None | Some(ThreadState::Failed) => None,
        Some(_) => Some(ThreadStates::of_all(backend, tenant).await?),
    };
    match (state, &states) {
        (Some(ThreadState::Failed), _) => filter.failed = true,
        (Some(wanted @ (ThreadState::Running | ThreadState::Waiting)), Some(states)) => {
            filter.among = Some(states.threads_in(wanted));
        }
        _ => {}
    }
    // The list names no tenant, so it is restricted to the caller's, even on an insecure gateway.
    let (filter, owner) = (&filter, tenant.cloned());
    let page = ctx.read(|store| {
        let owner = owner.clone();
        async move { store.for_tenant(owner.clone()).list_threads(owner.as_ref(), filter, limit).await }
    });
    let page = page.await?;
    let states = match states {
        Some(states) => states,
        None => ThreadStates::of(backend, tenant, page.threads.iter().map(|listed| &listed.thread)).await,
    };
    let next = page.next.map(|next| format!("{}.{}", next.active_us, next.thread.name()));
    let mut listed = page.threads;
    // Rows of the list are up to a minute old.
    listed.sort_by_key(|listed| std::cmp::Reverse(last_activity_ms(listed)));
    let agents = agents_of(backend, &listed).await?;
    let workflows = backend.store().workflows_of(&agents).await?;
    let shown = listed
        .iter()
        .zip(&agents)
        .map(|(listed, agent)| view(backend, listed, &states, agent, workflows.get(agent)));
    // Between the two reads a thread may have changed its state. Of a failed one whose owner does
    // not answer, it is only known that no turn has ended since.
    let is_wanted = |shown: &ListedThreadView| match state {
        None => true,
        Some(ThreadState::Failed) => shown.state.is_none_or(|state| state == ThreadState::Failed.name()),
        Some(wanted) => shown.state == Some(wanted.name()),
    };
    let shown = shown.filter(is_wanted);
    Ok(json_no_store(ThreadsPage { threads: shown.collect(), next }))
}

fn filter(ctx: &RequestContext, query: ThreadsQuery) -> Result<ThreadFilter, Problem> {
    let invalid = |detail: String| Problem::new(ErrorCode::InvalidQuery, detail);
    if let Some(why) = query.user_id.as_deref().and_then(invalid_user) {
        return Err(invalid(why));
    }
    let archived = match query.archived.as_deref() {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(invalid("archived must be true or false".to_owned())),
    };
    let metadata = match query.metadata.as_deref().map(serde_json::from_str::<Map<String, Value>>) {
        None => None,
        Some(Ok(map)) => Some(validate::metadata(Some(map))?),
        Some(Err(_)) => return Err(invalid("metadata must be a JSON object".to_owned())),
    };
    let words: Vec<String> = query.q.iter().flat_map(|q| q.split_whitespace()).map(str::to_owned).collect();
    if let Some(q) = &query.q
        && (words.is_empty() || q.chars().count() > ThreadTitle::MAX_LEN || q.contains('\0'))
    {
        return Err(invalid(format!(
            "q must have at least one word, and at most {} characters",
            ThreadTitle::MAX_LEN
        )));
    }
    let after = query.next.as_deref().map(|next| cursor(ctx, next)).transpose()?;
    Ok(ThreadFilter {
        archived,
        user: query.user_id,
        agent: query.agent_id.map(|id| ctx.agent_in("agent_id", &id)).transpose()?,
        metadata,
        words,
        failed: false,
        among: None,
        after,
    })
}

fn cursor(ctx: &RequestContext, next: &str) -> Result<ListCursor, Problem> {
    let place = next.split_once('.').and_then(|(at, thread)| {
        let active_us = at.parse().ok().filter(|at: &i64| (0..1 << 53).contains(at))?;
        Some(ListCursor { active_us, thread: ctx.thread_in("next", thread).ok()? })
    });
    place.ok_or_else(|| Problem::new(ErrorCode::InvalidQuery, "next is not from a page of this list"))
}

fn state(name: &str) -> Result<ThreadState, Problem> {
    let known = ThreadState::ALL.into_iter().find(|state| state.name() == name);
    known.ok_or_else(|| {
        let all = ThreadState::ALL.map(ThreadState::name).join(", ");
        Problem::new(ErrorCode::InvalidQuery, format!("state must be one of {all}"))
    })
}

/// The agents that answer in these threads, in their order.
async fn agents_of(backend: &Backend, threads: &[ListedThread]) -> Result<Vec<AgentId>, Problem> {
    let stored: Vec<_> = threads
        .iter()
        .map(|listed| thread_agent::stored(listed.row.as_ref(), Some(&listed.listing)))
        .collect();
    let undecided = threads.iter().zip(&stored).filter(|(_, stored)| stored.is_none());
    let known = thread_agent::known(backend, undecided.map(|(listed, _)| &listed.thread)).await?;
    let agent = |(listed, stored): (&ListedThread, Option<AgentId>)| {
        stored.unwrap_or_else(|| thread_agent::undecided(&listed.thread, &known, backend))
    };
    Ok(threads.iter().zip(stored).map(agent).collect())
}

/// The time (ms since 1970) of the last message, or of the row of the list if that is newer.
fn last_activity_ms(listed: &ListedThread) -> i64 {
    let listed_ms = listed.listing.active_us / 1_000;
    listed.last_message_at.map_or(listed_ms, |at| at.0.max(listed_ms))
}

fn view(
    backend: &Backend,
    listed: &ListedThread,
    states: &ThreadStates,
    agent: &AgentId,
    workflow: Option<&WorkflowName>,
) -> ListedThreadView {
    let mut thread = match &listed.row {
        Some(row) => ThreadView::new(row, agent, workflow),
        None => ThreadView::begun(&listed.thread, agent, Some(&listed.listing), workflow),
    };
    thread.last_activity_at = views::rfc3339(model::Timestamp(last_activity_ms(listed)));
    ListedThreadView {
        thread,
        state: states.of_thread(backend, &listed.thread, listed.has_failed).map(ThreadState::name),
        preview: listed
            .preview
            .as_ref()
            .map(|(role, text)| PreviewView { role: role.name(), text: text.clone() }),
    }
}

pub(crate) async fn change(
    ctx: RequestContext,
    PathParam(thread): PathParam<String>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<ThreadChangeBody>,
) -> Result<Response, Problem> {
    let thread = ctx.thread(&thread)?;
    let backend = ctx.backend()?;
    let store = backend.store();
    let expected = headers::if_match(&headers)?;
    let title = body.title.map(|title| title.as_deref().map(checked_title).transpose()).transpose()?;
    let agent = body.agent_id.map(|id| id.map(|id| ctx.agent_in("agent_id", &id)).transpose()).transpose()?;
    let mut merged = body.metadata.unwrap_or_default();
    if let Some(user) = body.user_id {
        if let Some(why) = user.as_deref().and_then(invalid_user) {
            return Err(Problem::new(ErrorCode::InvalidMetadata, why));
        }
        merged.insert("user_id".to_owned(), user.map_or(Value::Null, Value::String));
    }
    for _ in 0..MAX_TRIES {
        let row = match store.thread(&thread).await? {
            Some(row) => row,
            None => {
                submit::refuse_erased(backend, &thread).await?;
                threads::check_begun(backend, &thread).await?;
                // Its first turn has not ended.
                store.create_thread(&thread).await?;
                store.thread(&thread).await?.ok_or_else(threads::unknown)?
            }
        };
        let version = row.listing.as_ref().map_or(0, |listing| listing.version);
        if expected.is_some_and(|expected| expected != u64::from(version)) {
            let detail = format!("the thread has version {version}; read it again before you change it");
            return Err(Problem::new(ErrorCode::ThreadChanged, detail));
        }
        let metadata = match merged.is_empty() {
            true => None,
            false => Some(validate::metadata(Some(merge(&row.named.metadata, &merged)))?),
        };
        let patch = ThreadPatch {
            title: title.clone(),
            archived: body.archived,
            metadata,
            agent: agent.clone(),
            version: Some(version),
        };
        match store.patch_thread(&thread, &patch).await? {
            PatchOutcome::Done => {
                let row = store.thread(&thread).await?.ok_or_else(threads::unknown)?;
                return threads::shown(backend, &row).await;
            }
            PatchOutcome::Unknown => return Err(threads::unknown()),
            // Another change came first.
            PatchOutcome::Changed => {}
        }
    }
    Err(Problem::new(ErrorCode::ThreadChanged, "the thread changes all the time; try again"))
}

/// The metadata after a JSON merge patch (RFC 7396) of their first level.
fn merge(stored: &Metadata, patch: &Map<String, Value>) -> Map<String, Value> {
    let mut merged = stored.as_map().cloned().unwrap_or_default();
    for (key, value) in patch {
        match value {
            Value::Null => merged.remove(key),
            value => merged.insert(key.clone(), value.clone()),
        };
    }
    merged
}

/// Why this is not the name of a user.
fn invalid_user(user: &str) -> Option<String> {
    let is_valid = (1..=MAX_LISTED_USER).contains(&user.len()) && !user.contains('\0');
    (!is_valid).then(|| {
        let len = user.len();
        format!("user_id has {len} bytes; it must have from 1 to {MAX_LISTED_USER}, without NUL characters")
    })
}

fn checked_title(title: &str) -> Result<String, Problem> {
    let title = title.trim();
    if !ThreadTitle::is_valid(title) {
        let detail = format!("title must be one line of 1 to {} characters", ThreadTitle::MAX_LEN);
        return Err(Problem::new(ErrorCode::InvalidTitle, detail));
    }
    Ok(title.to_owned())
}

fn listed_example() -> Value {
    let mut thread = threads::thread_example();
    thread["state"] = json!("idle");
    thread["preview"] = json!({ "role": "assistant", "text": "Sunny, 21 degrees." });
    thread
}
