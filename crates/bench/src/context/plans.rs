//! The index by which a page is read. It is taken from the plans of the shipped statements, made
//! without restrictions on the planner.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use serde_json::Value;
use sqlx::{AssertSqlSafe, Row as _};

use super::{
    super::table::Row,
    environment::{ContextEnvironment, execute},
    threads::{BenchThread, MESSAGES},
};

const FORWARDS: &str = include_str!("../../../store/src/history/forwards.sql");
const BACKWARDS: &str = include_str!("../../../store/src/history/backwards.sql");
const BATCH_IDS: &str = include_str!("../../../store/src/context/batch_ids.sql");
const KEY: &str = "Index Scan using messages_pkey";

/// Explains the pages in the middle of the thread. The plans are generic, as in the store, but the
/// planner may use any method.
pub(super) async fn row(environment: &ContextEnvironment, thread: &BenchThread, batches: u32) -> Result<Row> {
    let first = thread.batches / 2;
    let (from, to) = (thread.batch(first).get(), thread.batch(first + batches).get());
    let (bucket, id, limit) = (thread.bucket(), &thread.id, batches * MESSAGES);
    let pages = [
        (FORWARDS, format!("{bucket}::smallint, '{id}', {}, {}, {limit}, false", from - 1, i64::MAX)),
        (BACKWARDS, format!("{bucket}::smallint, '{id}', {}, {to}, {limit}, false", i64::MIN + 1)),
        (BATCH_IDS, format!("{bucket}::smallint, '{id}', {to}, {batches}")),
    ];
    let mut connection = environment.connection().await?;
    execute(&mut connection, "SET plan_cache_mode = force_generic_plan").await?;
    let mut scans = BTreeSet::new();
    for (sql, values) in pages {
        execute(&mut connection, &format!("PREPARE page AS {sql}")).await?;
        let explain = format!("EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE page({values})");
        let row = sqlx::raw_sql(AssertSqlSafe(explain)).fetch_one(&mut connection).await?;
        let plan: Value = serde_json::from_str(row.try_get_unchecked::<&str, _>(0)?)?;
        note_scans(plan.get(0).and_then(|plan| plan.get("Plan")).context("no plan")?, &mut scans);
        execute(&mut connection, "DEALLOCATE page").await?;
    }
    sqlx::Connection::close(connection).await?;
    let scans: Vec<String> = scans.into_iter().collect();
    Ok(Row::new('b', "pages and ids by one index, by EXPLAIN", scans.join(", "))
        .goal("no other", scans == [KEY])
        .note("scans of messages in the plans of forwards.sql, backwards.sql and batch_ids.sql"))
}

/// Collects the scans of `messages` anywhere in the plan.
fn note_scans(plan: &Value, scans: &mut BTreeSet<String>) {
    let text = |key: &str| plan.get(key).and_then(Value::as_str).unwrap_or_default();
    if text("Relation Name") == "messages" {
        let index = text("Index Name");
        let by = if index.is_empty() { String::new() } else { format!(" using {index}") };
        scans.insert(format!("{}{by}", text("Node Type")));
    } else if text("Node Type") == "Bitmap Index Scan" {
        scans.insert(format!("Bitmap Index Scan using {}", text("Index Name")));
    }
    let below = plan.get("Plans").and_then(Value::as_array);
    below.into_iter().flatten().for_each(|plan| note_scans(plan, scans));
}
