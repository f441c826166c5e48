//! The event streams of threads.

use axum::extract::Extension;
use axum::http::HeaderMap;
use axum::response::Response;
use feed::Subscription;
use http_server::error::{ErrorCode, Problem};
use http_server::extract::path;
use http_server::extract::path::PathParam;
use http_server::extract::query::QueryParams;
use http_server::transport::extensions::ConnectionHandle;
use model::{MessageId, ThreadId};
use protocols::Cursor;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::app::request_context::RequestContext;
use crate::backend::Backend;
use crate::openapi::error_codes::STREAM;
use crate::openapi::events::Stream;
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::response::ResponseSpec;
use crate::openapi::schemas;
use crate::openapi::tags::THREADS;
use crate::streaming::response;
use crate::streaming::resume;
use crate::streaming::store_reads;

pub(crate) fn operations() -> Vec<Operation> {
    vec![
        Operation::get("/v1/threads/{thread}/events", "followThread", "Stream the events of a thread", stream_events)
            .tag(THREADS)
            .description(
                "A new client receives all open messages, then new events. With an event id as `Last-Event-ID` or `after`, the stream continues directly after that event, on any gateway, with every message that was stored or failed since. If the cursor cannot be checked within two seconds, the stream begins, and sends `restart` if it is invalid. Comments may appear between events. \
                 By itself the stream ends only after `drain` or `auth_expired`.",
            )
            .scope(Scope::ReadThreads)
            .opened_by_tickets()
            .query::<EventsQuery>()
            .last_event_id_header()
            .response_with(ResponseSpec::stream("The stream", &Stream::Native))
            .errors(&STREAM)
            .errors(&[ErrorCode::InvalidCursor, ErrorCode::UnknownCursor, ErrorCode::CursorAhead])
            .with_schemas_of(Stream::Native),
    ]
}

#[derive(Debug, Deserialize, IntoParams)]
pub(crate) struct EventsQuery {
    /// Starts strictly after this event, or after the message at this position.
    #[param(value_type = Option<schemas::CursorSchema>)]
    after: Option<String>,
    /// A message that is shown from its beginning, even if it has ended or failed; the stream goes
    /// on after it.
    #[param(value_type = Option<schemas::MessageIdSchema>)]
    message: Option<String>,
    /// A ticket for these events alone, for clients that cannot send headers.
    // Read by the authorization layer.
    #[serde(rename = "ticket")]
    #[param(value_type = Option<schemas::TicketSchema>)]
    _ticket: Option<String>,
}

pub(crate) async fn stream_events(
    ctx: RequestContext,
    PathParam(thread): PathParam<String>,
    QueryParams(query): QueryParams<EventsQuery>,
    Extension(connection): Extension<ConnectionHandle>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let thread = ctx.thread(&thread)?;
    ctx.check_follows(&thread)?;
    let backend = ctx.backend()?;
    // The opening is counted before anything is read: a stream does not count as a request, so only
    // this count bounds its reads.
    ctx.count_opening()?;
    let (send_queue, mut body, place) = ctx.send_queue(connection)?;
    let cursor = match resume::last_event_id(&headers)? {
        Some(cursor) => {
            resume::validate_cursor(backend, &thread, &cursor).await?;
            Some(cursor)
        }
        None => cursor_of(backend, &thread, query).await?,
    };
    let (permit, verdict) = ctx
        .feeds()?
        .subscribe(&thread, send_queue, cursor, Subscription::Thread)
        .map_err(response::refused)?;
    body.keep(permit, place);
    response::until_verdict(verdict).await?;
    Ok(response::stream(body))
}

/// The cursor to start from. With `message`, the reader has received nothing of that message: the
/// stream shows it whole, even if it has ended, and then every message that ends after it.
async fn cursor_of(
    backend: &Backend,
    thread: &ThreadId,
    query: EventsQuery,
) -> Result<Option<Cursor>, Problem> {
    let after = query.after.as_deref().map(resume::parsed).transpose()?;
    if let Some(cursor) = &after {
        resume::validate_cursor(backend, thread, cursor).await?;
    }
    let Some(message) = query.message else { return Ok(after) };
    let message = path::id("message", &message, MessageId::parse)?;
    Ok(Some(match after {
        Some(cursor) => cursor,
        None => Cursor::at(store_reads::before(backend.store(), thread, &message).await?),
    }))
}
