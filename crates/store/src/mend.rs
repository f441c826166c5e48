//! Mending stored batches.

use batches::doctor::Change;
use model::{Bucket, CommandId, Position, ThreadId};

use crate::row::count;
use crate::{Store, StoreError};

/// A message of a batch that is mended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mend {
    /// Where it stands.
    pub position: Position,
    /// As it was examined.
    pub old: Change,
    /// As it becomes.
    pub new: Change,
    /// Messages of other batches stand between it and the beginning of its batch.
    pub is_apart: bool,
    /// What the audit says of it, and under which id; `None` when only its surroundings change.
    pub said: Option<(CommandId, String)>,
}

impl Store {
    /// Mends messages of one batch, all of them or none, and writes what it did into the audit. False when one of them is not
    /// any more as it was examined: then nothing was done.
    pub async fn mend(&self, thread: &ThreadId, mends: &[Mend], actor: &str) -> Result<bool, StoreError> {
        if mends.is_empty() {
            return Ok(true);
        }
        let said = |mend: &Mend| mend.said.as_ref().map(|(_, text)| text.clone());
        let act = |mend: &Mend| mend.said.as_ref().map(|(act, _)| act.to_string());
        let statement = sqlx::query(include_str!("mend/mend.sql"))
            .bind(Bucket::of(thread).get() as i16)
            .bind(thread.as_str().to_owned())
            .bind(column(mends, |mend| mend.position.get()))
            .bind(column(mends, |mend| mend.old.batch_id.get()))
            .bind(column(mends, |mend| mend.old.sequence_num))
            .bind(column(mends, |mend| mend.old.batch_type.name()))
            .bind(column(mends, |mend| mend.new.batch_id.get()))
            .bind(column(mends, |mend| mend.new.sequence_num))
            .bind(column(mends, |mend| mend.new.batch_type.name()))
            .bind(column(mends, |mend| mend.is_apart))
            .bind(column(mends, said))
            .bind(column(mends, act))
            .bind(actor.to_owned());
        Ok(count(&self.rows(statement).await?)? == mends.len() as u64)
    }
}

fn column<T>(mends: &[Mend], value: impl Fn(&Mend) -> T) -> Vec<T> {
    mends.iter().map(value).collect()
}
