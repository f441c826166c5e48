//! What a model would see of a thread, and why.

use axum::http::HeaderMap;
use axum::response::Response;
use batches::compaction::live_at;
use batches::context::{Builder, ContextRules, Decision, Inclusion, LastMessages, Older};
use batches::render::{self, Rendered, Repair, RepairKind};
use batches::{Compaction, Context};
use http_server::error::{ErrorCode, Problem};
use http_server::extract::body::EmptyBody;
use http_server::extract::path::PathParam;
use http_server::extract::query;
use http_server::extract::query::QueryParams;
use model::{AgentId, MAX_CONTEXT_TOKENS, Position, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::Store;
use utoipa::{IntoParams, ToSchema};

use crate::api::memory::MemoryView;
use crate::api::respond::json_no_store;
use crate::api::threads;
use crate::api::views;
use crate::app::request_context::RequestContext;
use crate::commands::thread_agent;
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::schemas;
use crate::openapi::tags::THREADS;

pub(crate) fn operations() -> Vec<Operation> {
    vec![
        Operation::get(
            "/v1/threads/{thread}/context",
            "showContext",
            "Show the context that a model receives for a thread, and why",
            get,
        )
        .tag(THREADS)
        .scope(Scope::ReadThreads)
        .query::<ContextQuery>()
        .response::<ContextView>(200, "The context", context_example())
        .errors(&[
            ErrorCode::UnknownThread,
            ErrorCode::PartitionUnavailable,
            ErrorCode::InvalidFormat,
            ErrorCode::InvalidPosition,
            ErrorCode::InvalidTokens,
        ]),
        Operation::get(
            "/v1/threads/{thread}/compactions",
            "listCompactions",
            "List the compactions of a thread: what was removed from its contexts",
            compactions,
        )
        .tag(THREADS)
        .scope(Scope::ReadThreads)
        .response::<CompactionsPage>(
            200,
            "Compactions, newest first",
            json!({ "thread_id": "hello", "compactions": [compaction_example()] }),
        )
        .errors(&[ErrorCode::UnknownThread, ErrorCode::PartitionUnavailable]),
        Operation::post(
            "/v1/threads/{thread}/compactions/undo",
            "undoCompaction",
            "Undo the compaction in effect",
            undo,
        )
        .tag(THREADS)
        .description("Contexts become exactly as they were before it.")
        .scope(Scope::OperateAgents)
        .actor_header()
        .no_body()
        .response::<Undone>(200, "Undone", json!({ "thread_id": "hello", "undone": "7524873984012345344" }))
        .errors(&[ErrorCode::NoCompaction]),
    ]
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct ContextQuery {
    /// The form of the messages; `openai` by default.
    #[param(value_type = Option<schemas::FormatSchema>)]
    format: Option<String>,
    /// The agent whose settings apply; by default the thread's agent.
    #[param(value_type = Option<schemas::AgentIdSchema>)]
    agent: Option<String>,
    /// A token budget that replaces that of the settings.
    #[param(value_type = Option<schemas::Tokens>)]
    tokens: Option<String>,
    /// The context as it was just after the message at this position was written.
    #[param(value_type = Option<schemas::PositionSchema>)]
    at: Option<String>,
}

/// What a model would see of a thread.
#[derive(Serialize, ToSchema)]
pub(crate) struct ContextView {
    #[schema(value_type = schemas::ThreadIdSchema)]
    thread_id: String,
    /// The agent whose settings apply.
    #[schema(value_type = schemas::AgentIdSchema)]
    agent_id: String,
    #[schema(value_type = Option<schemas::PositionSchema>, required)]
    at: Option<Position>,
    /// Number of tokens of the included batches.
    tokens: u64,
    /// Maximum number of tokens of the included batches.
    budget: u64,
    tokenizer: &'static str,
    /// The compaction in effect; null when there is none.
    #[schema(required)]
    compaction: Option<CompactionView>,
    older: OlderView,
    /// The batches that were read, newest first.
    batches: Vec<DecisionView>,
    /// Instructions and summary in the provider's form, unless they are among the messages; else
    /// null.
    #[schema(required)]
    system: Option<Value>,
    /// The messages in the requested form.
    #[schema(value_type = Vec<Object>)]
    messages: Vec<Value>,
    /// Changes that were made to the shown messages so that a provider accepts them.
    repairs: Vec<RepairView>,
    /// Remembered facts that match the last message; null when the agent's settings do not enable
    /// memory, or `at` is given.
    #[schema(required)]
    memory: Option<MemoryView>,
    /// Settings of the agent that cannot be used, and why.
    complaints: Vec<String>,
}

/// The state of the batches that are older than those that were read.
#[derive(Serialize, ToSchema)]
#[serde(tag = "code", rename_all = "snake_case")]
pub(crate) enum OlderView {
    /// There are no older batches.
    Nothing,
    /// The older batches are compacted.
    Compacted {
        #[schema(value_type = schemas::PositionSchema)]
        through: Position,
    },
    /// The older batches did not fit and were not read.
    Unread {
        /// Position of the oldest message that was read; null when none was.
        #[schema(value_type = Option<schemas::PositionSchema>, required)]
        before: Option<Position>,
    },
}

/// Whether a batch is included in the context, and why not.
#[derive(Serialize, ToSchema)]
pub(crate) struct DecisionView {
    #[schema(value_type = schemas::PositionSchema)]
    batch_id: Position,
    #[serde(rename = "in")]
    is_in: bool,
    /// Why the batch is not included, as a code; null when it is.
    #[schema(required)]
    code: Option<&'static str>,
    /// Why the batch is not included, as readable text; null when it is.
    #[schema(required)]
    why: Option<String>,
    message_count: usize,
    /// The lowest number in the thread among the batch's messages.
    #[schema(required)]
    first_number: Option<u64>,
    /// The highest number in the thread among the batch's messages.
    #[schema(required)]
    last_number: Option<u64>,
    tokens: u64,
}

/// A compaction: batches that left the contexts of a thread.
#[derive(Serialize, ToSchema)]
pub(crate) struct CompactionView {
    #[schema(value_type = schemas::PositionSchema)]
    compaction_id: Position,
    strategy: &'static str,
    /// The newest batch that left; earlier ones left, too, except those in `kept`.
    #[schema(value_type = schemas::PositionSchema)]
    through: Position,
    /// Batches up to `through` that stay in the contexts.
    #[schema(value_type = Vec<schemas::PositionSchema>)]
    kept: Vec<Position>,
    /// The text that replaces the batches that left; null when nothing does.
    #[schema(required)]
    summary: Option<String>,
    /// Number of batches that left.
    batches: usize,
    /// Number of messages in the batches that left.
    messages: u64,
    tokens_before: u64,
    tokens_after: u64,
    /// The compaction in effect before this one; null when there was none.
    #[schema(value_type = Option<schemas::PositionSchema>, required)]
    previous: Option<Position>,
    /// The position from which the compaction no longer applies; null while it does.
    #[schema(value_type = Option<schemas::PositionSchema>, required)]
    undone_at: Option<Position>,
}

/// A compaction and its state.
#[derive(Serialize, ToSchema)]
pub(crate) struct ListedCompaction {
    #[serde(flatten)]
    compaction: CompactionView,
    #[schema(value_type = schemas::CompactionStateSchema)]
    state: &'static str,
    /// The actor that caused the compaction.
    actor: String,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    created_at: Option<String>,
}

/// All compactions of a thread, newest first.
#[derive(Serialize, ToSchema)]
pub(crate) struct CompactionsPage {
    #[schema(value_type = schemas::ThreadIdSchema)]
    thread_id: String,
    compactions: Vec<ListedCompaction>,
}

/// The compaction that no longer applies.
#[derive(Serialize, ToSchema)]
pub(crate) struct Undone {
    #[schema(value_type = schemas::ThreadIdSchema)]
    thread_id: String,
    #[schema(value_type = schemas::PositionSchema)]
    undone: Position,
}

/// A change of the shown messages.
#[derive(Serialize, ToSchema)]
pub(crate) struct RepairView {
    /// The message that was changed; null when the change concerns no single message.
    #[schema(value_type = Option<schemas::PositionSchema>, required)]
    position: Option<Position>,
    /// The change as a code.
    code: &'static str,
    /// The change as readable text.
    what: String,
}

pub(crate) async fn get(
    ctx: RequestContext,
    PathParam(thread): PathParam<String>,
    QueryParams(query): QueryParams<ContextQuery>,
) -> Result<Response, Problem> {
    let (thread, backend) = (ctx.thread(&thread)?, ctx.backend()?);
    let render = format(query.format.as_deref())?;
    let (at, budget) = (query::position("at", query.at)?, budget(query.tokens.as_deref())?);
    let row = backend.store().thread(&thread).await?;
    if row.is_none() {
        threads::check_begun(backend, &thread).await?;
    }
    let agent = match query.agent {
        Some(id) => ctx.agent(&id)?,
        None => thread_agent::of_thread(backend, &thread, row.as_ref()).await?,
    };
    let (mut rules, complaints) = rules(backend.store(), &agent).await?;
    rules.tokens = budget.unwrap_or(rules.tokens);
    let stored = backend.store().compactions(&thread).await?;
    let done = stored.into_iter().filter(|one| !one.is_pending);
    let compactions: Vec<_> = done.map(|one| one.compaction).collect();
    let compaction = live_at(&compactions, at.unwrap_or(Position::MAX)).cloned();
    let now = Timestamp(time::OffsetDateTime::now_utc().unix_timestamp_nanos() as i64 / 1_000_000);
    let mut request = rules.request(None, compaction.clone(), now);
    request.until = at;
    let counter = tokenizer::counter(rules.tokenizer);
    let mut builder = Builder::new(request, counter.as_ref());
    backend.store().fill(&thread, &LastMessages::default(), &mut builder).await?;
    let context = builder.build();
    let rendered = without_ending(render(&context));
    let memory = match at {
        Some(_) => None,
        None => MemoryView::of(backend, &agent, &thread, &context).await?,
    };
    Ok(json_no_store(ContextView {
        thread_id: thread.name().to_owned(),
        agent_id: agent.name().to_owned(),
        at,
        tokens: context.tokens,
        budget: context.budget,
        tokenizer: rules.tokenizer.name(),
        compaction: compaction.as_ref().map(CompactionView::from),
        older: OlderView::from(&context.older),
        batches: context.decisions.iter().rev().map(DecisionView::from).collect(),
        system: rendered.system,
        messages: rendered.messages,
        repairs: rendered.repairs.iter().map(RepairView::from).collect(),
        memory,
        complaints,
    }))
}

/// Every compaction of the thread, newest first.
pub(crate) async fn compactions(
    ctx: RequestContext,
    PathParam(thread): PathParam<String>,
) -> Result<Response, Problem> {
    let (thread, backend) = (ctx.thread(&thread)?, ctx.backend()?);
    let stored = backend.store().compactions(&thread).await?;
    if stored.is_empty() && backend.store().thread(&thread).await?.is_none() {
        threads::check_begun(backend, &thread).await?;
    }
    let done: Vec<_> =
        stored.iter().filter(|one| !one.is_pending).map(|one| one.compaction.clone()).collect();
    let live = live_at(&done, Position::MAX).map(|live| live.id);
    let listed = stored.into_iter().rev().map(|one| ListedCompaction {
        compaction: CompactionView::from(&one.compaction),
        state: match (one.is_pending, live == Some(one.compaction.id)) {
            (true, _) => schemas::WAITING,
            (_, true) => schemas::COUNTS,
            (false, false) if one.compaction.undone_at.is_some() => schemas::UNDONE,
            (false, false) => schemas::REPLACED,
        },
        actor: one.actor,
        created_at: views::rfc3339(one.created_at),
    });
    Ok(json_no_store(CompactionsPage { thread_id: thread.name().to_owned(), compactions: listed.collect() }))
}

/// Undoes the newest compaction.
pub(crate) async fn undo(
    ctx: RequestContext,
    PathParam(thread): PathParam<String>,
    headers: HeaderMap,
    _: EmptyBody,
) -> Result<Response, Problem> {
    let (thread, actor, backend) = (ctx.thread(&thread)?, ctx.actor(&headers)?, ctx.backend()?);
    let none = || Problem::from(ErrorCode::NoCompaction);
    let undone = backend.store().undo_compaction(&thread, &actor).await?.ok_or_else(none)?;
    Ok(json_no_store(Undone { thread_id: thread.name().to_owned(), undone }))
}

type Render = fn(&Context) -> Rendered;

fn format(name: Option<&str>) -> Result<Render, Problem> {
    match name.unwrap_or("openai") {
        "openai" => Ok(render::openai),
        "anthropic" => Ok(render::anthropic),
        _ => Err(Problem::new(ErrorCode::InvalidFormat, "format must be openai or anthropic")),
    }
}

/// Removes the trailing placeholder: a real context ends with the next input, which is not there
/// yet.
fn without_ending(mut rendered: Rendered) -> Rendered {
    let is_ending = rendered.repairs.last().is_some_and(|repair| repair.kind == RepairKind::EndedWithUser);
    if is_ending {
        rendered.repairs.pop();
        rendered.messages.pop();
    }
    rendered
}

fn budget(text: Option<&str>) -> Result<Option<u64>, Problem> {
    let Some(text) = text else { return Ok(None) };
    let budget = text.parse().ok().filter(|tokens| (1..=MAX_CONTEXT_TOKENS).contains(tokens));
    let invalid =
        || Problem::new(ErrorCode::InvalidTokens, format!("tokens must be from 1 to {MAX_CONTEXT_TOKENS}"));
    budget.ok_or_else(invalid).map(Some)
}

/// The context rules in the agent's settings.
pub(crate) async fn rules(store: &Store, agent: &AgentId) -> Result<(ContextRules, Vec<String>), Problem> {
    let row = store.agent(agent).await?;
    let settings = row.and_then(|row| row.settings).map(|settings| settings.settings).unwrap_or_default();
    Ok(ContextRules::of(&settings))
}

impl From<&Decision> for DecisionView {
    fn from(decision: &Decision) -> Self {
        let (is_in, reason) = match &decision.inclusion {
            Inclusion::In => (true, None),
            Inclusion::Out(reason) => (false, Some(reason)),
        };
        Self {
            batch_id: decision.batch,
            is_in,
            code: reason.map(batches::context::Reason::code),
            why: reason.map(ToString::to_string),
            message_count: decision.messages,
            first_number: decision.numbers.map(|(first, _)| first),
            last_number: decision.numbers.map(|(_, last)| last),
            tokens: decision.tokens,
        }
    }
}

impl From<&Older> for OlderView {
    fn from(older: &Older) -> Self {
        match *older {
            Older::Nothing => Self::Nothing,
            Older::Compacted { through } => Self::Compacted { through },
            Older::Unread { before } => Self::Unread { before },
        }
    }
}

impl From<&Compaction> for CompactionView {
    fn from(compaction: &Compaction) -> Self {
        Self {
            compaction_id: compaction.id,
            strategy: compaction.strategy.name(),
            through: compaction.through,
            kept: compaction.kept.clone(),
            summary: compaction.summary.clone(),
            batches: compaction.provenance.batches.len(),
            messages: compaction.provenance.messages,
            tokens_before: compaction.provenance.tokens_before,
            tokens_after: compaction.provenance.tokens_after,
            previous: compaction.previous,
            undone_at: compaction.undone_at,
        }
    }
}

impl From<&Repair> for RepairView {
    fn from(repair: &Repair) -> Self {
        Self { position: repair.message, code: repair.kind.code(), what: repair.kind.to_string() }
    }
}

fn context_example() -> Value {
    json!({
        "thread_id": "hello", "agent_id": "ann", "at": null, "tokens": 12, "budget": 32_000, "tokenizer": "estimate",
        "compaction": null, "older": { "code": "nothing" }, "system": null,
        "batches": [{
            "batch_id": "7524873984012345344", "in": true, "code": null, "why": null, "message_count": 2,
            "first_number": 1, "last_number": 2, "tokens": 12,
        }],
        "messages": [{ "role": "user", "content": "How is the weather?" }, { "role": "assistant", "content": "Sunny." }],
        "repairs": [], "memory": null, "complaints": [],
    })
}

fn compaction_example() -> Value {
    json!({
        "compaction_id": "7524873984012345344", "strategy": "drop_oldest", "through": "7524873984012345000",
        "kept": [], "summary": null, "batches": 3, "messages": 9, "tokens_before": 30_000, "tokens_after": 18_000,
        "previous": null, "undone_at": null, "state": "counts", "actor": "antiphon",
        "created_at": "2026-11-22T11:49:44.123Z",
    })
}
