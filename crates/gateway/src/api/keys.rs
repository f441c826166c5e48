//! API keys of the caller's tenant.

use std::time::Duration;

use auth::{AccessRole, KeyId, Permissions, StoredKey};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use http_server::auth::authenticator::{self, new_key, new_key_of};
use http_server::error::{ErrorCode, Problem};
use http_server::extract::body::{EmptyBody, JsonBody, MaxBodySize, OptionalJsonBody};
use http_server::extract::path::PathParam;
use http_server::extract::query;
use http_server::extract::query::QueryParams;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::{KeyRow, key_subject};
use utoipa::{IntoParams, ToSchema};

use crate::api::audit;
use crate::api::audit::{AuditPage, AuditQuery};
use crate::api::respond::json_no_store;
use crate::api::views::KeyView;
use crate::app::request_context::RequestContext;
use crate::commands::control;
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::schemas;
use crate::openapi::tags::KEYS;

pub(crate) fn operations() -> Vec<Operation> {
    let page = json!({ "keys": [key_example()], "next": null });
    let mut made = key_example();
    made["key"] = json!(format!("ant_0123456789abcdef_{}", "0".repeat(64)));
    vec![
        Operation::get("/v1/keys", "listKeys", "List the API keys of the tenant, without their secrets", list)
            .tag(KEYS)
            .scope(Scope::ManageKeys)
            .query::<KeysQuery>()
            .response::<KeysPage>(200, "Keys, ordered by id", page)
            .errors(&[ErrorCode::InvalidLimit]),
        Operation::post("/v1/keys", "makeKey", "Create an API key", create)
            .tag(KEYS)
            .description("The secret is shown only in this response. A key cannot grant a scope that its creator lacks, or outlive the creator's own credential.")
            .scope(Scope::ManageKeys)
            .actor_header()
            .body::<KeyBody>(json!({ "name": "the web shop", "role": "operator", "expires_in_s": 7_776_000 }))
            .response::<MadeKey>(201, "The key", made.clone())
            .errors(&[ErrorCode::InvalidKey, ErrorCode::UnknownKey]),
        Operation::post("/v1/keys/{key}/rotate", "rotateKey", "Give an API key another secret", rotate)
            .tag(KEYS)
            .description("The key keeps its id, role, scopes and end. The secret before stays valid for `overlap_s`; with 0 it ends at once, with its streams and tickets. The new secret is shown only in this response. A key that has ended, that has a scope which the caller lacks, or that outlives the caller's own credential cannot be rotated.")
            .scope(Scope::ManageKeys)
            .actor_header()
            .optional_body::<RotateKeyBody>(json!({ "overlap_s": 86_400 }))
            .response::<MadeKey>(200, "The key with its new secret", made.clone())
            .errors(&[ErrorCode::InvalidKey, ErrorCode::UnknownKey, ErrorCode::KeyNotRotatable]),
        Operation::delete("/v1/keys/{key}", "revokeKey", "Revoke an API key", revoke)
            .tag(KEYS)
            .description("Takes effect everywhere within seconds. Streams opened with the key end.")
            .scope(Scope::ManageKeys)
            .actor_header()
            .no_body()
            .response::<KeyView>(200, "Revoked", key_example())
            .errors(&[ErrorCode::UnknownKey]),
        Operation::get("/v1/keys/{key}/audit", "auditKey", "Show the audit log of a key", audit)
            .tag(KEYS)
            .scope(Scope::ReadAudit)
            .query::<AuditQuery>()
            .response::<AuditPage>(200, "Entries of the audit log, newest first", audit::page_example())
            .errors(&[ErrorCode::UnknownKey, ErrorCode::InvalidLimit]),
    ]
}

/// Longest name of a key, in characters, as in schemas.
const MAX_NAME: usize = 200;
/// Ten years, in seconds.
const MAX_LIFETIME_S: i64 = 3_650 * 86_400;
/// Seconds for which the previous secret stays valid after a rotation: the default and the maximum.
const OVERLAP_S: u64 = 86_400;
const MAX_OVERLAP_S: u64 = 7 * 86_400;

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeyBody {
    /// The key's display name.
    #[schema(min_length = 1, max_length = 200)]
    name: String,
    #[schema(value_type = schemas::CredentialRole)]
    role: String,
    /// Restricts the key to these scopes of its role; by default the key has all of them.
    #[schema(value_type = Option<Vec<schemas::ScopeSchema>>)]
    scopes: Option<Vec<String>>,
    /// The key's lifetime in seconds. A key never expires later than the credential that makes it.
    #[schema(minimum = 1, maximum = 315_360_000)]
    expires_in_s: Option<i64>,
}

