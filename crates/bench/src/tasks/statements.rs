//! The statements of a worker, counted by Postgres on a separate server, because counting has a
//! cost.

use anyhow::{Context as _, Result};
use serde_json::json;
use sqlx::{Connection as _, PgConnection};

use super::{super::table::Row, environment::TaskEnvironment, options::TaskBenchOptions, peer::Peer};

const COUNTED: &str = "SELECT CASE \
        WHEN query ILIKE '%with commit_rows as%' THEN 'commit' \
        WHEN query ~* '^\\s*(begin|commit|rollback|start|savepoint|release)' THEN 'control' \
        WHEN query ~* 'agent_settings as s' AND query ~* 'unnest' AND query !~* 'is_known' THEN 'settings' \
        WHEN query ~* 'select \\* from messages as m' THEN 'history' \
        WHEN query ~* 'from tasks as t' AND query ~* 'limit' AND query !~* 'agents' THEN 'queue' \
        WHEN query ~* 'is_known' THEN 'check' \
        ELSE 'other' END AS kind, sum(calls)::bigint, sum(total_exec_time)::float8 \
    FROM pg_stat_statements AS s JOIN pg_database AS d ON d.oid = s.dbid \
    WHERE d.datname LIKE 'antiphon_test_%' GROUP BY 1 ORDER BY 3 DESC";

/// Statements of one round of the worker alone, with its defaults.
pub(super) async fn measure(options: &TaskBenchOptions) -> Result<Row> {
    const WHAT: &str = "round trips of a batch of completions";
    let settings =
        [("shared_preload_libraries", "pg_stat_statements"), ("pg_stat_statements.track_utility", "on")];
    let Ok(mut environment) = TaskEnvironment::start_with(&settings).await else {
        return Ok(Row::missing('g', WHAT, "this Postgres has no pg_stat_statements"));
    };
    let mut connection = PgConnection::connect(&environment.postgres_url()).await?;
    sqlx::query("CREATE EXTENSION pg_stat_statements").execute(&mut connection).await?;
    let mut peer = Peer::antiphon(&environment.nats_url());
    if let Some(why) = peer.missing() {
        return Ok(Row::missing('g', WHAT, why));
    }
    let load = options.load('a');
    peer.prepare(&mut environment, load).await?;
    sqlx::query("SELECT pg_stat_statements_reset()").execute(&mut connection).await?;
    let database = peer.keep_database().context("not prepared")?;
    peer.run(&mut environment).await?;
    let counted: Vec<(String, i64, f64)> = sqlx::query_as(COUNTED).fetch_all(&mut connection).await?;
    drop(database);
    let calls = |kind: &str| counted.iter().find(|(it, ..)| it == kind).map_or(0, |(_, calls, _)| *calls);
    let commits = calls("commit").max(1) as f64;
    let trips = (calls("commit") + calls("control")) as f64 / commits;
    let parts: Vec<String> =
        counted.iter().map(|(kind, calls, ms)| format!("{kind} {calls} in {ms:.0} ms")).collect();
    let turns = load.total() as f64 / commits;
    let note = format!("{turns:.0} turns a statement; {}", parts.join(", "));
    Ok(Row::new('g', WHAT, format!("{trips:.2}"))
        .goal("1", calls("commit") > 0 && calls("control") == 0)
        .note(note)
        .figure("statements", json!(counted)))
}
