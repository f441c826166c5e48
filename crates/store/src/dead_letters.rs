//! Dead letters for operators, who can list them, drop them, and replay them into the stream.

use std::time::Duration;

use bytes::Bytes;
use model::{Bucket, CommandId, PartitionId, Seq, Timestamp};
use serde_json::Value;
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::error::StoreError;
use crate::row::partition_id;
use crate::row::{count, interval, unsigned};
use crate::store::Store;

/// The subject in the audit log for dead letters whose owner is unknown.
const UNKNOWN_OWNER: &str = "dead-letters";

/// The id of a dead letter: `<kind>:<bucket>:<key>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterId {
    /// The bucket of the thread; for an entry the number of the partition.
    pub bucket: u16,
    /// `entry` or `message`.
    pub kind: String,
    /// `<incarnation>:<sequence>` of an entry, `<thread>/<message>` of a message.
    pub key: String,
}

impl DeadLetterId {
    /// Parses the output of [`DeadLetterId::text`].
    pub fn parse(text: &str) -> Option<Self> {
        let (kind, rest) = text.split_once(':')?;
        let (bucket, key) = rest.split_once(':')?;
        let bucket = bucket.parse().ok().filter(|bucket| *bucket < model::BUCKETS)?;
        // Texts in Postgres contain no NUL.
        let is_known = matches!(kind, "entry" | "message") && !key.is_empty() && !key.contains('\0');
        is_known.then(|| Self { bucket, kind: kind.to_owned(), key: key.to_owned() })
    }

    pub fn text(&self) -> String {
        format!("{}:{}:{}", self.kind, self.bucket, self.key)
    }
}

/// The cursor at the end of a page: `<microseconds of Unix time>:<id>`. It stays valid when its
/// dead letter has been dropped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterCursor {
    created_us: i64,
    id: DeadLetterId,
}

impl DeadLetterCursor {
    /// Parses the output of [`DeadLetterCursor::text`].
    pub fn parse(text: &str) -> Option<Self> {
        let (created_us, id) = text.split_once(':')?;
        // The range that can be added to a Postgres timestamp.
        let created_us = created_us.parse().ok().filter(|us| (0..1 << 55).contains(us))?;
        Some(Self { created_us, id: DeadLetterId::parse(id)? })
    }

