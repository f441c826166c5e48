//! Erasures that clients request: rows of a table, which workers claim one by one.
//!
//! A worker holds an erasure for the time of a lease that it renews. `due_at` is the end of the
//! lease, so an erasure whose worker has died becomes due again. Every write of a worker names its
//! attempt: a worker that was paused and has lost the erasure changes nothing.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use model::{Tenant, ThreadId, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row};

use crate::api::timestamp;
use crate::erase::ErasedOwner;
use crate::erased_tenants::name;
use crate::error::StoreError;
use crate::row::{interval, parse_column};
use crate::store::Store;

/// Maximum number of erasures of a tenant that have not ended.
pub const MAX_OPEN_ERASURES: i64 = 1_000;

/// How long a statement of an erasure may take: some read whole tables.
const LONG_STATEMENT_TIMEOUT: Duration = Duration::from_secs(300);

/// What is erased.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ErasedData {
    Thread(ThreadId),
    Owner(ErasedOwner),
}

/// The kind of what is erased.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErasedKind {
    Thread,
    User,
    Tenant,
}

impl ErasedKind {
    pub const ALL: [Self; 3] = [Self::Thread, Self::User, Self::Tenant];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Thread => "thread",
            Self::User => "user",
            Self::Tenant => "tenant",
        }
    }

    /// The kind with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// The id of an erasure: 32 hexadecimal digits that rise with time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErasureId(String);

impl ErasureId {
    /// Parses the output of `Display`.
    pub fn parse(text: &str) -> Option<Self> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (text.len() == 32 && text.bytes().all(is_digit)).then(|| Self(text.to_owned()))
    }
}

impl fmt::Display for ErasureId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How far an erasure has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErasureState {
    /// The erasure waits for a worker, for the first time or after an attempt that has left some
    /// data.
    Queued,
    /// A worker does it.
    Running,
    /// Nothing is left.
    Done,
    /// Some data is left, and no worker tries again.
    Failed,
}

impl ErasureState {
    /// All states, in the order in which an erasure has them.
    pub const ALL: [Self; 4] = [Self::Queued, Self::Running, Self::Done, Self::Failed];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }

    /// The state with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

/// What was removed: threads, rows by table, and entries by stream.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ErasedCounts {
    pub threads: u64,
    pub tables: BTreeMap<String, u64>,
    pub streams: BTreeMap<String, u64>,
}

/// A request to erase.
#[derive(Debug, Clone)]
pub struct NewErasure {
    pub id: ErasureId,
    /// The tenant of the client.
    pub tenant: Option<Tenant>,
    pub data: ErasedData,
    /// Whether everything is only counted.
    pub is_preview: bool,
    pub actor: String,
}

/// An erasure as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct ErasureRow {
    pub id: ErasureId,
    pub kind: ErasedKind,
    /// The id of the thread, or the name of the user or tenant; `None` once a user is erased.
    pub subject: Option<String>,
    pub is_preview: bool,
    pub actor: String,
    pub state: ErasureState,
    /// Number of attempts, each begun by a worker.
    pub attempts: u32,
    pub counts: ErasedCounts,
    pub receipt: Option<Value>,
    /// Why the last attempt did not complete it.
    pub error: Option<String>,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    /// Time of the next attempt, if the erasure waits for one.
    pub next_attempt_at: Option<Timestamp>,
    pub ended_at: Option<Timestamp>,
}

/// An erasure that the caller holds until its lease ends.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimedErasure {
    pub id: ErasureId,
    pub data: ErasedData,
    pub is_preview: bool,
    pub actor: String,
    /// The number of this attempt, from 1.
    pub attempt: u32,
    /// What earlier attempts have removed.
    pub counts: ErasedCounts,
    /// Milliseconds from the request to this attempt.
    pub waited_ms: u64,
}

/// The hold of a worker on a requested erasure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErasureHold {
    pub id: ErasureId,
    /// The number of the worker's attempt. A higher one means that another worker holds it.
    pub attempt: u32,
}

