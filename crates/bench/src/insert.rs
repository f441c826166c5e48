//! Measures how fast commits could be at best: inserts the same rows into a copy of the table with
//! its indexes, in statements as large as the worker's, without any other work.

use std::time::Instant;

use anyhow::{Result, ensure};
use futures_util::future::try_join_all;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::backlog::{Backlog, Planned};

/// The worker's defaults for rows and bytes of one statement.
const MOST_ROWS: usize = 256;
const MOST_BYTES: usize = 1 << 20;
/// Maximum bytes per run, so that its rows fit in memory.
const RUN_BYTES: usize = 128 << 20;

const COPY: &str =
    "DROP TABLE IF EXISTS limit_messages; CREATE TABLE limit_messages (LIKE messages INCLUDING ALL)";

const INSERT: &str = "INSERT INTO limit_messages (bucket, thread_id, position, message_id, batch_id, sequence_num, \
    batch_type, role, content, tool_calls, metadata, token_count, attempt) \
    SELECT bucket, thread_id, position, message_id, batch_id, sequence_num, batch_type, role, content, \
           tool_calls::jsonb, metadata::jsonb, token_count, attempt \
    FROM unnest($1::smallint[], $2::text[], $3::bigint[], $4::text[], $5::bigint[], $6::integer[], $7::text[], \
                $8::text[], $9::text[], $10::text[], $11::text[], $12::bigint[], $13::bigint[]) \
         AS i (bucket, thread_id, position, message_id, batch_id, sequence_num, batch_type, role, content, tool_calls, \
               metadata, token_count, attempt)";

/// Inserts messages of the backlog over this number of connections, and returns turns per second.
pub(super) async fn insert(url: &str, backlog: &Backlog, connections: usize) -> Result<f64> {
    let mut admin = PgConnection::connect(url).await?;
    sqlx::raw_sql(COPY).execute(&mut admin).await?;
    let statements = statements(backlog);
    let turns: usize = statements.iter().map(|rows| rows.position.len()).sum();
    let mut writers = Vec::new();
    for _ in 0..connections {
        let mut connection = PgConnection::connect(url).await?;
        // As in the worker's writers, the statement is prepared once and planned once.
        sqlx::raw_sql("SET plan_cache_mode = force_generic_plan").execute(&mut connection).await?;
        writers.push(connection);
    }
    let mut shares: Vec<Vec<BacklogRows>> = (0..connections).map(|_| Vec::new()).collect();
    for (number, rows) in statements.into_iter().enumerate() {
        shares[number % connections].push(rows);
    }
    let started = Instant::now();
    try_join_all(writers.into_iter().zip(shares).map(|(writer, share)| write_all(writer, share))).await?;
    let seconds = started.elapsed().as_secs_f64();
    let stored: i64 = sqlx::query_scalar("SELECT count(*) FROM limit_messages").fetch_one(&mut admin).await?;
    ensure!(stored as usize == turns, "{stored} rows are there instead of {turns}");
    Ok(turns as f64 / seconds)
}

async fn write_all(mut connection: PgConnection, share: Vec<BacklogRows>) -> Result<()> {
    for rows in share {
        let count = rows.position.len();
        sqlx::query(AssertSqlSafe(INSERT))
            .bind(rows.bucket)
            .bind(rows.thread)
            .bind(rows.position.clone())
            .bind(rows.message)
            .bind(rows.position)
            .bind(vec![0_i32; count])
            .bind(vec!["system_trigger"; count])
            .bind(vec!["assistant"; count])
            .bind(rows.content)
            .bind(vec![None::<String>; count])
            .bind(vec!["{}"; count])
            .bind(vec![None::<i64>; count])
            .bind(vec![0_i64; count])
            .execute(&mut connection)
            .await?;
    }
    Ok(connection.close().await?)
}

/// The columns that differ from row to row.
#[derive(Debug, Default)]
struct BacklogRows {
    bucket: Vec<i16>,
    thread: Vec<String>,
    position: Vec<i64>,
    message: Vec<String>,
    content: Vec<String>,
    bytes: usize,
}

impl BacklogRows {
    fn push(&mut self, message: &Planned, position: i64) -> Result<()> {
        let content = message.content();
        self.bytes += content.len();
        self.bucket.push(i16::try_from(message.thread.bucket().get())?);
        self.thread.push(message.thread.to_string());
        self.position.push(position);
        self.message.push(message.message.to_string());
        self.content.push(content);
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.position.len() >= MOST_ROWS || self.bytes >= MOST_BYTES
    }
}

fn statements(backlog: &Backlog) -> Vec<BacklogRows> {
    let (mut statements, mut bytes) = (vec![BacklogRows::default()], 0);
    for (message, position) in backlog.messages.iter().zip(1_i64..) {
        if statements.last().is_none_or(BacklogRows::is_full) {
            bytes += statements.last().map_or(0, |rows| rows.bytes);
            if bytes >= RUN_BYTES {
                break;
            }
            statements.push(BacklogRows::default());
        }
        if let Some(rows) = statements.last_mut() {
            let _ = rows.push(message, position);
        }
    }
    statements
}
