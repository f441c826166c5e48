//! Erases threads from Postgres in small statements: single threads, or all threads of a tenant or
//! a user.
//!
//! Entry points: [`Store::mark_erased`], then [`Store::erase_some`] until nothing is left. Between
//! the two, [`Store::renounce`] makes the owners forget what they hold in memory. Once a thread is
//! marked, no stream entry for it is accepted.

mod keys;
mod marks;
mod owner_rows;

use std::collections::BTreeMap;

use model::{AgentId, PartitionId, Tenant, ThreadId, Timestamp};
use serde_json::Value;
use sqlx::postgres::PgRow;
use sqlx::{AssertSqlSafe, Row};

use crate::erased_tenants::name;
use crate::error::StoreError;
use crate::row::{count, parse_column};
use crate::store::Store;

/// Rows per statement.
const ROWS_AT_ONCE: i64 = 500;
/// Batches of agents' threads per statement.
const BATCHES_AT_ONCE: i64 = 20;

/// SQL that joins the erased threads, `k` (bucket, id), to the background tasks that follow their
/// turns.
const FOLLOWING: &str =
    "JOIN tasks AS d ON d.kind <> 'task' AND antiphon_origin_thread(d.agent_id, d.metadata) = k.id";
/// SQL that joins the first messages of the turns that run the tasks joined by [`FOLLOWING`].
const INPUTS: &str = "JOIN messages AS q ON q.sequence_num = 0 AND q.metadata ? 'thread_id'
        AND (q.metadata ? 'assistant_message_id' OR q.metadata ? 'compaction_id')
        AND antiphon_origin_thread(q.thread_id, q.metadata) = k.id AND q.message_id LIKE 't____-%-q'
        AND q.metadata ->> 'task_kind' IS DISTINCT FROM 'task'";

/// Rows of a tenant other than rows of threads: the table, and an expression for the owner of a
/// row.
const OF_TENANTS: [(&str, &str); 12] = [
    ("timers", "antiphon_tenant_of(agent_id)"),
    ("schedules", "antiphon_tenant_of(agent_id)"),
    ("facts", "antiphon_tenant_of(agent_id)"),
    ("agents", "antiphon_tenant_of(agent_id)"),
    ("agent_settings", "antiphon_tenant_of(agent_id)"),
    ("agent_aliases", "tenant"),
    ("usage_days", "tenant"),
    ("budgets", "tenant"),
    ("erasures", "tenant"),
    // Usage of turn limits by the tenant's turns.
    ("turn_limits", "CASE WHEN starts_with(key, 'tenant:') THEN substr(key, 8) END"),
    ("turn_limit_turns", "CASE WHEN starts_with(key, 'tenant:') THEN substr(key, 8) END"),
    // Audit entries about budgets, keys, names of tenants, and reasoning sessions that earlier
    // builds deleted. All other entries belong to threads and agents and are erased with them.
    (
        "audit_log",
        "CASE WHEN subject_id LIKE '%+budget' OR subject_id LIKE '%+key' OR subject_id LIKE '%+tenant' OR subject_id LIKE '%+reasoning' THEN antiphon_tenant_of(subject_id) END",
    ),
];

/// Rows of one user, in any thread: the table, and a condition for the rows of the user $1 of the
/// tenant $2.
const OF_USERS: [(&str, &str); 3] = [
    ("facts", "scope = 'user:' || $1 AND antiphon_tenant_of(agent_id) = $2"),
    ("budgets", "scope = 'user:' || $1 AND tenant = $2"),
    ("feedback", "user_id = $1 AND tenant = $2"),
];

/// A condition: the column names the user $1 as an actor.
fn names_user(column: &str) -> String {
    format!("({column} IN ($1, 'jwt:' || $1) OR right({column}, length($1) + 1) = '/' || $1)")
}

