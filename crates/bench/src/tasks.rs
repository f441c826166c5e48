//! `cargo xtask bench tasks`: task queues on the same Postgres, in turn, in one run and one table.
//!
//! Entry point: [`run`]. Every contender gets a fresh database for every round. Its tasks exist
//! before the clock starts, and the clock stops when the database has the last completion. Rounds
//! of all contenders alternate, and medians are used.
//!
//! Peers, and our worker alone, are programs in `peers/`. They only obey commands and record the
//! calls of their handlers. All figures are measured and evaluated here, by the same code for all
//! contenders. The whole path is measured with the shipped binary.

mod antiphon_runs;
mod contender;
mod echo_workflow;
mod end_to_end;
mod environment;
mod goals;
mod idle;
mod load;
mod options;
mod order;
mod peer;
mod raw_insert;
mod report;
mod responder;
mod round;
mod statements;

use std::time::Duration;

use anyhow::{Result, ensure};

pub use options::TaskBenchOptions;

use self::{
    contender::{ContenderRounds, contenders},
    end_to_end::EndToEnd,
    environment::TaskEnvironment,
    load::TaskLoad,
    responder::Responder,
};
use super::{
    table::{Row, Table},
    unit_cost::UnitCost,
};

/// Maximum time for the tasks of a comparison.
const LIMIT: Duration = Duration::from_secs(300);

/// Measures, prints the table, and returns whether every contender worked correctly and every goal
/// was met.
pub async fn run(options: &TaskBenchOptions) -> Result<bool> {
    let options = options.resolved();
    ensure!(options.agents > 0 && options.tasks > 0 && options.rounds > 0, "nothing to measure");
    let mut environment = TaskEnvironment::start().await?;
    let responder = Responder::start(&environment.nats_url()).await?;
    let (mut table, mut all) = (Table::default(), Vec::new());
    for part in options.rows.iter().copied() {
        let mut entries = Vec::new();
        for contender in contenders(part, &environment.nats_url()) {
            if !options.wants(contender.name()) {
                continue;
            }
            match contender.missing() {
                Some(why) => table.rows.push(Row::missing(part, contender.name(), why)),
                None => entries.push(ContenderRounds { part, contender, rounds: Vec::new(), failure: None }),
            }
        }
        measure(&options, &mut environment, &mut entries).await;
        table.rows.extend(entries.iter().map(report::row));
        all.extend(entries);
    }
    if options.rows.contains(&'f') {
        table.rows.extend(idle::measure(&options, &mut environment).await?);
    }
    drop((responder, environment));
    if options.rows.contains(&'g') {
        table.rows.push(statements::measure(&options).await?);
    }
    table.rows.extend(goals::rows(&all));
    table.rows.sort_by_key(|row| row.part);
    println!("\n{table}");
    table.write_json(options.json.as_deref())?;
    Ok(table.is_met() && all.iter().all(|entry| entry.failure.is_none()))
}

/// The cost of a task for the shipped worker with NATS, with this number of agents and of tasks per
/// agent.
pub(crate) async fn task_cost(agents: u32, tasks: u32) -> Result<UnitCost> {
    let load = TaskLoad { agents, tasks, rate: None, limit: LIMIT };
    let mut environment = TaskEnvironment::start().await?;
    let mut runs = EndToEnd::alone();
    runs.prepare(&mut environment, load).await?;
    let round = runs.run(&mut environment).await?;
    ensure!(!round.is_cut, "{} of {} tasks were completed within {LIMIT:?}", round.tasks, load.total());
    Ok(UnitCost {
        // The workflow service is not included, because it is a thread of the benchmark.
        worker_us: round.client_cpu_us_per_task,
        postgres_us: round.server_cpu_us_per_task,
        pages: round.pages_per_task.unwrap_or_default(),
        wal_bytes: round.wal_bytes_per_task,
    })
}

/// All rounds; each has every contender once.
async fn measure(
    options: &TaskBenchOptions,
    environment: &mut TaskEnvironment,
    entries: &mut [ContenderRounds],
) {
    for number in 1..=options.rounds {
        for entry in entries.iter_mut() {
            if entry.failure.is_some() || (number > 1 && entry.contender.is_slow()) {
                continue;
            }
            let round = entry.round(environment, options.load(entry.part)).await;
            let name = format!("    {} round {number}, {}", entry.part, entry.contender.name());
            match round {
                Ok(round) => {
                    eprintln!("{name}: {}", report::progress(&round));
                    entry.rounds.push(round);
                }
                Err(error) => {
                    eprintln!("{name} failed: {error:#}");
                    entry.failure = Some(format!("{error:#}"));
                }
            }
        }
    }
}
