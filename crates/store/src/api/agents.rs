//! Agents: their settings and the state of their queues.

use std::collections::{HashMap, HashSet};

use model::{AgentId, AgentSetting, Bucket, CommandId, Position, TaskId, Tenant, Timestamp, WorkflowName};
use serde_json::{Map, Value};
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::{agent_bucket, object, timestamp, timestamp_opt};
use crate::error::StoreError;
use crate::row::{parse_column, unsigned};
use crate::store::Store;

/// Maximum number of tasks that are counted.
pub const COUNTED_TASKS: i64 = 10_000;

#[derive(Debug, Clone, PartialEq)]
pub struct AgentRow {
    pub agent: AgentId,
    /// Settings put by an operator; `None`: there are none.
    pub settings: Option<AgentSettings>,
    /// The number of pending tasks; counting stops at [`COUNTED_TASKS`].
    pub pending: i64,
    /// The number of tasks marked failed; counting stops at [`COUNTED_TASKS`].
    pub failed: i64,
    /// The oldest pending task.
    pub head: Option<(TaskId, Position)>,
    /// While true, no task of the agent starts.
    pub paused: bool,
    pub backoff_attempt_count: u32,
    /// When the head may run again (database clock).
    pub backoff_next_run_at: Option<Timestamp>,
    /// Remaining backoff in ms by the database clock; `None`: the agent is not backing off.
    pub backoff_left_ms: Option<i64>,
    /// The last failure of the head.
    pub error: Option<AgentError>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct AgentSettings {
    /// The workflow whose services take the agent's turns.
    pub workflow: WorkflowName,
    /// All settings except the workflow.
    pub settings: Map<String, Value>,
    /// Starts at 1; each change increments it.
    pub version: u64,
    /// When the settings were first put (database clock).
    pub created_at: Timestamp,
    /// When the settings were last put (database clock).
    pub updated_at: Timestamp,
}

/// The last failure of an agent's head.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentError {
    pub code: String,
    pub text: Option<String>,
    /// Time of the failure by the database clock.
    pub at: Option<Timestamp>,
}

/// Filter of agent lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AgentWaiting {
    /// Agents that are backing off.
    Backoff,
    Paused,
}

/// Decides whether and how an agent accepts an input.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AgentAdmission {
    /// See [`AgentSettings::settings`]; empty when the agent has no settings.
    pub settings: Map<String, Value>,
    pub backoff_left_ms: Option<i64>,
    /// True if the agent's tenant has budgets: see [`Store::over_budget`].
    pub has_budgets: bool,
}

/// New settings, with their row of the audit log.
#[derive(Debug, Clone, PartialEq)]
pub struct PutAgent {
    pub agent: AgentId,
    pub workflow: WorkflowName,
    pub settings: Map<String, Value>,
    /// The id of the command in the audit log.
    pub act: CommandId,
    pub actor: String,
}

/// The outcome of putting settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PutAgentOutcome {
    /// The settings are stored, with this version, which starts at 1.
    Stored(u64),
    /// Nothing was written: the agent's own thread is being erased.
    BeingErased,
    /// Nothing was written: another agent has the alias.
    AliasTaken {
        alias: String,
        /// The agent that has it.
        agent: AgentId,
    },
}

impl Store {
    /// Writes an agent's settings, its aliases and the audit entry in one statement.
    pub async fn put_agent(&self, put: &PutAgent) -> Result<PutAgentOutcome, StoreError> {
        match self.try_put_agent(put).await {
            // Another agent took an alias at the same time. Its row is visible now.
            Err(error) if error.is_unique_violation() => self.try_put_agent(put).await,
            outcome => outcome,
        }
    }