/// How an attempt has ended.
#[derive(Debug, Clone, PartialEq)]
pub enum AttemptEnd {
    /// Nothing is left.
    Done { receipt: Value },
    /// Some data is left: a worker tries again after this time.
    Again { error: String, after: Duration },
    /// Some data is left, and the maximum number of attempts was made.
    Failed { error: String, receipt: Option<Value> },
}

const COLUMNS: &str = "erasure_id, kind, subject, is_preview, actor, state, attempts, counts, receipt, error,
    (extract(epoch FROM created_at) * 1000)::bigint AS created_ms,
    (extract(epoch FROM started_at) * 1000)::bigint AS started_ms,
    (extract(epoch FROM due_at) * 1000)::bigint AS due_ms,
    (extract(epoch FROM ended_at) * 1000)::bigint AS ended_ms";

impl Store {
    /// A handle for the same database with its own connection, on which a statement may take
    /// minutes. The connection is opened on first use and closed after some idle minutes.
    ///
    /// # Errors
    /// The address of the database is invalid.
    pub fn patient(&self) -> Result<Self, StoreError> {
        self.with_own_connection(LONG_STATEMENT_TIMEOUT)
    }

    /// Stores a request to erase. A request for the same data that has not ended is returned
    /// instead of a new one. `None`: too many erasures of the tenant have not ended.
    pub async fn request_erasure(&self, new: &NewErasure) -> Result<Option<ErasureRow>, StoreError> {
        let (kind, subject) = stored_data(&new.data);
        let tenant = name(new.tenant.as_ref());
        // Two tries: the request that was found may have ended in between.
        for _ in 0..2 {
            let insert = sqlx::query(
                "INSERT INTO erasures (erasure_id, tenant, kind, subject, is_preview, actor)
                 SELECT $1, $2, $3, $4, $5, $6
                 WHERE (SELECT count(*) FROM erasures WHERE tenant = $2 AND ended_at IS NULL) < $7
                 ON CONFLICT (tenant, kind, md5(subject), is_preview) WHERE ended_at IS NULL DO NOTHING",
            );
            let insert = insert.bind(new.id.to_string()).bind(tenant.clone()).bind(kind.name());
            let insert = insert.bind(subject.clone()).bind(new.is_preview).bind(new.actor.clone());
            self.rows(insert.bind(MAX_OPEN_ERASURES)).await?;
            let sql = format!(
                "SELECT {COLUMNS} FROM erasures WHERE tenant = $1 AND kind = $2 AND subject = $3
                     AND is_preview = $4 AND (ended_at IS NULL OR erasure_id = $5)
                 ORDER BY erasure_id DESC LIMIT 1"
            );
            let found = sqlx::query(AssertSqlSafe(sql)).bind(tenant.clone()).bind(kind.name());
            let found = found.bind(subject.clone()).bind(new.is_preview).bind(new.id.to_string());
            if let Some(row) = self.rows(found).await?.first() {
                return erasure(row).map(Some);
            }
        }
        Ok(None)
    }

    /// One erasure of a tenant.
    pub async fn erasure(
        &self,
        tenant: Option<&Tenant>,
        id: &ErasureId,
    ) -> Result<Option<ErasureRow>, StoreError> {
        let sql = format!("SELECT {COLUMNS} FROM erasures WHERE tenant = $1 AND erasure_id = $2");
        let statement = sqlx::query(AssertSqlSafe(sql)).bind(name(tenant)).bind(id.to_string());
        self.rows(statement).await?.first().map(erasure).transpose()
    }

