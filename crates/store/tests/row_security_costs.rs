//! Row security causes no scans: look-ups read as many pages in a long thread as in a short one.

use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};

use crate::fixture::Database;

/// Number of rows of a thread, of a queue and of compactions.
const SHORT: i64 = 100;
const LONG: i64 = 10_000;

/// Inserts `ROWS` rows: turns of two messages, tasks of which the last ten wait, and compactions.
const FILL: &str = "
    INSERT INTO threads (bucket, thread_id, head_position, message_count) SELECT 5, 't', ROWS, ROWS;
    INSERT INTO messages (bucket, thread_id, position, message_id, batch_id, sequence_num, number, batch_type, role, content, parent_batch)
    SELECT 5, 't', n, 'u0005-' || lpad(to_hex((n + 1) / 2), 16, '0') || CASE n % 2 WHEN 1 THEN '-q' ELSE '-a' END, n - 1 + n % 2,
           1 - n % 2, n, 'user_request', CASE n % 2 WHEN 1 THEN 'user' ELSE 'assistant' END, repeat('word ', 40),
           CASE WHEN n % 2 = 1 THEN CASE WHEN n < 100 THEN 1 ELSE 3 END END
    FROM generate_series(1, ROWS) AS n;
    INSERT INTO agents (bucket, agent_id, head_position) SELECT 5, 'a', ROWS - 10;
    INSERT INTO tasks (bucket, agent_id, position, task_id, kind, content)
    SELECT 5, 'a', n, 'task-' || n, 'task', repeat('word ', 40) FROM generate_series(1, ROWS) AS n;
    INSERT INTO task_ids (bucket, agent_id, task_id, position, digest) SELECT 5, 'a', 'task-' || n, n, n FROM generate_series(1, ROWS) AS n;
    INSERT INTO compactions (bucket, thread_id, compaction_id, through_position, summary, strategy, valid_from_position)
    SELECT 5, 't', n, n, 's', 'summarise', n FROM generate_series(1, ROWS) AS n;
    VACUUM (ANALYZE) messages, tasks, agents, task_ids, compactions, threads";

/// The settings of a session of the store that has a tenant scope.
const SESSION: &str = "
    SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off;
    SET jit = off; SET antiphon.tenant = '-'";

/// The first turn of the thread, so that all other turns follow it.
const TURN: &str = "u0005-0000000000000001";

/// Statements with their values, one of which is `ROWS`.
fn statements() -> Vec<(&'static str, &'static str, String)> {
    macro_rules! shipped {
        ($path:literal) => {
            ($path, include_str!(concat!("../src/", $path)))
        };
    }
    let all = [
        (
            shipped!("api/agents/rows.sql"),
            "ARRAY[5]::smallint[], ARRAY['a'], 100, ARRAY[5]::smallint[], ARRAY['a']".to_owned(),
        ),
        (shipped!("context/batches.sql"), "5::smallint, 't', ARRAY[ROWS - 49]::bigint[]".to_owned()),
        (
            shipped!("context/begin.sql"),
            "ARRAY[5]::smallint[], ARRAY['a'], ARRAY[5]::smallint[], ARRAY['t'], ARRAY[true], ARRAY[false],
             ARRAY[NULL]::smallint[], ARRAY[NULL]::text[]"
                .to_owned(),
        ),
        (shipped!("api/turns/state.sql"), format!("5::smallint, 't', '{TURN}', '{TURN}-q'")),
        (shipped!("context/batch_ids.sql"), "5::smallint, 't', 9223372036854775807, 20".to_owned()),
        (shipped!("context/batches_within.sql"), "5::smallint, 't', 1, 9223372036854775807, 20".to_owned()),
        (shipped!("compactions/find_summary.sql"), format!("5::smallint, 't', '{TURN}-q'")),
        (shipped!("api/messages/last_answer.sql"), "5::smallint, 't', true".to_owned()),
        (shipped!("api/tasks/one.sql"), "5::smallint, 'a', 'task-7'".to_owned()),
    ];
    all.into_iter().map(|((path, sql), values)| (path, sql, values)).collect()
}

/// The rows that each statement returns and the pages that it reads.
async fn pages(rows: i64) -> Vec<(i64, i64)> {
    let (database, _store) = Database::new(1).await;
    let mut session = database.session().await;
    for sql in FILL.replace("ROWS", &rows.to_string()).split(';') {
        execute(&mut session, sql).await;
    }
    execute(&mut session, SESSION).await;
    let mut read = Vec::new();
    for (_, sql, values) in statements() {
        execute(&mut session, &format!("PREPARE shipped AS {sql}")).await;
        let values = values.replace("ROWS", &rows.to_string());
        let explain = format!("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE shipped({values})");
        // The first run also reads catalog pages that the session has not cached yet.
        sqlx::raw_sql(AssertSqlSafe(explain.clone())).fetch_one(&mut session).await.unwrap();
        let row = sqlx::raw_sql(AssertSqlSafe(explain)).fetch_one(&mut session).await.unwrap();
        let plan: serde_json::Value =
            serde_json::from_str(row.try_get_unchecked::<&str, _>(0).unwrap()).unwrap();
        let plan = &plan[0]["Plan"];
        let count = |key: &str| plan[key].as_f64().unwrap() as i64;
        read.push((count("Actual Rows"), count("Shared Hit Blocks") + count("Shared Read Blocks")));
        execute(&mut session, "DEALLOCATE shipped").await;
    }
    session.close().await.unwrap();
    read
}

async fn execute(session: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(session).await.unwrap();
}

#[tokio::test]
async fn statements_read_no_more_of_long_threads_than_of_short_ones() {
    let (short, long) = (pages(SHORT).await, pages(LONG).await);
    let mut wrong = Vec::new();
    for (((path, _, _), short), long) in statements().iter().zip(short).zip(long) {
        assert!(short.0 > 0 && short.0 == long.0, "{path} gives {} and {} rows", short.0, long.0);
        if long.1 > 2 * short.1 {
            wrong.push(format!("{path}: {} pages of {SHORT} rows, {} of {LONG}", short.1, long.1));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
