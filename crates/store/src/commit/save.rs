//! Saves open messages and turns independently of the commits.

use model::{ModelCall, PartitionId};
use partition::{Save, SpilledMessage};
use serde_json::Value;
use sqlx::postgres::PgRow;

use super::columns::{bigint, bucket, bucket_of, column, encoded, integer, object, smallint, storable};
use crate::error::StoreError;
use crate::leases::Applied;
use crate::lookup::check_owner;
use crate::outbox::options;
use crate::row::{stored_turn_origin, unsigned};
use crate::store::Store;

impl Store {
    /// Saves parts of open messages and inputs, and returns the number of saves of the partition,
    /// including this one. The next write of the owner expects at least this number. A save neither
    /// waits for commits nor delays them. Repeating a save only increments the number.
    ///
    /// `incarnation` identifies the stream that the sequences belong to. The commit of an end
    /// deletes the saved data, so it must be sent after the save was acknowledged.
    ///
    /// # Errors
    /// [`StoreError::NotOwner`] when `owner` is not the stored owner, or the store has fewer
    /// commits or saves than `owner` knows of. Nothing is written then.
    pub async fn save(&self, owner: Applied, incarnation: &str, save: &Save) -> Result<u64, StoreError> {
        let Save { messages, turns } = save;
        let inputs: Vec<_> = turns.iter().map(|open| &open.opened).collect();
        let statement = sqlx::query(include_str!("save.sql"))
            .bind(smallint(owner.partition.0))
            .bind(bigint(owner.epoch))
            .bind(bigint(owner.commits))
            .bind(column(messages, |part| bucket(&part.key)))
            .bind(column(messages, |part| part.key.thread.as_str()))
            .bind(column(messages, |part| part.key.message.as_str()))
            .bind(column(messages, |part| integer(part.first_chunk)))
            .bind(column(messages, |part| i64::from(part.attempt)))
            .bind(column(messages, |part| part.role.name()))
            .bind(column(messages, |part| bigint(part.first_seq.0)))
            .bind(column(messages, |part| part.open_ms))
            .bind(column(messages, |part| part.gap_ms))
            .bind(column(messages, |part| part.idle_ms))
            .bind(column(messages, earlier_calls))
            .bind(column(messages, |part| encoded(&part.chunks)))
            .bind(column(&inputs, |input| bucket_of(&input.thread)))
            .bind(column(&inputs, |input| input.thread.as_str()))
            .bind(column(&inputs, |input| input.turn.as_str()))
            .bind(column(&inputs, |input| input.agent.as_str()))
            .bind(column(&inputs, |input| integer(input.run)))
            .bind(column(&inputs, |input| input.content.as_str()))
            .bind(column(&inputs, |input| object(&input.input_metadata())))
            .bind(column(&inputs, |input| options(&input.options)))
            .bind(column(&inputs, |input| stored_turn_origin(&input.origin)))
            .bind(column(&inputs, |input| input.actor.as_deref().map(storable)))
            .bind(column(turns, |open| bigint(open.seq.0)))
            .bind(incarnation.to_owned())
            .bind(column(turns, |open| open.age_ms))
            .bind(bigint(owner.saves));
        let rows = self.rows(statement).await?;
        check_owner(&rows)?;
        saves_of(&rows)
    }

    /// The number of saves of the partition. After a lease is granted, this number does not change
    /// until the new owner saves.
    pub async fn saves(&self, partition: PartitionId) -> Result<u64, StoreError> {
        let statement = sqlx::query("SELECT saves FROM partition_saves WHERE partition_id = $1");
        saves_of(&self.rows(statement.bind(smallint(partition.0))).await?)
    }
}

fn saves_of(rows: &[PgRow]) -> Result<u64, StoreError> {
    rows.first().map_or(Ok(0), |row| unsigned(row, "saves"))
}

fn earlier_calls(part: &SpilledMessage) -> Option<String> {
    let calls: Vec<Value> = part.earlier_calls.iter().map(ModelCall::to_value).collect();
    (!calls.is_empty()).then(|| Value::from(calls).to_string())
}
