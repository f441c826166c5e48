//! Tickets for clients that cannot send headers: a browser's `EventSource`.

use auth::ticket::USUAL_LIFETIME_S;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_server::error::Problem;
use http_server::extract::body::{JsonBody, MaxBodySize};
use http_server::extract::path::PathParam;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api::respond::json_no_store;
use crate::api::schemas;
use crate::api::views;
use crate::app::request_context::RequestContext;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TicketBody {
    /// How long the ticket is valid, in seconds; 300 by default.
    #[schema(minimum = 1, maximum = 900)]
    lifetime_s: Option<u32>,
}

impl MaxBodySize for TicketBody {
    const MAX_BYTES: usize = 1 << 10;
}

#[derive(Serialize, ToSchema)]
pub(crate) struct TicketView {
    ticket: String,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    expires_at: Option<String>,
    events_url: String,
}

pub(crate) async fn create(
    ctx: RequestContext,
    PathParam(thread): PathParam<String>,
    JsonBody(body): JsonBody<TicketBody>,
) -> Result<Response, Problem> {
    let thread = ctx.thread(&thread)?;
    let ticket = ctx.ticket(&thread, body.lifetime_s.unwrap_or(USUAL_LIFETIME_S))?;
    let events_url = format!("/v1/threads/{}/events?ticket={}", thread.name(), ticket.text);
    let place = [(header::LOCATION, events_url.clone())];
    let shown = TicketView { ticket: ticket.text, expires_at: views::rfc3339(ticket.expires_at), events_url };
    Ok((StatusCode::CREATED, place, json_no_store(shown)).into_response())
}
