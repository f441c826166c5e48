//! The first API key of a tenant.

use auth::{StoredKey, TenantName};
use gateway::KeyView;
use http_server::new_key;
use model::Timestamp;
use serde_json::json;
use store::Store;

use super::command_id::new_command_id;
use crate::exit::ExitError;
use crate::options::CreateKey;
use crate::output;

/// Actor in the audit log for keys that are made here.
const ACTOR: &str = "cli";

/// Row-level security hides the key from the roles of workers and gateways.
const NOT_READABLE: &str = "this Postgres role cannot create keys, for it cannot read them: set DATABASE_URL to the URL of the tables' owner or of antiphon_operator_login";

pub(super) async fn create(store: &Store, options: &CreateKey) -> Result<(), ExitError> {
    let scopes = options.scopes.as_ref().map(|scopes| {
        let scopes: Vec<_> = scopes.iter().map(|scope| scope.trim()).collect();
        options.role.restricted_to(&scopes).map_err(|error| ExitError::Configuration(error.to_string()))
    });
    let made = new_key();
    let key = StoredKey {
        id: made.id(),
        digest: made.digest(),
        previous: None,
        tenant: TenantName::from(options.tenant.clone()),
        role: options.role,
        scopes: scopes.transpose()?,
        name: options.name.clone(),
        expires_at: options.days.map(in_days),
        revoked_at: None,
    };
    // The key is stored in the scope of the tenant, so that it is refused if the tenant was erased.
    store.for_tenant(options.tenant.clone()).add_key(&key, &new_command_id()?, ACTOR).await?;
    let row = store.key(key.id).await?;
    let row = row.ok_or_else(|| ExitError::Failed(NOT_READABLE.to_owned()))?;
    let mut json = output::json(&KeyView::from(&row));
    json["key"] = json!(made.text());
    output::eprint_line("this is the only time that the key is shown");
    // Only the key is printed, so that a shell can capture it.
    output::print(options.database.output.format(), &json, || output::Table::new([made.text()]))
}

fn in_days(days: u32) -> Timestamp {
    Timestamp(runtime::system_time_ms()).plus_ms(i64::from(days) * 86_400_000)
}
