//! Repair of stored batches.

use batches::check::Change;
use model::{CommandId, Position, ThreadId};

use crate::error::StoreError;
use crate::row::count;
use crate::store::Store;

/// A message of a batch that is mended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowRepair {
    /// Where it stands.
    pub position: Position,
    /// As it was examined.
    pub old: Change,
    /// As it becomes.
    pub new: Change,
    /// Messages of other batches stand between it and the beginning of its batch.
    pub is_apart: bool,
    /// What the audit log has of it, and under which id; `None` when only its surroundings change.
    pub said: Option<(CommandId, String)>,
}

impl Store {
    /// Repairs messages of one batch, all of them or none, and writes that into the audit log. False when one of them is not
    /// any more as it was examined: then nothing was done.
    pub async fn repair_messages(
        &self,
        thread: &ThreadId,
        repairs: &[RowRepair],
        actor: &str,
    ) -> Result<bool, StoreError> {
        if repairs.is_empty() {
            return Ok(true);
        }
        let said = |repair: &RowRepair| repair.said.as_ref().map(|(_, text)| text.clone());
        let act = |repair: &RowRepair| repair.said.as_ref().map(|(act, _)| act.to_string());
        let statement = sqlx::query(include_str!("repair/repair_messages.sql"))
            .bind(thread.bucket().get() as i16)
            .bind(thread.as_str().to_owned())
            .bind(column(repairs, |repair| repair.position.get()))
            .bind(column(repairs, |repair| repair.old.batch_id.get()))
            .bind(column(repairs, |repair| repair.old.sequence_num))
            .bind(column(repairs, |repair| repair.old.batch_type.name()))
            .bind(column(repairs, |repair| repair.new.batch_id.get()))
            .bind(column(repairs, |repair| repair.new.sequence_num))
            .bind(column(repairs, |repair| repair.new.batch_type.name()))
            .bind(column(repairs, |repair| repair.is_apart))
            .bind(column(repairs, said))
            .bind(column(repairs, act))
            .bind(actor.to_owned());
        Ok(count(&self.rows(statement).await?)? == repairs.len() as u64)
    }
}

fn column<T>(repairs: &[RowRepair], value: impl Fn(&RowRepair) -> T) -> Vec<T> {
    repairs.iter().map(value).collect()
}
