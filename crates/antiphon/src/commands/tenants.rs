//! Deletes the mark of the default tenant. Other tenants are reopened over the API.

use store::{ReopenedTenant, Store};

use super::command_id::new_command_id;
use crate::exit::ExitError;
use crate::options::ReopenDefaultTenant;
use crate::output;

/// Deletes the mark of the default tenant.
///
/// # Errors
/// It has no mark, or something of it may be left.
pub(super) async fn reopen_default(store: &Store, options: &ReopenDefaultTenant) -> Result<(), ExitError> {
    match store.reopen_tenant(None, &new_command_id()?, &options.actor).await? {
        ReopenedTenant::Reopened => {
            output::eprint_line("the default tenant can be used again");
            Ok(())
        }
        ReopenedTenant::BeingErased => Err(ExitError::Failed(
            "something of the default tenant may be left: run `antiphon erase --tenant - --yes` again"
                .to_owned(),
        )),
        ReopenedTenant::Unmarked => {
            Err(ExitError::Failed("the default tenant is not marked as erased".to_owned()))
        }
    }
}
