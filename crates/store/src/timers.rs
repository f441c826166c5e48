//! Durable timers: the next timers of a partition, and the stored values with which the rules
//! decide about due timers.

use model::{AgentId, PartitionId, Position, ThreadId, TimerId, TimerKind, Timestamp};
use partition::{DueSchedule, DueTimer, PendingTimer, TimerPage, TimerState};
use serde_json::{Map, Value};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::error::StoreError;
use crate::leases::Applied;
use crate::lookup::{check_owner, columns_of};
use crate::row::{column_error, object, parse_column};
use crate::store::Store;

/// Maximum number of timers per bucket in a window. The other timers of a busy bucket follow in the
/// next window.
const OF_A_BUCKET: i64 = 128;

impl Store {
    /// The next timers of the partition, at most `limit`, due `from_ms` from now or later.
    ///
    /// # Errors
    /// [`StoreError::NotOwner`] when `owner` is not the stored owner.
    pub async fn load_timers(
        &self,
        owner: Applied,
        from_ms: Option<i64>,
        limit: usize,
    ) -> Result<TimerPage, StoreError> {
        let count = self.partition_count().await?;
        let count = count.ok_or_else(|| StoreError::Row("the database is not migrated".to_owned()))?;
        let buckets = crate::takeover::buckets_of(owner.partition, count);
        let page = self.next_timers(&buckets, from_ms, limit).await?;
        self.check_owner_of(owner.partition, owner.epoch).await?;
        Ok(page)
    }

    pub(crate) async fn next_timers(
        &self,
        buckets: &[i16],
        from_ms: Option<i64>,
        limit: usize,
    ) -> Result<TimerPage, StoreError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let statement = sqlx::query(include_str!("timers/window.sql"))
            .bind(buckets.to_vec())
            .bind(from_ms)
            .bind(OF_A_BUCKET)
            .bind(limit);
        let rows = self.rows(statement).await?;
        let has_edge = rows.first().map(|row| row.try_get::<bool, _>("has_edge")).transpose()?;
        let is_all = has_edge != Some(true) && (rows.len() as i64) < limit;
        let timer = |row: &PgRow| -> Result<PendingTimer, StoreError> {
            Ok(PendingTimer {
                id: parse_column(row, "timer_id", TimerId::parse)?,
                wait_ms: row.try_get("wait_ms")?,
            })
        };
        let readable = |row: &PgRow| match timer(row) {
            Ok(timer) => Some(timer),
            Err(error) => {
                tracing::error!(%error, "a timer cannot be read: it does not fire");
                None
            }
        };
        Ok(TimerPage { timers: rows.iter().filter_map(readable).collect(), is_all })
    }

    pub(crate) async fn check_owner_of(&self, partition: PartitionId, epoch: u64) -> Result<(), StoreError> {
        let is_owner = sqlx::query(
            "SELECT EXISTS (SELECT FROM partitions WHERE partition_id = $1 AND epoch = $2) AS is_owner",
        );
        let is_owner = is_owner.bind(partition.0.cast_signed()).bind(epoch.cast_signed());
        check_owner(&self.rows(is_owner).await?)
    }

    /// The values that decide about these timers, in their order; `None` for a timer that does not
    /// exist.
    ///
    /// # Errors
    /// [`StoreError::NotOwner`] when `owner` is not the stored owner.
    pub async fn due_timers(
        &self,
        owner: Option<Applied>,
        timers: &[TimerId],
    ) -> Result<Vec<Option<DueTimer>>, StoreError> {
        let (partition, epoch) = columns_of(owner);
        let statement = sqlx::query(include_str!("timers/due.sql"))
            .bind(timers.iter().map(|id| id.bucket().get() as i16).collect::<Vec<_>>())
            .bind(timers.iter().map(TimerId::as_str).collect::<Vec<_>>())
            .bind(partition)
            .bind(epoch);
        let rows = self.rows(statement).await?;
        if owner.is_some() {
            check_owner(&rows)?;
        }
        let mut found: Vec<Option<DueTimer>> = rows.iter().map(due).collect::<Result<_, _>>()?;
        self.ask_budgets(&mut found).await?;
        Ok(found)
    }

    /// Checks the budgets for follow-ups, except those that have ended.
    async fn ask_budgets(&self, found: &mut [Option<DueTimer>]) -> Result<(), StoreError> {
        let is_asked =
            |timer: &&mut DueTimer| timer.kind == TimerKind::FollowUp && timer.state != TimerState::Ended;
        let mut asked: Vec<&mut DueTimer> = found.iter_mut().flatten().filter(is_asked).collect();
        if asked.is_empty() {
            return Ok(());
        }
        let turns: Vec<(ThreadId, AgentId)> =
            asked.iter().filter_map(|timer| Some((timer.thread.clone()?, timer.agent.agent()))).collect();
        let pairs: Vec<_> = turns.iter().map(|(thread, agent)| (thread, agent, None)).collect();
        let over = self.over_budget(&pairs).await?;
        let with_thread = asked.iter_mut().filter(|timer| timer.thread.is_some());
        for (timer, over) in with_thread.zip(over) {
            timer.is_over_budget = over.is_some();
        }
        Ok(())
    }
}

