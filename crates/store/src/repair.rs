//! Repairs stored batches and missing message numbers.

use batches::check::Change;
use model::{CommandId, Position, ThreadId};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::error::StoreError;
use crate::row::count;
use crate::statement::Statement;
use crate::store::Store;

/// Messages numbered per transaction.
const NUMBERED_AT_ONCE: i64 = 1_000;

/// A message with an invalid number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NumberFault {
    pub position: Position,
    pub batch_id: Position,
    /// The stored number; `None`: the message has none yet.
    pub number: Option<u64>,
    /// True if another message of the thread has the same number.
    pub is_twice: bool,
}

/// A message of a batch to repair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowRepair {
    pub position: Position,
    /// The values that the examination found.
    pub old: Change,
    /// The values after the repair.
    pub new: Change,
    /// True if messages of other batches lie between this message and the beginning of its batch.
    pub is_apart: bool,
    /// The id and text of the audit entry; `None` for a message that changes only because of other
    /// repairs.
    pub said: Option<(CommandId, String)>,
}

impl Store {
    /// Repairs messages of one batch, all or none, with entries in the audit log. Returns false and
    /// does nothing if one of the messages has changed since the examination.
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

impl Store {
    /// Messages of a thread whose numbers are missing, duplicate, or above `last_number`; at most
    /// `limit`.
    pub async fn number_faults(
        &self,
        thread: &ThreadId,
        last_number: u64,
        limit: u32,
    ) -> Result<Vec<NumberFault>, StoreError> {
        let statement = sqlx::query(include_str!("repair/number_faults.sql"))
            .bind(thread.bucket().get() as i16)
            .bind(thread.as_str().to_owned())
            .bind(i64::try_from(last_number).unwrap_or(i64::MAX))
            .bind(i64::from(limit));
        self.rows(statement).await?.iter().map(fault).collect()
    }

    /// Numbers the messages of a thread that have no number, and returns how many.
    pub async fn number_messages(&self, thread: &ThreadId) -> Result<u64, StoreError> {
        let mut all = 0;
        loop {
            let part = count(&self.rows(number_some(Some(thread))).await?)?;
            if part == 0 {
                return Ok(all);
            }
            all += part;
        }
    }
}

/// Numbers some messages of this thread, or of any thread.
pub(crate) fn number_some(thread: Option<&ThreadId>) -> Statement {
    sqlx::query(include_str!("repair/number_messages.sql"))
        .bind(NUMBERED_AT_ONCE)
        .bind(thread.map(|thread| thread.bucket().get() as i16))
        .bind(thread.map(|thread| thread.as_str().to_owned()))
}

fn fault(row: &PgRow) -> Result<NumberFault, StoreError> {
    Ok(NumberFault {
        position: Position::from_stored(row.try_get("position")?),
        batch_id: Position::from_stored(row.try_get("batch_id")?),
        number: row.try_get::<Option<i64>, _>("number")?.map(i64::unsigned_abs),
        is_twice: row.try_get("twice")?,
    })
}

fn column<T>(repairs: &[RowRepair], value: impl Fn(&RowRepair) -> T) -> Vec<T> {
    repairs.iter().map(value).collect()
}