    /// At most `limit` erasures of a tenant, the newest first; with `before`, those requested
    /// before that one; with `state`, only those in this state.
    pub async fn erasures(
        &self,
        tenant: Option<&Tenant>,
        state: Option<ErasureState>,
        before: Option<&ErasureId>,
        limit: u32,
    ) -> Result<Vec<ErasureRow>, StoreError> {
        let sql = format!(
            "SELECT {COLUMNS} FROM erasures
             WHERE tenant = $1 AND ($2::text IS NULL OR state = $2) AND ($3::text IS NULL OR erasure_id < $3)
             ORDER BY erasure_id DESC LIMIT $4"
        );
        let statement = sqlx::query(AssertSqlSafe(sql)).bind(name(tenant));
        let statement = statement.bind(state.map(ErasureState::name)).bind(before.map(ErasureId::to_string));
        self.rows(statement.bind(i64::from(limit))).await?.iter().map(erasure).collect()
    }

    /// Claims the erasure that has been due longest, if there is one, for the time `lease`. No
    /// other worker can claim it during that time.
    pub async fn claim_erasure(
        &self,
        worker: &str,
        lease: Duration,
    ) -> Result<Option<ClaimedErasure>, StoreError> {
        let statement = sqlx::query(include_str!("erasures/claim.sql")).bind(worker.to_owned());
        self.rows(statement.bind(interval(lease))).await?.first().map(claimed).transpose()
    }

    /// Marks threads like [`Store::mark_erased`], for a request that the caller holds. Returns the
    /// marked threads. Threads that were created again after the request are not marked. No thread
    /// is marked if another worker holds the request by now.
    pub async fn mark_held(
        &self,
        threads: &[ThreadId],
        actor: &str,
        run: &str,
        owner: Option<&ErasedOwner>,
        hold: &ErasureHold,
    ) -> Result<Vec<ThreadId>, StoreError> {
        let attempt = i32::try_from(hold.attempt).unwrap_or(i32::MAX);
        self.mark(threads, actor, run, owner, Some((hold.id.to_string(), attempt))).await
    }

    /// Keeps an erasure for another `lease`, and stores what was removed so far. False: the caller
    /// has lost the erasure.
    pub async fn renew_erasure(
        &self,
        held: &ClaimedErasure,
        lease: Duration,
        counts: &ErasedCounts,
    ) -> Result<bool, StoreError> {
        let statement = sqlx::query(
            "UPDATE erasures SET due_at = clock_timestamp() + $3, counts = $4
             WHERE erasure_id = $1 AND attempts = $2 AND state = 'running' RETURNING true",
        );
        let statement = statement.bind(held.id.to_string()).bind(stored_attempt(held));
        Ok(!self.rows(statement.bind(interval(lease)).bind(json(counts)?)).await?.is_empty())
    }

    /// Stores the end of an attempt. False: the caller had lost the erasure.
    pub async fn end_attempt(
        &self,
        held: &ClaimedErasure,
        counts: &ErasedCounts,
        end: &AttemptEnd,
    ) -> Result<bool, StoreError> {
        let (state, after, receipt, error) = match end {
            AttemptEnd::Done { receipt } => (ErasureState::Done, Duration::ZERO, Some(receipt.clone()), None),
            AttemptEnd::Again { error, after } => (ErasureState::Queued, *after, None, Some(error.clone())),
            AttemptEnd::Failed { error, receipt } => {
                (ErasureState::Failed, Duration::ZERO, receipt.clone(), Some(error.clone()))
            }
        };
        let statement = sqlx::query(include_str!("erasures/end_attempt.sql"))
            .bind(held.id.to_string())
            .bind(stored_attempt(held))
            .bind(state.name())
            .bind(interval(after))
            .bind(json(counts)?)
            .bind(receipt)
            .bind(error);
        Ok(!self.rows(statement).await?.is_empty())
    }

    /// Removes the name of a user from erasures that have ended, and drops dry runs that have not
    /// ended, because their results would keep the name.
    pub(crate) async fn forget_user_in_erasures(&self, tenant: &str, user: &str) -> Result<u64, StoreError> {
        let statement = sqlx::query(
            "WITH dropped AS (
                 DELETE FROM erasures
                 WHERE tenant = $1 AND kind = 'user' AND subject = $2 AND ended_at IS NULL AND is_preview
                 RETURNING true
             ), named AS (
                 UPDATE erasures SET subject = NULL
                 WHERE tenant = $1 AND kind = 'user' AND subject = $2 AND ended_at IS NOT NULL RETURNING true
             )
             SELECT true FROM dropped UNION ALL SELECT true FROM named",
        );
        let rows = self.rows(statement.bind(tenant.to_owned()).bind(user.to_owned())).await?;
        Ok(rows.len() as u64)
    }
}

