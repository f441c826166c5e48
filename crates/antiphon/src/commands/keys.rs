//! The first API key of a tenant, and rotation of the keys with which the fleet itself signs.

use auth::{StoredKey, TenantName};
use gateway::KeyView;
use http_server::new_key;
use model::Timestamp;
use serde_json::json;
use store::{RotatedKey, Store};

use super::command_id::new_command_id;
use crate::exit::ExitError;
use crate::options::{CreateKey, ListRotations, RotateKey};
use crate::output;

/// Actor in the audit log for keys that are made here.
const ACTOR: &str = "cli";
/// Rotations of one kind that are shown.
const PAGE: u32 = 500;

pub(super) async fn create(store: &Store, options: &CreateKey) -> Result<(), ExitError> {
    let scopes = options.scopes.as_ref().map(|scopes| {
        let scopes: Vec<_> = scopes.iter().map(|scope| scope.trim()).collect();
        options.role.restricted_to(&scopes).map_err(|error| ExitError::Configuration(error.to_string()))
    });
    let made = new_key();
    let key = StoredKey {
        id: made.id(),
        digest: made.digest(),
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
    let row = row.ok_or_else(|| ExitError::Failed("the key is not there any more".to_owned()))?;
    let mut json = output::json(&KeyView::from(&row));
    json["key"] = json!(made.text());
    output::eprint_line("this is the only time that the key is shown");
    // Only the key is printed, so that a shell can capture it.
    output::print(options.database.output.format(), &json, || output::Table::new([made.text()]))
}

pub(super) async fn rotate(store: &Store, options: &RotateKey) -> Result<(), ExitError> {
    let (overlap_s, name) = (options.kind.overlap().as_secs(), options.kind.name());
    let command = new_command_id()?;
    if store.rotate_key(options.kind, !options.drop_previous, &command, &options.actor).await?.is_none() {
        return Err(ExitError::Failed(format!(
            "the key of {name} was rotated within the last {} hours, and what was made with the key before still counts: wait, or end it with --drop-previous",
            overlap_s / 3_600
        )));
    }
    let previous_s = if options.drop_previous { 0 } else { overlap_s };
    let json = json!({ "rotated": name, "previous_counts_for_s": previous_s });
    output::print(options.database.output.format(), &json, || output::key_value_table(&json))
}

pub(super) async fn rotations(store: &Store, options: &ListRotations) -> Result<(), ExitError> {
    let mut rows = Vec::new();
    for kind in RotatedKey::ALL {
        rows.extend(store.control_log(&kind.audit_subject(), None, PAGE).await?);
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row.created_at));
    let entries: Vec<_> = rows
        .iter()
        .map(|row| {
            let at = wire::rfc3339(row.created_at);
            json!({"rotated": row.target, "rotated_at": at, "actor": row.actor, "detail": row.detail})
        })
        .collect();
    output::print(options.database.output.format(), &json!({ "rotations": entries }), || {
        let mut table = output::Table::new(["ROTATED", "AT", "ACTOR", "DETAIL"]);
        for entry in &entries {
            let cells = [&entry["rotated"], &entry["rotated_at"], &entry["actor"], &entry["detail"]];
            table.row(cells.map(output::cell));
        }
        table
    })
}

fn in_days(days: u32) -> Timestamp {
    Timestamp(runtime::system_time_ms()).plus_ms(i64::from(days) * 86_400_000)
}