    async fn try_put_agent(&self, put: &PutAgent) -> Result<PutAgentOutcome, StoreError> {
        let statement = sqlx::query(include_str!("agents/put.sql"))
            .bind(agent_bucket(&put.agent))
            .bind(put.agent.as_str())
            .bind(put.workflow.as_str())
            .bind(Value::Object(put.settings.clone()))
            .bind(put.act.to_string())
            .bind(put.actor.clone())
            .bind(AgentSetting::ALIASES.strings(&put.settings));
        let rows = self.rows(statement).await?;
        let row = rows.first().ok_or_else(|| StoreError::Row("no row was returned".to_owned()))?;
        if let Some(alias) = row.try_get("alias")? {
            return Ok(PutAgentOutcome::AliasTaken {
                alias,
                agent: parse_column(row, "alias_of", AgentId::parse)?,
            });
        }
        let version: Option<i64> = row.try_get("version")?;
        Ok(version
            .map_or(PutAgentOutcome::BeingErased, |version| PutAgentOutcome::Stored(version.unsigned_abs())))
    }

    /// The agent of a tenant with this alias.
    pub async fn agent_with_alias(
        &self,
        tenant: Option<&Tenant>,
        alias: &str,
    ) -> Result<Option<AgentId>, StoreError> {
        // Of concurrent settings of one agent, an alias may remain that the last ones do not have.
        let statement = sqlx::query(
            "SELECT a.agent_id FROM agent_aliases AS a
             WHERE a.tenant = $1 AND a.alias = $2
               AND EXISTS (SELECT FROM agent_settings AS s
                           WHERE s.bucket = a.agent_bucket AND s.agent_id = a.agent_id AND s.settings -> 'aliases' ? a.alias)",
        )
            .bind(tenant.map_or("-", Tenant::as_str))
            .bind(alias);
        let rows = self.rows(statement).await?;
        rows.first().map(|row| parse_column(row, "agent_id", AgentId::parse)).transpose()
    }

    /// Reads an agent. Returns `None` when the agent has no settings, no queue, no thread with its
    /// own id, and no thread that it answers in.
    pub async fn agent(&self, agent: &AgentId) -> Result<Option<AgentRow>, StoreError> {
        Ok(self.agent_rows(vec![agent.to_string()]).await?.pop())
    }

    /// The workflows of agents, by their settings. Agents without settings are left out.
    pub async fn workflows_of(
        &self,
        agents: &[AgentId],
    ) -> Result<HashMap<AgentId, WorkflowName>, StoreError> {
        let statement = sqlx::query(
            "SELECT s.agent_id, s.workflow
             FROM unnest($1::smallint[], $2::text[]) AS k (bucket, id)
             JOIN agent_settings AS s ON s.bucket = k.bucket AND s.agent_id = k.id",
        )
        .bind(agents.iter().map(agent_bucket).collect::<Vec<_>>())
        .bind(agents.iter().map(AgentId::to_string).collect::<Vec<_>>());
        let rows = self.rows(statement).await?;
        let workflow = |row: &PgRow| {
            let agent = parse_column(row, "agent_id", AgentId::parse)?;
            Ok((agent, parse_column(row, "workflow", WorkflowName::parse)?))
        };
        rows.iter().map(workflow).collect()
    }

    /// Reads the values that decide whether an agent accepts an input now. An unknown agent has no
    /// settings and no backoff.
    pub async fn agent_admission(&self, agent: &AgentId) -> Result<AgentAdmission, StoreError> {
        let statement =
            sqlx::query(include_str!("agents/admission.sql")).bind(agent_bucket(agent)).bind(agent.as_str());
        let rows = self.rows(statement).await?;
        let Some(row) = rows.first() else { return Ok(AgentAdmission::default()) };
        let left = row.try_get::<Option<i64>, _>("left_ms")?;
        Ok(AgentAdmission {
            settings: object(row, "settings")?,
            backoff_left_ms: left.filter(|left| *left > 0),
            has_budgets: row.try_get("has_budgets")?,
        })
    }

    /// Those of these agents that have settings, a queue or tasks.
    pub async fn known_agents(&self, agents: &[AgentId]) -> Result<HashSet<AgentId>, StoreError> {
        let statement = sqlx::query(
            "SELECT k.id FROM unnest($1::smallint[], $2::text[]) AS k (bucket, id)
             WHERE EXISTS (SELECT FROM agent_settings AS s WHERE s.bucket = k.bucket AND s.agent_id = k.id OFFSET 0)
                OR EXISTS (SELECT FROM agents AS a WHERE a.bucket = k.bucket AND a.agent_id = k.id OFFSET 0)
                OR EXISTS (SELECT FROM tasks AS t WHERE t.bucket = k.bucket AND t.agent_id = k.id OFFSET 0)",
        )
        .bind(agents.iter().map(agent_bucket).collect::<Vec<_>>())
        .bind(agents.iter().map(AgentId::to_string).collect::<Vec<_>>());
        let rows = self.rows(statement).await?;
        rows.iter().map(|row| parse_column(row, "id", AgentId::parse)).collect()
    }

