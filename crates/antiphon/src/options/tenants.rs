//! Options of the commands about erased tenants.

use clap::{Args, Subcommand};
use model::Tenant;

use super::operator::{Database, tenant};
use crate::exit::ExitError;

#[derive(Debug, Clone, Args)]
pub(crate) struct Tenants {
    #[command(subcommand)]
    pub(crate) command: TenantsCommand,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum TenantsCommand {
    /// List the erased tenants whose names cannot be used.
    Erased(ErasedTenants),
    /// Let the name of an erased tenant be used again, by every client that has a credential for
    /// it.
    Reopen(ReopenTenant),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ErasedTenants {
    #[command(flatten)]
    pub(crate) database: Database,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ReopenTenant {
    /// Erased tenant; `-` for the default one.
    pub(crate) tenant: String,
    #[command(flatten)]
    pub(crate) database: Database,
}

impl ReopenTenant {
    /// The named tenant; `None` is the default one.
    pub(crate) fn named(&self) -> Result<Option<Tenant>, ExitError> {
        match self.tenant.as_str() {
            "-" => Ok(None),
            name => tenant(name).map(Some).map_err(ExitError::Configuration),
        }
    }
}
