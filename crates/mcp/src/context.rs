//! One call of a tool.

use auth::Permission;
use embeddings::Embeddings;
use http_server::AuthenticatedCaller;
use model::Tenant;
use store::Store;

use crate::answer::ToolError;

/// The context of one call: its caller, and the store of the caller's tenant.
#[derive(Debug)]
pub(crate) struct ToolContext {
    pub(crate) store: Store,
    pub(crate) tenant: Option<Tenant>,
    pub(crate) actor: String,
    pub(crate) caller: AuthenticatedCaller,
    /// Computes vectors of memory queries, if configured.
    pub(crate) embeddings: Option<Embeddings>,
}

impl ToolContext {
    /// Refuses a call that the credential does not permit.
    pub(crate) fn require(&self, needs: Permission) -> Result<(), ToolError> {
        Ok(self.caller.require(needs)?)
    }
}