impl MaxBodySize for KeyBody {
    const MAX_BYTES: usize = 16 << 10;
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RotateKeyBody {
    /// Seconds for which the previous secret stays valid; by default a day.
    #[schema(minimum = 0, maximum = 604_800, default = 86_400)]
    overlap_s: Option<u64>,
}

impl MaxBodySize for RotateKeyBody {
    const MAX_BYTES: usize = 1 << 10;
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeysQuery {
    /// `next` of the previous page.
    #[param(value_type = Option<schemas::KeyIdSchema>)]
    next: Option<String>,
    #[param(value_type = Option<schemas::Limit>)]
    limit: Option<String>,
}

/// A key with a new secret. Its text is stored nowhere and shown only here.
#[derive(Serialize, ToSchema)]
pub(crate) struct MadeKey {
    #[schema(pattern = "^ant_[0-9a-f]{16}_[0-9a-f]{64}$")]
    key: String,
    #[serde(flatten)]
    shown: KeyView,
}

#[derive(Serialize, ToSchema)]
pub(crate) struct KeysPage {
    keys: Vec<KeyView>,
    #[schema(value_type = schemas::NextPage, required)]
    next: Option<String>,
}

fn unknown() -> Problem {
    Problem::from(ErrorCode::UnknownKey)
}

fn is_name(text: &str) -> bool {
    (1..=MAX_NAME).contains(&text.chars().count()) && !text.contains('\0')
}

pub(crate) async fn create(
    ctx: RequestContext,
    headers: HeaderMap,
    JsonBody(body): JsonBody<KeyBody>,
) -> Result<Response, Problem> {
    let invalid = |detail: String| Problem::new(ErrorCode::InvalidKey, detail);
    if !is_name(&body.name) {
        return Err(invalid(format!("name must have from 1 to {MAX_NAME} characters, and no NUL")));
    }
    let all = AccessRole::ALL.map(AccessRole::name).join(", ");
    let role =
        AccessRole::of_name(&body.role).ok_or_else(|| invalid(format!("role must be one of {all}")))?;
    let scopes = body.scopes.map(|scopes| {
        role.restricted_to(&scopes.iter().map(String::as_str).collect::<Vec<_>>())
            .map_err(|error| invalid(error.to_string()))
    });
    let scopes = scopes.transpose()?;
    check_grants(&ctx, scopes.unwrap_or_else(|| role.permissions()))?;
    let lifetime = body.expires_in_s.map(|seconds| match (1..=MAX_LIFETIME_S).contains(&seconds) {
        true => Ok(seconds),
        false => Err(invalid(format!("expires_in_s must be from 1 to {MAX_LIFETIME_S}"))),
    });
    let lifetime = lifetime.transpose()?;
    let (backend, actor, made) = (ctx.backend()?, ctx.actor(&headers)?, new_key());
    let wanted_end = lifetime.map(|seconds| authenticator::now().plus_ms(seconds * 1_000));
    // A key must not outlive the credential that makes it.
    let expires_at = [wanted_end, ctx.principal().expires_at()].into_iter().flatten().min();
    let key = StoredKey {
        id: made.id(),
        digest: made.digest(),
        previous: None,
        tenant: ctx.principal().tenant().clone(),
        role,
        scopes,
        name: body.name,
        expires_at,
        revoked_at: None,
    };
    backend.store().add_key(&key, &control::new_id()?, &actor).await?;
    let row = backend.store().key(key.id).await?.ok_or_else(unknown)?;
    tracing::info!(key = %key.id, actor, role = role.name(), "an API key was made");
    ctx.add_key(row.key.clone());
    let shown = MadeKey { key: made.text().to_owned(), shown: KeyView::from(&row) };
    Ok((StatusCode::CREATED, json_no_store(shown)).into_response())
}

pub(crate) async fn list(
    ctx: RequestContext,
    QueryParams(query): QueryParams<KeysQuery>,
) -> Result<Response, Problem> {
    let invalid = || Problem::new(ErrorCode::InvalidId, "next: not the id of a key");
    let after = query.next.map(|id| KeyId::parse(&id).ok_or_else(invalid)).transpose()?;
    let limit = query::limit(query.limit.as_deref())?;
    let mut keys = ctx.store()?.keys(ctx.tenant(), after, limit + 1).await?;
    let next = query::next(&mut keys, limit, |last| last.key.id.to_string());
    Ok(json_no_store(KeysPage { keys: keys.iter().map(KeyView::from).collect(), next }))
}

/// A caller gets no key with more scopes than its own.
fn check_grants(ctx: &RequestContext, scopes: Permissions) -> Result<(), Problem> {
    match scopes.iter().find(|permission| !ctx.principal().has_permission(*permission)) {
        None => Ok(()),
        Some(beyond) => {
            let detail = format!("a key cannot grant a scope that its creator lacks: {}", beyond.scope());
            Err(Problem::new(ErrorCode::InsufficientScope, detail))
        }
    }
}

/// Gives a key another secret. Gateways that have the key in their cache accept it at once.
pub(crate) async fn rotate(
    ctx: RequestContext,
    PathParam(key): PathParam<String>,
    headers: HeaderMap,
    OptionalJsonBody(body): OptionalJsonBody<RotateKeyBody>,
) -> Result<Response, Problem> {
    let overlap_s = body.overlap_s.unwrap_or(OVERLAP_S);
    if overlap_s > MAX_OVERLAP_S {
        let detail = format!("overlap_s must be from 0 to {MAX_OVERLAP_S}");
        return Err(Problem::new(ErrorCode::InvalidKey, detail));
    }
    let (id, store, actor) = (key_id(&key)?, ctx.store()?, ctx.actor(&headers)?);
    let is_own = |row: &KeyRow| row.key.tenant == *ctx.principal().tenant();
    let KeyRow { key: stored, .. } = store.key(id).await?.filter(is_own).ok_or_else(unknown)?;
    check_grants(&ctx, stored.scopes.unwrap_or_else(|| stored.role.permissions()))?;
    // A secret must not outlive the credential that makes it, nor may the previous secret.
    let outlives = |end| stored.expires_at.is_none_or(|at| at > end);
    if ctx.principal().expires_at().is_some_and(outlives) {
        let detail = "the key outlives the credential that would rotate it";
        return Err(Problem::new(ErrorCode::InsufficientScope, detail));
    }
    let new = new_key_of(id);
    let (overlap, command) = (Duration::from_secs(overlap_s), control::new_id()?);
    if !store.rotate_api_key(&stored, new.digest(), overlap, &command, &actor).await? {
        let detail = "the key was revoked or has expired, or the secret before its last rotation is \
                      valid: wait until `previous_valid_until`, or end it with `overlap_s` 0";
        return Err(Problem::new(ErrorCode::KeyNotRotatable, detail));
    }
    let row = store.key(id).await?.ok_or_else(unknown)?;
    tracing::info!(key = %id, actor, overlap_s, "an API key was rotated");
    ctx.add_key(row.key.clone());
    Ok(json_no_store(MadeKey { key: new.text().to_owned(), shown: KeyView::from(&row) }))
}

/// Revokes a key and ends the streams opened with it, on all gateways within seconds.
pub(crate) async fn revoke(
    ctx: RequestContext,
    PathParam(key): PathParam<String>,
    headers: HeaderMap,
    _: EmptyBody,
) -> Result<Response, Problem> {
    let id = key_id(&key)?;
    let (store, actor) = (ctx.store()?, ctx.actor(&headers)?);
    // Restricted to this tenant, even if the database's role bypasses row-level security.
    let command = control::new_id()?;
    let revoked = store.revoke_key(id, ctx.principal().tenant(), &command, &actor).await?;
    let row = revoked.ok_or_else(unknown)?;
    tracing::info!(key = %id, actor, "an API key was revoked");
    Ok(json_no_store(KeyView::from(&row)))
}

fn key_id(text: &str) -> Result<KeyId, Problem> {
    let invalid = || Problem::new(ErrorCode::InvalidId, "key: the id of a key has 16 hexadecimal digits");
    KeyId::parse(text).ok_or_else(invalid)
}

pub(crate) async fn audit(
    ctx: RequestContext,
    PathParam(key): PathParam<String>,
    QueryParams(query): QueryParams<AuditQuery>,
) -> Result<Response, Problem> {
    let (id, store) = (key_id(&key)?, ctx.store()?);
    let page = audit::audit(&ctx, &key_subject(ctx.tenant(), id), &id.to_string(), query).await?;
    let is_own = |row: KeyRow| row.key.tenant == *ctx.principal().tenant();
    if page.is_empty() && !store.key(id).await?.is_some_and(is_own) {
        return Err(unknown());
    }
    Ok(json_no_store(page))
}

fn key_example() -> Value {
    json!({
        "key_id": "0123456789abcdef",
        "tenant": "acme",
        "name": "the web shop",
        "role": "operator",
        "scopes": ["threads:read", "agents:read", "threads:write", "tasks:write", "agents:operate", "audit:read"],
        "created_by": "key:fedcba9876543210",
        "created_at": "2026-11-22T12:00:00Z",
        "expires_at": "2027-02-20T12:00:00Z",
        "revoked_at": null,
        "revoked_by": null,
        "rotated_at": null,
        "previous_valid_until": null,
        "last_used_at": null,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_counted_in_characters() {
        assert!(is_name("k") && is_name(&"\u{e4}".repeat(MAX_NAME)));
        assert!(!is_name("") && !is_name(&"a".repeat(MAX_NAME + 1)) && !is_name("a\0"));
    }
}
