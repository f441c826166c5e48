//! Finds the agent that a request's `model` names.

use std::time::Duration;

use http_server::error::{ErrorCode, Problem};
use model::{AgentId, Tenant};
use protocols::request::{BadRequest, MAX_MODEL_BYTES};

use crate::backend::Backend;

/// Maximum time to read an alias from Postgres when it is cached.
const STORE_TIMEOUT: Duration = Duration::from_secs(1);

/// The agent of a tenant that a model names: by an alias, or by its id. While Postgres is
/// unavailable, recently used names are found in the cache.
///
/// # Errors
/// No agent has the alias, and no agent can have the id.
pub(crate) async fn agent_of_model(
    backend: &Backend,
    tenant: Option<&Tenant>,
    model: &str,
) -> Result<AgentId, Problem> {
    let unknown = || BadRequest::UnknownModel { param: "model".to_owned(), model: model.to_owned() };
    if !(1..=MAX_MODEL_BYTES).contains(&model.len()) || model.chars().any(char::is_control) {
        return Err(unknown().into());
    }
    if let Some(agent) = aliased(backend, tenant, model).await? {
        return Ok(agent);
    }
    Ok(AgentId::of_tenant(tenant, model).map_err(|_| unknown())?)
}

/// The agent with this alias.
async fn aliased(
    backend: &Backend,
    tenant: Option<&Tenant>,
    alias: &str,
) -> Result<Option<AgentId>, Problem> {
    let (key, now) = ((tenant.cloned(), alias.to_owned()), backend.now());
    let read = async { Ok::<_, Problem>(backend.store().agent_with_alias(tenant, alias).await?) };
    let found = match backend.alias_cache.get(&key, now) {
        None => read.await?,
        Some(known) => match tokio::time::timeout(STORE_TIMEOUT, read).await {
            Ok(Err(problem)) if problem.code() == ErrorCode::DatabaseUnavailable => return Ok(known),
            Err(_) => return Ok(known),
            Ok(found) => found?,
        },
    };
    // A name that is neither an alias nor an id is refused in any case.
    if found.is_some() || AgentId::of_tenant(tenant, alias).is_ok() {
        backend.alias_cache.set(key, found.clone(), now);
    }
    Ok(found)
}
