//! The keys with which the fleet itself signs: turn tokens and tickets. They are never shown.

use axum::http::HeaderMap;
use axum::response::Response;
use http_server::error::{ErrorCode, Problem};
use http_server::extract::body::{MaxBodySize, OptionalJsonBody};
use http_server::extract::path::PathParam;
use http_server::extract::query::QueryParams;
use serde::{Deserialize, Serialize};
use serde_json::json;
use store::SigningKey;
use utoipa::ToSchema;

use crate::api::audit;
use crate::api::audit::{AuditPage, AuditQuery};
use crate::api::respond::json_no_store;
use crate::app::request_context::RequestContext;
use crate::commands::control;
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::schemas;
use crate::openapi::tags::KEYS;

pub(crate) fn operations() -> Vec<Operation> {
    vec![
        Operation::post(
            "/v1/signing-keys/{signing_key}/rotate",
            "rotateSigningKey",
            "Replace a key with which the fleet itself signs",
            rotate,
        )
        .tag(KEYS)
        .description("Earlier signatures stay valid: turn tokens for 24 hours, tickets for an hour. `drop_previous` ends them at once: turns in progress run again, browsers need new tickets.")
        .scope(Scope::OperateFleet)
        .actor_header()
        .optional_body::<RotateSigningKeyBody>(json!({ "drop_previous": true }))
        .response::<RotatedSigningKey>(200, "Rotated", json!({ "rotated": "tickets", "previous_valid_for_s": 0 }))
        .errors(&[ErrorCode::DefaultTenantOnly, ErrorCode::KeyNotRotatable]),
        Operation::get(
            "/v1/signing-keys/{signing_key}/audit",
            "auditSigningKey",
            "Show the rotations of a key with which the fleet itself signs",
            rotations,
        )
        .tag(KEYS)
        .scope(Scope::ReadAudit)
        .query::<AuditQuery>()
        .response::<AuditPage>(200, "Entries of the audit log, newest first", audit::page_example())
        .errors(&[ErrorCode::DefaultTenantOnly, ErrorCode::InvalidLimit]),
    ]
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RotateSigningKeyBody {
    /// Whether signatures of the previous key become invalid at once.
    #[serde(default)]
    drop_previous: bool,
}

impl MaxBodySize for RotateSigningKeyBody {
    const MAX_BYTES: usize = 1 << 10;
}

#[derive(Serialize, ToSchema)]
pub(crate) struct RotatedSigningKey {
    #[schema(value_type = schemas::SigningKeySchema)]
    rotated: &'static str,
    /// Seconds for which signatures of the previous key stay valid.
    previous_valid_for_s: u64,
}

async fn rotate(
    ctx: RequestContext,
    PathParam(key): PathParam<String>,
    headers: HeaderMap,
    OptionalJsonBody(body): OptionalJsonBody<RotateSigningKeyBody>,
) -> Result<Response, Problem> {
    ctx.check_operates_installation("the keys with which the fleet signs")?;
    let (key, actor) = (signing_key(&key)?, ctx.actor(&headers)?);
    let is_overlapping = !body.drop_previous;
    if !ctx.store()?.rotate_signing_key(key, is_overlapping, &control::new_id()?, &actor).await? {
        let hours = key.overlap().as_secs().div_euclid(3_600);
        let detail = format!(
            "the key was rotated within the last {hours} hours, and signatures of the key before are \
             valid: wait, or end them with `drop_previous`"
        );
        return Err(Problem::new(ErrorCode::KeyNotRotatable, detail));
    }
    tracing::info!(key = key.name(), actor, is_overlapping, "a key of the installation was rotated");
    let previous_valid_for_s = if is_overlapping { key.overlap().as_secs() } else { 0 };
    Ok(json_no_store(RotatedSigningKey { rotated: key.name(), previous_valid_for_s }))
}

async fn rotations(
    ctx: RequestContext,
    PathParam(key): PathParam<String>,
    QueryParams(query): QueryParams<AuditQuery>,
) -> Result<Response, Problem> {
    ctx.check_operates_installation("the keys with which the fleet signs")?;
    let key = signing_key(&key)?;
    Ok(json_no_store(audit::audit(&ctx, &key.audit_subject(), key.name(), query).await?))
}

fn signing_key(name: &str) -> Result<SigningKey, Problem> {
    let names = SigningKey::ALL.map(SigningKey::name).join(" or ");
    let invalid = || Problem::new(ErrorCode::InvalidId, format!("signing_key: it must be {names}"));
    SigningKey::from_name(name).ok_or_else(invalid)
}
