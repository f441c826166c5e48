//! The facts that an agent remembers.

use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use batches::memory::{Fact, MemoryQuery, memory_query};
use http_server::error::{ErrorCode, Problem};
use http_server::extract::body::{EmptyBody, JsonBody, MaxBodySize};
use http_server::extract::path::PathParam;
use http_server::extract::query;
use http_server::extract::query::QueryParams;
use model::{AgentId, AgentSetting, ThreadId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::{FactFilter, FactRow, FactScope, FoundFact, NewFact, Store};
use utoipa::{IntoParams, ToSchema};

use crate::api::respond::json_no_store;
use crate::api::{agents, views};
use crate::app::request_context::RequestContext;
use crate::backend::Backend;
use crate::commands::control;
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::response::ResponseSpec;
use crate::openapi::schemas;
use crate::openapi::tags::MEMORY;

pub(crate) fn operations() -> Vec<Operation> {
    let (all, one) = ("/v1/agents/{agent}/memory", "/v1/agents/{agent}/memory/{fact}");
    vec![
        Operation::get(all, "listFacts", "List what an agent remembers", list)
            .tag(MEMORY)
            .description("Newest first; with `q`, the facts that best match a message in that thread. `GET /v1/threads/{thread}/context` shows what its next turn would receive.")
            .scope(Scope::ReadThreads)
            .query::<FactsQuery>()
            .response::<FactsPage>(200, "Facts", json!({ "agent_id": "ann", "facts": [fact_example()] }))
            .errors(&[ErrorCode::UnknownAgent, ErrorCode::InvalidLimit]),
        Operation::post(all, "addFact", "Add a fact to the memory of an agent", add)
            .tag(MEMORY)
            .description("For one user, for one thread without a user, or for all threads of the agent if neither is given.")
            .scope(Scope::OperateAgents)
            .actor_header()
            .body::<FactBody>(json!({ "text": "Ann prefers short answers.", "kind": "preference", "user_id": "ann" }))
            .response::<FactView>(201, "Added", fact_example())
            .errors(&[ErrorCode::UnknownAgent, ErrorCode::InvalidFact, ErrorCode::UnknownFact]),
        Operation::patch(one, "changeFact", "Correct a fact in the memory of an agent", change)
            .tag(MEMORY)
            .description("Returns a new fact that replaces this one; `superseded=true` lists both.")
            .scope(Scope::OperateAgents)
            .actor_header()
            .body::<ChangedFactBody>(json!({ "text": "Ann prefers long answers." }))
            .response::<FactView>(200, "The new fact", fact_example())
            .errors(&[ErrorCode::InvalidFact, ErrorCode::UnknownFact]),
        Operation::delete(one, "forgetFact", "Delete a fact from the memory of an agent", delete)
            .tag(MEMORY)
            .description("Also deletes the facts that it replaced; with `restore=true` they apply again instead.")
            .scope(Scope::OperateAgents)
            .query::<ForgetQuery>()
            .actor_header()
            .no_body()
            .response_with(ResponseSpec::nothing("Deleted"))
            .errors(&[ErrorCode::UnknownFact]),
    ]
}

/// Longest `user_id` and fact id, bytes.
const MOST_BYTES: usize = 256;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct FactsQuery {
    /// Only facts of threads whose metadata has this `user_id`.
    #[param(max_length = 256)]
    user_id: Option<String>,
    /// Only facts of this thread, which has no user. With `q`: all facts that apply in the thread.
    #[param(value_type = Option<schemas::ThreadIdSchema>)]
    thread_id: Option<String>,
    /// The text of a message, together with `thread_id`: returns the facts that match it, best
    /// first.
    #[param(max_length = 2000)]
    q: Option<String>,
    /// `true`: includes facts that were replaced by others.
    #[param(default = "false", pattern = "^(true|false)$")]
    superseded: Option<String>,
    /// The maximum number of facts.
    #[param(value_type = Option<schemas::Limit>)]
    limit: Option<String>,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct ForgetQuery {
    /// `true`: the facts that this one replaced apply again. Otherwise those facts are forgotten,
    /// too.
    #[param(default = "false", pattern = "^(true|false)$")]
    restore: Option<String>,
}

/// A new fact: for one user, for one thread, or for all threads of the agent.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FactBody {
    /// One sentence that makes sense alone, on one line: without line breaks, tabs, control
    /// characters, invisible characters and characters that change its direction.
    #[schema(min_length = 1, max_length = 1000)]
    text: String,
    /// The topic of the fact: lower-case letters, digits and `_`.
    #[schema(pattern = "^[a-z0-9_]{1,64}$", default = "note")]
    kind: Option<String>,
    #[schema(minimum = 0, maximum = 1, default = 1)]
    confidence: Option<f32>,
    #[schema(min_length = 1, max_length = 256)]
    user_id: Option<String>,
    #[schema(value_type = Option<schemas::ThreadIdSchema>)]
    thread_id: Option<String>,
}

/// A fact that replaces another. Omitted fields keep their values.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChangedFactBody {
    /// One sentence that makes sense alone, on one line.
    #[schema(min_length = 1, max_length = 1000)]
    text: String,
    #[schema(pattern = "^[a-z0-9_]{1,64}$")]
    kind: Option<String>,
    #[schema(minimum = 0, maximum = 1)]
    confidence: Option<f32>,
}

