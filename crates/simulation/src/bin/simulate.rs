//! Runs seeds of the simulation and shows progress, or replays one seed.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Instant;

use simulation::{PlantedBug, SeedReport, simulate, swarm};

const USAGE: &str =
    "simulate [--from SEED|fresh] [--seeds N] [--bug NAME] [--threads N] [--verbose] [--survey]

  --seeds N     how many seeds (20000)
  --from SEED   the first one (0); `fresh` draws one and says which
  --bug NAME    plants a bug; `--bug list` names them
  --threads N   how many threads (one for each core)
  --verbose     prints the last lines of the failing seed's history, or of the only seed's
  --survey      goes on after a failure, and counts what failed";

struct SimulateOptions {
    from: u64,
    seeds: u64,
    bug: Option<PlantedBug>,
    threads: usize,
    verbose: bool,
    survey: bool,
}

fn main() -> ExitCode {
    match options() {
        Ok(options) => run(&options),
        Err(error) => {
            eprintln!("{error}\n\n{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn options() -> Result<SimulateOptions, String> {
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let mut options =
        SimulateOptions { from: 0, seeds: 20_000, bug: None, threads, verbose: false, survey: false };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        if name == "--verbose" {
            options.verbose = true;
            continue;
        }
        if name == "--survey" {
            options.survey = true;
            continue;
        }
        let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|error| format!("{name} {value}: {error}"));
        match name.as_str() {
            "--from" | "--base" if value == "fresh" => options.from = fresh(),
            "--from" | "--base" => options.from = number()?,
            "--seeds" => options.seeds = number()?,
            "--threads" => options.threads = number()? as usize,
            "--bug" => options.bug = Some(bug(&value)?),
            _ => return Err(format!("unknown option {name}")),
        }
    }
    Ok(options)
}

/// A random first seed, short enough to type.
fn fresh() -> u64 {
    let drawn = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
    (drawn >> 24) / 1_000 * 1_000
}

fn bug(name: &str) -> Result<PlantedBug, String> {
    PlantedBug::from_name(name).ok_or_else(|| {
        let names: Vec<String> = PlantedBug::ALL.iter().map(ToString::to_string).collect();
        format!("the bugs are {}", names.join(", "))
    })
}

/// Counts how often each invariant was broken, and shows the first seed that broke it.
fn survey(options: &SimulateOptions) -> ExitCode {
    let mut broken: BTreeMap<_, (u64, u64, String)> = BTreeMap::new();
    for seed in options.from..options.from.saturating_add(options.seeds) {
        let violations = simulate(seed, options.bug, false).violations;
        for violation in violations.into_iter().take(1) {
            let text = violation.to_string();
            broken.entry(violation.invariant).or_insert((0, seed, text)).0 += 1;
        }
    }
    for (count, seed, text) in broken.values() {
        println!("{count} seeds, first {seed}: {text}");
    }
    if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(options: &SimulateOptions) -> ExitCode {
    if options.survey {
        return survey(options);
    }
    let started = Instant::now();
    let seeds = options.from..options.from.saturating_add(options.seeds);
    println!("seeds from {} on {} threads", options.from, options.threads);
    let step = (options.seeds / 100).max(1_000);
    let progress = |done: u64| {
        if done.is_multiple_of(step) {
            eprintln!("{done} seeds, {:.0} per second", done as f64 / started.elapsed().as_secs_f64());
        }
    };
    let outcome = swarm(seeds, options.bug, options.threads, progress);
    println!("{} seeds in {:.1?}:", outcome.seeds, started.elapsed());
    for count in outcome.coverage.to_string().split(", ") {
        println!("  {count}");
    }
    match outcome.failed {
        Some(failed) => {
            print(&simulate(failed.seed, options.bug, options.verbose));
            ExitCode::FAILURE
        }
        None => {
            if options.verbose && options.seeds == 1 {
                print(&simulate(options.from, options.bug, true));
            }
            ExitCode::SUCCESS
        }
    }
}

fn print(report: &SeedReport) {
    for line in &report.trace {
        println!("{line}");
    }
    println!("seed {} drew {}", report.seed, report.scenario);
    for violation in &report.violations {
        println!("{violation}");
    }
    println!(
        "seed {seed}: {} violations, trace {:016x}; cargo xtask simulate --from {seed} --seeds 1 --verbose",
        report.violations.len(),
        report.trace_hash,
        seed = report.seed,
    );
}
