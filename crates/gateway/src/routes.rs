//! Addresses and their answers.

use std::sync::{Arc, OnceLock};

use adapters::{Cursor, native};
use axum::body::Body;
use axum::extract::{Extension, Path, Query, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use bytes::Bytes;
use model::{Position, ThreadId};
use runtime::Health;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use store::{Range, StoredMessage};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio_util::sync::CancellationToken;

use crate::hub::{Hub, Limits};
use crate::lane::{Lane, LaneBody};
use crate::problem::Problem;
use crate::seated::Seated;

const DEFAULT_LIMIT: u32 = 50;
const MAX_LIMIT: u32 = 200;
/// Long enough for a load balancer to notice a gateway that is gone, short enough for a reader to wait.
const RETRY: &[u8] = b"retry: 1000\n\n";

/// The connection that a request came on; cancelled, it is dropped at once.
#[derive(Debug, Clone)]
pub(crate) struct Connection(pub(crate) CancellationToken);

/// What handlers need; the hub is there once the number of partitions is known.
#[derive(Clone)]
pub(crate) struct Desk {
    pub(crate) hub: Arc<OnceLock<Hub>>,
    pub(crate) limits: Limits,
}

impl Desk {
    fn hub(&self) -> Result<&Hub, Problem> {
        self.hub
            .get()
            .ok_or_else(|| Problem::unavailable("starting", "the database has not been reached yet"))
    }
}

pub(crate) fn router(desk: Desk, health: Health) -> Router {
    Router::new()
        .route("/", get(about))
        .route("/v1/threads/{thread}/events", get(events))
        .route("/v1/threads/{thread}/history", get(history))
        .with_state(desk)
        .merge(runtime::endpoint::probes_router(health))
        .fallback(|| async { Problem::not_found("unknown_address", "there is nothing at this address") })
        .method_not_allowed_fallback(|| async { Problem::method_not_allowed() })
}

async fn about() -> Json<Value> {
    Json(serde_json::json!({ "name": "antiphon", "version": env!("CARGO_PKG_VERSION") }))
}

#[derive(Debug, Deserialize)]
struct EventsQuery {
    after: Option<String>,
}

async fn events(
    State(desk): State<Desk>,
    Path(thread): Path<String>,
    query: Result<Query<EventsQuery>, axum::extract::rejection::QueryRejection>,
    Extension(connection): Extension<Connection>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let thread = thread_id(&thread)?;
    let Query(query) = query.map_err(|error| Problem::bad_request("invalid_query", error.body_text()))?;
    let cursor = cursor_of(&headers, query.after.as_deref())?;
    let hub = desk.hub()?;
    let (lane, body) = Lane::new(connection.0, desk.limits.lag_bytes);
    lane.push_first([Bytes::from_static(native::OPEN), Bytes::from_static(RETRY)]);
    let seat = hub.attach(&thread, lane, cursor);
    let seat = seat.map_err(|refused| Problem::unavailable(refused.code(), refused.to_string()))?;
    Ok(stream(Seated::new(body, seat)))
}

fn stream(body: Seated<LaneBody>) -> Response {
    let mut response = Response::new(Body::new(body));
    let headers = response.headers_mut();
    let mut set = |name: HeaderName, value| headers.insert(name, HeaderValue::from_static(value));
    set(header::CONTENT_TYPE, "text/event-stream; charset=utf-8");
    set(header::CACHE_CONTROL, "no-cache, no-store, no-transform");
    set(HeaderName::from_static("x-accel-buffering"), "no");
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    response
}

/// The header beats the query: a browser sends it by itself when it reconnects to the same address.
fn cursor_of(headers: &HeaderMap, after: Option<&str>) -> Result<Option<Cursor>, Problem> {
    let bad = |detail: String| Problem::bad_request("invalid_cursor", detail);
    let header = match headers.get("last-event-id") {
        Some(value) => Some(value.to_str().map_err(|_| bad("Last-Event-ID is not ASCII text".to_owned()))?),
        None => None,
    };
    // An empty Last-Event-ID is what the standard calls none.
    let text = header.filter(|text| !text.is_empty()).or(after);
    text.map(Cursor::parse).transpose().map_err(|error| bad(error.to_string()))
}

#[derive(Debug, Deserialize)]
struct HistoryQuery {
    after: Option<String>,
    before: Option<String>,
    limit: Option<String>,
}

#[derive(Serialize)]
struct HistoryPage {
    session_id: String,
    messages: Vec<HistoryMessage>,
    has_more: bool,
}

#[derive(Serialize)]
struct HistoryMessage {
    position: Position,
    message_id: String,
    batch_id: Position,
    sequence_num: i32,
    batch_type: &'static str,
    role: &'static str,
    content: String,
    tool_calls: Option<Value>,
    tool_call_id: Option<String>,
    metadata: Value,
    token_count: Option<i64>,
    parent_id: Option<Position>,
    created_at: Option<String>,
}

async fn history(
    State(desk): State<Desk>,
    Path(thread): Path<String>,
    query: Result<Query<HistoryQuery>, axum::extract::rejection::QueryRejection>,
) -> Result<Response, Problem> {
    let thread = thread_id(&thread)?;
    let Query(query) = query.map_err(|error| Problem::bad_request("invalid_query", error.body_text()))?;
    let range = Range { after: position("after", query.after)?, before: position("before", query.before)? };
    let limit = limit(query.limit.as_deref())?;
    let read = desk.hub()?.store().history(&thread, range, limit + 1).await;
    let messages = read.map_err(|error| {
        tracing::warn!(%thread, %error, "the history cannot be read");
        Problem::unavailable("store_unavailable", "the history cannot be read at the moment")
    })?;
    let Some(mut messages) = messages else {
        return Err(Problem::not_found("unknown_thread", "there is no such thread"));
    };
    let has_more = messages.len() > limit as usize;
    if has_more {
        // One more was read to know; it stands at the far end.
        let backwards = range.before.is_some() && range.after.is_none();
        let _ = if backwards { messages.remove(0) } else { messages.remove(limit as usize) };
    }
    let messages = messages.into_iter().map(shown).collect();
    let page = HistoryPage { session_id: thread.to_string(), messages, has_more };
    Ok(([(header::CACHE_CONTROL, "no-store"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")], Json(page))
        .into_response())
}

fn shown(message: StoredMessage) -> HistoryMessage {
    HistoryMessage {
        position: message.position,
        message_id: message.message_id.into(),
        batch_id: message.batch_id,
        sequence_num: message.sequence_num,
        batch_type: message.batch_type.name(),
        role: message.role.name(),
        content: message.content,
        tool_calls: message.tool_calls,
        tool_call_id: message.tool_call_id,
        metadata: message.metadata,
        token_count: message.token_count,
        parent_id: message.parent,
        created_at: rfc3339(message.created_at.0),
    }
}

fn rfc3339(ms: i64) -> Option<String> {
    let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(ms) * 1_000_000).ok()?;
    at.format(&Rfc3339).ok()
}

fn thread_id(text: &str) -> Result<ThreadId, Problem> {
    ThreadId::parse(text).map_err(|error| Problem::bad_request("invalid_id", error.to_string()))
}

/// Digits only: a position is what a reader was given, not what it computes.
fn position(name: &str, text: Option<String>) -> Result<Option<Position>, Problem> {
    let Some(text) = text else { return Ok(None) };
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse().ok().filter(|_| digits) {
        Some(value) => Ok(Some(Position::from_stored(value))),
        None => Err(Problem::bad_request("invalid_position", format!("{name} is not a position"))),
    }
}

fn limit(text: Option<&str>) -> Result<u32, Problem> {
    let Some(text) = text else { return Ok(DEFAULT_LIMIT) };
    let allowed = text.parse().ok().filter(|limit| (1..=MAX_LIMIT).contains(limit));
    allowed
        .ok_or_else(|| Problem::bad_request("invalid_limit", format!("limit must be from 1 to {MAX_LIMIT}")))
}
