//! The event streams of threads.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Extension;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use feed::BadCursor;
use model::{MessageId, ThreadId};
use protocols::Cursor;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::streaming::resume;
use crate::app::request_context::Desk;
use crate::error::Problem;
use crate::extract::path;
use crate::extract::path::Params;
use crate::extract::query::Asked;
use crate::forms;
use crate::streaming::registry::{Hub, Refused, Verdict};
use crate::streaming::store_reads;
use crate::routes::Connection;
use crate::streaming::body::Seated;

/// How long a request waits to be told whether its cursor is one of the thread's.
const VERDICT: Duration = Duration::from_secs(2);

#[derive(Debug, Deserialize, IntoParams)]
pub(crate) struct EventsQuery {
    /// Strictly after this event, or after the message at this position.
    #[param(value_type = Option<forms::CursorText>)]
    after: Option<String>,
    /// A message that is shown from its beginning, whatever became of it; the stream goes on after it.
    #[param(value_type = Option<forms::MessageName>)]
    message: Option<String>,
    /// A credential for these events alone, for clients that cannot send headers.
    // Read by the guard.
    #[serde(rename = "ticket")]
    #[param(value_type = Option<forms::TicketText>)]
    _ticket: Option<String>,
}

pub(crate) async fn follow(
    desk: Desk,
    Params(thread): Params<String>,
    Asked(query): Asked<EventsQuery>,
    Extension(connection): Extension<Connection>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let thread = desk.thread(&thread)?;
    desk.check_follows(&thread)?;
    let hub = desk.hub()?;
    let cursor = match last_event_id(&headers)? {
        Some(cursor) => {
            resume::check(hub, &thread, &cursor).await?;
            Some(cursor)
        }
        None => cursor_of(hub, &thread, query).await?,
    };
    let (lane, body, place) = desk.lane(connection)?;
    let (seat, verdict) = hub.attach(&thread, lane, cursor).map_err(refused)?;
    let body = Seated::new(body, seat, place);
    until_verdict(verdict).await?;
    Ok(stream(body))
}

/// Waits until the stream has its place in the thread (from then on nothing that ends is missed) and its cursor is checked. After the
/// timeout the stream begins unchecked.
pub(crate) async fn until_verdict(verdict: Verdict) -> Result<(), Problem> {
    match tokio::time::timeout(VERDICT, verdict).await {
        Ok(Ok(Err(BadCursor::Unknown))) => Err(resume::unknown()),
        Ok(Ok(Err(BadCursor::Ahead))) => Err(resume::ahead()),
        Ok(Ok(Ok(())) | Err(_)) | Err(_) => Ok(()),
    }
}

pub(crate) fn refused(refused: Refused) -> Problem {
    Problem::unavailable(refused.code(), refused.to_string())
}

pub(crate) fn stream<B>(body: B) -> Response
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<axum::BoxError>,
{
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
pub(crate) fn last_event_id(headers: &HeaderMap) -> Result<Option<Cursor>, Problem> {
    let Some(value) = headers.get("last-event-id") else { return Ok(None) };
    let text = value.to_str().map_err(|_| bad_cursor("Last-Event-ID is not ASCII text".to_owned()))?;
    // An empty Last-Event-ID is what the standard calls none.
    Some(text).filter(|text| !text.is_empty()).map(parsed).transpose()
}

/// `message` is a message that the reader waits for and has nothing of: it is shown whole, whatever became of it, and what ends after it.
async fn cursor_of(hub: &Hub, thread: &ThreadId, query: EventsQuery) -> Result<Option<Cursor>, Problem> {
    let after = query.after.as_deref().map(parsed).transpose()?;
    if let Some(cursor) = &after {
        resume::check(hub, thread, cursor).await?;
    }
    let Some(message) = query.message else { return Ok(after) };
    let message = path::id("message", &message, MessageId::parse)?;
    Ok(Some(match after {
        Some(cursor) => cursor,
        None => Cursor::at(store_reads::before(hub.store(), thread, &message).await?),
    }))
}

fn parsed(text: &str) -> Result<Cursor, Problem> {
    Cursor::parse(text).map_err(|error| bad_cursor(error.to_string()))
}

fn bad_cursor(detail: String) -> Problem {
    Problem::bad_request("invalid_cursor", detail)
}
