//! Looks up messages by their ids.

use model::MessageKey;
use partition::Lookup;
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::error::StoreError;
use crate::leases::Applied;
use crate::row::columns;
use crate::store::Store;

impl Store {
    /// Looks up these messages and returns a result for each, in the order of `keys`.
    ///
    /// Without `create_threads`, an absent message whose thread does not exist is
    /// [`Lookup::NoThread`]. All messages of an erased thread count as ended: nothing of them is
    /// kept, not even as a dead letter.
    ///
    /// # Errors
    /// [`StoreError::NotOwner`] when `owner` is not the stored owner. The answers must not be used
    /// then: a store that goes back in time may undo the writes of the next owner.
    pub async fn lookup(
        &self,
        owner: Option<Applied>,
        keys: &[MessageKey],
        create_threads: bool,
    ) -> Result<Vec<(MessageKey, Lookup)>, StoreError> {
        let (buckets, threads, messages) = columns(keys);
        let statement = sqlx::query(include_str!("lookup/known.sql"));
        let (partition, epoch) = columns_of(owner);
        let statement = statement.bind(buckets).bind(threads).bind(messages).bind(partition).bind(epoch);
        let rows = self.rows(statement).await?;
        check_owner(&rows)?;
        let known = |row: &PgRow| -> Result<Lookup, StoreError> {
            let (ended, thread): (bool, &str) = (row.try_get("ended")?, row.try_get("thread")?);
            Ok(match (ended, thread) {
                (true, _) | (false, "erased") => Lookup::Ended,
                (false, "absent") if !create_threads => Lookup::NoThread,
                (false, _) => Lookup::Absent,
            })
        };
        keys.iter().zip(&rows).map(|(key, row)| Ok((key.clone(), known(row)?))).collect()
    }

    /// True if the message has failed before, or its thread was erased. Called for a message for
    /// which [`Store::lookup`] fails permanently, so that the message fails only once.
    ///
    /// # Errors
    /// See [`Store::lookup`].
    pub async fn has_failed(&self, owner: Applied, key: &MessageKey) -> Result<bool, StoreError> {
        let (partition, epoch) = columns_of(Some(owner));
        let statement = sqlx::query(include_str!("lookup/failed.sql"))
            .bind(key.thread.bucket().get() as i16)
            .bind(key.thread.as_str().to_owned())
            .bind(key.message.as_str().to_owned())
            .bind(partition)
            .bind(epoch);
        let rows = self.rows(statement).await?;
        check_owner(&rows)?;
        Ok(rows.first().map(|row| row.try_get("has_failed")).transpose()?.unwrap_or(false))
    }
}

/// Partition and epoch of the owner, as parameters of a statement.
pub(crate) fn columns_of(owner: Option<Applied>) -> (Option<i16>, Option<i64>) {
    let partition = owner.map(|owner| owner.partition.0.cast_signed());
    (partition, owner.map(|owner| owner.epoch.cast_signed()))
}

/// Checks the column `is_owner`, which the statement returns in every row.
pub(crate) fn check_owner(rows: &[PgRow]) -> Result<(), StoreError> {
    match rows.first().map(|row| row.try_get::<bool, _>("is_owner")).transpose()? {
        Some(false) => Err(StoreError::NotOwner),
        Some(true) | None => Ok(()),
    }
}