/// A condition: the audit entry `t` is about budgets and facts of the user $2 of the tenant $1.
/// Their names and ids may name the user. The entries of an earlier build are found through the
/// budgets and facts, which must still exist.
const ABOUT_USER: &str = "(t.about = antiphon_audit_about($1, 'user:' || $2)
    OR t.subject_id IN (SELECT CASE b.tenant WHEN '-' THEN '' ELSE b.tenant || '~' END || b.name || '+budget'
                        FROM budgets AS b WHERE b.tenant = $1 AND b.scope = 'user:' || $2)
    OR (t.subject_id, t.target) IN (SELECT f.agent_id, f.fact_id FROM facts AS f
                                    WHERE antiphon_tenant_of(f.agent_id) = $1 AND f.scope = 'user:' || $2))";

/// Columns with the names of acting users: the table, the column, and an expression for the tenant
/// of a row. A user of another tenant may have the same name.
const ACTORS: [(&str, &str, &str); 13] = [
    ("audit_log", "actor", "antiphon_tenant_of(subject_id)"),
    ("spilled_turns", "actor", "antiphon_tenant_of(thread_id)"),
    ("timers", "ended_by", "antiphon_tenant_of(agent_id)"),
    ("schedules", "created_by", "antiphon_tenant_of(agent_id)"),
    ("compactions", "actor", "antiphon_tenant_of(thread_id)"),
    ("compactions", "undone_by", "antiphon_tenant_of(thread_id)"),
    ("erased_threads", "actor", "antiphon_tenant_of(thread_id)"),
    ("erasures", "actor", "tenant"),
    // Only the default tenant acknowledges incidents and erases tenants.
    ("incidents", "acknowledged_by", "'-'"),
    ("erased_tenants", "actor", "'-'"),
    ("reasoning_sessions", "created_by", "antiphon_tenant_of(session_id)"),
    ("reasoning_layers", "actor", "antiphon_tenant_of(session_id)"),
    ("reasoning_layers", "undone_by", "antiphon_tenant_of(session_id)"),
];

/// The number of erased rows by table.
pub type ErasedRows = BTreeMap<String, u64>;

/// The owner whose threads are erased.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ErasedOwner {
    /// Everything of a tenant; `None`: the default one.
    Tenant(Option<Tenant>),
    /// The threads of a tenant whose metadata has this `user_id`.
    User(Option<Tenant>, String),
}

/// The receipt of an erased thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Erased {
    /// The last erasure (database clock).
    pub at: Timestamp,
    pub actor: String,
    /// Erased rows by table, over all erasures of this thread.
    pub counts: Value,
    /// True if the thread was created again after its erasure, so that it accepts messages.
    pub is_named: bool,
}

/// Rows of one table that belong to threads.
struct ErasedTable {
    table: &'static str,
    /// The name in the receipt.
    name: &'static str,
    /// SQL that joins the rows, as `t`, to the threads, `k`.
    rows: String,
}

