//! `cargo xtask bench context`: how costs depend on the length of a thread, in one run and one
//! table.
//!
//! Entry point: [`run`]. Threads of very different lengths are in one Postgres, filled by SQL.
//! Contexts, pages and compactions use the production functions of `store` and `batches`. Compared
//! calls alternate, so that other load on the machine affects all of them alike. Postgres itself
//! counts the rows that a call reads, and the indexes that it uses.

mod compaction;
mod context_build;
mod environment;
mod export_import;
mod history_pages;
mod plans;
mod threads;

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use clap::Parser;

use self::{environment::ContextEnvironment, threads::BenchThread};
use super::table::Table;

/// Measures long threads and prints one table.
#[derive(Debug, Clone, Parser)]
pub struct ContextBenchOptions {
    /// Numbers of batches of the threads, four messages each, from the shortest to the longest.
    #[arg(long, value_delimiter = ',', default_value = "10,1000,100000")]
    pub batches: Vec<u32>,
    /// Number of contexts built for each thread with each budget.
    #[arg(long, default_value_t = 1_000)]
    pub contexts: u32,
    /// Number of pages read of each kind at each place.
    #[arg(long, default_value_t = 500)]
    pub pages: u32,
    /// Number of batches that are compacted at once.
    #[arg(long, default_value_t = 10_000)]
    pub compacted: u32,
    /// Number of rounds of compacting, exporting, importing and copying.
    #[arg(long, default_value_t = 3)]
    pub rounds: u32,
    /// Test run with 10, 50 and 200 batches, few calls and one round. The exit code then ignores
    /// the figures.
    #[arg(long)]
    pub quick: bool,
    /// Parts to measure: a contexts of turns, b pages, c compaction, d export and import.
    #[arg(long, value_delimiter = ',', default_value = "a,b,c,d")]
    pub rows: Vec<char>,
    /// File to which the figures are written as JSON.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

impl ContextBenchOptions {
    fn resolved(&self) -> Self {
        let mut options = self.clone();
        if options.quick {
            options.batches = vec![10, 50, 200];
            (options.contexts, options.pages, options.compacted, options.rounds) = (5, 5, 100, 1);
        }
        options
    }
}

/// Measures, prints the table, and returns whether every goal was met.
pub async fn run(options: &ContextBenchOptions) -> Result<bool> {
    let options = options.resolved();
    let mut environment = ContextEnvironment::start().await?;
    let table = measure(&options, &mut environment).await?;
    println!("\n{table}");
    table.write_json(options.json.as_deref())?;
    Ok(options.quick || table.is_met())
}

async fn measure(options: &ContextBenchOptions, environment: &mut ContextEnvironment) -> Result<Table> {
    ensure!(options.batches.len() > 1 && options.batches.is_sorted(), "several lengths, the shortest first");
    ensure!(options.contexts > 0 && options.pages > 0 && options.rounds > 0, "nothing to measure");
    let mut threads = Vec::new();
    for batches in &options.batches {
        threads.push(BenchThread::new(&format!("thread-{batches}"), *batches)?);
    }
    let compacted = BenchThread::new("compacted", options.compacted)?;
    for thread in threads.iter().chain([&compacted]) {
        eprintln!("==> filling {}: {} batches", thread.id, thread.batches);
        environment.fill(thread).await?;
    }
    environment.settle().await?;
    let longest = threads.last().context("no thread")?;
    let mut table = Table::default();
    for part in &options.rows {
        eprintln!("==> part {part}");
        table.rows.extend(match part {
            'a' => context_build::rows(environment, &threads, options.contexts).await?,
            'b' => history_pages::rows(environment, longest, options.pages).await?,
            'c' => compaction::rows(environment, &compacted, options.rounds, options.contexts).await?,
            'd' => export_import::rows(environment, longest, options.rounds).await?,
            _ => Vec::new(),
        });
    }
    table.rows.sort_by_key(|row| row.part);
    Ok(table)
}

#[cfg(test)]
mod tests {
    use std::env;

    use super::*;

    /// Figures are not checked, because other tests use the same machine. Export and import are
    /// left out, because they take longer than all other parts.
    #[tokio::test(flavor = "multi_thread")]
    async fn contexts_pages_and_compaction_measure_what_they_should() {
        let mut environment = ContextEnvironment::on(&env::var("DATABASE_URL").unwrap()).await.unwrap();
        let options = ContextBenchOptions::parse_from(["bench", "--quick", "--rows", "a,b,c"]).resolved();
        let table = measure(&options, &mut environment).await.unwrap();
        let parts: Vec<char> = table.rows.iter().map(|row| row.part).collect();
        for part in ['a', 'b', 'c'] {
            assert!(parts.contains(&part), "{table}");
        }
        let by_index = table.rows.iter().find(|row| row.what.contains("one index")).unwrap();
        assert_eq!(by_index.is_met, Some(true), "{table}");
    }
}
