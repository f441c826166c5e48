//! Reasoning sessions of agents: their visible messages, and the messages replaced by compressions.

use auth::Permission;
use axum::http::HeaderMap;
use axum::response::Response;
use http_server::error::{ErrorCode, Problem};
use http_server::extract::body::{MaxBodySize, OptionalJsonBody};
use http_server::extract::path::{self, PathParam};
use http_server::extract::query::{self, QueryParams};
use model::{CommandId, Position};
use reasoning::{Reason, Refusal, SessionMessage, message_id};
use serde::{Deserialize, Serialize};
use serde_json::json;
use store::{
    DiscardedCursor, DiscardedLayer, DiscardedMessage, DiscardedPage, InvalidDiscardedCursor, ReasoningThread,
};
use utoipa::{IntoParams, ToSchema};

use crate::api::respond::json_no_store;
use crate::api::views;
use crate::app::request_context::RequestContext;
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::schemas;
use crate::openapi::tags::AGENTS;

pub(crate) fn operations() -> Vec<Operation> {
    let original = json!({
        "message_id": "rm-2", "number": 2, "role": "assistant", "content": "I'll search...", "chars": 14, "thinking": null,
        "tool_calls": [{ "id": "c1", "name": "search" }], "tool_call_id": null,
    });
    let layer = json!({
        "layer": 1, "previous": 0, "summary_id": "rm-4", "summary": "Searched: nothing.", "summary_chars": 18, "count": 1, "skipped": 0, "originals": [original],
        "actor": "key:0123456789abcdef", "at": "2026-11-22T12:00:00Z", "undone_by": null, "undone_at": null,
    });
    let call = json!({ "id": "c1", "name": "search", "arguments": "{\"q\":\"x\"}", "signature": null });
    let whole = json!({
        "message_id": "rm-2", "number": 2, "role": "assistant", "content": "I'll search...", "thinking": null,
        "thinking_signature": null, "tool_calls": [call], "tool_call_id": null, "tool_name": null,
    });
    let source = json!({
        "thread_id": "hello", "from_batch": null, "to_batch": null, "as_of": "7524873984012345344",
        "first_number": 1, "last_number": 2,
    });
    let session = json!({
        "session_id": "s1", "agent_id": "ann", "created_by": "key:0123456789abcdef",
        "created_at": "2026-11-22T12:00:00Z", "sources": [source], "messages": 2,
        "view": "Reasoning Thread (2 messages):\n…", "head_layer": 1, "layers": [layer], "next": null,
    });
    vec![
        Operation::get(
            "/v1/reasoning/{session}",
            "showReasoningSession",
            "Show a reasoning session and the messages that its compressions replaced",
            get,
        )
        .tag(AGENTS)
        .description("Agents change their sessions over MCP.")
        .scope(Scope::ReadReasoning)
        .query::<ReasoningQuery>()
        .response::<ReasoningSessionView>(200, "The session, with a page of its replaced messages", session)
        .errors(&[ErrorCode::UnknownSession, ErrorCode::InvalidLimit, ErrorCode::InvalidId]),
        Operation::get(
            "/v1/reasoning/{session}/messages/{number}",
            "showReasoningMessage",
            "Show one message of a reasoning session in full",
            message,
        )
        .tag(AGENTS)
        .description("Works for visible and compressed messages. Numbers are those of the session.")
        .scope(Scope::ReadReasoning)
        .response::<ReasoningMessageView>(200, "The message", whole)
        .errors(&[ErrorCode::UnknownSession, ErrorCode::UnknownMessage, ErrorCode::InvalidId]),
        Operation::post(
            "/v1/reasoning/{session}/undo",
            "undoReasoningCompression",
            "Undo the newest compression of a reasoning session",
            undo,
        )
        .tag(AGENTS)
        .description("The replaced messages return to the agent's view and to the contexts of the thread that the session applies to.")
        .scope(Scope::WriteReasoning)
        .actor_header()
        .optional_body::<UndoBody>(json!({ "summary_id": "rm-4", "request_id": "r-1" }))
        .response::<UndoneCompression>(
            200,
            "Undone",
            json!({ "session_id": "s1", "undone": "rm-4", "repeated": false }),
        )
        .errors(&[ErrorCode::InvalidId, ErrorCode::RequestIdReused])
        .errors(&[ErrorCode::UnknownSession, ErrorCode::NoCompression, ErrorCode::SessionChanged, ErrorCode::CompressionNotApplied]),
    ]
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReasoningQuery {
    /// `next` of the previous page.
    next: Option<String>,
    #[param(value_type = Option<schemas::Limit>)]
    limit: Option<String>,
}

/// A reasoning session, with a page of its replaced messages.
#[derive(Serialize, ToSchema)]
pub(crate) struct ReasoningSessionView {
    session_id: String,
    agent_id: String,
    created_by: String,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    created_at: Option<String>,
    /// The base layers of the session, in order.
    sources: Vec<ContextSourceView>,
    /// Number of visible messages.
    messages: u64,
    /// The session as its agent sees it, with the plan.
    view: String,
    /// Number of the newest compression in effect; 0: none.
    head_layer: u64,
    /// Compressions, newest first.
    layers: Vec<ReasoningLayerView>,
    #[schema(value_type = schemas::NextPage, required)]
    next: Option<String>,
}

/// The origin of base messages.
#[derive(Serialize, ToSchema)]
pub(crate) struct ContextSourceView {
    thread_id: String,
    #[schema(value_type = Option<schemas::PositionSchema>, required)]
    from_batch: Option<Position>,
    #[schema(value_type = Option<schemas::PositionSchema>, required)]
    to_batch: Option<Position>,
    /// Position of the thread's last message when the messages were copied.
    #[schema(value_type = Option<schemas::PositionSchema>, required)]
    as_of: Option<Position>,
    /// The lowest number in the thread among the copied messages.
    #[schema(required)]
    first_number: Option<u64>,
    /// The highest number in the thread among the copied messages.
    #[schema(required)]
    last_number: Option<u64>,
}

/// A compression and the messages that it replaced.
#[derive(Serialize, ToSchema)]
pub(crate) struct ReasoningLayerView {
    layer: u64,
    /// Number of the compression in effect before this one; 0: none.
    previous: u64,
    summary_id: String,
    /// The summary, cut after 1,000 characters.
    summary: String,
    summary_chars: u32,
    /// Number of messages that it replaced.
    count: u64,
    /// Number of these messages on previous pages.
    skipped: u64,
    /// The replaced messages on this page, in their original order. A page has at most 100.
    originals: Vec<DiscardedMessageView>,
    actor: String,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    at: Option<String>,
    #[schema(required)]
    undone_by: Option<String>,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    undone_at: Option<String>,
}

/// A message that a compression replaced.
#[derive(Serialize, ToSchema)]
pub(crate) struct DiscardedMessageView {
    message_id: String,
    /// The message's number in the session, with which it can be read whole.
    number: u64,
    role: &'static str,
    /// The content, cut after 200 characters.
    content: String,
    /// Characters of the whole content.
    chars: u32,
    /// The thinking, cut after 200 characters; null when there is none.
    #[schema(required)]
    thinking: Option<String>,
    tool_calls: Vec<ReasoningCallView>,
    #[schema(required)]
    tool_call_id: Option<String>,
}

/// A message of a reasoning session with everything stored of it.
#[derive(Serialize, ToSchema)]
pub(crate) struct ReasoningMessageView {
    message_id: String,
    number: u64,
    role: &'static str,
    content: String,
    #[schema(required)]
    thinking: Option<String>,
    /// The provider's signature of the thinking; null when there is none.
    #[schema(required)]
    thinking_signature: Option<String>,
    tool_calls: Vec<WholeReasoningCallView>,
    #[schema(required)]
    tool_call_id: Option<String>,
    #[schema(required)]
    tool_name: Option<String>,
}

/// A tool call in a reasoning session with everything stored of it.
#[derive(Serialize, ToSchema)]
pub(crate) struct WholeReasoningCallView {
    id: String,
    name: String,
    /// The arguments as the model wrote them.
    #[schema(required)]
    arguments: Option<String>,
    /// The provider's signature of the call; null when there is none.
    #[schema(required)]
    signature: Option<String>,
}

/// A tool call in a reasoning session.
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
    let id = ctx.reasoning_session(&session)?;
    let limit = query::limit(page.limit.as_deref())?;
    let wrong = |error: InvalidDiscardedCursor| Problem::new(ErrorCode::InvalidId, format!("next: {error}"));
    let from = page.next.map(|next| next.parse::<DiscardedCursor>().map_err(wrong)).transpose()?;
    let store = ctx.store()?;
    let unknown = || Problem::from(ErrorCode::UnknownSession);
    let seen = store.reasoning_thread(&id, true, None).await?.ok_or_else(unknown)?;
    let log = store.discarded_reasoning(&id, from, limit).await?;
    Ok(json_no_store(session_view(&seen, &log)))
}