    pub fn text(&self) -> String {
        format!("{}:{}", self.created_us, self.id.text())
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct StoredDeadLetter {
    pub id: DeadLetterId,
    pub partition: PartitionId,
    /// Sequence of the entry, or of the first entry of the message.
    pub seq: Seq,
    /// Subject of an entry; `None` for messages.
    pub subject: Option<String>,
    /// The thread that the entry was sent to, or the agent's own thread; `None` when its subject
    /// cannot be read. The text may be longer than a valid id.
    pub owner: Option<String>,
    /// Thread of a message; `None` for entries.
    pub thread: Option<String>,
    /// Id of a message; `None` for entries.
    pub message: Option<String>,
    /// Attempt number of a message; `None` for entries.
    pub attempt: Option<u32>,
    pub reason: String,
    /// An object with `text` and further details.
    pub detail: Value,
    /// The payload as received, or the message's chunks as a JSON array.
    pub raw: Bytes,
    /// Time of the dead letter by the database clock.
    pub created_at: Timestamp,
    /// `created_at` in microseconds, for [`StoredDeadLetter::cursor`].
    created_us: i64,
    /// When its payload was put into the stream again.
    pub replayed_at: Option<Timestamp>,
}

/// The outcome of claiming a dead letter for a replay.
#[derive(Debug, Clone, PartialEq)]
pub enum ReplayClaim {
    /// The claim belongs to the caller for a minute.
    Claimed,
    /// The dead letter has been replayed already.
    Replayed,
    /// Another caller is about to replay it.
    Busy,
    /// The dead letter does not exist.
    Unknown,
}

impl Store {
    /// Lists at most `limit` dead letters, newest first. With `before`, lists those after that one
    /// in this order; with `reason`, only those with this reason. A handle of a tenant lists only
    /// dead letters of that tenant, even without row-level security.
    pub async fn list_dead_letters(
        &self,
        reason: Option<&str>,
        before: Option<&DeadLetterCursor>,
        limit: u32,
    ) -> Result<Vec<StoredDeadLetter>, StoreError> {
        let statement = sqlx::query(include_str!("dead_letters/page.sql"))
            .bind(reason.map(str::to_owned))
            .bind(before.map(|at| at.id.bucket as i16))
            .bind(before.map(|at| at.id.kind.clone()))
            .bind(before.map(|at| at.id.key.clone()))
            .bind(before.map(|at| at.created_us))
            .bind(i64::from(limit))
            .bind(self.tenant_setting());
        self.rows(statement).await?.iter().map(dead_letter).collect()
    }

    /// Counts the dead letters of the last `within` by reason, the most frequent first.
    pub async fn recent_dead_letters(&self, within: Duration) -> Result<Vec<(String, u64)>, StoreError> {
        let sql = "SELECT reason, count(*) AS count FROM dead_letters
             WHERE created_at > clock_timestamp() - $1 GROUP BY reason ORDER BY count DESC, reason";
        let rows = self.rows(sqlx::query(sql).bind(interval(within))).await?;
        rows.iter().map(|row| Ok((row.try_get("reason")?, unsigned(row, "count")?))).collect()
    }

    pub async fn dead_letter(&self, id: &DeadLetterId) -> Result<Option<StoredDeadLetter>, StoreError> {
        let statement = sqlx::query(
            "SELECT *, antiphon_dead_letter_owner(thread_id, subject) AS owner,
                    (extract(epoch FROM created_at) * 1000000)::bigint AS created_us,
                    (extract(epoch FROM replayed_at) * 1000)::bigint AS replayed_ms
             FROM dead_letters WHERE bucket = $1 AND kind = $2 AND key = $3",
        );
        self.rows(bound(statement, id)).await?.first().map(dead_letter).transpose()
    }

    /// Claims a dead letter for a replay. No other caller can claim it for a minute. After
    /// [`Store::replayed`] it cannot be claimed at all.
    pub async fn claim_replay(&self, id: &DeadLetterId) -> Result<ReplayClaim, StoreError> {
        let statement = sqlx::query(include_str!("dead_letters/claim.sql"));
        let rows = self.rows(bound(statement, id)).await?;
        let Some(row) = rows.first() else { return Ok(ReplayClaim::Unknown) };
        Ok(match (row.try_get("is_claimed")?, row.try_get("is_replayed")?) {
            (true, _) => ReplayClaim::Claimed,
            (false, true) => ReplayClaim::Replayed,
            (false, false) => ReplayClaim::Busy,
        })
    }

    /// Marks a dead letter as replayed and writes the audit entry, once.
    pub async fn replayed(
        &self,
        letter: &StoredDeadLetter,
        act: &CommandId,
        actor: &str,
    ) -> Result<bool, StoreError> {
        let statement = sqlx::query(include_str!("dead_letters/replayed.sql"));
        self.audited(statement, letter, act, actor).await
    }

    /// Drops a dead letter and writes the audit entry. Returns false if it does not exist.
    pub async fn drop_dead_letter(
        &self,
        letter: &StoredDeadLetter,
        act: &CommandId,
        actor: &str,
    ) -> Result<bool, StoreError> {
        let statement = sqlx::query(include_str!("dead_letters/drop.sql"));
        self.audited(statement, letter, act, actor).await
    }

    async fn audited(
        &self,
        statement: crate::statement::Statement,
        letter: &StoredDeadLetter,
        act: &CommandId,
        actor: &str,
    ) -> Result<bool, StoreError> {
        let owner = letter.owner.as_deref().unwrap_or(UNKNOWN_OWNER);
        let statement = bound(statement, &letter.id)
            .bind(Bucket::of_key(owner).get() as i16)
            .bind(owner.to_owned())
            .bind(act.to_string())
            .bind(actor.to_owned())
            .bind(letter.id.text());
        Ok(count(&self.rows(statement).await?)? > 0)
    }
}

impl StoredDeadLetter {
    /// The cursor of a page that ends with this dead letter.
    pub fn cursor(&self) -> DeadLetterCursor {
        DeadLetterCursor { created_us: self.created_us, id: self.id.clone() }
    }

    /// The tenant of the dead letter; the default tenant when the owner is unknown.
    pub fn tenant(&self) -> Option<&str> {
        self.owner.as_deref()?.split_once('~').map(|(tenant, _)| tenant)
    }
}

fn bound(statement: crate::statement::Statement, id: &DeadLetterId) -> crate::statement::Statement {
    statement.bind(id.bucket as i16).bind(id.kind.clone()).bind(id.key.clone())
}

fn dead_letter(row: &PgRow) -> Result<StoredDeadLetter, StoreError> {
    let attempt = row.try_get::<Option<i64>, _>("attempt")?;
    Ok(StoredDeadLetter {
        id: DeadLetterId {
            bucket: row.try_get::<i16, _>("bucket")?.unsigned_abs(),
            kind: row.try_get("kind")?,
            key: row.try_get("key")?,
        },
        partition: partition_id(row)?,
        seq: Seq(unsigned(row, "stream_seq")?),
        subject: row.try_get("subject")?,
        owner: row.try_get("owner")?,
        thread: row.try_get("thread_id")?,
        message: row.try_get("message_id")?,
        attempt: attempt.and_then(|attempt| u32::try_from(attempt).ok()),
        reason: row.try_get("reason")?,
        detail: row.try_get("detail")?,
        raw: row.try_get::<Vec<u8>, _>("raw")?.into(),
        created_at: Timestamp(row.try_get::<i64, _>("created_us")? / 1_000),
        created_us: row.try_get("created_us")?,
        replayed_at: row.try_get::<Option<i64>, _>("replayed_ms")?.map(Timestamp),
    })
}