    /// Lists at most `limit` agents with ids after `after`, ordered by bucket and id. Lists only
    /// agents that are visible to this handle.
    pub async fn agents(
        &self,
        waiting: Option<AgentWaiting>,
        after: Option<&AgentId>,
        limit: u32,
    ) -> Result<Vec<AgentRow>, StoreError> {
        let which = match waiting {
            None => "all",
            Some(AgentWaiting::Backoff) => "backoff",
            Some(AgentWaiting::Paused) => "paused",
        };
        let statement = sqlx::query("SELECT agent_id FROM antiphon_agents_page($1, $2, $3, $4, $5)")
            .bind(which)
            .bind(after.map_or(-1, agent_bucket))
            .bind(after.map(AgentId::to_string).unwrap_or_default())
            .bind(i64::from(limit))
            .bind(self.tenant_setting());
        // The function bypasses row-level security. The details of the agents are then read with
        // row-level security.
        let rows = self.unscoped().rows(statement).await?;
        let ids = rows.iter().map(|row| row.try_get("agent_id")).collect::<Result<_, sqlx::Error>>()?;
        self.agent_rows(ids).await
    }

    async fn agent_rows(&self, ids: Vec<String>) -> Result<Vec<AgentRow>, StoreError> {
        let buckets: Vec<_> = ids.iter().map(|id| Bucket::of_key(id).get() as i16).collect();
        // A queue for work after turns uses the settings of its agent.
        let owners: Vec<String> = ids
            .iter()
            .map(|id| AgentId::parse(id).map_or_else(|_| id.clone(), |queue| queue.agent().to_string()))
            .collect();
        let owner_buckets: Vec<_> = owners.iter().map(|id| Bucket::of_key(id).get() as i16).collect();
        let statement = sqlx::query(include_str!("agents/rows.sql")).bind(buckets).bind(ids);
        let statement = statement.bind(COUNTED_TASKS).bind(owner_buckets).bind(owners);
        self.rows(statement).await?.iter().map(agent_row).collect()
    }
}

fn agent_row(row: &PgRow) -> Result<AgentRow, StoreError> {
    let head = match row.try_get::<Option<i64>, _>("next_position")? {
        Some(position) => {
            Some((parse_column(row, "next_task_id", TaskId::parse)?, Position::from_stored(position)))
        }
        None => None,
    };
    let error = match row.try_get::<Option<String>, _>("error_code")? {
        Some(code) => {
            Some(AgentError { code, text: row.try_get("error_text")?, at: timestamp_opt(row, "error_ms")? })
        }
        None => None,
    };
    Ok(AgentRow {
        agent: parse_column(row, "agent_id", AgentId::parse)?,
        settings: settings(row)?,
        pending: row.try_get("pending")?,
        failed: row.try_get("failed")?,
        head,
        paused: row.try_get("paused")?,
        backoff_attempt_count: unsigned(row, "attempts")?,
        backoff_next_run_at: timestamp_opt(row, "next_run_ms")?,
        backoff_left_ms: row.try_get::<Option<i64>, _>("left_ms")?.filter(|left| *left > 0),
        error,
    })
}

fn settings(row: &PgRow) -> Result<Option<AgentSettings>, StoreError> {
    if row.try_get::<Option<&str>, _>("workflow")?.is_none() {
        return Ok(None);
    }
    Ok(Some(AgentSettings {
        workflow: parse_column(row, "workflow", WorkflowName::parse)?,
        settings: object(row, "settings")?,
        version: unsigned(row, "version")?,
        created_at: timestamp(row, "created_ms")?,
        updated_at: timestamp(row, "updated_ms")?,
    }))
}
