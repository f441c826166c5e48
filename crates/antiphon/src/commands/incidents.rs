//! Incidents: what stores and streams that went back in time have lost. Lists and acknowledges them.

use serde_json::{Value, json};
use store::{IncidentRow, Store};

use super::output;
use crate::exit::ExitError;
use crate::options::{AcknowledgeIncidents, ListIncidents};

pub(super) async fn list(store: &Store, options: &ListIncidents) -> Result<(), ExitError> {
    let incidents: Vec<Value> = store.incidents(options.all).await?.iter().map(shown).collect();
    let json = json!({ "incidents": incidents });
    output::print(options.database.format, &json, || {
        let mut table = output::Table::new([
            "PARTITION",
            "WHAT",
            "FIRST",
            "LAST",
            "NOTICED",
            "ACKNOWLEDGED",
            "BY",
            "DETAIL",
        ]);
        for incident in &incidents {
            let cells = [
                &incident["partition"],
                &incident["kind"],
                &incident["first_seq"],
                &incident["last_seq"],
                &incident["detected_at"],
                &incident["acknowledged_at"],
                &incident["acknowledged_by"],
                &incident["detail"],
            ];
            table.row(cells.map(output::cell));
        }
        table
    })
}

pub(super) async fn acknowledge(store: &Store, options: &AcknowledgeIncidents) -> Result<(), ExitError> {
    let count = store.acknowledge_incidents(options.which.0, &options.by).await?;
    output::print(options.database.format, &json!({ "acknowledged": count }), || {
        let mut table = output::Table::new(["ACKNOWLEDGED"]);
        table.row([count.to_string()]);
        table
    })
}

fn shown(row: &IncidentRow) -> Value {
    let (at, by) = row.acknowledged.clone().unzip();
    json!({
        "partition": row.partition.0,
        "kind": row.kind,
        "stream": row.incarnation,
        "first_seq": row.first.0,
        "last_seq": row.last.map(|last| last.0),
        "detail": row.detail,
        "detected_at": row.detected_at,
        "acknowledged_at": at,
        "acknowledged_by": by,
    })
}
