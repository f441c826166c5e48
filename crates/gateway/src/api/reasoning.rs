//! Reasoning sessions of agents: what is shown of them, and what compressions have replaced.

use axum::response::Response;
use model::{Position, ReasoningSessionId};
use reasoning::{SessionMessage, message_id};
use serde::{Deserialize, Serialize};
use store::{DiscardedLayer, ReasoningThread};
use utoipa::{IntoParams, ToSchema};

use crate::api::respond::json_no_store;
use crate::api::{schemas, views};
use crate::app::request_context::RequestContext;
use crate::error::Problem;
use crate::extract::path::{self, PathParam};
use crate::extract::query::{self, QueryParams};

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReasoningQuery {
    /// `next` of the page before.
    #[param(value_type = Option<schemas::PositionSchema>)]
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
    summary: String,
    /// In the order in which they were shown.
    originals: Vec<ReasoningMessageView>,
    actor: String,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    at: Option<String>,
    #[schema(required)]
    undone_by: Option<String>,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    undone_at: Option<String>,
}

/// A message of a reasoning session.
#[derive(Serialize, ToSchema)]
pub(crate) struct ReasoningMessageView {
    message_id: String,
    role: &'static str,
    content: String,
    #[schema(required)]
    thinking: Option<String>,
    tool_calls: Vec<ReasoningCallView>,
    #[schema(required)]
    tool_call_id: Option<String>,
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
    let before = query::position("next", page.next)?.map(|layer| layer.get().unsigned_abs());
    let store = ctx.store()?;
    let unknown = || Problem::not_found("unknown_session", "there is no such reasoning session");
    let seen = store.reasoning_thread(&id, true, None).await?.ok_or_else(unknown)?;
    let log = store.discarded_reasoning(&id, before, limit).await?;
    Ok(json_no_store(session_view(&seen, &log)))
}

fn session_view(seen: &ReasoningThread, log: &[DiscardedLayer]) -> ReasoningSessionView {
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
        layers: log.iter().map(layer_view).collect(),
        // Pages are shorter where originals are long: only the first layer says that there is none before it.
        next: log.last().map(|last| last.layer.id).filter(|layer| *layer > 1).map(|layer| layer.to_string()),
    }
}

fn layer_view(entry: &DiscardedLayer) -> ReasoningLayerView {
    let (undone_by, undone_at) = entry.undone.clone().unzip();
    ReasoningLayerView {
        layer: entry.layer.id,
        previous: entry.layer.previous,
        summary_id: message_id(entry.layer.summary),
        summary: entry.summary.clone(),
        originals: entry.originals.iter().map(message_view).collect(),
        actor: entry.actor.clone(),
        at: views::rfc3339(entry.at),
        undone_by,
        undone_at: undone_at.and_then(views::rfc3339),
    }
}

fn message_view(message: &SessionMessage) -> ReasoningMessageView {
    let call =
        |call: &reasoning::SessionCall| ReasoningCallView { id: call.id.clone(), name: call.name.clone() };
    ReasoningMessageView {
        message_id: message_id(message.number),
        role: message.role.name(),
        content: message.content.clone(),
        thinking: message.thinking.clone(),
        tool_calls: message.calls.iter().map(call).collect(),
        tool_call_id: message.answers.clone(),
    }
}