impl MaxBodySize for FactBody {
    const MAX_BYTES: usize = 16 << 10;
}

impl MaxBodySize for ChangedFactBody {
    const MAX_BYTES: usize = 16 << 10;
}

/// A fact and its scope.
#[derive(Serialize, ToSchema)]
pub(crate) struct FactView {
    fact_id: String,
    text: String,
    kind: String,
    confidence: f32,
    /// For whom the fact is used: `user`, `thread` or `agent`.
    scope: &'static str,
    #[schema(required)]
    user_id: Option<String>,
    /// The thread in which the fact was found, or in which it applies; null when there is none.
    #[schema(value_type = Option<schemas::ThreadIdSchema>, required)]
    thread_id: Option<String>,
    /// The answer after which the fact was found; null for a fact that a client stored.
    #[schema(required)]
    message_id: Option<String>,
    /// The fact that replaced this one; null when none did.
    #[schema(required)]
    superseded_by: Option<String>,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    created_at: Option<String>,
    /// The fact's rank in the search by words, 1 for the best; absent when the words did not find
    /// it, or nothing was searched for.
    #[serde(skip_serializing_if = "Option::is_none")]
    place_by_words: Option<u32>,
    /// The fact's rank in the search by vectors, 1 for the nearest; absent when its vector did not
    /// match, or there are no vectors.
    #[serde(skip_serializing_if = "Option::is_none")]
    place_by_vector: Option<u32>,
}

/// The memory query of a turn that begins now, and its results.
#[derive(Serialize, ToSchema)]
pub(crate) struct MemoryView {
    /// Source of the query: `current_message`, `last_message` or `summary`; null when there is
    /// nothing to search for.
    #[schema(required)]
    source: Option<&'static str>,
    /// The text that is searched for; null when there is none.
    #[schema(required)]
    query: Option<String>,
    /// Matching facts, best first, or all facts where there are few. A turn gets those that fit
    /// into `memory_tokens`.
    facts: Vec<FactView>,
}

impl MemoryView {
    /// The result for a turn with this context; `None` when the settings do not enable memory.
    pub(crate) async fn of(
        backend: &Backend,
        agent: &AgentId,
        thread: &ThreadId,
        context: &batches::Context,
    ) -> Result<Option<Self>, Problem> {
        let settings = backend.store().agent(agent).await?.and_then(|row| row.settings);
        let settings = settings.map(|settings| settings.settings).unwrap_or_default();
        if !AgentSetting::MEMORY.is_true(&settings) {
            return Ok(None);
        }
        let Some(MemoryQuery { text, source }) = memory_query(context) else {
            return Ok(Some(Self { source: None, query: None, facts: Vec::new() }));
        };
        let found = backend.facts_of_turn(agent, thread, &text).await?;
        let facts = found.into_iter().map(FactView::from).collect();
        Ok(Some(Self { source: Some(source.name()), query: Some(text), facts }))
    }
}

