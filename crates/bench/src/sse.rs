//! `cargo xtask bench sse`: event streams of the shipped binary compared with those of other
//! servers, in one run and one table.
//!
//! Entry point: [`run`]. All servers run on one core, and all processes that load them on another.
//! The same subscribers, plain sockets in this process, read all of them. Each payload contains its
//! send time and its number, so latency needs no second clock, and losses and repeats are detected.
//! Each measurement restarts its server, rounds alternate between the servers, and medians are
//! used.

mod cores;
mod counters;
mod goals;
mod load;
mod measure;
mod measurement;
mod options;
mod publisher;
mod report;
mod round;
mod servers;
mod stream;
mod subscribers;
mod target;
mod timestamped_payload;

use anyhow::{Result, ensure};

pub use options::SseBenchOptions;

use self::{
    measurement::{Measurement, ServerRounds},
    servers::Servers,
    target::ServerKind,
};
use super::table::{Row, Table};

/// Maximum load of a quiet machine. Above it, figures are less reliable.
const QUIET_LOAD: f64 = 0.5;

/// Measures, prints the table, and returns whether every server worked correctly and every goal was
/// met. Needs a runtime with one thread, which it moves to the core of the subscribers.
pub async fn run(options: &SseBenchOptions) -> Result<bool> {
    let options = options.resolved();
    ensure!(options.rounds > 0 && options.seconds > 0.0, "nothing to measure");
    cores::move_to(cores::CLIENTS)?;
    if let Some(load) = cores::load_average().filter(|load| *load > QUIET_LOAD) {
        eprintln!("==> the machine is not quiet (load {load:.1}): these figures are for trying out");
    }
    let mut table = Table::default();
    let mut kinds: Vec<ServerKind> =
        ServerKind::ALL.into_iter().filter(|kind| options.wants(*kind)).collect();
    kinds.retain(|kind| match servers::missing(*kind) {
        None => true,
        Some(why) => {
            table.rows.push(Row::missing('0', kind.name(), why));
            false
        }
    });
    let mut servers = Servers::default();
    let mut all = Vec::new();
    for measurement in options.shapes() {
        all.extend(measured(&options, &mut servers, measurement, &kinds).await);
    }
    drop(servers);
    table.rows.extend(all.iter().flat_map(report::rows));
    table.rows.extend(goals::rows(&all));
    table.rows.sort_by_key(|row| row.part);
    println!(
        "\nservers on core {}, publishers and viewers on core {}\n\n{table}",
        cores::SERVERS,
        cores::CLIENTS
    );
    table.write_json(options.json.as_deref())?;
    let is_whole = all.iter().all(|entry| entry.failure.is_none()) && goals::is_nothing_lost(&all);
    Ok(is_whole && (options.short || table.is_met()))
}

/// All rounds of one measurement; each round has every server once.
async fn measured(
    options: &SseBenchOptions,
    servers: &mut Servers,
    measurement: Measurement,
    kinds: &[ServerKind],
) -> Vec<ServerRounds> {
    let entry =
        |kind: &ServerKind| ServerRounds { measurement, kind: *kind, rounds: Vec::new(), failure: None };
    let mut entries: Vec<ServerRounds> = kinds.iter().map(entry).collect();
    for number in 1..=options.rounds {
        for entry in entries.iter_mut().filter(|entry| entry.failure.is_none()) {
            let name = format!(
                "    {} round {number}, {}: {}",
                measurement.part(),
                entry.kind.name(),
                measurement.name()
            );
            match measurement.round(servers, entry.kind).await {
                Ok(round) => {
                    eprintln!("{name}: {}", report::progress(measurement, &round));
                    entry.rounds.push(round);
                }
                Err(error) => {
                    eprintln!("{name} failed: {error:#}");
                    if entry.kind == ServerKind::Antiphon {
                        eprintln!("{}", servers.log_tails());
                    }
                    entry.failure = Some(format!("{error:#}"));
                }
            }
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn parts_can_be_chosen() {
        let shapes = |arguments: &[&str]| SseBenchOptions::parse_from(arguments).resolved().shapes();
        assert_eq!(shapes(&["bench"]).len(), 12);
        let storms = shapes(&["bench", "--rows", "3", "--short"]);
        let names: Vec<String> = storms.iter().map(|measurement| measurement.name()).collect();
        assert_eq!(names, ["storm of 200 viewers of 1 thread", "storm of 200 viewers of 200 threads"]);
    }

    #[test]
    fn the_short_form_is_one_round() {
        let options = SseBenchOptions::parse_from(["bench", "--short", "--rounds", "9"]).resolved();
        assert_eq!((options.rounds, options.seconds), (1, 3.0));
        assert!(
            options.wants(ServerKind::Nchan)
                && !SseBenchOptions::parse_from(["b", "--only", "anti"]).wants(ServerKind::Nchan)
        );
    }
}