fn due(row: &PgRow) -> Result<Option<DueTimer>, StoreError> {
    if row.try_get::<Option<String>, _>("timer_id")?.is_none() {
        return Ok(None);
    }
    let time = |column: &str| -> Result<Timestamp, StoreError> { Ok(Timestamp(row.try_get(column)?)) };
    let later = |column: &str| -> Result<Option<Timestamp>, StoreError> {
        Ok(row.try_get::<Option<i64>, _>(column)?.map(Timestamp))
    };
    let thread = row.try_get::<Option<&str>, _>("thread_id")?.map(ThreadId::parse).transpose();
    let position = row.try_get::<Option<i64>, _>("real_position")?.map(Position::from_stored);
    let real_input = match (position, later("real_ms")?) {
        (Some(position), Some(at)) => Some((position, at, object(row, "real_metadata")?)),
        _ => None,
    };
    let settings = match row.try_get::<Option<Value>, _>("settings")? {
        Some(Value::Object(settings)) => settings,
        Some(_) | None => Map::new(),
    };
    let fired: Option<Vec<i64>> = row.try_get("fired_ms")?;
    Ok(Some(DueTimer {
        id: parse_column(row, "timer_id", TimerId::parse)?,
        kind: parse_column(row, "kind", |name| TimerKind::from_name(name).ok_or("no such kind of timer"))?,
        thread: thread.map_err(|error| column_error("thread_id", &error))?,
        agent: parse_column(row, "agent_id", AgentId::parse)?,
        state: match row.try_get::<&str, _>("state")? {
            "pending" => TimerState::Pending,
            "fired" => TimerState::Fired,
            _ => TimerState::Ended,
        },
        body: object(row, "body")?,
        now: time("now_ms")?,
        due: time("due_ms")?,
        is_due: row.try_get("is_due")?,
        settings,
        paused: row.try_get("paused")?,
        is_over_budget: false,
        backoff_until: later("until_ms")?,
        real_input,
        is_history_gone: row.try_get("is_history_gone")?,
        is_erased: row.try_get("is_erased")?,
        fired_since_real_input: row.try_get::<i64, _>("fired_since")?.try_into().unwrap_or(u32::MAX),
        fired_at: fired.unwrap_or_default().into_iter().map(Timestamp).collect(),
        is_taken: row.try_get("is_taken")?,
        schedule: schedule(row)?,
    }))
}

fn schedule(row: &PgRow) -> Result<Option<DueSchedule>, StoreError> {
    let Some(content) = row.try_get("content")? else { return Ok(None) };
    Ok(Some(DueSchedule {
        cron: row.try_get("cron")?,
        at: row.try_get("at")?,
        time_zone: row.try_get("time_zone")?,
        overlap: row.try_get("overlap")?,
        missed: row.try_get("missed")?,
        content,
        metadata: object(row, "metadata")?,
        unfinished: row.try_get::<i64, _>("unfinished")?.try_into().unwrap_or(u32::MAX),
    }))
}
