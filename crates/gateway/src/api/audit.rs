//! The audit log of threads and agents.

use axum::response::Response;
use http_server::error::{ErrorCode, Problem};
use http_server::extract::path::{self, PathParam};
use http_server::extract::query::{self, QueryParams};
use model::CommandId;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::AuditRow;
use utoipa::{IntoParams, ToSchema};

use crate::api::respond::json_no_store;
use crate::api::{agents, threads, views};
use crate::app::request_context::RequestContext;
use crate::commands::control;
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::schemas;
use crate::openapi::tags::{AGENTS, THREADS};

pub(crate) fn operations() -> Vec<Operation> {
    vec![
        Operation::get("/v1/agents/{agent}/audit", "auditAgent", "Show the audit log of an agent", of_agent)
            .tag(AGENTS)
            .scope(Scope::ReadAudit)
            .query::<AuditQuery>()
            .response::<AuditPage>(200, "Entries of the audit log, newest first", page_example())
            .errors(&[ErrorCode::UnknownAgent, ErrorCode::InvalidLimit]),
        Operation::get(
            "/v1/threads/{thread}/audit",
            "auditThread",
            "Show the audit log of a thread: who stopped, retried or dropped turns",
            of_thread,
        )
        .tag(THREADS)
        .scope(Scope::ReadAudit)
        .query::<AuditQuery>()
        .response::<AuditPage>(200, "Entries of the audit log, newest first", page_example())
        .errors(&[
            ErrorCode::UnknownThread,
            ErrorCode::PartitionUnavailable,
            ErrorCode::InvalidLimit,
        ]),
    ]
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct AuditQuery {
    /// `next` of the previous page.
    #[param(value_type = Option<schemas::CommandIdSchema>)]
    next: Option<String>,
    #[param(value_type = Option<schemas::Limit>)]
    limit: Option<String>,
}

/// A page of the audit log, newest entries first.
#[derive(Serialize, ToSchema)]
pub(crate) struct AuditPage {
    /// The id of the thread or agent, or the name of the budget or key, that the log is about.
    subject_id: String,
    entries: Vec<AuditEntry>,
    #[schema(value_type = schemas::NextPage, required)]
    next: Option<String>,
}

/// A control command and its outcome.
#[derive(Serialize, ToSchema)]
pub(crate) struct AuditEntry {
    #[schema(value_type = schemas::CommandIdSchema)]
    command_id: String,
    actor: String,
    action: String,
    /// The task, turn, budget or key that the command was about; null when it was about the subject
    /// itself.
    #[schema(required)]
    target: Option<String>,
    /// Further details, such as what a key grants; null when there are none.
    #[schema(required)]
    detail: Option<String>,
    #[schema(value_type = schemas::CommandStatusSchema)]
    status: &'static str,
    /// The reason of the rejection; null unless the command was rejected.
    #[schema(required)]
    error: Option<String>,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    created_at: Option<String>,
}

pub(crate) async fn of_agent(
    ctx: RequestContext,
    PathParam(agent): PathParam<String>,
    QueryParams(query): QueryParams<AuditQuery>,
) -> Result<Response, Problem> {
    let (agent, backend) = (ctx.queue(&agent)?, ctx.backend()?);

    let page = audit(&ctx, agent.as_str(), agent.name(), query).await?;
    if page.entries.is_empty() && backend.store().agent(&agent).await?.is_none() {
        return Err(agents::unknown());
    }
    Ok(json_no_store(page))
}

pub(crate) async fn of_thread(
    ctx: RequestContext,
    PathParam(thread): PathParam<String>,
    QueryParams(query): QueryParams<AuditQuery>,
) -> Result<Response, Problem> {
    let (thread, backend) = (ctx.thread(&thread)?, ctx.backend()?);

    let page = audit(&ctx, thread.as_str(), thread.name(), query).await?;
    if page.entries.is_empty() && backend.store().thread(&thread).await?.is_none() {
        threads::check_begun(backend, &thread).await?;
    }
    Ok(json_no_store(page))
}

pub(crate) async fn audit(
    ctx: &RequestContext,
    subject: &str,
    name: &str,
    page: AuditQuery,
) -> Result<AuditPage, Problem> {
    let limit = query::limit(page.limit.as_deref())?;
    let before = page.next.map(|id| path::id("next", &id, CommandId::parse)).transpose()?;
    let before = before.as_ref();
    let rows = ctx.read(move |store| async move { store.control_log(subject, before, limit + 1).await });
    let mut rows = rows.await?;
    let next = query::next(&mut rows, limit, |last| last.command_id.as_str().to_owned());
    let entries = rows.into_iter().map(AuditEntry::from).collect();
    Ok(AuditPage { subject_id: name.to_owned(), entries, next })
}

impl AuditPage {
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl From<AuditRow> for AuditEntry {
    fn from(row: AuditRow) -> Self {
        Self {
            command_id: row.command_id.as_str().to_owned(),
            status: control::decided(row.error.as_deref()),
            actor: row.actor,
            action: row.action,
            target: row.target,
            detail: row.detail,
            error: row.error,
            created_at: views::rfc3339(row.created_at),
        }
    }
}

/// The example of every audit log.
pub(crate) fn page_example() -> Value {
    let act = json!({
        "command_id": "0198c4d2e5f5", "actor": "ann@example.org", "action": "stop_turn",
        "target": "u01f3-0198c4d2e5f5", "detail": null, "status": "done", "error": null,
        "created_at": "2026-11-22T11:49:44.123Z",
    });
    json!({ "subject_id": "hello", "entries": [act], "next": null })
}