fn places() -> Vec<ErasedTable> {
    let own = |table, column: &str| ErasedTable {
        table,
        name: table,
        rows: format!("JOIN {table} AS t ON t.bucket = k.bucket AND t.{column} = k.id"),
    };
    let mut places: Vec<ErasedTable> = [
        "threads",
        "thread_list",
        "feedback",
        "spilled_turns",
        "failed_turns",
        "failed_messages",
        "idempotency_keys",
        "responses",
        "usage",
        "spilled_messages",
        "compactions",
        "messages",
        "expired_messages",
    ]
    .map(|table| own(table, "thread_id"))
    .into();
    places.extend(["tasks", "task_ids", "failed_tasks", "schedules"].map(|table| own(table, "agent_id")));
    let place = |table, name, rows: String| ErasedTable { table, name, rows };
    places.push(place(
        "timers",
        "timers",
        // Timers of the thread; for an agent's own thread also the agent's schedules and delayed
        // tasks.
        "JOIN timers AS t ON t.bucket = k.bucket AND (t.thread_id = k.id OR (t.thread_id IS NULL AND t.agent_id = k.id))"
            .to_owned(),
    ));
    places.push(place(
        "usage_days",
        "usage_days",
        // For an agent's own thread, the agent's calls in any thread.
        "JOIN usage_days AS t ON t.agent_id = k.id".to_owned(),
    ));
    places.push(place(
        "budgets",
        "budgets",
        // For an agent's own thread, the agent's budgets.
        "JOIN budgets AS t ON t.tenant = antiphon_tenant_of(k.id) AND t.scope = 'agent:' || k.id".to_owned(),
    ));
    places.push(place(
        "facts",
        "facts",
        // Facts found in the thread or scoped to it. For an agent's own thread, all facts of the
        // agent.
        "JOIN facts AS t ON t.thread_id = k.id OR t.agent_id = k.id".to_owned(),
    ));
    places.push(place(
        "dead_letters",
        "dead_letters",
        // For an unreadable entry only the subject names the owner.
        "JOIN dead_letters AS t ON t.thread_id = k.id
             OR (t.kind = 'entry' AND antiphon_dead_letter_owner(t.thread_id, t.subject) = k.id)"
            .to_owned(),
    ));
    places.push(place(
        "audit_log",
        "audit_log",
        "JOIN audit_log AS t ON t.bucket = k.bucket AND t.subject_id = k.id AND t.action <> 'erase_thread'"
            .to_owned(),
    ));
    places.push(place(
        "audit_log",
        "audit_log_about",
        // Entries about budgets and facts of the agent or the thread, including deleted ones.
        "JOIN audit_log AS t ON t.about = ANY (ARRAY[antiphon_audit_about(antiphon_tenant_of(k.id), 'agent:' || k.id),
                                                     antiphon_audit_about(antiphon_tenant_of(k.id), 'thread:' || k.id)])"
            .to_owned(),
    ));
    // Sessions that have copied messages of the thread. For an agent's own thread, also the
    // sessions of the agent. The sessions are erased last, because the other rows are found through
    // them. Rows written in the meantime are erased with their session.
    let sessions = "JOIN reasoning_sessions AS s ON s.source_threads @> ARRAY[k.id]";
    for table in ["reasoning_messages", "reasoning_blocks", "reasoning_layers", "reasoning_checkpoints"] {
        let rows =
            format!("{sessions} JOIN {table} AS t ON t.bucket = s.bucket AND t.session_id = s.session_id");
        places.push(place(table, table, rows));
    }
    places.push(place(
        "audit_log",
        "audit_log_of_reasoning",
        format!(
            "{sessions} JOIN audit_log AS t ON t.bucket = s.bucket AND t.subject_id = s.session_id || '+reasoning'"
        ),
    ));
    places.push(place(
        "reasoning_sessions",
        "reasoning_sessions",
        "JOIN reasoning_sessions AS t ON t.source_threads @> ARRAY[k.id]".to_owned(),
    ));
    // The results of background tasks after turns of the thread. They are in the threads of the
    // agents. The id of such a turn is derived from the position of its task.
    let turn = "'t' || lpad(to_hex(d.bucket::integer), 4, '0') || '-' || d.position";
    for (table, name) in [
        ("failed_messages", "failed_messages_of_agents"),
        ("dead_letters", "dead_letters_of_agents"),
        ("spilled_messages", "spilled_messages_of_agents"),
    ] {
        let rows = format!(
            "{FOLLOWING} JOIN {table} AS t ON t.bucket = d.bucket AND t.thread_id = d.agent_id
                 AND starts_with(t.message_id, {turn} || '-a')"
        );
        places.push(place(table, name, rows));
    }
    for (table, name) in [("failed_tasks", "failed_tasks_of_agents"), ("task_ids", "task_ids_of_agents")] {
        let rows = format!(
            "{FOLLOWING} JOIN {table} AS t ON t.bucket = d.bucket AND t.agent_id = d.agent_id AND t.position = d.position"
        );
        places.push(place(table, name, rows));
    }
    // The tasks come after all rows that are found through them.
    places.push(place(
        "tasks",
        "tasks_of_agents",
        "JOIN tasks AS t ON t.kind <> 'task' AND antiphon_origin_thread(t.agent_id, t.metadata) = k.id"
            .to_owned(),
    ));
    places
}

