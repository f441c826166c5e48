//! Reasoning sessions of agents: what is shown of them, and what compressions have replaced.

use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use model::{Position, ReasoningSessionId};
use reasoning::{SessionMessage, message_id};
use serde::{Deserialize, Serialize};
use store::{
    DiscardedCursor, DiscardedLayer, DiscardedMessage, DiscardedPage, InvalidDiscardedCursor, ReasoningThread,
};
use utoipa::{IntoParams, ToSchema};

use crate::api::respond::json_no_store;
use crate::api::{schemas, views};
use crate::app::request_context::RequestContext;
use crate::error::Problem;
use crate::extract::body::NoBody;
use crate::extract::path::{self, PathParam};
use crate::extract::query::{self, QueryParams};

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReasoningQuery {
    /// `next` of the page before.
    next: Option<String>,
    #[param(value_type = Option<schemas::Limit>)]
    limit: Option<String>,
}

/// A reasoning session, with a page of its discarded log.
#[derive(Serialize, ToSchema)]
pub(crate) struct ReasoningSessionView {
    session_id: String,
    agent_id: String,
    created_by: String,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    created_at: Option<String>,
    /// Its base layers, in their order.
    sources: Vec<ContextSourceView>,
    /// How many messages are shown.
    messages: u64,
    /// The thread as its agent sees it, with the plan.
    view: String,
    /// The newest compression that counts; 0: none.
    head_layer: u64,
    /// Compressions, the newest first.
    layers: Vec<ReasoningLayerView>,
    /// Where the next page begins; null on the last one.
    #[schema(required)]
    next: Option<String>,
}

/// Where base messages came from.
#[derive(Serialize, ToSchema)]
pub(crate) struct ContextSourceView {
    thread_id: String,
    #[schema(value_type = Option<schemas::PositionSchema>, required)]
    from_batch: Option<Position>,
    #[schema(value_type = Option<schemas::PositionSchema>, required)]
    to_batch: Option<Position>,
    /// The thread's last message when they were copied.
    #[schema(value_type = Option<schemas::PositionSchema>, required)]
    as_of: Option<Position>,
    /// The lowest number in the thread of what was copied.
    #[schema(required)]
    first_number: Option<u64>,
    /// The highest one.
    #[schema(required)]
    last_number: Option<u64>,
}

/// A compression, with what it has replaced.
#[derive(Serialize, ToSchema)]
pub(crate) struct ReasoningLayerView {
    layer: u64,
    /// The one that counted before; 0: none.
    previous: u64,
    summary_id: String,
    /// At most 1,000 characters of it.
    summary: String,
    summary_chars: u32,
    /// How many messages it has replaced.
    count: u64,
    /// How many of them are on pages before.
    skipped: u64,
    /// In the order in which they were shown, as far as they are on this page. A page has 100.
    originals: Vec<DiscardedMessageView>,
    actor: String,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    at: Option<String>,
    #[schema(required)]
    undone_by: Option<String>,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    undone_at: Option<String>,
}

/// A message that a compression has replaced.
#[derive(Serialize, ToSchema)]
pub(crate) struct DiscardedMessageView {
    message_id: String,
    /// By which it is read whole.
    number: u64,
    role: &'static str,
    /// At most 200 characters of it.
    content: String,
    /// Characters of the whole content.
    chars: u32,
    /// At most 200 characters of it.
    #[schema(required)]
    thinking: Option<String>,
    tool_calls: Vec<ReasoningCallView>,
    #[schema(required)]
    tool_call_id: Option<String>,
}

/// A message of a reasoning session, with all that is kept of it.
#[derive(Serialize, ToSchema)]
pub(crate) struct ReasoningMessageView {
    message_id: String,
    number: u64,
    role: &'static str,
    content: String,
    #[schema(required)]
    thinking: Option<String>,
    /// What the provider signed the thinking with.
    #[schema(required)]
    thinking_signature: Option<String>,
    tool_calls: Vec<WholeReasoningCallView>,
    #[schema(required)]
    tool_call_id: Option<String>,
    #[schema(required)]
    tool_name: Option<String>,
}

/// A call of a tool in a reasoning session, with all that is kept of it.
#[derive(Serialize, ToSchema)]
pub(crate) struct WholeReasoningCallView {
    id: String,
    name: String,
    /// As the model wrote them.
    #[schema(required)]
    arguments: Option<String>,
    /// What the provider signed the call with.
    #[schema(required)]
    signature: Option<String>,
}

/// A call of a tool in a reasoning session.
#[derive(Serialize, ToSchema)]
pub(crate) struct ReasoningCallView {
    id: String,
    name: String,
}

pub(crate) async fn get(
    ctx: RequestContext,
    PathParam(session): PathParam<String>,
    QueryParams(page): QueryParams<ReasoningQuery>,
) -> Result<Response, Problem> {
    let id = path::id("session", &session, |name| ReasoningSessionId::of_tenant(ctx.tenant(), name))?;
    let limit = query::limit(page.limit.as_deref())?;
    let wrong = |error: InvalidDiscardedCursor| Problem::bad_request("invalid_id", format!("next: {error}"));
    let from = page.next.map(|next| next.parse::<DiscardedCursor>().map_err(wrong)).transpose()?;
    let store = ctx.store()?;
    let unknown = || Problem::not_found("unknown_session", "there is no such reasoning session");
    let seen = store.reasoning_thread(&id, true, None).await?.ok_or_else(unknown)?;
    let log = store.discarded_reasoning(&id, from, limit).await?;
    Ok(json_no_store(session_view(&seen, &log)))
}