/// The facts that an agent remembers.
#[derive(Serialize, ToSchema)]
pub(crate) struct FactsPage {
    #[schema(value_type = schemas::AgentIdSchema)]
    agent_id: String,
    facts: Vec<FactView>,
}

fn unknown() -> Problem {
    Problem::from(ErrorCode::UnknownFact)
}

fn invalid(detail: impl Into<String>) -> Problem {
    Problem::new(ErrorCode::InvalidFact, detail.into())
}

fn is_text(text: &str) -> bool {
    (1..=MOST_BYTES).contains(&text.len()) && !text.contains('\0')
}

pub(crate) async fn list(
    ctx: RequestContext,
    PathParam(agent): PathParam<String>,
    QueryParams(query): QueryParams<FactsQuery>,
) -> Result<Response, Problem> {
    let (agent, store) = (ctx.agent(&agent)?, ctx.store()?);
    let limit = query::limit(query.limit.as_deref())?;
    let with_superseded = match query.superseded.as_deref() {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(Problem::new(ErrorCode::InvalidQuery, "superseded must be true or false")),
    };
    let thread = query.thread_id.map(|thread| ctx.thread_in("thread_id", &thread)).transpose()?;
    let facts: Vec<FactView> = match (query.q, query.user_id, thread) {
        (Some(text), None, Some(thread)) if !with_superseded => {
            let found = ctx.backend()?.search_facts(&agent, &thread, &text, limit).await?;
            found.into_iter().map(FactView::from).collect()
        }
        (Some(_), ..) => {
            return Err(Problem::new(
                ErrorCode::InvalidQuery,
                "q wants thread_id, and neither user_id nor superseded",
            ));
        }
        (None, Some(_), Some(_)) => {
            return Err(Problem::new(ErrorCode::InvalidQuery, "user_id or thread_id, not both"));
        }
        (None, user, thread) => {
            if user.as_deref().is_some_and(|user| !is_text(user)) {
                return Err(Problem::new(ErrorCode::InvalidQuery, "user_id must have 1 to 256 bytes"));
            }
            let scope = user.map(FactScope::User).or(thread.map(FactScope::Thread));
            let rows = store.facts(&agent, &FactFilter { scope, with_superseded, limit }).await?;
            rows.into_iter().map(FactView::from).collect()
        }
    };
    if facts.is_empty() {
        check_known(store, &agent).await?;
    }
    Ok(json_no_store(FactsPage { agent_id: agent.name().to_owned(), facts }))
}

async fn check_known(store: &Store, agent: &AgentId) -> Result<(), Problem> {
    store.agent(agent).await?.map(drop).ok_or_else(agents::unknown)
}

fn check(text: &str, kind: Option<&str>, confidence: Option<f32>) -> Result<(), Problem> {
    let (kind, confidence) = (kind.unwrap_or("note").to_owned(), confidence.unwrap_or(1.0));
    let fact = Fact { text: text.to_owned(), kind, confidence, supersedes: Vec::new() };
    fact.fault().map_or(Ok(()), |fault| Err(invalid(fault)))
}

