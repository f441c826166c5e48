//! What is known of messages by their ids.

use model::{IdRange, MessageKey, Position, Role};
use partition::Lookup;
use serde_json::Value;
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::error::StoreError;
use crate::leases::Applied;
use crate::row::{columns, key, missing, role, unsigned};
use crate::store::Store;

/// How a message ended, as the store keeps it.
#[derive(Debug, Clone, PartialEq)]
pub enum StoredOutcome {
    /// Persisted.
    Complete {
        /// Where it stands in its thread.
        position: Position,
        /// Who speaks.
        role: Role,
        /// Its whole text.
        content: String,
        /// The attempt that produced it.
        attempt: u32,
    },
    /// Given up, kept as a dead letter.
    Failed {
        /// See [`model::MessageFailure::code`].
        code: String,
        /// What went wrong, for people.
        text: String,
        /// Chunk ids that never came.
        missing: Vec<IdRange>,
        /// Whether the same again may succeed.
        is_retryable: bool,
        /// The attempt that failed.
        attempt: u32,
    },
}

impl Store {
    /// What the store knows of each of these messages, in the order of `keys`.
    ///
    /// Unless `create_threads`, a message that is absent and whose thread does not exist is [`Lookup::NoThread`]. Messages of a
    /// thread that was erased have all ended: nothing of them is kept, not even as a dead letter.
    ///
    /// # Errors
    /// [`StoreError::NotOwner`] when `owner` is not the owner of record: what its successor did may be undone by a store that goes back in
    /// time, and then nothing that was heard of it may count.
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

    /// How those of these messages that have ended did so. The others are left out.
    pub async fn outcome_of(
        &self,
        keys: &[MessageKey],
    ) -> Result<Vec<(MessageKey, StoredOutcome)>, StoreError> {
        let (buckets, threads, messages) = columns(keys);
        let statement = sqlx::query(include_str!("lookup/outcome.sql"));
        let rows = self.rows(statement.bind(buckets).bind(threads).bind(messages)).await?;
        rows.iter().map(|row| Ok((key(row)?, outcome(row)?))).collect()
    }
}

/// As a statement takes them.
pub(crate) fn columns_of(owner: Option<Applied>) -> (Option<i16>, Option<i64>) {
    let partition = owner.map(|owner| owner.partition.0.cast_signed());
    (partition, owner.map(|owner| owner.epoch.cast_signed()))
}

/// Of a statement that says so in every row.
pub(crate) fn check_owner(rows: &[PgRow]) -> Result<(), StoreError> {
    match rows.first().map(|row| row.try_get::<bool, _>("is_owner")).transpose()? {
        Some(false) => Err(StoreError::NotOwner),
        Some(true) | None => Ok(()),
    }
}

fn outcome(row: &PgRow) -> Result<StoredOutcome, StoreError> {
    let attempt = unsigned(row, "attempt")?;
    match row.try_get::<Option<i64>, _>("position")? {
        Some(position) => Ok(StoredOutcome::Complete {
            position: Position::from_stored(position),
            role: role(row)?,
            content: row.try_get("content")?,
            attempt,
        }),
        None => {
            let detail: Value = row.try_get("detail")?;
            let text = detail["text"].as_str().unwrap_or_default().to_owned();
            Ok(StoredOutcome::Failed {
                code: row.try_get("reason")?,
                text,
                missing: missing(&detail["missing"]),
                is_retryable: detail["retryable"].as_bool().unwrap_or(true),
                attempt,
            })
        }
    }
}