/// One whole message, whether it is visible or compressed.
pub(crate) async fn message(
    ctx: RequestContext,
    PathParam((session, number)): PathParam<(String, u64)>,
) -> Result<Response, Problem> {
    let id = ctx.reasoning_session(&session)?;
    let unknown = || Problem::from(ErrorCode::UnknownSession);
    let read = ctx.store()?.reasoning_message(&id, number).await?.ok_or_else(unknown)?;
    let none = || Problem::from(ErrorCode::UnknownMessage);
    Ok(json_no_store(message_view(read.message.ok_or_else(none)?)))
}

/// Which compression to undo.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UndoBody {
    /// The summary message of the compression. If another one is the newest, nothing is undone.
    summary_id: Option<String>,
    /// An id of the request, chosen by the client: a repeated request undoes no other compression.
    #[schema(value_type = Option<schemas::RequestIdSchema>)]
    request_id: Option<String>,
}

impl MaxBodySize for UndoBody {
    const MAX_BYTES: usize = 4 << 10;
}

/// An undone compression.
#[derive(Serialize, ToSchema)]
pub(crate) struct UndoneCompression {
    session_id: String,
    /// The id of its summary message.
    undone: String,
    /// Whether an earlier request with the same `request_id` undid the compression.
    repeated: bool,
}

