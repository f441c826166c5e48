//! Schedules of agents: written by clients and shown to people.

use model::{AgentId, CommandId, Metadata, ScheduleName, TimerId, Timestamp};
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::{agent_bucket, json, timestamp, timestamp_opt};
use crate::error::StoreError;
use crate::row::{metadata, parse_column, unsigned};
use crate::store::Store;

/// Maximum number of schedules per agent.
pub const MOST_SCHEDULES: i64 = 64;

/// When an agent's scheduled work falls due, and the task that it adds.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredSchedule {
    /// Cron expression with five fields; `None` when `at` is set.
    pub cron: Option<String>,
    /// The time of the only occurrence; `None` when `cron` is set.
    pub at: Option<Timestamp>,
    /// A time zone by its IANA name.
    pub time_zone: String,
    /// `skip` or `queue`.
    pub overlap: String,
    /// `skip` or `one`.
    pub missed: String,
    /// The text of its tasks.
    pub content: String,
    /// Metadata of its tasks.
    pub metadata: Metadata,
    /// While false, the schedule adds no tasks.
    pub enabled: bool,
}

/// A schedule to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct PutSchedule {
    pub agent: AgentId,
    pub name: ScheduleName,
    pub schedule: StoredSchedule,
    /// The next occurrence (database clock); `None`: there is none.
    pub next_due: Option<Timestamp>,
    /// The command that writes it.
    pub command: CommandId,
    pub actor: String,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ScheduleRow {
    pub name: ScheduleName,
    pub schedule: StoredSchedule,
    /// Starts at 1; each change increments it.
    pub version: u64,
    /// The actor that wrote it first.
    pub created_by: String,
    /// When it was first written, by the database clock.
    pub created_at: Timestamp,
    /// When it was last written.
    pub updated_at: Timestamp,
    /// The next occurrence; `None`: there are no more.
    pub next_due: Option<Timestamp>,
}

/// The outcome of writing a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutOutcome {
    /// The schedule is stored with this version.
    Stored(u64),
    /// The agent has [`MOST_SCHEDULES`] others already.
    Full,
    /// The agent was erased.
    Erased,
}

const ROWS: &str = "SELECT s.*, floor(extract(epoch FROM s.at) * 1000)::bigint AS at_ms,
        floor(extract(epoch FROM s.created_at) * 1000)::bigint AS created_ms,
        floor(extract(epoch FROM s.updated_at) * 1000)::bigint AS updated_ms,
        floor(extract(epoch FROM t.due_at) * 1000)::bigint AS due_ms
    FROM schedules AS s
    LEFT JOIN timers AS t ON t.bucket = s.bucket AND t.timer_id = s.timer_id AND t.state = 'pending'
    WHERE s.bucket = $1 AND s.agent_id = $2";

impl Store {
    /// Writes a schedule with the timer of its next occurrence, and replaces its previous timer. A
    /// command announces the timer to its owner; without the command the owner finds it within a
    /// minute.
    pub async fn put_schedule(&self, put: &PutSchedule) -> Result<PutOutcome, StoreError> {
        let schedule = &put.schedule;
        let statement = sqlx::query(include_str!("schedules/put.sql"))
            .bind(agent_bucket(&put.agent))
            .bind(put.agent.as_str())
            .bind(put.name.as_str())
            .bind(schedule.cron.clone())
            .bind(schedule.at.map(|at| at.0))
            .bind(schedule.time_zone.clone())
            .bind(schedule.overlap.clone())
            .bind(schedule.missed.clone())
            .bind(schedule.content.clone())
            .bind(json(&schedule.metadata))
            .bind(schedule.enabled)
            .bind(put.actor.clone())
            .bind(TimerId::of_schedule(&put.agent, &put.name, &put.command).to_string())
            .bind(put.next_due.filter(|_| schedule.enabled).map(|due| due.0))
            .bind(MOST_SCHEDULES);
        let rows = self.rows(statement).await?;
        let row = rows.first().ok_or_else(|| StoreError::Row("no row was returned".to_owned()))?;
        Ok(match row.try_get::<Option<i64>, _>("version")? {
            Some(version) => PutOutcome::Stored(version.unsigned_abs()),
            None if row.try_get("is_erased")? => PutOutcome::Erased,
            None => PutOutcome::Full,
        })
    }

    /// Deletes a schedule and its next occurrence; false when no schedule has that name.
    pub async fn delete_schedule(&self, agent: &AgentId, name: &ScheduleName) -> Result<bool, StoreError> {
        let statement = sqlx::query(include_str!("schedules/delete.sql"))
            .bind(agent_bucket(agent))
            .bind(agent.as_str())
            .bind(name.as_str());
        Ok(!self.rows(statement).await?.is_empty())
    }

    /// Lists all schedules of an agent, ordered by name: there are at most [`MOST_SCHEDULES`].
    pub async fn schedules(&self, agent: &AgentId) -> Result<Vec<ScheduleRow>, StoreError> {
        let sql = format!("{ROWS} ORDER BY s.name");
        let statement = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(agent_bucket(agent)).bind(agent.as_str());
        self.rows(statement).await?.iter().map(schedule).collect()
    }

    pub async fn schedule(
        &self,
        agent: &AgentId,
        name: &ScheduleName,
    ) -> Result<Option<ScheduleRow>, StoreError> {
        let sql = format!("{ROWS} AND s.name = $3");
        let statement = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(agent_bucket(agent))
            .bind(agent.as_str())
            .bind(name.as_str());
        self.rows(statement).await?.first().map(schedule).transpose()
    }
}

fn schedule(row: &PgRow) -> Result<ScheduleRow, StoreError> {
    Ok(ScheduleRow {
        name: parse_column(row, "name", ScheduleName::parse)?,
        schedule: StoredSchedule {
            cron: row.try_get("cron")?,
            at: timestamp_opt(row, "at_ms")?,
            time_zone: row.try_get("time_zone")?,
            overlap: row.try_get("overlap")?,
            missed: row.try_get("missed")?,
            content: row.try_get("content")?,
            metadata: metadata(row)?,
            enabled: row.try_get("enabled")?,
        },
        version: unsigned(row, "version")?,
        created_by: row.try_get("created_by")?,
        created_at: timestamp(row, "created_ms")?,
        updated_at: timestamp(row, "updated_ms")?,
        next_due: timestamp_opt(row, "due_ms")?,
    })
}
