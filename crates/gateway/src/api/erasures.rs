//! Erasures: requests to erase a thread, a user or a tenant, and their receipts. Workers execute
//! them.

use std::collections::BTreeMap;

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_server::error::{ErrorCode, Problem};
use http_server::extract::body::EmptyBody;
use http_server::extract::path::{self, PathParam};
use http_server::extract::query;
use http_server::extract::query::QueryParams;
use model::{Tenant, ThreadId};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::{
    ErasedData, ErasedKind, ErasedOwner, ErasureId, ErasureRow, ErasureState, MAX_OPEN_ERASURES, NewErasure,
};
use utoipa::{IntoParams, ToSchema};

use crate::api::respond::json_no_store;
use crate::api::{threads, views};
use crate::app::request_context::RequestContext;
use crate::commands::control;
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::schemas;
use crate::openapi::tags::ERASURES;

pub(crate) fn operations() -> Vec<Operation> {
    let place = || json!({ "type": "string", "format": "uri-reference" });
    let requested = |operation: Operation| {
        operation
            .tag(ERASURES)
            .scope(Scope::EraseData)
            .actor_header()
            .query::<EraseQuery>()
            .no_body()
            .response::<ErasureView>(202, "The erasure, which a worker does", erasure_example())
            .with_header("Location", "The URL of the erasure.", place())
            .errors(&[ErrorCode::TooManyErasures])
    };
    vec![
        requested(Operation::delete("/v1/threads/{thread}", "eraseThread", "Erase a thread", erase_thread))
            .description("Deletes everything that Postgres and NATS have of the thread, turns in progress included; for the thread of an agent also its tasks, schedules, facts and usage. Its id can be used again when the erasure is done. While an erasure of the thread has not ended, the same request returns it.")
            .errors(&[ErrorCode::UnknownThread, ErrorCode::PartitionUnavailable]),
        requested(Operation::delete("/v1/users/{user}", "eraseUser", "Erase a user", erase_user))
            .description("Deletes the threads whose metadata has this `user_id`, the user's facts and budgets, and the user's name in the audit log. If nothing is stored of a user, the receipt counts nothing."),
        requested(Operation::delete("/v1/tenants/{tenant}", "eraseTenant", "Erase a tenant", erase_tenant))
            .description("Deletes everything of the tenant: threads, agents, settings, budgets, keys. Its name cannot be used until it is reopened. The default tenant cannot be erased here.")
            .errors(&[ErrorCode::DefaultTenantOnly]),
        Operation::get("/v1/erasures", "listErasures", "List erasures", list)
            .tag(ERASURES)
            .scope(Scope::EraseData)
            .query::<ErasuresQuery>()
            .response::<ErasuresPage>(200, "Erasures, newest first", json!({ "erasures": [erasure_example()], "next": null }))
            .errors(&[ErrorCode::InvalidLimit]),
        Operation::get("/v1/erasures/{erasure}", "showErasure", "Show an erasure with its receipt", get)
            .tag(ERASURES)
            .description("Receipts are kept as long as the marks of erased threads: 90 days by default.")
            .scope(Scope::EraseData)
            .response::<ErasureView>(200, "The erasure", done_example())
            .errors(&[ErrorCode::UnknownErasure]),
    ]
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct EraseQuery {
    /// Whether everything is only counted: nothing is erased.
    #[serde(default)]
    dry_run: bool,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct ErasuresQuery {
    /// Only erasures in this state.
    #[param(value_type = Option<schemas::ErasureStateSchema>)]
    state: Option<String>,
    /// `next` of the previous page.
    #[param(value_type = Option<schemas::ErasureIdSchema>)]
    next: Option<String>,
    #[param(value_type = Option<schemas::Limit>)]
    limit: Option<String>,
}

/// Erasures, newest first.
#[derive(Serialize, ToSchema)]
pub(crate) struct ErasuresPage {
    erasures: Vec<ErasureView>,
    /// Value of `next` for the next page; null on the last page.
    #[schema(required)]
    next: Option<String>,
}

/// A request to erase data, and its progress.
#[derive(Serialize, ToSchema)]
pub(crate) struct ErasureView {
    #[schema(value_type = schemas::ErasureIdSchema)]
    erasure_id: String,
    #[schema(value_type = schemas::ErasedKindSchema)]
    kind: &'static str,
    #[schema(value_type = Option<schemas::ThreadIdSchema>, required)]
    thread_id: Option<String>,
    /// The user; null as soon as the user is erased.
    #[schema(required)]
    user_id: Option<String>,
    #[schema(required)]
    tenant: Option<String>,
    /// Whether everything is only counted.
    dry_run: bool,
    #[schema(value_type = schemas::ErasureStateSchema)]
    state: &'static str,
    actor: String,
    /// Number of attempts, each begun by a worker.
    attempts: u32,
    /// What the last attempt left, or why it could not erase anything.
    #[schema(required)]
    error: Option<String>,
    /// When a worker tries again.
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    next_attempt_at: Option<String>,
    #[schema(value_type = schemas::TimestampSchema)]
    created_at: Option<String>,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    started_at: Option<String>,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    ended_at: Option<String>,
    counts: ErasedCountsView,
    /// Null until the erasure has ended.
    #[schema(required)]
    receipt: Option<ErasureReceipt>,
}

/// What was removed so far, over all attempts.
#[derive(Serialize, ToSchema)]
pub(crate) struct ErasedCountsView {
    threads: u64,
    /// Deleted rows by table.
    tables: BTreeMap<String, u64>,
    /// Deleted entries by stream.
    streams: BTreeMap<String, u64>,
}

/// What was erased where, what is left, and what no erasure reaches.
#[derive(Serialize, Deserialize, ToSchema)]
pub(crate) struct ErasureReceipt {
    /// False for a dry run.
    erased: bool,
    threads: u64,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    erased_at: Option<String>,
    /// Rows by table. For a thread they are the sums of all its erasures.
    tables: BTreeMap<String, u64>,
    /// Entries by stream.
    streams: BTreeMap<String, u64>,
    /// Places where data is left, with the reason.
    #[serde(default)]
    pending: BTreeMap<String, String>,
    /// Milliseconds by what they were spent on: `queue` (before a worker began the last attempt),
    /// `postgres` (rows), `streams` (until owners have read their streams), `caches` (until other
    /// processes have dropped what they had in memory).
    #[serde(default)]
    spent_ms: BTreeMap<String, u64>,
    /// Places that no erasure reaches, with what may be there.
    #[serde(default)]
    elsewhere: BTreeMap<String, String>,
}

impl ErasureView {
    fn new(row: ErasureRow) -> Self {
        // A receipt of another version must not make the whole list unreadable.
        let receipt = row.receipt.and_then(|stored| {
            let unreadable =
                |error: &_| tracing::error!(erasure = %row.id, %error, "the stored receipt cannot be read");
            serde_json::from_value(stored).inspect_err(unreadable).ok()
        });
        let subject = |kind| row.subject.clone().filter(|_| row.kind == kind);
        let thread = subject(ErasedKind::Thread).and_then(|id| ThreadId::parse(&id).ok());
        Self {
            erasure_id: row.id.to_string(),
            thread_id: thread.map(|thread| thread.name().to_owned()),
            user_id: subject(ErasedKind::User),
            tenant: subject(ErasedKind::Tenant),
            dry_run: row.is_preview,
            state: row.state.name(),
            actor: row.actor,
            attempts: row.attempts,
            error: row.error,
            next_attempt_at: row.next_attempt_at.and_then(views::rfc3339),
            created_at: views::rfc3339(row.created_at),
            started_at: row.started_at.and_then(views::rfc3339),
            ended_at: row.ended_at.and_then(views::rfc3339),
            counts: ErasedCountsView {
                threads: row.counts.threads,
                tables: row.counts.tables,
                streams: row.counts.streams,
            },
            receipt,
            kind: row.kind.name(),
        }
    }
}

pub(crate) async fn erase_thread(
    ctx: RequestContext,
    PathParam(thread): PathParam<String>,
    QueryParams(query): QueryParams<EraseQuery>,
    headers: HeaderMap,
    _: EmptyBody,
) -> Result<Response, Problem> {
    let (thread, backend) = (ctx.thread(&thread)?, ctx.backend()?);
    let store = backend.store();
    let is_known = store.thread(&thread).await?.is_some()
        || store.erased(&thread).await?.is_some()
        || store.has_rows(&thread).await?;
    if !is_known {
        threads::check_begun(backend, &thread).await?;
    }
    request(&ctx, &headers, ErasedData::Thread(thread), query.dry_run).await
}

pub(crate) async fn erase_user(
    ctx: RequestContext,
    PathParam(user): PathParam<String>,
    QueryParams(query): QueryParams<EraseQuery>,
    headers: HeaderMap,
    _: EmptyBody,
) -> Result<Response, Problem> {
    if !(1..=schemas::MAX_USER_LEN).contains(&user.len()) || user.contains('\0') {
        let detail = format!(
            "user: it must have 1 to {} bytes, and no NUL character; \
             `antiphon erase --user` erases users with longer names",
            schemas::MAX_USER_LEN
        );
        return Err(Problem::new(ErrorCode::InvalidId, detail));
    }
    let owner = ErasedOwner::User(ctx.tenant().cloned(), user);
    request(&ctx, &headers, ErasedData::Owner(owner), query.dry_run).await
}

pub(crate) async fn erase_tenant(
    ctx: RequestContext,
    PathParam(tenant): PathParam<String>,
    QueryParams(query): QueryParams<EraseQuery>,
    headers: HeaderMap,
    _: EmptyBody,
) -> Result<Response, Problem> {
    ctx.check_operates_installation("tenants")?;
    if tenant == "-" {
        let detail = "tenant: the default tenant operates the installation and would refuse its own \
                      credentials; `antiphon erase --tenant -` erases it";
        return Err(Problem::new(ErrorCode::InvalidId, detail));
    }
    let tenant = path::id("tenant", &tenant, Tenant::parse)?;
    let owner = ErasedOwner::Tenant(Some(tenant));
    request(&ctx, &headers, ErasedData::Owner(owner), query.dry_run).await
}

async fn request(
    ctx: &RequestContext,
    headers: &HeaderMap,
    data: ErasedData,
    is_preview: bool,
) -> Result<Response, Problem> {
    let (actor, id) = (ctx.actor(headers)?, control::new_id()?);
    let id = ErasureId::parse(id.as_str()).ok_or_else(|| Problem::from(ErrorCode::InternalError))?;
    let new = NewErasure { id, tenant: ctx.tenant().cloned(), data, is_preview, actor };
    let row = ctx.store()?.request_erasure(&new).await?.ok_or_else(|| {
        let detail =
            format!("{MAX_OPEN_ERASURES} erasures have not ended: wait for them, see GET /v1/erasures");
        Problem::new(ErrorCode::TooManyErasures, detail)
    })?;
    tracing::info!(erasure = %row.id, kind = row.kind.name(), actor = row.actor, is_preview, "an erasure was requested");
    let place = [(header::LOCATION, format!("/v1/erasures/{}", row.id))];
    Ok((StatusCode::ACCEPTED, place, json_no_store(ErasureView::new(row))).into_response())
}

pub(crate) async fn list(
    ctx: RequestContext,
    QueryParams(query): QueryParams<ErasuresQuery>,
) -> Result<Response, Problem> {
    let state = query.state.map(|name| {
        let all = ErasureState::ALL.map(ErasureState::name).join(", ");
        let wrong = || Problem::new(ErrorCode::InvalidQuery, format!("state must be one of {all}"));
        ErasureState::from_name(&name).ok_or_else(wrong)
    });
    let state = state.transpose()?;
    let before = query.next.map(|id| erasure_id("next", &id)).transpose()?;
    let limit = query::limit(query.limit.as_deref())?;
    let mut rows = ctx.store()?.erasures(ctx.tenant(), state, before.as_ref(), limit + 1).await?;
    let next = query::next(&mut rows, limit, |last| last.id.to_string());
    let erasures = rows.into_iter().map(ErasureView::new).collect();
    Ok(json_no_store(ErasuresPage { erasures, next }))
}

pub(crate) async fn get(
    ctx: RequestContext,
    PathParam(erasure): PathParam<String>,
) -> Result<Response, Problem> {
    let id = erasure_id("erasure", &erasure)?;
    let row = ctx.store()?.erasure(ctx.tenant(), &id).await?;
    let row = row.ok_or_else(|| Problem::from(ErrorCode::UnknownErasure))?;
    Ok(json_no_store(ErasureView::new(row)))
}

fn erasure_id(name: &str, text: &str) -> Result<ErasureId, Problem> {
    let detail = || format!("{name}: the id of an erasure has 32 hexadecimal digits");
    ErasureId::parse(text).ok_or_else(|| Problem::new(ErrorCode::InvalidId, detail()))
}

fn erasure_example() -> Value {
    json!({
        "erasure_id": "0198c4d2e5f57a60b1d3c8a94e27f610", "kind": "thread", "thread_id": "hello", "user_id": null, "tenant": null,
        "dry_run": false, "state": "queued", "actor": "key:fedcba9876543210/ada", "attempts": 0, "error": null,
        "next_attempt_at": null, "created_at": "2026-11-22T11:49:44.123Z", "started_at": null, "ended_at": null,
        "counts": { "threads": 0, "tables": {}, "streams": {} }, "receipt": null,
    })
}

fn done_example() -> Value {
    let (tables, streams) = (json!({ "messages": 2, "threads": 1 }), json!({ "PARTITION_3": 4, "TURNS": 1 }));
    let mut done = erasure_example();
    done["state"] = json!("done");
    done["attempts"] = json!(1);
    done["started_at"] = json!("2026-11-22T11:49:44.512Z");
    done["ended_at"] = json!("2026-11-22T11:49:46.803Z");
    done["counts"] = json!({ "threads": 1, "tables": tables, "streams": streams });
    done["receipt"] = json!({
        "erased": true, "threads": 1, "erased_at": "2026-11-22T11:49:44.530Z",
        "tables": tables, "streams": streams, "pending": {},
        "spent_ms": { "queue": 389, "postgres": 310, "streams": 1_402, "caches": 500 },
        "elsewhere": { "copies": "backups of Postgres and of NATS, exports, and forks of the threads" },
    });
    done
}