/// Undoes the newest compression.
pub(crate) async fn undo(
    ctx: RequestContext,
    PathParam(session): PathParam<String>,
    headers: HeaderMap,
    OptionalJsonBody(body): OptionalJsonBody<UndoBody>,
) -> Result<Response, Problem> {
    let (id, actor, store) = (ctx.reasoning_session(&session)?, ctx.actor(&headers)?, ctx.store()?);
    let once = body.request_id.map(|id| path::id("request_id", &id, CommandId::parse)).transpose()?;
    let once = once.as_ref().map(CommandId::as_str);
    let unknown = || Problem::from(ErrorCode::UnknownSession);
    let before = store.reasoning_thread(&id, false, None).await?.ok_or_else(unknown)?;
    // Models of the session's thread see its compressions, so this needs the same permission as
    // over MCP.
    if before.session.applies_to.is_some() && !ctx.principal().has_permission(Permission::WriteThreads) {
        let detail = "the session applies to a thread: the credential also needs threads:write";
        return Err(Problem::new(ErrorCode::InsufficientScope, detail));
    }
    let undone = store.undo_newest_reasoning(&id, body.summary_id.as_deref(), once, &actor).await?;
    let undone = undone.ok_or_else(unknown)?.map_err(|refusal| refused(&refusal))?;
    if let Some(thread) = &undone.now.session.applies_to
        && let Err(error) = store.apply_reasoning(&id, thread, &actor).await
    {
        tracing::warn!(%error, session = id.as_str(), "a compression was undone and is not applied to its thread yet");
        let next = match once {
            Some(_) => "Repeat the request with the same request_id, which updates them",
            None => {
                "The next change of the session updates them; do not repeat the request, which would undo one more"
            }
        };
        let detail = format!(
            "the compression was undone, but the contexts of its thread have not changed yet. {next}"
        );
        return Err(Problem::new(ErrorCode::CompressionNotApplied, detail));
    }
    Ok(json_no_store(UndoneCompression {
        session_id: id.name().to_owned(),
        undone: undone.summary_id,
        repeated: undone.is_repeated,
    }))
}

fn refused(refusal: &Refusal) -> Problem {
    let code = match refusal.reason {
        Reason::NothingToUndo => ErrorCode::NoCompression,
        Reason::RequestReused(_) => ErrorCode::RequestIdReused,
        Reason::NotNewest(_) | Reason::Stale { .. } => ErrorCode::SessionChanged,
        // An undo is refused for no other reason.
        _ => ErrorCode::InternalError,
    };
    Problem::new(code, refusal.to_string())
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