fn stored_data(data: &ErasedData) -> (ErasedKind, String) {
    match data {
        ErasedData::Thread(thread) => (ErasedKind::Thread, thread.to_string()),
        ErasedData::Owner(ErasedOwner::User(_, user)) => (ErasedKind::User, user.clone()),
        ErasedData::Owner(ErasedOwner::Tenant(tenant)) => (ErasedKind::Tenant, name(tenant.as_ref())),
    }
}

fn stored_attempt(held: &ClaimedErasure) -> i32 {
    i32::try_from(held.attempt).unwrap_or(i32::MAX)
}

fn json(counts: &ErasedCounts) -> Result<Value, StoreError> {
    serde_json::to_value(counts).map_err(|error| StoreError::Row(error.to_string()))
}

fn counts(row: &PgRow) -> Result<ErasedCounts, StoreError> {
    let counts: Value = row.try_get("counts")?;
    serde_json::from_value(counts).map_err(|error| StoreError::Row(format!("counts: {error}")))
}

fn id(row: &PgRow) -> Result<ErasureId, StoreError> {
    parse_column(row, "erasure_id", |text| ErasureId::parse(text).ok_or("it is no id of an erasure"))
}

fn kind(row: &PgRow) -> Result<ErasedKind, StoreError> {
    parse_column(row, "kind", |name| ErasedKind::from_name(name).ok_or("there is no such kind"))
}

fn erasure(row: &PgRow) -> Result<ErasureRow, StoreError> {
    let at = |column: &str| row.try_get::<Option<i64>, _>(column).map(|ms| ms.map(Timestamp));
    let state =
        parse_column(row, "state", |name| ErasureState::from_name(name).ok_or("there is no such state"))?;
    let attempts = row.try_get::<i32, _>("attempts")?.unsigned_abs();
    let is_retried = state == ErasureState::Queued && attempts > 0;
    Ok(ErasureRow {
        id: id(row)?,
        kind: kind(row)?,
        subject: row.try_get("subject")?,
        is_preview: row.try_get("is_preview")?,
        actor: row.try_get("actor")?,
        state,
        attempts,
        counts: counts(row)?,
        receipt: row.try_get("receipt")?,
        error: row.try_get("error")?,
        created_at: timestamp(row, "created_ms")?,
        started_at: at("started_ms")?,
        next_attempt_at: at("due_ms")?.filter(|_| is_retried),
        ended_at: at("ended_ms")?,
    })
}

fn claimed(row: &PgRow) -> Result<ClaimedErasure, StoreError> {
    let tenant = match row.try_get::<&str, _>("tenant")? {
        "-" => None,
        _ => Some(parse_column(row, "tenant", Tenant::parse)?),
    };
    let data = match kind(row)? {
        ErasedKind::Thread => ErasedData::Thread(parse_column(row, "subject", ThreadId::parse)?),
        ErasedKind::User => ErasedData::Owner(ErasedOwner::User(tenant, row.try_get("subject")?)),
        ErasedKind::Tenant => {
            ErasedData::Owner(ErasedOwner::Tenant(Some(parse_column(row, "subject", Tenant::parse)?)))
        }
    };
    Ok(ClaimedErasure {
        id: id(row)?,
        data,
        is_preview: row.try_get("is_preview")?,
        actor: row.try_get("actor")?,
        attempt: row.try_get::<i32, _>("attempts")?.unsigned_abs(),
        counts: counts(row)?,
        waited_ms: row.try_get::<i64, _>("waited_ms")?.unsigned_abs(),
    })
}
