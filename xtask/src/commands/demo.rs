//! `demo`, `services`, `chaos` and `cuts`: Antiphon on this machine, with services of its own.

use std::{thread, time::Duration};

use anyhow::Result;
use devservices::services::PostgresOptions;

use super::{Tools, antiphon, build_antiphon_and, cargo, database, interrupt, nats, program, run, say};

/// Builds, starts services unless they are given, and runs `demo`.
pub(crate) fn demo(args: &[String]) -> Result<i32> {
    say("cargo xtask demo: builds Antiphon, starts NATS and Postgres, and lets you talk with it");
    if let Some(code) = build_antiphon_and("demo")? {
        return Ok(code);
    }
    let nats = nats()?;
    let database = database(development_postgres)?;
    let mut demo = program("demo", "debug", args)?;
    run(demo.env("NATS_URL", &nats.url).env("DATABASE_URL", &database.url))
}

/// Starts both services and waits, for people who run the rest by hand.
pub(crate) fn services() -> Result<i32> {
    let tools = Tools::resolve()?;
    let nats = nats()?;
    let database = database(development_postgres)?;
    println!(
        "export NATS_URL={} DATABASE_URL={} ANTIPHON_NATS_SERVER={} ANTIPHON_PG_BIN={}",
        nats.url,
        database.url,
        tools.nats_server.display(),
        tools.pg_bin.display()
    );
    say("running; Ctrl-C ends both and removes their data");
    while !interrupt::received() {
        thread::sleep(Duration::from_millis(100));
    }
    Ok(0)
}

/// Builds and runs `chaos`, which starts and kills services itself.
pub(crate) fn chaos(args: &[String]) -> Result<i32> {
    on_own_services("chaos", args)
}

/// The same of its `restores`.
pub(crate) fn restores(args: &[String]) -> Result<i32> {
    on_own_services("restores", args)
}

fn on_own_services(name: &str, args: &[String]) -> Result<i32> {
    if let Some(code) = build_antiphon_and("chaos")? {
        return Ok(code);
    }
    let tools = Tools::resolve()?;
    let mut program = program(name, "debug", args)?;
    tools.export(&mut program);
    run(&mut program)
}

/// What `cuts` runs: the real clients of all protocols, and viewers of one thread of which one is never cut.
const CUT: [&str; 2] = [
    "clients::the_real_clients_have_everything_once_however_often_they_are_cut",
    "viewers::every_viewer_is_shown_what_the_one_is_shown_that_is_never_cut",
];
/// How long the viewers of `cuts` are under load.
const VIEWERS_SECONDS: &str = "120";

/// The long form of the tests that cut clients off a fleet.
pub(crate) fn cuts(args: &[String]) -> Result<i32> {
    let Some(Cuts { number, seed }) = Cuts::parse(args) else {
        eprintln!("error: cargo xtask cuts [--number N] [--seed S]");
        return Ok(2);
    };
    if let Some(code) = build_antiphon_and("e2e")? {
        return Ok(code);
    }
    let tools = Tools::resolve()?;
    let database = database(development_postgres)?;
    say(&format!("{number} cuts, a fifth by each protocol, seed {seed}"));
    let mut clients = cargo(&["test", "-p", "e2e", "--test", "main", "--", "--exact", "--nocapture"]);
    clients.arg("--test-threads=1").args(CUT);
    tools.export(&mut clients);
    clients.env("DATABASE_URL", &database.url).env("ANTIPHON_BIN", antiphon("debug"));
    clients.env("ANTIPHON_CUTS", number.to_string()).env("ANTIPHON_CUTS_SEED", seed.to_string());
    clients.env("ANTIPHON_VIEWERS_SECONDS", VIEWERS_SECONDS);
    run(&mut clients)
}

/// What `cuts` is asked for.
#[derive(Debug, PartialEq, Eq)]
struct Cuts {
    number: u64,
    seed: u64,
}

impl Cuts {
    fn parse(args: &[String]) -> Option<Self> {
        let seed = u64::from(std::process::id());
        let mut cuts = Self { number: 50_000, seed };
        for pair in args.chunks(2) {
            match pair {
                [name, value] if name == "--number" => cuts.number = value.parse().ok()?,
                [name, value] if name == "--seed" => cuts.seed = value.parse().ok()?,
                _ => return None,
            }
        }
        Some(cuts)
    }
}

fn development_postgres() -> Result<PostgresOptions> {
    Ok(PostgresOptions::new(devservices::tools::postgres()?.path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_are_ten_thousand_a_protocol_unless_said_otherwise() {
        let parse =
            |args: &[&str]| Cuts::parse(&args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>());
        assert_eq!(parse(&[]).map(|cuts| cuts.number), Some(50_000));
        assert_eq!(parse(&["--seed", "3", "--number", "8"]), Some(Cuts { number: 8, seed: 3 }));
        for wrong in [["--number", "x"], ["--cuts", "8"]] {
            assert_eq!(parse(&wrong), None);
        }
        assert_eq!(parse(&["--number"]), None);
    }
}
