//! Measures how fast a queue could be at best: inserts the messages of turns into a copy of the
//! table with its indexes, in statements of several turns, without any other work.

use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use devservices::workspace;
use futures_util::future::try_join_all;
use model::ThreadId;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, migrate::Migrator};

use super::{
    environment::{self, TaskEnvironment},
    load::TaskLoad,
    round::TaskRound,
};
use testkit::services::TestDatabase;

const COPY: &str = "CREATE TABLE limit_messages (LIKE messages INCLUDING ALL)";
const INSERT: &str = "INSERT INTO limit_messages (bucket, thread_id, position, message_id, batch_id, sequence_num, \
    batch_type, role, content, tool_calls, tool_call_id, metadata, parent_id) \
    SELECT bucket, thread_id, position, message_id, batch_id, sequence_num, 'agent_to_agent', role, content, \
           tool_calls::jsonb, tool_call_id, metadata::jsonb, parent_id \
    FROM unnest($1::smallint[], $2::text[], $3::bigint[], $4::text[], $5::bigint[], $6::integer[], $7::text[], $8::text[], \
                $9::text[], $10::text[], $11::text[], $12::bigint[]) \
         AS i (bucket, thread_id, position, message_id, batch_id, sequence_num, role, content, tool_calls, tool_call_id, \
               metadata, parent_id)";
const CONTENT_BYTES: usize = 400;
const CALLS: &str = r#"[{"id": "call", "name": "tool", "arguments": "{}"}]"#;
/// The first position; it has as many digits as current positions.
const FIRST_POSITION: i64 = 380_000_000_000_000_000;
/// A turn with one tool call.
const FOUR: &[&str] = &["user", "assistant", "tool", "assistant"];
/// A question and its answer.
const TWO: &[&str] = &["user", "assistant"];
const SEVERAL: usize = 8;

/// The name of one variant.
pub(super) fn raw(rows: usize, turns: usize, connections: usize) -> String {
    format!("raw insert, {rows} rows, k={turns}, {connections} conn")
}

/// One variant of inserting.
#[derive(Debug)]
pub(super) struct Raw {
    name: String,
    roles: &'static [&'static str],
    turns_a_statement: usize,
    connections: usize,
    prepared: Option<PreparedInsert>,
}

#[derive(Debug)]
struct PreparedInsert {
    database: TestDatabase,
    turns: u64,
    /// The statements of each connection.
    shares: Vec<(PgConnection, Vec<TurnRows>)>,
}

impl Raw {
    /// All variants: with four and two rows per turn, with one turn and many per statement, over
    /// one connection and several.
    pub(super) fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for roles in [FOUR, TWO] {
            for turns_a_statement in [1, 16] {
                for connections in [1, SEVERAL] {
                    let rows = roles.len();
                    let name = raw(rows, turns_a_statement, connections);
                    all.push(Self { name, roles, turns_a_statement, connections, prepared: None });
                }
            }
        }
        all
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) async fn prepare(&mut self, environment: &mut TaskEnvironment, load: TaskLoad) -> Result<()> {
        let database = environment.database().await?;
        let pool = database.pool().await?;
        Migrator::new(workspace::root().join("migrations")).await?.run(&pool).await?;
        sqlx::raw_sql(COPY).execute(&pool).await?;
        pool.close().await;
        let mut shares = Vec::new();
        for _ in 0..self.connections {
            let mut connection = PgConnection::connect(database.url()).await?;
            // As in the worker's writers, the statement is prepared once and planned once.
            sqlx::raw_sql("SET plan_cache_mode = force_generic_plan").execute(&mut connection).await?;
            shares.push((connection, Vec::new()));
        }
        for (number, rows) in statements(load, self.roles, self.turns_a_statement)?.into_iter().enumerate() {
            shares[number % self.connections].1.push(rows);
        }
        environment::settle(&database).await?;
        self.prepared = Some(PreparedInsert { database, turns: load.total(), shares });
        Ok(())
    }

    pub(super) async fn run(&mut self, environment: &mut TaskEnvironment) -> Result<TaskRound> {
        let PreparedInsert { database, turns, shares } = self.prepared.take().context("not prepared")?;
        let gauge = environment.gauge(&[]).await?;
        let writing =
            shares.into_iter().map(|(connection, share)| tokio::spawn(write_all(connection, share)));
        let mut latencies_us = Vec::new();
        for written in try_join_all(writing).await? {
            latencies_us.extend(written?);
        }
        let cost = environment.cost(&gauge, turns).await?;
        let mut connection = PgConnection::connect(database.url()).await?;
        let count = sqlx::query_scalar("SELECT count(*) FROM limit_messages");
        let stored: i64 = count.fetch_one(&mut connection).await?;
        connection.close().await?;
        let expected = turns * self.roles.len() as u64;
        ensure!(stored as u64 == expected, "{stored} rows are there instead of {expected}");
        Ok(TaskRound::new(turns, &cost).timed(&mut latencies_us))
    }
}

