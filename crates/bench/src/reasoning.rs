//! `cargo xtask bench reasoning`: the cost of views and compressions of reasoning sessions, and the
//! WAL of turns.
//!
//! Entry point: [`run`]. Sessions are in one Postgres, filled by SQL; the measured calls use the
//! production functions of `store` and `reasoning`. Compared sessions are called in turn. Postgres
//! itself counts the statements of a call.

mod sessions;
mod wal;

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Parser;
use devservices::{services::Postgres, tools};
use model::PartitionCount;
use store::{Store, StoreConfig};
use testkit::services::TestDatabase;

use super::postgres;
use super::table::Table;

/// Measures reasoning sessions and prints one table.
#[derive(Debug, Clone, Parser)]
pub struct Options {
    /// Number of messages of the session that is viewed.
    #[arg(long, default_value_t = 10_000)]
    pub messages: u32,
    /// Numbers of compressions in the discarded logs that are compared.
    #[arg(long, value_delimiter = ',', default_value = "10,10000")]
    pub layers: Vec<u32>,
    /// Number of calls of each kind.
    #[arg(long, default_value_t = 200)]
    pub calls: u32,
    /// Number of turns that are committed.
    #[arg(long, default_value_t = 1_000)]
    pub turns: u32,
    /// Test run with short sessions and few calls. The exit code then ignores the figures.
    #[arg(long)]
    pub quick: bool,
    /// Parts to measure: a views, b compressions, c the length of the discarded log, d WAL of
    /// turns.
    #[arg(long, value_delimiter = ',', default_value = "a,b,c,d")]
    pub rows: Vec<char>,
    /// File to which the figures are written as JSON.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

impl Options {
    fn resolved(&self) -> Self {
        let mut options = self.clone();
        if options.quick {
            (options.messages, options.layers) = (150, vec![2, 20]);
            (options.calls, options.turns) = (5, 20);
        }
        options
    }
}

/// Measures, prints the table, and returns whether every goal was met.
pub async fn run(options: &Options) -> Result<bool> {
    let options = options.resolved();
    let postgres = Postgres::start(None, &postgres::without_checkpoints(tools::postgres()?.path))?;
    let table = measure(&options, &postgres.url()).await?;
    println!("\n{table}");
    table.write_json(options.json.as_deref())?;
    Ok(options.quick || table.is_met())
}

async fn measure(options: &Options, server: &str) -> Result<Table> {
    ensure!(options.layers.len() == 2 && options.layers.is_sorted(), "two lengths, the shorter first");
    ensure!(
        options.messages > sessions::USUAL && options.calls > 0 && options.turns > 0,
        "nothing to measure"
    );
    let database = TestDatabase::create_on(server).await?;
    store::migrate(database.url(), PartitionCount::new(1)?).await?;
    let store = Store::connect(&StoreConfig::new(database.url())).await?;
    let mut table = Table::default();
    for part in &options.rows {
        eprintln!("==> part {part}");
        table.rows.extend(match part {
            'a' => sessions::views(&store, database.url(), options.messages, options.calls).await?,
            'b' => sessions::compressions(&store, database.url(), options.messages, options.calls).await?,
            'c' => {
                sessions::discarded_logs(
                    &store,
                    database.url(),
                    [options.layers[0], options.layers[1]],
                    options.calls,
                )
                .await?
            }
            'd' => wal::rows(&store, database.url(), options.turns).await?,
            _ => Vec::new(),
        });
    }
    store.close().await;
    table.rows.sort_by_key(|row| row.part);
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figures are not checked, because other tests use the same machine.
    #[tokio::test(flavor = "multi_thread")]
    async fn every_part_measures_what_it_should() {
        let options = Options::parse_from(["bench", "--quick"]).resolved();
        let table = measure(&options, &std::env::var("DATABASE_URL").unwrap()).await.unwrap();
        for part in ['a', 'b', 'c', 'd'] {
            assert!(table.rows.iter().any(|row| row.part == part), "{table}");
        }
    }
}
