//! Lists to which a tenant may add many entries. Statements that turns depend on read these lists;
//! the test counts the pages read, with few entries and with the maximum. The README table has the
//! counts that it prints.

use sqlx::{AssertSqlSafe, Row as _};

use crate::fixture::Database;

/// The settings of a session of the store.
const SESSION: &str = "
    SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off;
    SET jit = off";

/// A list, and a statement that reads one entry of it.
struct List {
    name: &'static str,
    /// The maximum number of entries, or more than any tenant has.
    most: u32,
    /// Creates `ROWS` entries.
    fill: &'static str,
    sql: &'static str,
    values: &'static str,
    /// The maximum number of pages read when the list is full.
    pages: i64,
}

const LISTS: [List; 8] = [
    List {
        name: "budgets of a tenant, all of one scope",
        most: 1_000,
        fill: "INSERT INTO budgets (tenant, name, scope, unit, max_amount, period, period_start, period_end, counted_to)
               SELECT '-', 'b' || n, 'tenant', 'tokens', 1e15, 'day', now() - interval '1 hour', now() + interval '1 hour', now()
               FROM generate_series(1, ROWS) AS n; VACUUM (ANALYZE) budgets",
        sql: "budgets",
        values: "'{}', '{}', '{}', '{}', '{}', '{5}', '{t}', '{a}', '{NULL}'",
        pages: 40,
    },
    List {
        name: "schedules of an agent",
        most: 64,
        fill: "INSERT INTO schedules (bucket, agent_id, name, cron, content, timer_id, created_by)
               SELECT 5, 'a', 's' || n, '* * * * *', 'x', 's0005-' || n, 'x' FROM generate_series(1, ROWS) AS n;
               INSERT INTO timers (bucket, timer_id, kind, agent_id, agent_bucket, due_at, body)
               SELECT 5, 's0005-' || n, 'schedule', 'a', 5, now(), jsonb_build_object('schedule', 's' || n) FROM generate_series(1, ROWS) AS n;
               VACUUM (ANALYZE) schedules, timers",
        sql: include_str!("../src/timers/due.sql"),
        values: "'{5}', '{s0005-1}', NULL, NULL",
        pages: 24,
    },
    List {
        name: "delayed tasks of an agent",
        most: 10_000,
        fill: "INSERT INTO timers (bucket, timer_id, kind, agent_id, agent_bucket, due_at, body)
               SELECT 5, 't0005-' || n, 'task', 'a', 5, now() + n * interval '1 s', '{}' FROM generate_series(1, ROWS) AS n;
               VACUUM (ANALYZE) timers",
        sql: include_str!("../src/timers/window.sql"),
        values: "'{5}', NULL, 128, 4096",
        pages: 8,
    },
    List {
        name: "follow-ups that a thread has had",
        most: 10_000,
        fill: "INSERT INTO threads (bucket, thread_id, head_position) VALUES (5, 't', 9);
               INSERT INTO timers (bucket, timer_id, kind, thread_id, agent_id, agent_bucket, due_at, state, ended_at, body)
               SELECT 5, 'f0005-' || n, 'follow_up', 't', 'a', 5, now(), CASE n WHEN 1 THEN 'pending' ELSE 'fired' END, now(),
                      '{\"armed_position\": \"9\"}' FROM generate_series(1, ROWS) AS n;
               VACUUM (ANALYZE) timers, threads",
        sql: include_str!("../src/timers/due.sql"),
        values: "'{5}', '{f0005-1}', NULL, NULL",
        pages: 56,
    },
    List {
        name: "facts of one scope",
        most: 1_000,
        fill: "INSERT INTO facts (bucket, agent_id, fact_id, scope, text, kind, confidence)
               SELECT 5, 'a', 'f' || n, 'agent', 'The guest number ' || n || ' likes tea', 'preference', 1 FROM generate_series(1, ROWS) AS n;
               VACUUM (ANALYZE) facts",
        sql: include_str!("../src/facts/known.sql"),
        values: "5, 'a', 5, 't', 5, 2000",
        pages: 96,
    },
    List {
        name: "agents of a tenant",
        most: 10_000,
        fill: "INSERT INTO agent_settings (bucket, agent_id, workflow) SELECT 5, 'a' || n, 'default' FROM generate_series(1, ROWS) AS n;
               VACUUM (ANALYZE) agent_settings",
        sql: include_str!("../src/context/begin.sql"),
        values: "'{5}', '{a1}', '{5}', '{t}', '{t}', '{f}', '{NULL}', '{NULL}'",
        pages: 26,
    },
    List {
        name: "API keys of a tenant",
        most: 10_000,
        fill: "INSERT INTO api_keys (key_id, digest, tenant, role, name, created_by)
               SELECT lpad(to_hex(n), 16, '0'), decode(repeat('00', 32), 'hex'), 'acme', 'viewer', 'x', 'x' FROM generate_series(1, ROWS) AS n;
               VACUUM (ANALYZE) api_keys",
        sql: "SELECT * FROM api_keys WHERE key_id = ANY ($1)",
        values: "'{0000000000000001}'",
        pages: 6,
    },
    List {
        name: "turns that run under one limit",
        most: 1_000,
        fill: "INSERT INTO turn_limit_workers VALUES ('w', now() + interval '1 hour');
               INSERT INTO turn_limit_turns SELECT 'tenant:acme', 'u0005-' || n, 'w' FROM generate_series(1, ROWS) AS n;
               VACUUM (ANALYZE) turn_limit_turns, turn_limit_workers",
        sql: "SELECT antiphon_admit_turn($1, $2, $3, $4, $5, $6, $7, $8)",
        values: "'w', '1 hour', 'u0005-x', '{tenant:acme}', '{1000}', '{NULL}', '{NULL}', 1",
        pages: 64,
    },
];

impl List {
    fn statement(&self) -> String {
        match self.sql {
            "budgets" => include_str!("../src/budgets/of_turns.sql")
                .replace("{sums}", include_str!("../src/budgets/sums.sql"))
                .replace("{columns}", "s.amount"),
            sql => sql.to_owned(),
        }
    }

    async fn pages(&self, rows: u32) -> i64 {
        let (database, _store) = Database::new(1).await;
        let mut session = database.session().await;
        for sql in SESSION
            .split(';')
            .chain(self.fill.replace("ROWS", &rows.to_string()).split("; "))
            .chain([format!("PREPARE listed AS {}", self.statement()).as_str()])
        {
            for sql in sql.split(";\n") {
                sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut session).await.unwrap();
            }
        }
        let explain = format!("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE listed({})", self.values);
        let mut pages = 0;
        // The first run also reads catalog pages that the session has not cached yet.
        for _ in 0..2 {
            let row = sqlx::raw_sql(AssertSqlSafe(explain.clone())).fetch_one(&mut session).await.unwrap();
            let plan: serde_json::Value =
                serde_json::from_str(row.try_get_unchecked::<&str, _>(0).unwrap()).unwrap();
            let count = |key: &str| plan[0]["Plan"][key].as_i64().unwrap();
            pages = count("Shared Hit Blocks") + count("Shared Read Blocks");
        }
        pages
    }
}

#[tokio::test]
async fn long_lists_of_a_tenant_cost_a_turn_what_the_readme_says() {
    let mut wrong = Vec::new();
    for list in &LISTS {
        let (one, all) = (list.pages(1).await, list.pages(list.most).await);
        println!("| {} | {} | {one} | {all} |", list.name, list.most);
        if all > list.pages {
            wrong.push(format!(
                "{}: {all} pages with {}, {one} with one, at most {}",
                list.name, list.most, list.pages
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