impl Store {
    /// Counts the rows of each table that belong to these threads or to the background tasks after
    /// their turns.
    pub async fn rows_of_threads(&self, threads: &[ThreadId]) -> Result<ErasedRows, StoreError> {
        let mut counts = ErasedRows::new();
        for place in places() {
            let sql = format!("SELECT count(DISTINCT t.ctid) AS count FROM {} {}", keys(), place.rows);
            counts.insert(place.name.to_owned(), count(&self.of_threads(sql, threads).await?)?);
        }
        let sql = format!(
            "SELECT count(*) AS count FROM {} {INPUTS} JOIN messages AS t ON t.bucket = q.bucket AND t.thread_id = q.thread_id
                 AND t.position >= q.batch_id AND t.batch_id = q.batch_id",
            keys()
        );
        counts.insert("messages_of_agents".to_owned(), count(&self.of_threads(sql, threads).await?)?);
        Ok(counts)
    }

    /// Whether a table has rows of the thread, or of the work after its turns.
    pub async fn has_rows(&self, thread: &ThreadId) -> Result<bool, StoreError> {
        let places = places().into_iter().map(|place| place.rows).chain([INPUTS.to_owned()]);
        let exist: Vec<_> = places.map(|rows| format!("EXISTS (SELECT FROM {} {rows})", keys())).collect();
        let sql = format!("SELECT {} AS has", exist.join(" OR "));
        let rows = self.of_threads(sql, std::slice::from_ref(thread)).await?;
        rows.first().map_or(Ok(false), |row| Ok(row.try_get("has")?))
    }

    /// Lists the threads of a tenant or a user. Includes threads of which only a failure, a task or
    /// a dead letter is stored.
    pub async fn threads_to_erase(&self, owner: &ErasedOwner) -> Result<Vec<ThreadId>, StoreError> {
        let of = |tenant: &Option<Tenant>| name(tenant.as_ref());
        let statement = match owner {
            ErasedOwner::Tenant(tenant) => sqlx::query(include_str!("erase/of_tenant.sql")).bind(of(tenant)),
            ErasedOwner::User(tenant, user) => sqlx::query(
                // After an incomplete earlier run, the mark may be the only row left that names the
                // user.
                "SELECT thread_id FROM threads WHERE antiphon_tenant_of(thread_id) = $1 AND metadata ->> 'user_id' = $2
                 UNION SELECT thread_id FROM thread_list WHERE tenant = $1 AND user_id = $2
                 UNION SELECT thread_id FROM erased_threads
                 WHERE erasing_user = sha256(convert_to($1 || '~' || $2, 'UTF8')) AND recreated_at IS NULL
                 ORDER BY 1",
            )
            .bind(of(tenant))
            .bind(user.clone()),
        };
        let rows = self.rows(statement).await?;
        rows.iter().map(|row| parse_column(row, "thread_id", ThreadId::parse)).collect()
    }

