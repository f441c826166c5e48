//! Exports: a thread, or all threads of the tenant, as JSON Lines that are streamed.
//!
//! The response is the file that `antiphon database export` writes. The database is read only as
//! fast as the client reads: two parts of the response are in memory. A response without the
//! trailer was cut; its connection is reset, so that clients notice.

use std::time::Duration;

use ::transfer::{ExportOptions, ExportScope, ExportSink};
use auth::Permission;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use http_server::error::{ErrorCode, Problem};
use http_server::extract::body::JSON_LINES;
use http_server::extract::path::PathParam;
use runtime::spawn_named;
use store::StoreError;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::api::threads;
use crate::app::request_context::RequestContext;
use crate::backend::transfer_places::TransferPlace;
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::response::ResponseSpec;
use crate::openapi::tags::THREADS;

pub(crate) fn operations() -> Vec<Operation> {
    let lines = || ResponseSpec::text(200, "Lines of JSON; the last one has `trailer`", JSON_LINES);
    vec![
        Operation::get("/v1/threads/{thread}/export", "exportThread", "Export a thread", of_thread)
            .tag(THREADS)
            .description("Lines for imports: the thread as it is now, its messages, compactions and follow-ups; with the scope `reasoning:read` also the reasoning sessions made from it. Without a last line `{\"trailer\": …}` it was cut.")
            .scope(Scope::ReadThreads)
            .response_with(lines())
            .errors(&[ErrorCode::UnknownThread, ErrorCode::PartitionUnavailable, ErrorCode::DatabaseBusy]),
        Operation::get("/v1/export", "exportTenant", "Export all threads of the tenant", of_tenant)
            .tag(THREADS)
            .description("The same for all threads, each as it is when it is written, and all reasoning sessions.")
            .scope(Scope::ExportData)
            .response_with(lines())
            .errors(&[ErrorCode::DatabaseBusy]),
    ]
}

/// Bytes that are collected before they are sent.
const PART_BYTES: usize = 64 << 10;
/// Parts that wait for the client.
const PARTS: usize = 2;
/// Interval at which the credential is checked.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Smaller pages than those of the command: several exports run in a gateway.
const OPTIONS: ExportOptions = ExportOptions { page_messages: 500, page_bytes: 1 << 20, has_sessions: true };

async fn of_thread(
    ctx: RequestContext,
    PathParam(thread): PathParam<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let (thread, backend) = (ctx.thread(&thread)?, ctx.backend()?);
    if backend.store().thread(&thread).await?.is_none() {
        threads::check_begun(backend, &thread).await?;
    }
    let has_sessions = ctx.principal().has_permission(Permission::ReadReasoning);
    let name = format!("{}.jsonl", thread.name());
    export(ctx, &headers, ExportScope::Threads(vec![thread]), has_sessions, &name).await
}

async fn of_tenant(ctx: RequestContext, headers: HeaderMap) -> Result<Response, Problem> {
    let scope = ExportScope::Tenant(ctx.tenant().cloned());
    export(ctx, &headers, scope, true, "threads.jsonl").await
}

async fn export(
    ctx: RequestContext,
    headers: &HeaderMap,
    scope: ExportScope,
    has_sessions: bool,
    name: &str,
) -> Result<Response, Problem> {
    let actor = ctx.actor(headers)?;
    let place = ctx.backend()?.exports().take(ctx.tenant()).await;
    let place = place.ok_or_else(|| Problem::from(ErrorCode::DatabaseBusy))?;
    let (parts, received) = mpsc::channel(PARTS);
    let sink = PartSink { parts, part: Vec::new(), ctx, checked_at: Instant::now() };
    spawn_named("export to a client", write(sink, scope, has_sessions, actor, place));
    let body = stream::unfold(received, |mut received| async {
        let part: Option<Result<Bytes, ExportCut>> = received.recv().await;
        part.map(|part| (part, received))
    });
    let mut response = json_lines(Body::from_stream(body));
    let set = response.headers_mut();
    // Names of threads have no characters that must be escaped.
    if let Ok(file) = HeaderValue::from_str(&format!("attachment; filename=\"{name}\"")) {
        set.insert(header::CONTENT_DISPOSITION, file);
    }
    Ok(response)
}

/// A response of lines that proxies pass on as they come.
pub(crate) fn json_lines(body: Body) -> Response {
    let mut response = Response::new(body);
    let set = response.headers_mut();
    set.insert(header::CONTENT_TYPE, HeaderValue::from_static(JSON_LINES));
    set.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    set.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    set.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

/// Writes the export to its end, or until the client has gone. Dropping `_place` then frees its
/// place.
async fn write(
    mut sink: PartSink,
    scope: ExportScope,
    has_sessions: bool,
    actor: String,
    _place: TransferPlace,
) {
    let Ok(store) = sink.ctx.store().cloned() else { return };
    let options = ExportOptions { has_sessions, ..OPTIONS };
    let written = ::transfer::export(&store, &scope, options, &mut sink).await;
    let ended = match written {
        Ok(exported) => sink.flush().await.map(|()| exported),
        Err(error) => Err(error),
    };
    match ended {
        Ok(exported) => {
            let counts = exported.counts;
            tracing::info!(
                actor,
                threads = counts.threads,
                messages = counts.messages,
                "an export has ended"
            );
        }
        Err(ExportCut::ClientGone) => tracing::info!(actor, "the client of an export has gone"),
        Err(error) => {
            tracing::warn!(actor, %error, "an export was cut");
            // An error ends the connection without the end of its body.
            let _ = sink.parts.send(Err(error)).await;
        }
    }
}

/// Why an export ends before its trailer.
#[derive(Debug, thiserror::Error)]
enum ExportCut {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the credential is no longer valid")]
    CredentialEnded,
    #[error("the client has gone")]
    ClientGone,
}

/// Sends lines to the client in parts.
struct PartSink {
    parts: mpsc::Sender<Result<Bytes, ExportCut>>,
    part: Vec<u8>,
    ctx: RequestContext,
    checked_at: Instant,
}

impl PartSink {
    async fn flush(&mut self) -> Result<(), ExportCut> {
        let part = Bytes::from(std::mem::take(&mut self.part));
        self.parts.send(Ok(part)).await.map_err(|_| ExportCut::ClientGone)
    }
}

impl ExportSink for PartSink {
    type Error = ExportCut;

    async fn write(&mut self, lines: String) -> Result<(), ExportCut> {
        self.part.extend_from_slice(lines.as_bytes());
        if self.part.len() < PART_BYTES {
            return Ok(());
        }
        if self.checked_at.elapsed() >= CHECK_INTERVAL {
            if self.ctx.has_ended().await {
                return Err(ExportCut::CredentialEnded);
            }
            self.checked_at = Instant::now();
        }
        self.flush().await
    }
}