/// One message whole, whether it is shown or was compressed.
pub(crate) async fn message(
    ctx: RequestContext,
    PathParam((session, number)): PathParam<(String, u64)>,
) -> Result<Response, Problem> {
    let id = path::id("session", &session, |name| ReasoningSessionId::of_tenant(ctx.tenant(), name))?;
    let unknown = || Problem::not_found("unknown_session", "there is no such reasoning session");
    let read = ctx.store()?.reasoning_message(&id, number).await?.ok_or_else(unknown)?;
    let none =
        || Problem::not_found("unknown_message", "the reasoning session has no message of that number");
    Ok(json_no_store(message_view(read.message.ok_or_else(none)?)))
}

/// A compression that was taken back.
#[derive(Serialize, ToSchema)]
pub(crate) struct UndoneCompression {
    session_id: String,
    /// The message that was its summary.
    undone: String,
}

/// Takes the newest compression back.
pub(crate) async fn undo(
    ctx: RequestContext,
    PathParam(session): PathParam<String>,
    headers: HeaderMap,
    _: NoBody,
) -> Result<Response, Problem> {
    let id = path::id("session", &session, |name| ReasoningSessionId::of_tenant(ctx.tenant(), name))?;
    let (actor, store) = (ctx.actor(&headers)?, ctx.store()?);
    let unknown = || Problem::not_found("unknown_session", "there is no such reasoning session");
    let seen = store.restorable_reasoning(&id).await?.ok_or_else(unknown)?;
    let summary = seen
        .summary
        .ok_or_else(|| Problem::not_found("no_compression", "the session has no compression to take back"))?;
    if !store.undo_reasoning(&id, &seen, None, &actor).await? {
        let detail = "the session has changed meanwhile: look at it again";
        return Err(Problem::conflict("session_changed", detail));
    }
    let now = store.reasoning_thread(&id, false, None).await?.ok_or_else(unknown)?;
    if let Some(thread) = &now.session.applies_to
        && let Err(error) = store.apply_reasoning(&id, thread, &actor).await
    {
        tracing::warn!(%error, session = id.as_str(), "a compression was taken back and is not applied to its thread yet");
        let detail = "the compression was taken back, but the contexts of its thread have not changed yet. The next change of the session \
                      makes them so; do not repeat the request, which would take back one more";
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "compression_not_applied", detail));
    }
    Ok(json_no_store(UndoneCompression { session_id: id.name().to_owned(), undone: message_id(summary) }))
}

fn session_view(seen: &ReasoningThread, log: &DiscardedPage) -> ReasoningSessionView {
    let session = &seen.session;
    let source = |source: &reasoning::ContextSource| ContextSourceView {
        thread_id: source.thread.name().to_owned(),
        from_batch: source.from_batch,
        to_batch: source.to_batch,
        as_of: source.as_of,
        first_number: source.numbers.map(|(first, _)| first),
        last_number: source.numbers.map(|(_, last)| last),
    };
    ReasoningSessionView {
        session_id: session.id.name().to_owned(),
        agent_id: session.agent.name().to_owned(),
        created_by: session.created_by.clone(),
        created_at: views::rfc3339(session.created_at),
        sources: session.sources.iter().map(source).collect(),
        messages: seen.thread.len(),
        view: seen.view(true),
        head_layer: seen.head,
        layers: log.layers.iter().map(layer_view).collect(),
        next: log.next.map(|next| next.to_string()),
    }
}

fn layer_view(entry: &DiscardedLayer) -> ReasoningLayerView {
    let (undone_by, undone_at) = entry.undone.clone().unzip();
    ReasoningLayerView {
        layer: entry.layer.id,
        previous: entry.layer.previous,
        summary_id: message_id(entry.layer.summary),
        summary: entry.summary.clone(),
        summary_chars: entry.summary_chars,
        count: entry.count,
        skipped: entry.skipped,
        originals: entry.originals.iter().map(original_view).collect(),
        actor: entry.actor.clone(),
        at: views::rfc3339(entry.at),
        undone_by,
        undone_at: undone_at.and_then(views::rfc3339),
    }
}

fn original_view(original: &DiscardedMessage) -> DiscardedMessageView {
    let message = &original.message;
    let call =
        |call: &reasoning::SessionCall| ReasoningCallView { id: call.id.clone(), name: call.name.clone() };
    DiscardedMessageView {
        message_id: message_id(message.number),
        number: message.number,
        chars: original.chars,
        role: message.role.name(),
        content: message.content.clone(),
        thinking: message.thinking.clone(),
        tool_calls: message.calls.iter().map(call).collect(),
        tool_call_id: message.answers.clone(),
    }
}

fn message_view(message: SessionMessage) -> ReasoningMessageView {
    let call = |call: reasoning::SessionCall| WholeReasoningCallView {
        id: call.id,
        name: call.name,
        arguments: call.arguments,
        signature: call.signature,
    };
    ReasoningMessageView {
        message_id: message_id(message.number),
        number: message.number,
        role: message.role.name(),
        content: message.content,
        thinking: message.thinking,
        thinking_signature: message.signature,
        tool_calls: message.calls.into_iter().map(call).collect(),
        tool_call_id: message.answers,
        tool_name: message.tool,
    }
}