pub(crate) async fn add(
    ctx: RequestContext,
    PathParam(agent): PathParam<String>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<FactBody>,
) -> Result<Response, Problem> {
    let (agent, actor, store) = (ctx.agent(&agent)?, ctx.actor(&headers)?, ctx.store()?);
    check(&body.text, body.kind.as_deref(), body.confidence)?;
    let thread = body.thread_id.map(|thread| ctx.thread_in("thread_id", &thread)).transpose()?;
    let scope = match (body.user_id, thread) {
        (Some(_), Some(_)) => return Err(invalid("user_id or thread_id, not both")),
        (Some(user), None) if is_text(&user) => FactScope::User(user),
        (Some(_), None) => return Err(invalid("user_id must have 1 to 256 bytes, and no NUL character")),
        (None, Some(thread)) => FactScope::Thread(thread),
        (None, None) => FactScope::Agent,
    };
    check_known(store, &agent).await?;
    let command = control::new_id()?;
    let id = command.as_str().to_owned();
    let (kind, confidence) = (body.kind, body.confidence);
    let new = NewFact { id, scope: Some(scope), text: body.text, kind, confidence, supersedes: None };
    let row = store.add_fact(&agent, &new, &command, &actor).await?.ok_or_else(unknown)?;
    Ok((StatusCode::CREATED, json_no_store(FactView::from(row))).into_response())
}

pub(crate) async fn change(
    ctx: RequestContext,
    PathParam((agent, fact)): PathParam<(String, String)>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<ChangedFactBody>,
) -> Result<Response, Problem> {
    let (agent, actor) = (ctx.agent(&agent)?, ctx.actor(&headers)?);
    check(&body.text, body.kind.as_deref(), body.confidence)?;
    let fact = Some(fact).filter(|fact| is_text(fact)).ok_or_else(unknown)?;
    let command = control::new_id()?;
    let id = command.as_str().to_owned();
    let (kind, confidence) = (body.kind, body.confidence);
    let new = NewFact { id, scope: None, text: body.text, kind, confidence, supersedes: Some(fact) };
    let row = ctx.store()?.add_fact(&agent, &new, &command, &actor).await?.ok_or_else(unknown)?;
    Ok(json_no_store(FactView::from(row)))
}

pub(crate) async fn delete(
    ctx: RequestContext,
    PathParam((agent, fact)): PathParam<(String, String)>,
    QueryParams(query): QueryParams<ForgetQuery>,
    headers: HeaderMap,
    _: EmptyBody,
) -> Result<Response, Problem> {
    let (agent, actor, store) = (ctx.agent(&agent)?, ctx.actor(&headers)?, ctx.store()?);
    let fact = Some(fact).filter(|fact| is_text(fact)).ok_or_else(unknown)?;
    let command = control::new_id()?;
    let restores = match query.restore.as_deref() {
        None | Some("false") => false,
        Some("true") => true,
        Some(_) => return Err(Problem::new(ErrorCode::InvalidQuery, "restore must be true or false")),
    };
    if !store.delete_fact(&agent, &fact, restores, &command, &actor).await? {
        return Err(unknown());
    }
    Ok(StatusCode::NO_CONTENT.into_response())
}

impl From<FactRow> for FactView {
    fn from(row: FactRow) -> Self {
        let (scope, user_id) = match row.scope {
            FactScope::User(user) => ("user", Some(user)),
            FactScope::Thread(_) => ("thread", None),
            FactScope::Agent => ("agent", None),
        };
        Self {
            fact_id: row.id,
            text: row.text,
            kind: row.kind,
            confidence: row.confidence,
            scope,
            user_id,
            thread_id: row.thread.map(|thread| thread.name().to_owned()),
            message_id: row.assistant_message_id,
            superseded_by: row.superseded_by,
            created_at: views::rfc3339(row.created_at),
            place_by_words: None,
            place_by_vector: None,
        }
    }
}

impl From<FoundFact> for FactView {
    fn from(FoundFact { fact, place_by_words, place_by_vector }: FoundFact) -> Self {
        Self { place_by_words, place_by_vector, ..Self::from(fact) }
    }
}

fn fact_example() -> Value {
    json!({
        "fact_id": "m1-f0", "text": "Ann prefers short answers.", "kind": "preference", "confidence": 0.9, "scope": "user",
        "user_id": "ann", "thread_id": "hello", "message_id": "m1", "superseded_by": null,
        "created_at": "2026-11-22T11:49:44.123Z",
    })
}
