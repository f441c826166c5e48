//! Lists and deletes the marks of erased tenants.

use serde_json::json;
use store::{ErasedTenant, ReopenedTenant, Store};

use crate::exit::ExitError;
use crate::options::{ErasedTenants, ReopenTenant};
use crate::output::{self, Table};

pub(super) async fn list(store: &Store, options: &ErasedTenants) -> Result<(), ExitError> {
    let marks = store.erased_tenants().await?;
    let shown = |mark: &ErasedTenant| {
        json!({
            "tenant": name(mark),
            "erased_at": wire::rfc3339(mark.at),
            "actor": mark.actor,
            "status": if mark.is_being_erased { "being_erased" } else { "erased" },
        })
    };
    let json = json!({ "tenants": marks.iter().map(shown).collect::<Vec<_>>() });
    output::print(options.database.output.format(), &json, || {
        let mut table = Table::new(["TENANT", "STATUS", "ERASED AT", "ACTOR"]);
        for mark in json["tenants"].as_array().into_iter().flatten() {
            table.row(["tenant", "status", "erased_at", "actor"].map(|column| output::cell(&mark[column])));
        }
        table
    })
}

/// Deletes the mark of a tenant.
///
/// # Errors
/// The tenant has no mark, or something of the tenant may be left.
pub(super) async fn reopen(store: &Store, options: &ReopenTenant) -> Result<(), ExitError> {
    let (tenant, shown) = (options.named()?, &options.tenant);
    match store.reopen_tenant(tenant.as_ref()).await? {
        ReopenedTenant::Reopened => {
            output::eprint_line(&format!("the name of tenant {shown} can be used again"));
            Ok(())
        }
        ReopenedTenant::BeingErased => Err(ExitError::Failed(format!(
            "something of tenant {shown} may be left: `antiphon erasures list` shows its erasure; `antiphon tenants erase {shown} --yes` starts another one"
        ))),
        ReopenedTenant::Unmarked => Err(ExitError::Failed(format!("tenant {shown} is not marked as erased"))),
    }
}

fn name(mark: &ErasedTenant) -> &str {
    mark.tenant.as_ref().map_or("-", |tenant| tenant.as_str())
}
