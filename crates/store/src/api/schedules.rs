//! Schedules of agents, as they are put and as people look at them.

use model::{AgentId, CommandId, Metadata, ScheduleName, TimerId, Timestamp};
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::{agent_bucket, json, timestamp, timestamp_opt};
use crate::error::StoreError;
use crate::row::{metadata, parse_column, unsigned};
use crate::store::Store;

/// Most schedules of an agent.
pub const MOST_SCHEDULES: i64 = 64;

/// When an agent's work falls due, and what it is.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredSchedule {
    /// Five fields; or `at`.
    pub cron: Option<String>,
    /// One time.
    pub at: Option<Timestamp>,
    /// IANA.
    pub time_zone: String,
    /// `skip` or `queue`.
    pub overlap: String,
    /// `skip` or `one`.
    pub missed: String,
    /// The text of its tasks.
    pub content: String,
    /// Their metadata.
    pub metadata: Metadata,
    /// It occurs.
    pub enabled: bool,
}

/// A schedule as it is put.
#[derive(Debug, Clone, PartialEq)]
pub struct PutSchedule {
    /// Whose.
    pub agent: AgentId,
    /// Which.
    pub name: ScheduleName,
    /// What it is.
    pub schedule: StoredSchedule,
    /// When it occurs next, by the database's clock; `None`: it does not.
    pub next_due: Option<Timestamp>,
    /// The command that puts it.
    pub command: CommandId,
    /// Who does it.
    pub actor: String,
}

/// A schedule as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct ScheduleRow {
    /// Which.
    pub name: ScheduleName,
    /// What it is.
    pub schedule: StoredSchedule,
    /// One more with each change, from 1.
    pub version: u64,
    /// Who put it first.
    pub created_by: String,
    /// When, by the database's clock.
    pub created_at: Timestamp,
    /// When it was put last.
    pub updated_at: Timestamp,
    /// When it occurs next; `None`: it does not any more.
    pub next_due: Option<Timestamp>,
}

/// What came of putting a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PutOutcome {
    /// It is stored, in this version.
    Stored(u64),
    /// See [`MOST_SCHEDULES`].
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
    /// Writes a schedule with the timer of its next occurrence, in the place of what the schedule had. A command announces it to
    /// its owner, which otherwise finds it within a minute.
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

    /// Deletes a schedule with its next occurrence; false when there is none of that name.
    pub async fn delete_schedule(&self, agent: &AgentId, name: &ScheduleName) -> Result<bool, StoreError> {
        let statement = sqlx::query(include_str!("schedules/delete.sql"))
            .bind(agent_bucket(agent))
            .bind(agent.as_str())
            .bind(name.as_str());
        Ok(!self.rows(statement).await?.is_empty())
    }

    /// The schedules of an agent, by their names: all of them, for they are few.
    pub async fn schedules(&self, agent: &AgentId) -> Result<Vec<ScheduleRow>, StoreError> {
        let sql = format!("{ROWS} ORDER BY s.name");
        let statement = sqlx::query(sqlx::AssertSqlSafe(sql)).bind(agent_bucket(agent)).bind(agent.as_str());
        self.rows(statement).await?.iter().map(schedule).collect()
    }

    /// One schedule.
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
