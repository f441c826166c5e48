//! `cargo xtask bench growth`: the cost of a unit of work when there is ten times as much data or
//! load around it (up to eight times for partitions).
//!
//! Entry point: [`run`]. Each part drains backlogs, or answers tasks, that differ in one number
//! only. It divides the cost of a unit with the larger number by the cost with the smaller one.
//! Postgres counts pages and WAL bytes, which stay the same on a busy machine; processor time does
//! not. Rounds alternate, and medians are used.

mod comparison;
mod long_answers;
mod options;

use anyhow::{Context as _, Result, ensure};
use model::PartitionCount;
use sqlx::{Connection as _, PgConnection};
use testkit::{fleet::Fleet, services::TestDatabase};

use self::comparison::Comparison;
pub use self::options::GrowthBenchOptions;
use crate::{
    backlog::{self, Backlog, BacklogShape},
    drain,
    environment::ChunkEnvironment,
    table::{Row, Table},
    tasks,
    unit_cost::UnitCost,
};

/// The factor by which the larger number exceeds the smaller one.
const TIMES: usize = 10;

/// Measures, prints the table, and returns whether every goal was met.
pub async fn run(options: &GrowthBenchOptions) -> Result<bool> {
    let options = options.resolved();
    ensure!(options.units >= 2_000 && options.rounds > 0, "nothing to measure");
    let table = measure(&options).await?;
    println!("\n{table}");
    table.write_json(options.json.as_deref())?;
    Ok(table.is_met() || options.quick)
}

async fn measure(options: &GrowthBenchOptions) -> Result<Table> {
    let mut table = Table::default();
    for part in options.rows.iter().copied() {
        let row = match part {
            'f' => Some(long_answers::others(options).await),
            'g' => Some(long_answers::written(options).await),
            'h' => Some(long_answers::open(options).await),
            'i' => Some(long_answers::takeover(options).await),
            'j' => Some(long_answers::stream(options).await),
            _ => None,
        };
        // If a binary fails in one part, only that part has no figure.
        let row = row.map(|row| {
            row.unwrap_or_else(|error| {
                Row::failed(part, "long answers", format!("{error:#}")).goal("a figure", false)
            })
        });
        table.rows.extend(row);
        let comparisons = match part {
            'a' => vec![open_messages(options).await?],
            'b' => vec![threads(options).await?],
            'c' => vec![history(options).await?],
            'd' => vec![agents(options).await?],
            'e' => partitions(options).await?,
            _ => Vec::new(),
        };
        table.rows.extend(comparisons.iter().map(|comparison| comparison.row(part)));
    }
    table.rows.sort_by_key(|row| row.part);
    Ok(table)
}

/// One backlog, and the number of rows that exist before it is drained.
struct Case {
    environment: ChunkEnvironment,
    backlog: Backlog,
    /// Number of messages of each thread.
    stored: usize,
}

impl Case {
    async fn new(shape: &BacklogShape, partitions: u16, stored: usize) -> Result<Self> {
        let environment = ChunkEnvironment::start(partitions)?;
        let database = environment.database().await?;
        Fleet::prepare(environment.fleet(database.url(), 0, 0))?.migrate().await?;
        let backlog = Backlog::plan(shape)?;
        let client = async_nats::connect(environment.nats.url()).await?;
        backlog.publish(&client, PartitionCount::new(partitions.into())?).await?;
        Ok(Self { environment, backlog, stored })
    }

    async fn round(&self) -> Result<UnitCost> {
        let database = self.environment.database().await?;
        Fleet::prepare(self.environment.fleet(database.url(), 0, 0))?.migrate_and_adopt().await?;
        let threads = self.backlog.shape.threads.unwrap_or_default();
        fill(&database, threads, self.stored).await?;
        let drain = drain::drain_into(&self.environment, &database, &self.backlog).await?;
        Ok(UnitCost::of(&drain, self.backlog.messages.len()))
    }
}

/// Gives each thread `stored` older messages, and updates the statistics. No checkpoint follows,
/// because after it the first change of each page would be logged as a whole page.
async fn fill(database: &TestDatabase, threads: usize, stored: usize) -> Result<()> {
    const FILL: &str = include_str!("growth/fill.sql");
    let mut connection = PgConnection::connect(database.url()).await?;
    if stored > 0 {
        let threads = (0..threads).map(backlog::thread).collect::<Result<Vec<_>>>()?;
        let buckets = threads.iter().map(|thread| Ok(i16::try_from(thread.bucket().get())?));
        let buckets = buckets.collect::<Result<Vec<_>>>()?;
        let ids: Vec<String> = threads.iter().map(ToString::to_string).collect();
        sqlx::query(FILL)
            .bind(buckets)
            .bind(ids)
            .bind(i64::try_from(stored)?)
            .execute(&mut connection)
            .await?;
    }
    sqlx::query("VACUUM (ANALYZE)").execute(&mut connection).await?;
    Ok(connection.close().await?)
}

