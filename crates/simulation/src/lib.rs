//! Seeded simulation of partitions against a hostile log and store, and the invariant checker.
//!
//! Entry points: [`simulate`] runs one seed, [`swarm()`] many, [`checker::check`] checks plain
//! data. The machine under test is the real one. Log, store, clocks, network and gateways are
//! doubles that fail in every way the real ones can. Invariants: equal seeds give equal histories;
//! the production crates do not depend on the simulation; `checker` does not depend on it either.

mod bug;
pub mod checker;
mod client;
mod coverage;
mod gateway;
mod log;
mod native_reader;
mod publisher;
mod rng;
mod scenario;
mod settings;
mod store;
mod swarm;
mod world;

pub use bug::PlantedBug;
pub use coverage::Coverage;
pub use swarm::{SwarmOutcome, swarm};
pub use world::SeedReport;

/// Runs one seed to its end. `verbose` keeps the last lines of its history. A panic is reported as
/// a violation.
pub fn simulate(seed: u64, bug: Option<PlantedBug>, verbose: bool) -> SeedReport {
    let run = || world::World::new(seed, bug, verbose).run(seed);
    std::panic::catch_unwind(run).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
        SeedReport::panicked(seed, text)
    })
}
