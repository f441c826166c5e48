//! Names of erased tenants: nothing is accepted for them until they are reopened.

use axum::http::HeaderMap;
use axum::response::Response;
use http_server::error::{ErrorCode, Problem};
use http_server::extract::body::EmptyBody;
use http_server::extract::path::{self, PathParam};
use http_server::extract::query::{self, QueryParams};
use model::Tenant;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::{ErasedTenant, ReopenedTenant, tenant_subject};
use utoipa::{IntoParams, ToSchema};

use crate::api::audit;
use crate::api::audit::{AuditPage, AuditQuery};
use crate::api::respond::json_no_store;
use crate::api::views;
use crate::app::request_context::RequestContext;
use crate::commands::control;
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::schemas;
use crate::openapi::tags::ERASURES;

pub(crate) fn operations() -> Vec<Operation> {
    let page = json!({ "tenants": [mark_example()], "next": null });
    vec![
        Operation::get("/v1/erased-tenants", "listErasedTenants", "List the erased tenants", list)
            .tag(ERASURES)
            .description(
                "Their names cannot be used until they are reopened, or until the mark has its maximum age.",
            )
            .scope(Scope::EraseData)
            .query::<ErasedTenantsQuery>()
            .response::<ErasedTenantsPage>(200, "Erased tenants, ordered by name", page)
            .errors(&[ErrorCode::DefaultTenantOnly, ErrorCode::InvalidLimit]),
        Operation::post(
            "/v1/tenants/{tenant}/reopen",
            "reopenTenant",
            "Reopen the name of an erased tenant",
            reopen,
        )
        .tag(ERASURES)
        .description("Every client with a credential for the tenant can use it again.")
        .scope(Scope::EraseData)
        .actor_header()
        .no_body()
        .response::<ReopenedName>(200, "Reopened", json!({ "reopened": "acme" }))
        .errors(&[
            ErrorCode::DefaultTenantOnly,
            ErrorCode::UnknownTenant,
            ErrorCode::TenantBeingErased,
        ]),
        Operation::get(
            "/v1/tenants/{tenant}/audit",
            "auditTenant",
            "Show who reopened the name of a tenant",
            audit_log,
        )
        .tag(ERASURES)
        .scope(Scope::ReadAudit)
        .query::<AuditQuery>()
        .response::<AuditPage>(200, "Entries of the audit log, newest first", audit::page_example())
        .errors(&[ErrorCode::DefaultTenantOnly, ErrorCode::InvalidLimit]),
    ]
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct ErasedTenantsQuery {
    /// `next` of the previous page.
    #[param(value_type = Option<schemas::MarkedTenantSchema>)]
    next: Option<String>,
    #[param(value_type = Option<schemas::Limit>)]
    limit: Option<String>,
}

/// Erased tenants, ordered by name.
#[derive(Serialize, ToSchema)]
pub(crate) struct ErasedTenantsPage {
    tenants: Vec<ErasedTenantView>,
    #[schema(value_type = schemas::NextPage, required)]
    next: Option<String>,
}

/// The mark of an erased tenant.
#[derive(Serialize, ToSchema)]
pub(crate) struct ErasedTenantView {
    #[schema(value_type = schemas::MarkedTenantSchema)]
    tenant: String,
    /// Whether data may be left: the name cannot be reopened yet.
    is_being_erased: bool,
    #[schema(value_type = schemas::TimestampSchema)]
    erased_at: Option<String>,
    actor: String,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct ReopenedName {
    #[schema(value_type = schemas::TenantSchema)]
    reopened: String,
}

impl From<&ErasedTenant> for ErasedTenantView {
    fn from(mark: &ErasedTenant) -> Self {
        Self {
            tenant: mark.name(),
            is_being_erased: mark.is_being_erased,
            erased_at: views::rfc3339(mark.at),
            actor: mark.actor.clone(),
        }
    }
}

const WHAT: &str = "tenants";

async fn list(
    ctx: RequestContext,
    QueryParams(query): QueryParams<ErasedTenantsQuery>,
) -> Result<Response, Problem> {
    ctx.check_operates_installation(WHAT)?;
    let limit = query::limit(query.limit.as_deref())?;
    if query.next.as_deref().is_some_and(|name| name != "-" && Tenant::parse(name).is_err()) {
        return Err(Problem::new(ErrorCode::InvalidQuery, "next must be the name of a tenant"));
    }
    let store = ctx.store()?.of_installation();
    let mut marks = store.erased_tenants_after(query.next.as_deref().unwrap_or_default(), limit + 1).await?;
    let next = query::next(&mut marks, limit, ErasedTenant::name);
    Ok(json_no_store(ErasedTenantsPage { tenants: marks.iter().map(ErasedTenantView::from).collect(), next }))
}

async fn reopen(
    ctx: RequestContext,
    PathParam(tenant): PathParam<String>,
    headers: HeaderMap,
    _: EmptyBody,
) -> Result<Response, Problem> {
    ctx.check_operates_installation(WHAT)?;
    let (tenant, actor) = (path::id("tenant", &tenant, Tenant::parse)?, ctx.actor(&headers)?);
    match ctx.store()?.reopen_tenant(Some(&tenant), &control::new_id()?, &actor).await? {
        ReopenedTenant::Reopened => {}
        ReopenedTenant::Unmarked => return Err(Problem::from(ErrorCode::UnknownTenant)),
        ReopenedTenant::BeingErased => return Err(Problem::from(ErrorCode::TenantBeingErased)),
    }
    tracing::info!(%tenant, actor, "the name of an erased tenant was reopened");
    Ok(json_no_store(ReopenedName { reopened: tenant.to_string() }))
}

async fn audit_log(
    ctx: RequestContext,
    PathParam(tenant): PathParam<String>,
    QueryParams(query): QueryParams<AuditQuery>,
) -> Result<Response, Problem> {
    ctx.check_operates_installation(WHAT)?;
    let tenant = path::id("tenant", &tenant, Tenant::parse)?;
    let page = audit::audit(&ctx, &tenant_subject(Some(&tenant)), tenant.as_str(), query).await?;
    Ok(json_no_store(page))
}

fn mark_example() -> Value {
    json!({
        "tenant": "acme", "is_being_erased": false, "erased_at": "2026-11-22T11:49:44.530Z",
        "actor": "key:fedcba9876543210/ada",
    })
}
