//! Tickets for clients that cannot send headers: a browser's `EventSource`.

use auth::ticket::USUAL_LIFETIME_S;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_server::error::{ErrorCode, Problem};
use http_server::extract::body::{JsonBody, MaxBodySize};
use http_server::extract::path::PathParam;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use crate::api::respond::json_no_store;
use crate::api::views;
use crate::app::request_context::RequestContext;
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::schemas;
use crate::openapi::tags::KEYS;

const TICKET: &str = "tkt_AQAAAABrAt5S.TrX4ZWJPhrtYuJP8Ldpu60GX7eAJzh_avXwijILLKY4";

pub(crate) fn operations() -> Vec<Operation> {
    let url = format!("/v1/threads/hello/events?ticket={TICKET}");
    let ticket = json!({ "ticket": TICKET, "expires_at": "2026-11-22T12:21:38Z", "events_url": url });
    let place = json!({ "type": "string", "format": "uri-reference" });
    vec![
        Operation::post("/v1/threads/{thread}/tickets", "makeTicket", "Create a ticket for the events of a thread", create)
            .tag(KEYS)
            .description("For clients that cannot send headers, such as a browser's EventSource. It opens the events of this thread and nothing else.")
            .scope(Scope::ReadThreads)
            .body::<TicketBody>(json!({ "lifetime_s": 300 }))
            .response::<TicketView>(201, "The ticket", ticket)
            .with_header("Location", "The URL of the events.", place)
            .errors(&[ErrorCode::InvalidTicket]),
    ]
}

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
