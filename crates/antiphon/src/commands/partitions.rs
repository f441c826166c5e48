//! Lists the owners of partitions, and changes the number of partitions.

mod change;
mod moving;
mod placement;
mod requests;

use serde_json::{Value, json};
use store::{PartitionChange, PartitionStatus, Store};

use super::timeouts::SERVER_TIMEOUT;
use crate::connect::connect_own_bus;
use crate::exit::ExitError;
use crate::options::{ChangePartitions, ListPartitions};
use crate::output;

pub(super) async fn list(store: &Store, options: &ListPartitions) -> Result<(), ExitError> {
    let change = store.partition_change().await?;
    let rows: Vec<Value> = store.partitions_status().await?.iter().map(shown).collect();
    let json = json!({ "partitions": rows, "change": change.as_ref().map(shown_change) });
    if let Some(change) = change {
        tracing::warn!("{}", change.refusal());
    }
    output::print(options.database.output.format(), &json, || {
        let mut table =
            output::Table::new(["PARTITION", "OWNER", "LEASE_LEFT_MS", "EPOCH", "COMMITS", "CHECKPOINT"]);
        for row in &rows {
            let cells = [
                &row["partition"],
                &row["owner"],
                &row["lease_left_ms"],
                &row["epoch"],
                &row["commits"],
                &row["checkpoint"],
            ];
            table.row(cells.map(output::cell));
        }
        table
    })
}

pub(super) async fn change(store: &Store, options: &ChangePartitions) -> Result<(), ExitError> {
    // Cases that need no streams are handled without NATS.
    let json = match change::start_of_change(store, options.count).await? {
        change::ChangeStart::Nothing => change::nothing_to_do(options.count),
        change::ChangeStart::Begin | change::ChangeStart::GoOn(_) => {
            let bus = connect_own_bus(store, &options.nats, "antiphon partitions", SERVER_TIMEOUT).await?;
            change::run(store, &bus, options.count).await?
        }
    };
    output::print(options.database.output.format(), &json, || output::key_value_table(&json))
}

fn shown(status: &PartitionStatus) -> Value {
    json!({
        "partition": status.partition.0,
        "owner": status.owner,
        "lease_left_ms": status.lease_left_ms,
        "epoch": status.epoch,
        "commits": status.commits,
        "checkpoint": status.checkpoint.0,
    })
}

fn shown_change(change: &PartitionChange) -> Value {
    json!({ "from": change.from.get(), "to": change.to.get(), "is_moved": change.is_moved, "age_ms": change.age_ms })
}
