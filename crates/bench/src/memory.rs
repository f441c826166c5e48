//! `cargo xtask bench memory`: how long a search for an agent's facts takes, among few and among
//! many, and which share of the facts is found.
//!
//! Entry point: [`run`]. Facts are in a separate Postgres, filled by SQL. Searches use the
//! production function of `store`, one after the other, by words alone, and by words and vectors.
//! Each search is for another user and has another question. The share of found facts is measured
//! with a [fixed set](recall) in three languages, and with [questions in other words](worded) in
//! seven.

mod embedder;
mod recall;
mod worded;

use std::path::PathBuf;

use anyhow::{Result, ensure};
use batches::memory::MOST_OF_TURN;
use clap::Parser;
use devservices::{services::Postgres, tools};
use model::{AgentId, Bucket, PartitionCount, TaskKind, ThreadId};
use sqlx::{Connection as _, PgConnection};
use store::{MOST_OF_SCOPE, Store, StoreConfig, VectorTables, lay_out_vectors};
use testkit::services::TestDatabase;

use self::embedder::Embedder;
use super::postgres;
use super::table::{Row, Table};
use super::timing::Timings;

const AGENT: &str = "helper";
const P50_GOAL_MS: f64 = 3.0;
const P99_GOAL_MS: f64 = 15.0;
/// Number of words in a short question.
const SHORT: u32 = 4;
/// Number of words in a question that has about the maximum number of characters of a query.
const LONG: u32 = 400;

