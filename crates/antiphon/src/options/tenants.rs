//! Options of the command on the erased default tenant.

use clap::{Args, Subcommand};

use super::operator::{Database, actor};

#[derive(Debug, Clone, Args)]
pub(crate) struct Tenants {
    #[command(subcommand)]
    pub(crate) command: TenantsCommand,
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum TenantsCommand {
    /// Let the default tenant be used again after `erase --tenant -`. It needs the database,
    /// because the API refuses all credentials of that tenant.
    ReopenDefault(ReopenDefaultTenant),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ReopenDefaultTenant {
    /// Actor in the audit log.
    #[arg(long, default_value = "command", value_parser = actor)]
    pub(crate) actor: String,
    #[command(flatten)]
    pub(crate) database: Database,
}
