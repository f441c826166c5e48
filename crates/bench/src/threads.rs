//! `cargo xtask bench threads`: how long a page of the list of threads takes, of one tenant with
//! many threads.
//!
//! Entry point: [`run`]. The threads are in a separate Postgres, filled by SQL. Pages are read with
//! the production function of `store`, one after the other, under row-level security. Each page is
//! of another user, at another place, or searched for by another word.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Parser;
use devservices::{services::Postgres, tools};
use model::{AgentId, Metadata, PartitionCount, Tenant, ThreadId};
use serde_json::json;
use sqlx::{Connection as _, PgConnection};
use store::{ListCursor, Store, StoreConfig, ThreadFilter};
use testkit::services::TestDatabase;

use super::postgres;
use super::table::{Row, Table};
use super::timing::Timings;

const TENANT: &str = "acme";
const PAGE: u32 = 50;
const LIST_GOAL_MS: f64 = 50.0;
const SEARCH_GOAL_MS: f64 = 200.0;
/// Number of threads of a user.
const OF_USER: u32 = 50;

/// Measures how fast threads are listed and found, and prints one table.
#[derive(Debug, Clone, Parser)]
pub struct ThreadsBenchOptions {
    /// Number of threads of the tenant, of two messages each.
    #[arg(long, default_value_t = 1_000_000)]
    pub threads: u32,
    /// Number of pages that are read of each kind.
    #[arg(long, default_value_t = 500)]
    pub pages: u32,
    /// Test run with few threads and pages. The exit code then ignores the figures.
    #[arg(long)]
    pub quick: bool,
    /// File to which the figures are written as JSON.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

/// Measures, prints the table, and returns whether every goal was met.
pub async fn run(options: &ThreadsBenchOptions) -> Result<bool> {
    let mut options = options.clone();
    if options.quick {
        (options.threads, options.pages) = (2_000, 10);
    }
    ensure!(options.threads >= OF_USER && options.pages > 0, "nothing to measure");
    let postgres = Postgres::start(None, &postgres::without_checkpoints(tools::postgres()?.path))?;
    let database = TestDatabase::create_on(&postgres.url()).await?;
    store::migrate(database.url(), PartitionCount::new(8)?).await?;
    fill(&mut PgConnection::connect(database.url()).await?, options.threads).await?;
    let tenant = Tenant::parse(TENANT)?;
    let store = Store::connect(&StoreConfig::new(database.url())).await?.for_tenant(Some(tenant.clone()));
    let mut table = Table::default();
    for kind in kinds() {
        table.rows.push(measured(&store, &tenant, &options, &kind).await?);
    }
    println!("\n{table}");
    table.write_json(options.json.as_deref())?;
    Ok(options.quick || table.is_met())
}

/// A kind of page.
struct PageKind {
    name: &'static str,
    goal_ms: f64,
    filter: fn(page: u32, threads: u32) -> Result<ThreadFilter>,
}

fn kinds() -> [PageKind; 6] {
    [
        PageKind {
            name: "newest threads of the tenant",
            goal_ms: LIST_GOAL_MS,
            filter: |_, _| Ok(ThreadFilter::default()),
        },
        PageKind {
            name: "threads of the tenant from some place on",
            goal_ms: LIST_GOAL_MS,
            filter: |page, threads| {
                let age_s = i64::from(page.wrapping_mul(7_919) % threads);
                let active_us = (1_767_225_600 - age_s) * 1_000_000;
                let after = Some(ListCursor { active_us, thread: ThreadId::parse("acme~t")? });
                Ok(ThreadFilter { after, ..ThreadFilter::default() })
            },
        },
        PageKind {
            name: "threads of a user",
            goal_ms: LIST_GOAL_MS,
            filter: |page, threads| Ok(ThreadFilter { user: user(page, threads), ..ThreadFilter::default() }),
        },
        PageKind {
            name: "threads of an agent that answers in a third of all",
            goal_ms: LIST_GOAL_MS,
            filter: |_, _| {
                Ok(ThreadFilter { agent: Some(AgentId::parse("acme~ann")?), ..ThreadFilter::default() })
            },
        },
        PageKind {
            name: "threads of a user with a word in the title",
            goal_ms: SEARCH_GOAL_MS,
            filter: |page, threads| {
                let words = vec!["trip".to_owned()];
                Ok(ThreadFilter { user: user(page, threads), words, ..ThreadFilter::default() })
            },
        },
        PageKind {
            name: "threads of the tenant with a rare word in the title and a key in the metadata",
            goal_ms: SEARCH_GOAL_MS,
            filter: |page, _| {
                let metadata =
                    json!({ "project": "p1" }).as_object().cloned().map(Metadata::new).transpose()?;
                let words = vec![format!("w{}x", page % 900)];
                Ok(ThreadFilter { metadata, words, ..ThreadFilter::default() })
            },
        },
    ]
}

fn user(page: u32, threads: u32) -> Option<String> {
    Some(format!("u{}", page.wrapping_mul(37) % (threads / OF_USER)))
}

/// Inserts the threads: the n-th was active n seconds before 2026.
async fn fill(connection: &mut PgConnection, threads: u32) -> Result<()> {
    let users = threads / OF_USER;
    let bucket = "(n::bigint * 7919) % 1024";
    let agent = "CASE WHEN n % 3 = 0 THEN 'acme~ann' END";
    for sql in [
        "SELECT set_config('antiphon.tenant', '*', false)".to_owned(),
        format!(
            "INSERT INTO threads (bucket, thread_id, head_position, message_count, last_number, agent_id, metadata)
             SELECT {bucket}, 'acme~t' || n, 2 * n + 1, 2, 2, {agent},
                    jsonb_build_object('user_id', 'u' || n % {users}, 'project', 'p' || n % 1000)
             FROM generate_series(1, {threads}) AS n"
        ),
        format!(
            "INSERT INTO thread_list (bucket, thread_id, tenant, active_at, title, title_by, agent_id, user_id)
             SELECT {bucket}, 'acme~t' || n, 'acme', timestamptz '2026-01-01 00:00Z' - n * interval '1 second',
                    'A trip to w' || n % 5000 || 'x for ' || md5(n::text), 'input', {agent}, 'u' || n % {users}
             FROM generate_series(1, {threads}) AS n"
        ),
        format!(
            "INSERT INTO messages (bucket, thread_id, position, message_id, batch_id, number, sequence_num, batch_type, role, content)
             SELECT {bucket}, 'acme~t' || n, 2 * n + k, 'm' || n || '-' || k, 2 * n, k + 1, k, 'user_request',
                    CASE k WHEN 0 THEN 'user' ELSE 'assistant' END, repeat(md5(n::text) || ' ', 10)
             FROM generate_series(1, {threads}) AS n, generate_series(0, 1) AS k"
        ),
        "VACUUM (ANALYZE) threads, thread_list, messages".to_owned(),
    ] {
        sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&mut *connection).await?;
    }
    Ok(())
}

async fn measured(
    store: &Store,
    tenant: &Tenant,
    options: &ThreadsBenchOptions,
    kind: &PageKind,
) -> Result<Row> {
    let (mut timings, mut listed) = (Timings::default(), 0);
    for page in 0..options.pages {
        let filter = (kind.filter)(page, options.threads)?;
        let reading = async { Ok(store.list_threads(Some(tenant), &filter, PAGE).await?) };
        listed += timings.time(reading).await?.threads.len();
    }
    let (p50, p99) = (timings.p50_ms(), timings.p99_ms());
    let what = format!("{}, of {}", kind.name, options.threads);
    let row = Row::new('a', what, format!("p50 {p50:.2} ms, p99 {p99:.2} ms"))
        .note(format!("{:.1} threads", f64::from(listed as u32) / f64::from(options.pages)))
        .figure("p50_ms", p50)
        .figure("p99_ms", p99);
    Ok(row.goal(format!("p99 <= {} ms", kind.goal_ms), p99 <= kind.goal_ms))
}