async fn write_all(mut connection: PgConnection, share: Vec<TurnRows>) -> Result<Vec<u64>> {
    let mut latencies_us = Vec::with_capacity(share.len());
    for rows in share {
        let begun = Instant::now();
        sqlx::query(AssertSqlSafe(INSERT))
            .bind(rows.bucket)
            .bind(rows.thread)
            .bind(rows.position)
            .bind(rows.message)
            .bind(rows.batch)
            .bind(rows.sequence)
            .bind(rows.role)
            .bind(rows.content)
            .bind(rows.tool_calls)
            .bind(rows.tool_call_id)
            .bind(rows.metadata)
            .bind(rows.parent)
            .execute(&mut connection)
            .await?;
        latencies_us.push(u64::try_from(begun.elapsed().as_micros())?);
    }
    Ok(latencies_us)
}

/// The rows of one statement.
#[derive(Debug, Default)]
struct TurnRows {
    bucket: Vec<i16>,
    thread: Vec<String>,
    position: Vec<i64>,
    message: Vec<String>,
    batch: Vec<i64>,
    sequence: Vec<i32>,
    role: Vec<&'static str>,
    content: Vec<String>,
    tool_calls: Vec<Option<&'static str>>,
    tool_call_id: Vec<Option<&'static str>>,
    metadata: Vec<String>,
    parent: Vec<Option<i64>>,
}

impl TurnRows {
    /// Adds one turn's messages from this position on. They are exactly the rows that the worker
    /// writes for such a turn.
    fn push(&mut self, thread: &ThreadId, batch: i64, roles: &[&'static str]) -> Result<()> {
        let bucket = thread.bucket().get();
        for (sequence, role) in (0_i32..).zip(roles) {
            let position = batch + i64::from(sequence);
            let is_last = sequence as usize + 1 == roles.len();
            let (suffix, metadata) = match *role {
                "user" => ("q", r#"{"task_id": "100-10", "task_kind": "task"}"#),
                "tool" => ("a-s0-r0", "{}"),
                _ if is_last => ("a", "{}"),
                _ => ("a-s0", "{}"),
            };
            let calls = *role == "assistant" && !is_last;
            self.bucket.push(i16::try_from(bucket)?);
            self.thread.push(thread.to_string());
            self.position.push(position);
            self.message.push(format!("t{bucket:04x}-{batch}-{suffix}"));
            self.batch.push(batch);
            self.sequence.push(sequence);
            self.role.push(role);
            self.content.push("x".repeat(CONTENT_BYTES));
            self.tool_calls.push(calls.then_some(CALLS));
            self.tool_call_id.push((*role == "tool").then_some("call"));
            self.metadata.push(metadata.to_owned());
            self.parent.push(Some(position - 1));
        }
        Ok(())
    }
}

/// The statements of turns in rounds: the first turn of every agent, then the second turn of every
/// agent, …
fn statements(load: TaskLoad, roles: &[&'static str], turns_a_statement: usize) -> Result<Vec<TurnRows>> {
    let threads: Vec<ThreadId> =
        (0..load.agents).map(|agent| ThreadId::parse(&format!("agent-{agent}"))).collect::<Result<_, _>>()?;
    let turns = (0..load.tasks)
        .flat_map(|_| &threads)
        .zip((1_i64..).map(|turn| FIRST_POSITION + turn * roles.len() as i64));
    let mut statements = Vec::new();
    for (number, (thread, batch)) in turns.enumerate() {
        if number % turns_a_statement == 0 {
            statements.push(TurnRows::default());
        }
        if let Some(rows) = statements.last_mut() {
            rows.push(thread, batch, roles)?;
        }
    }
    Ok(statements)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn statements_hold_whole_turns_with_unique_positions() {
        let load = TaskLoad { agents: 3, tasks: 3, rate: None, limit: Duration::MAX };
        let statements = statements(load, FOUR, 4).unwrap();
        let sizes: Vec<usize> = statements.iter().map(|rows| rows.position.len()).collect();
        assert_eq!(sizes, [16, 16, 4]);
        let positions: Vec<i64> = statements.iter().flat_map(|rows| rows.position.clone()).collect();
        assert_eq!(positions, (4..40).map(|place| FIRST_POSITION + place).collect::<Vec<i64>>());
        assert_eq!(statements[0].thread[..5], ["agent-0", "agent-0", "agent-0", "agent-0", "agent-1"]);
        assert_eq!(statements[0].batch[..5], [4, 4, 4, 4, 8].map(|place| FIRST_POSITION + place));
    }
}