    /// The agents that may hold text of these threads: agents that answer there, and agents with
    /// background tasks after turns of these threads.
    pub async fn agents_of_threads(&self, threads: &[ThreadId]) -> Result<Vec<AgentId>, StoreError> {
        let sql = format!(
            "SELECT DISTINCT agent_id FROM (
                 SELECT t.agent_id FROM {keys} JOIN threads AS t ON t.bucket = k.bucket AND t.thread_id = k.id
                 UNION ALL SELECT t.agent_id FROM {keys} JOIN spilled_turns AS t ON t.bucket = k.bucket AND t.thread_id = k.id
                 UNION ALL SELECT t.agent_id FROM {keys} JOIN failed_turns AS t ON t.bucket = k.bucket AND t.thread_id = k.id
                 UNION ALL SELECT t.pending_agent FROM {keys} JOIN compactions AS t ON t.bucket = k.bucket AND t.thread_id = k.id
                 UNION ALL SELECT d.agent_id FROM {keys} {FOLLOWING}
                 UNION ALL SELECT q.thread_id FROM {keys} {INPUTS}
                 UNION ALL SELECT unnest(t.agents) FROM {keys} JOIN erased_threads AS t ON t.bucket = k.bucket AND t.thread_id = k.id
             ) AS a WHERE agent_id IS NOT NULL",
            keys = keys()
        );
        let rows = self.of_threads(sql, threads).await?;
        rows.iter().map(|row| parse_column(row, "agent_id", AgentId::parse)).collect()
    }

    /// Stores the agents that may hold text of these threads, in the marks of the threads.
    pub async fn note_agents(&self, threads: &[ThreadId], agents: &[AgentId]) -> Result<(), StoreError> {
        let statement = sqlx::query(
            "UPDATE erased_threads AS e SET agents = ARRAY(SELECT DISTINCT unnest(e.agents || $3::text[]))
             FROM unnest($1::smallint[], $2::text[]) AS k (bucket, id)
             WHERE e.bucket = k.bucket AND e.thread_id = k.id AND NOT e.agents @> $3::text[]",
        );
        let (buckets, ids) = columns(threads);
        let agents: Vec<String> = agents.iter().map(AgentId::to_string).collect();
        self.rows(statement.bind(buckets).bind(ids).bind(agents)).await.map(drop)
    }

    /// Takes the leases of these partitions from their owners. Commits in flight are awaited; later
    /// commits of these owners are refused. The next owners load the partitions from the current
    /// state of the store.
    ///
    /// Nothing decided earlier is written, even when the store has gone back in time. If only the
    /// number of commits were raised, that would not be certain.
    pub async fn renounce(&self, partitions: &[PartitionId]) -> Result<(), StoreError> {
        let statement = sqlx::query(
            "WITH held AS MATERIALIZED (
                 SELECT partition_id FROM partitions WHERE partition_id = ANY ($1) ORDER BY partition_id FOR NO KEY UPDATE
             )
             UPDATE partitions AS p SET owner = NULL, lease_until = NULL FROM held WHERE p.partition_id = held.partition_id",
        );
        let ids: Vec<i16> =
            partitions.iter().map(|partition| i16::try_from(partition.0).unwrap_or(i16::MAX)).collect();
        self.rows(statement.bind(ids)).await.map(drop)
    }

    /// Erases rows of these threads, adds their number to the receipts, and returns the counts by
    /// table. Call it until the result is empty. The threads must be marked.
    pub async fn erase_some(&self, threads: &[ThreadId]) -> Result<ErasedRows, StoreError> {
        let mut counts = ErasedRows::new();
        let mut gone = |name: &str, rows: u64| {
            if rows > 0 {
                *counts.entry(name.to_owned()).or_default() += rows;
            }
        };
        gone("agents", self.forget_errors(threads).await?);
        let batches = include_str!("erase/batches_of_agents.sql")
            .replace("{inputs}", INPUTS)
            .replace("{limit}", &BATCHES_AT_ONCE.to_string());
        loop {
            let rows = self.of_threads(counted(&batches, "messages_of_agents"), threads).await?;
            match count(&rows)? {
                0 => break,
                rows => gone("messages_of_agents", rows),
            }
        }
        for place in places() {
            let ErasedTable { table, name, rows } = place;
            let delete = format!(
                "picked AS MATERIALIZED (SELECT t.ctid AS at, k.id FROM {} {rows} LIMIT {ROWS_AT_ONCE})
                 , gone AS (
                     DELETE FROM {table} AS t USING picked AS p WHERE t.ctid = p.at RETURNING t.ctid AS at
                 )
                 , per AS (
                     SELECT o.id, count(*) AS rows
                     FROM gone AS g JOIN LATERAL (SELECT p.id FROM picked AS p WHERE p.at = g.at LIMIT 1) AS o ON true
                     GROUP BY o.id
                 )",
                keys()
            );
            loop {
                match count(&self.of_threads(counted(&delete, name), threads).await?)? {
                    0 => break,
                    rows => gone(name, rows),
                }
            }
        }
        gone("outbox", self.erase_outbox(threads).await?);
        Ok(counts)
    }

    /// Removes unpublished outbox entries of these threads.
    async fn erase_outbox(&self, threads: &[ThreadId]) -> Result<u64, StoreError> {
        let (buckets, ids) = columns(threads);
        let statement = sqlx::query(include_str!("erase/outbox.sql")).bind(buckets).bind(ids);
        count(&self.rows(statement).await?)
    }

    /// Clears the last errors of agents with these ids, and of agents with background tasks after
    /// turns of the threads. Runs before these tasks are erased.
    async fn forget_errors(&self, threads: &[ThreadId]) -> Result<u64, StoreError> {
        let sql = format!(
            "WITH gone AS (
                 UPDATE agents AS a SET error_code = NULL, error_text = NULL, error_at = NULL
                 WHERE a.error_text IS NOT NULL
                   AND (a.bucket, a.agent_id) IN (SELECT k.bucket, k.id FROM {keys}
                                                  UNION ALL SELECT d.bucket, d.agent_id FROM {keys} {FOLLOWING})
                 RETURNING 1
             ) SELECT count(*) AS count FROM gone",
            keys = keys()
        );
        count(&self.of_threads(sql, threads).await?)
    }

    /// Erases the rows that a tenant has besides threads (agents, their settings, keys), or removes
    /// the name of a user from records of actions.
    pub async fn erase_owner(&self, owner: &ErasedOwner) -> Result<ErasedRows, StoreError> {
        let mut counts = ErasedRows::new();
        match owner {
            ErasedOwner::Tenant(tenant) => {
                let tenant = name(tenant.as_ref());
                counts.insert("api_keys".to_owned(), self.erase_keys(&tenant).await?);
                for (table, whose) in OF_TENANTS {
                    let sql = format!(
                        "WITH gone AS (DELETE FROM {table} WHERE {whose} = $1 RETURNING 1)
                         SELECT count(*) AS count FROM gone"
                    );
                    let rows = self.rows(sqlx::query(AssertSqlSafe(sql)).bind(tenant.clone())).await?;
                    counts.insert(table.to_owned(), count(&rows)?);
                }
            }
            ErasedOwner::User(tenant, user) => {
                let tenant = name(tenant.as_ref());
                for (table, column, whose) in ACTORS {
                    let sql = format!(
                        "WITH gone AS (
                             UPDATE {table} SET {column} = 'erased'
                             WHERE {whose} = $2 AND {}
                             RETURNING 1
                         ) SELECT count(*) AS count FROM gone",
                        names_user(column)
                    );
                    let rows = self
                        .rows(sqlx::query(AssertSqlSafe(sql)).bind(user.clone()).bind(tenant.clone()))
                        .await?;
                    counts.insert(format!("{table}.{column}"), count(&rows)?);
                }
                counts.insert("audit_log".to_owned(), self.erase_audit_about(&tenant, user).await?);
                counts.extend(self.forget_actor_of_keys(&tenant, user).await?);
                counts.insert("erasures".to_owned(), self.forget_user_in_erasures(&tenant, user).await?);
                for (table, whose) in OF_USERS {
                    let sql = format!(
                        "WITH gone AS (DELETE FROM {table} WHERE {whose} RETURNING 1)
                         SELECT count(*) AS count FROM gone"
                    );
                    let statement = sqlx::query(AssertSqlSafe(sql)).bind(user.clone()).bind(tenant.clone());
                    counts.insert(table.to_owned(), count(&self.rows(statement).await?)?);
                }
            }
        }
        Ok(counts)
    }

    /// Deletes the audit entries about budgets and facts of a user. Runs before the budgets and
    /// facts are erased.
    async fn erase_audit_about(&self, tenant: &str, user: &str) -> Result<u64, StoreError> {
        let sql = format!(
            "WITH gone AS (DELETE FROM audit_log AS t WHERE {ABOUT_USER} RETURNING 1)
             SELECT count(*) AS count FROM gone"
        );
        let statement = sqlx::query(AssertSqlSafe(sql)).bind(tenant.to_owned()).bind(user.to_owned());
        count(&self.rows(statement).await?)
    }

    /// Deletes the marks of a tenant's threads and the audit entries of their erasure. The tenant's
    /// own mark replaces them.
    pub async fn delete_thread_marks(&self, tenant: Option<&Tenant>) -> Result<ErasedRows, StoreError> {
        let mut counts = ErasedRows::new();
        for (table, id) in [("erased_threads", "thread_id"), ("audit_log", "subject_id")] {
            let sql = format!(
                "WITH picked AS MATERIALIZED (
                     SELECT t.ctid AS at FROM {table} AS t WHERE antiphon_tenant_of(t.{id}) = $1 LIMIT {ROWS_AT_ONCE}
                 )
                 , gone AS (DELETE FROM {table} AS t USING picked AS p WHERE t.ctid = p.at RETURNING 1)
                 SELECT count(*) AS count FROM gone"
            );
            loop {
                match count(&self.rows(sqlx::query(AssertSqlSafe(sql.clone())).bind(name(tenant))).await?)? {
                    0 => break,
                    rows => *counts.entry(table.to_owned()).or_default() += rows,
                }
            }
        }
        Ok(counts)
    }

    /// Dead letters of tasks with keys after this one, for a caller that can decode them: bucket,
    /// key, subject and payload.
    pub async fn dead_tasks(
        &self,
        after: &(u16, String),
    ) -> Result<Vec<(u16, String, String, Vec<u8>)>, StoreError> {
        let statement = sqlx::query(
            "SELECT bucket, key, subject, raw FROM dead_letters
             WHERE kind = 'entry' AND (starts_with(subject, 'commands.') OR starts_with(subject, 'tasks.'))
               AND (bucket, key) > ($1, $2)
             ORDER BY bucket, key LIMIT 100",
        )
        .bind(after.0 as i16)
        .bind(after.1.clone());
        let letter = |row: &PgRow| -> Result<_, StoreError> {
            let bucket = row.try_get::<i16, _>("bucket")?.unsigned_abs();
            Ok((bucket, row.try_get("key")?, row.try_get("subject")?, row.try_get("raw")?))
        };
        self.rows(statement).await?.iter().map(letter).collect()
    }

    /// Deletes the dead letter of an entry. Writes no audit entry, because the existence of the
    /// dead letter must be erased as well.
    pub async fn erase_dead_task(&self, bucket: u16, key: &str) -> Result<bool, StoreError> {
        let statement = sqlx::query(
            "WITH gone AS (DELETE FROM dead_letters WHERE bucket = $1 AND kind = 'entry' AND key = $2 RETURNING 1)
             SELECT count(*) AS count FROM gone",
        );
        Ok(count(&self.rows(statement.bind(bucket as i16).bind(key.to_owned())).await?)? > 0)
    }

    /// The receipt of an erased thread.
    pub async fn erased(&self, thread: &ThreadId) -> Result<Option<Erased>, StoreError> {
        let statement = sqlx::query(
            "SELECT actor, receipt, recreated_at IS NOT NULL AS is_named,
                    (extract(epoch FROM erased_at) * 1000)::bigint AS erased_ms FROM erased_threads
             WHERE bucket = $1 AND thread_id = $2",
        );
        let statement = statement.bind(thread.bucket().get() as i16).bind(thread.as_str().to_owned());
        let erased = |row: &PgRow| -> Result<Erased, StoreError> {
            let at = Timestamp(row.try_get("erased_ms")?);
            let (actor, counts) = (row.try_get("actor")?, row.try_get("receipt")?);
            Ok(Erased { at, actor, counts, is_named: row.try_get("is_named")? })
        };
        self.rows(statement).await?.first().map(erased).transpose()
    }

    async fn of_threads(&self, sql: String, threads: &[ThreadId]) -> Result<Vec<PgRow>, StoreError> {
        let (buckets, ids) = columns(threads);
        self.rows(sqlx::query(AssertSqlSafe(sql)).bind(buckets).bind(ids)).await
    }
}

/// SQL for the threads, as the table `k`.
fn keys() -> &'static str {
    "unnest($1::smallint[], $2::text[]) AS k (bucket, id)"
}

/// Completes a deleting statement: counts the deleted rows of each thread (`per`) and adds the
/// counts to the receipts.
fn counted(delete: &str, name: &str) -> String {
    format!(
        "WITH {delete}
         , noted AS (
             UPDATE erased_threads AS e
             SET receipt = e.receipt || jsonb_build_object('{name}', coalesce((e.receipt ->> '{name}')::bigint, 0) + p.rows)
             FROM per AS p JOIN {} ON k.id = p.id
             WHERE e.bucket = k.bucket AND e.thread_id = k.id
         )
         SELECT coalesce(sum(rows), 0)::bigint AS count FROM per",
        keys()
    )
}

fn columns(threads: &[ThreadId]) -> (Vec<i16>, Vec<String>) {
    threads.iter().map(|thread| (thread.bucket().get() as i16, thread.as_str().to_owned())).unzip()
}
