//! The audit log of threads and agents.

use axum::response::Response;
use model::CommandId;
use serde::{Deserialize, Serialize};
use store::AuditRow;
use utoipa::{IntoParams, ToSchema};

use crate::api::respond::json_no_store;
use crate::api::{agents, schemas, threads, views};
use crate::app::request_context::RequestContext;
use crate::backend::Backend;
use crate::error::Problem;
use crate::extract::path::{self, PathParam};
use crate::extract::query::{self, QueryParams};

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct AuditQuery {
    /// `next` of the page before.
    #[param(value_type = Option<schemas::ActName>)]
    next: Option<String>,
    #[param(value_type = Option<schemas::Limit>)]
    limit: Option<String>,
}

/// Acts, newest first.
#[derive(Serialize, ToSchema)]
pub(crate) struct AuditPage {
    /// The thread or agent.
    subject_id: String,
    acts: Vec<AuditedAct>,
    /// Where the next page begins; null on the last one.
    #[schema(required)]
    next: Option<String>,
}

/// What somebody did.
#[derive(Serialize, ToSchema)]
pub(crate) struct AuditedAct {
    #[schema(value_type = schemas::ActName)]
    act_id: String,
    actor: String,
    what: String,
    /// The task or turn that it was about.
    #[schema(required)]
    target: Option<String>,
    done: bool,
    /// Why not.
    #[schema(required)]
    refused: Option<String>,
    #[schema(value_type = Option<schemas::Moment>, required)]
    at: Option<String>,
}

pub(crate) async fn of_agent(
    ctx: RequestContext,
    PathParam(agent): PathParam<String>,
    QueryParams(query): QueryParams<AuditQuery>,
) -> Result<Response, Problem> {
    let (agent, backend) = (ctx.queue(&agent)?, ctx.backend()?);

    let page = audit(backend, agent.as_str(), agent.name(), query).await?;
    if page.acts.is_empty() && backend.store().agent(&agent).await?.is_none() {
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

    let page = audit(backend, thread.as_str(), thread.name(), query).await?;
    if page.acts.is_empty() && backend.store().thread(&thread).await?.is_none() {
        threads::check_begun(backend, &thread).await?;
    }
    Ok(json_no_store(page))
}

pub(crate) async fn audit(
    backend: &Backend,
    subject: &str,
    name: &str,
    page: AuditQuery,
) -> Result<AuditPage, Problem> {
    let limit = query::limit(page.limit.as_deref())?;
    let before = page.next.map(|id| path::id("next", &id, CommandId::parse)).transpose()?;
    let mut acts = backend.store().acts(subject, before.as_ref(), limit + 1).await?;
    let next = query::next(&mut acts, limit, |last| last.command_id.as_str().to_owned());
    let acts = acts.into_iter().map(AuditedAct::from).collect();
    Ok(AuditPage { subject_id: name.to_owned(), acts, next })
}

impl From<AuditRow> for AuditedAct {
    fn from(row: AuditRow) -> Self {
        Self {
            act_id: row.command_id.as_str().to_owned(),
            done: row.error.is_none(),
            actor: row.actor,
            what: row.action,
            target: row.target,
            refused: row.error,
            at: views::rfc3339(row.created_at),
        }
    }
}