fn shape(options: &GrowthBenchOptions, chunks: u32, open: usize, threads: usize) -> BacklogShape {
    BacklogShape {
        name: "growth",
        chunks: options.units as u64 * u64::from(chunks),
        lengths: chunks..=chunks,
        frame: 1,
        open,
        threads: Some(threads),
    }
}

async fn compare(
    options: &GrowthBenchOptions,
    what: String,
    unit: &'static str,
    cases: &[(&Case, &str)],
) -> Result<Vec<Comparison>> {
    let mut costs: Vec<Vec<UnitCost>> = vec![Vec::new(); cases.len()];
    for number in 1..=options.rounds {
        for ((case, name), costs) in cases.iter().zip(&mut costs) {
            let cost = case.round().await?;
            eprintln!("    {what}, {name}, round {number}: {cost}");
            costs.push(cost);
        }
    }
    let medians: Vec<UnitCost> = costs.iter().map(|costs| UnitCost::median(costs)).collect();
    let grown = cases.iter().zip(&medians).skip(1);
    Ok(grown
        .map(|((_, name), cost)| Comparison {
            what: format!("{what}: {} to {name}", cases[0].1),
            unit,
            before: medians[0],
            after: *cost,
        })
        .collect())
}

async fn one(compared: Result<Vec<Comparison>>) -> Result<Comparison> {
    compared?.pop().context("nothing was compared")
}

async fn open_messages(options: &GrowthBenchOptions) -> Result<Comparison> {
    let (few, threads) = (100, options.units / 20);
    let before = Case::new(&shape(options, 16, few, threads), 1, 0).await?;
    let after = Case::new(&shape(options, 16, few * TIMES, threads), 1, 0).await?;
    let cases = [(&before, "100"), (&after, "1,000")];
    one(compare(options, "open messages".to_owned(), "message of 16 chunks", &cases).await).await
}

async fn threads(options: &GrowthBenchOptions) -> Result<Comparison> {
    let few = options.units / 40;
    let before = Case::new(&shape(options, 1, 64, few), 1, 0).await?;
    let after = Case::new(&shape(options, 1, 64, few * TIMES), 1, 0).await?;
    let names = [few.to_string(), (few * TIMES).to_string()];
    let cases = [(&before, names[0].as_str()), (&after, names[1].as_str())];
    one(compare(options, "threads".to_owned(), "message", &cases).await).await
}

async fn history(options: &GrowthBenchOptions) -> Result<Comparison> {
    let (stored, shape) = (options.units / 400, shape(options, 1, 64, 1_000));
    let before = Case::new(&shape, 1, stored).await?;
    let after = Case::new(&shape, 1, stored * TIMES).await?;
    let names = [stored.to_string(), (stored * TIMES).to_string()];
    let cases = [(&before, names[0].as_str()), (&after, names[1].as_str())];
    one(compare(options, "messages a thread has".to_owned(), "message", &cases).await).await
}

async fn partitions(options: &GrowthBenchOptions) -> Result<Vec<Comparison>> {
    let mut cases = Vec::new();
    for count in [1, 2, 4, 8] {
        cases
            .push((Case::new(&shape(options, 1, 64, options.units / 8), count, 0).await?, count.to_string()));
    }
    let cases: Vec<(&Case, &str)> = cases.iter().map(|(case, name)| (case, name.as_str())).collect();
    compare(options, "partitions of a worker".to_owned(), "message", &cases).await
}

async fn agents(options: &GrowthBenchOptions) -> Result<Comparison> {
    let units = u32::try_from(options.units)?;
    let few = units / 40;
    let mut rounds = [Vec::new(), Vec::new()];
    for number in 1..=options.rounds {
        for (agents, costs) in [few, few * TIMES as u32].into_iter().zip(&mut rounds) {
            let cost = tasks::task_cost(agents, units / agents).await?;
            eprintln!("    agents, {agents}, round {number}: {cost}");
            costs.push(cost);
        }
    }
    Ok(Comparison {
        what: format!("agents: {few} to {}", few * TIMES as u32),
        unit: "task",
        before: UnitCost::median(&rounds[0]),
        after: UnitCost::median(&rounds[1]),
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    /// Figures are not checked, because other tests use the same machine. But the counts of
    /// Postgres must exist.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_unit_is_measured_with_few_and_with_many() {
        let options = GrowthBenchOptions::parse_from(["bench", "--quick", "--rows", "c"]).resolved();
        let table = measure(&options).await.unwrap();
        let [row] = &table.rows[..] else { panic!("{table}") };
        assert_eq!(row.what, "messages a thread has: 5 to 50");
        for name in ["pages", "WAL"] {
            let [before, after] = [0, 1].map(|at| row.figures[name][at].as_f64().unwrap());
            assert!(before > 1.0 && after > 1.0 && after < 20.0 * before, "{name}: {before}, {after}");
        }
    }
}