/// Measures how fast facts are found, and how many are found, and prints one table.
#[derive(Debug, Clone, Parser)]
pub struct MemoryBenchOptions {
    /// Number of users of the agent, each with the most facts that are kept.
    #[arg(long, default_value_t = 100)]
    pub users: u32,
    /// Number of facts of other agents in the same table.
    #[arg(long, default_value_t = 1_000_000)]
    pub others: u32,
    /// Dimensions of a vector when time is measured; 256 is that of the small model used for the
    /// share of found facts.
    #[arg(long, default_value_t = 256)]
    pub dimensions: u32,
    /// Search by words alone; needs neither pgvector nor the packages of the small model, which
    /// exist for Linux on x86-64.
    #[arg(long)]
    pub words_only: bool,
    /// Number of searches.
    #[arg(long, default_value_t = 1_000)]
    pub searches: u32,
    /// Test run with few facts and searches. The exit code then ignores the figures.
    #[arg(long)]
    pub quick: bool,
    /// File to which the figures are written as JSON.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

/// Measures, prints the table, and returns whether every goal was met.
pub async fn run(options: &MemoryBenchOptions) -> Result<bool> {
    let mut options = options.clone();
    if options.quick {
        (options.users, options.others, options.searches) = (3, 1_000, 20);
    }
    ensure!(options.users > 0 && options.searches > 0, "nothing to measure");
    let mut table = Table::default();
    let vectors = if options.words_only { None } else { Some(vectors()) };
    let (server, embedder) = match vectors {
        Some(Ok((server, embedder))) => (server, Some(embedder)),
        Some(Err(error)) => {
            table.rows.push(Row::missing('a', "searches with vectors", format!("{error:#}")));
            (tools::postgres()?, None)
        }
        None => (tools::postgres()?, None),
    };
    options.words_only = embedder.is_none();
    let postgres = Postgres::start(None, &postgres::without_checkpoints(server.path))?;
    let database = TestDatabase::create_on(&postgres.url()).await?;
    store::migrate(database.url(), PartitionCount::new(8)?).await?;
    let mut connection = PgConnection::connect(database.url()).await?;
    let store = Store::connect(&StoreConfig::new(database.url())).await?;
    if let Some(embedder) = &embedder {
        database.create_extension("vector").await?;
        let laid_out = lay_out_vectors(database.url(), embedder.client.vectors_of()).await?;
        ensure!(laid_out == VectorTables::Made, "{laid_out:?}");
        make_vectors(&mut connection, &options).await?;
    }
    fill(&mut connection, &options, 0).await?;
    table.rows.extend(searched(&store, &options, SHORT, "alone").await?);
    fill(&mut connection, &options, options.others).await?;
    let beside = format!("beside {} of other agents", options.others);
    table.rows.extend(searched(&store, &options, SHORT, &beside).await?);
    table.rows.extend(searched(&store, &options, LONG, &beside).await?);
    table.rows.extend(recall::measure(&store, &mut connection, embedder.as_ref()).await?);
    table.rows.extend(worded::measure(&store, &mut connection).await?);
    println!("\n{table}");
    table.write_json(options.json.as_deref())?;
    Ok(options.quick || table.is_met())
}

/// The requirements of vectors: a Postgres with pgvector, and the small model.
fn vectors() -> Result<(tools::Tool, Embedder)> {
    Ok((tools::postgres_with_vector()?, Embedder::start()?))
}

/// Inserts the facts of the agent, or `others` facts of other agents. A fact has eight of 3,000
/// words; frequent words occur more often.
async fn fill(connection: &mut PgConnection, options: &MemoryBenchOptions, others: u32) -> Result<()> {
    let bucket = |agent: &str| -> Result<u16> {
        Ok(AgentId::parse(agent)?.queue_of(TaskKind::Memory).thread().bucket().get())
    };
    let text = "(SELECT string_agg('w' || floor(3000 * power(random(), 3))::int, ' ') FROM generate_series(1, 8) WHERE n IS NOT NULL)";
    let rows = if others == 0 {
        let threads: Vec<String> = (0..options.users)
            .map(|user| {
                let thread = format!("t{user}");
                let bucket = Bucket::of_key(&thread).get();
                format!("({bucket}, '{thread}', '{AGENT}', '{{\"user_id\": \"u{user}\"}}'::jsonb)")
            })
            .collect();
        let threads = format!(
            "INSERT INTO threads (bucket, thread_id, agent_id, metadata) VALUES {}",
            threads.join(", ")
        );
        sqlx::query(sqlx::AssertSqlSafe(threads)).execute(&mut *connection).await?;
        let (bucket, all) = (bucket(AGENT)?, i64::from(options.users) * MOST_OF_SCOPE);
        format!(
            "SELECT {bucket}, '{AGENT}', 'f' || n, 'user:u' || n % {}, {text}, 'note', 1 FROM generate_series(1, {all}) AS n",
            options.users
        )
    } else {
        let bucket = bucket("other")?;
        format!(
            "SELECT {bucket}, 'other' || n % 1000, 'f' || n, 'user:u' || n % 100000, {text}, 'note', 1 FROM generate_series(1, {others}) AS n"
        )
    };
    let insert =
        format!("INSERT INTO facts (bucket, agent_id, fact_id, scope, text, kind, confidence) {rows}");
    if options.words_only {
        sqlx::query(sqlx::AssertSqlSafe(insert)).execute(&mut *connection).await?;
    } else {
        // The facts get their vectors at once and are not queued for them.
        for sql in [
            "ALTER TABLE facts DISABLE TRIGGER fact_added",
            &insert,
            "INSERT INTO fact_vectors (bucket, agent_id, fact_id, scope, vector)
             SELECT f.bucket, f.agent_id, f.fact_id, f.scope, v.vector
             FROM facts AS f JOIN bench_vectors AS v ON v.number = abs(hashtext(f.fact_id)) % (SELECT count(*) FROM bench_vectors)
             ON CONFLICT DO NOTHING",
            "ALTER TABLE facts ENABLE TRIGGER fact_added",
            "VACUUM (ANALYZE) fact_vectors",
        ] {
            sqlx::query(sqlx::AssertSqlSafe(sql)).execute(&mut *connection).await?;
        }
    }
    sqlx::query("VACUUM (ANALYZE) facts").execute(connection).await?;
    Ok(())
}

/// Makes vectors that facts share, because the cost of a search does not depend on their content.
async fn make_vectors(connection: &mut PgConnection, options: &MemoryBenchOptions) -> Result<()> {
    let sql = format!(
        "CREATE UNLOGGED TABLE bench_vectors AS
         SELECT n AS number, l2_normalize((SELECT array_agg(random() - 0.5) FROM generate_series(1, {}) WHERE n IS NOT NULL)::real[]::vector)::halfvec
                AS vector
         FROM generate_series(0, 1023) AS n",
        options.dimensions
    );
    sqlx::query(sqlx::AssertSqlSafe(sql)).execute(connection).await?;
    Ok(())
}

/// Searches by words, and by words and vectors together.
async fn searched(store: &Store, options: &MemoryBenchOptions, words: u32, beside: &str) -> Result<Vec<Row>> {
    let mut rows = vec![searched_by(store, options, words, beside, false).await?];
    if !options.words_only {
        rows.push(searched_by(store, options, words, beside, true).await?);
    }
    Ok(rows)
}

async fn searched_by(
    store: &Store,
    options: &MemoryBenchOptions,
    words: u32,
    beside: &str,
    has_vector: bool,
) -> Result<Row> {
    let agent = AgentId::parse(AGENT)?;
    let mut timings = Timings::default();
    let mut found = 0;
    for number in 0..options.searches {
        let thread = ThreadId::parse(&format!("t{}", number % options.users))?;
        let text = question(number, words);
        let vector = has_vector.then(|| vector(number, options.dimensions));
        found += timings
            .time(async {
                Ok(store.search_facts(&agent, &thread, &text, vector.as_deref(), MOST_OF_TURN).await?)
            })
            .await?
            .len();
    }
    let (p50, p99) = (timings.p50_ms(), timings.p99_ms());
    ensure!(found > 0, "nothing was found");
    let by = match has_vector {
        true => format!("{words} words and {} dimensions", options.dimensions),
        false => format!("{words} words"),
    };
    let what = format!(
        "search with {by}, of {} facts of a user, {} of the agent, {beside}",
        MOST_OF_SCOPE,
        i64::from(options.users) * MOST_OF_SCOPE
    );
    let row = Row::new('a', what, format!("p50 {p50:.2} ms, p99 {p99:.2} ms"))
        .note(format!("{:.1} found", f64::from(found as u32) / f64::from(options.searches)))
        .figure("p50_ms", p50)
        .figure("p99_ms", p99);
    let goal = format!("<= {P50_GOAL_MS} and {P99_GOAL_MS} ms");
    let is_met = p50 <= P50_GOAL_MS && p99 <= P99_GOAL_MS;
    Ok(if words == SHORT { row.goal(goal, is_met) } else { row })
}

/// A vector of length 1, different for each question.
fn vector(number: u32, dimensions: u32) -> Vec<f32> {
    let part = |at: u32| f32::from((number.wrapping_mul(31).wrapping_add(at * 7_919) % 1_009) as u16) - 504.0;
    let parts: Vec<f32> = (0..dimensions).map(part).collect();
    let length = parts.iter().map(|part| part * part).sum::<f32>().sqrt();
    parts.into_iter().map(|part| part / length).collect()
}

/// A question with as many frequent words as rare ones.
fn question(number: u32, words: u32) -> String {
    let word = |at: u32| match at {
        0 => number % 7,
        1 => number % 31,
        2 => 500 + number % 900,
        3 => 1_500 + number % 1_500,
        at if at % 2 == 0 => (number + at) % 500,
        at => 500 + (7 * number + at) % 2_500,
    };
    (0..words).map(|at| format!("w{}", word(at))).collect::<Vec<_>>().join(" ")
}
