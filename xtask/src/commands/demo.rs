//! `demo`, `services`, `chaos` and `reconnect-soak`: Antiphon on this machine, with its own
//! services.

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

/// Builds and runs `chaos`, which itself starts and kills services.
pub(crate) fn chaos(args: &[String]) -> Result<i32> {
    on_own_services("chaos", args)
}

/// Builds and runs the program `alerts` of the crate `chaos`.
pub(crate) fn alerts(args: &[String]) -> Result<i32> {
    on_own_services("alerts", args)
}

/// Builds and runs the program `restores` of the crate `chaos`.
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

/// The tests of `reconnect-soak`: the real clients of all protocols, and subscribers of one thread,
/// one of which is never disconnected.
const SOAK_TESTS: [&str; 2] = [
    "clients::disconnected_clients_have_everything_once",
    "subscribers::subscribers_see_what_an_undisturbed_one_sees",
];
/// How long the subscribers of a soak are under load.
const SOAK_SECONDS: &str = "120";

/// The long form of the tests that disconnect clients from a fleet.
pub(crate) fn reconnect_soak(args: &[String]) -> Result<i32> {
    let Some(Soak { disconnects, seed }) = Soak::parse(args) else {
        eprintln!("error: cargo xtask reconnect-soak [--disconnects N] [--seed S]");
        return Ok(2);
    };
    if let Some(code) = build_antiphon_and("e2e")? {
        return Ok(code);
    }
    let tools = Tools::resolve()?;
    let database = database(development_postgres)?;
    say(&format!("{disconnects} disconnects, a fifth by each protocol, seed {seed}"));
    let mut tests = cargo(&["test", "-p", "e2e", "--test", "main", "--", "--exact", "--nocapture"]);
    tests.arg("--test-threads=1").args(SOAK_TESTS);
    tools.export(&mut tests);
    tests.env("DATABASE_URL", &database.url).env("ANTIPHON_BIN", antiphon("debug"));
    tests.env("ANTIPHON_SOAK_DISCONNECTS", disconnects.to_string());
    tests.env("ANTIPHON_SOAK_SEED", seed.to_string()).env("ANTIPHON_SOAK_SECONDS", SOAK_SECONDS);
    run(&mut tests)
}

#[derive(Debug, PartialEq, Eq)]
struct Soak {
    disconnects: u64,
    seed: u64,
}

impl Soak {
    fn parse(args: &[String]) -> Option<Self> {
        let seed = u64::from(std::process::id());
        let mut soak = Self { disconnects: 50_000, seed };
        for pair in args.chunks(2) {
            match pair {
                [name, value] if name == "--disconnects" => soak.disconnects = value.parse().ok()?,
                [name, value] if name == "--seed" => soak.seed = value.parse().ok()?,
                _ => return None,
            }
        }
        Some(soak)
    }
}

fn development_postgres() -> Result<PostgresOptions> {
    Ok(PostgresOptions::new(devservices::tools::postgres()?.path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soak_without_options_is_ten_thousand_a_protocol() {
        let parse =
            |args: &[&str]| Soak::parse(&args.iter().map(|arg| (*arg).to_owned()).collect::<Vec<_>>());
        assert_eq!(parse(&[]).map(|soak| soak.disconnects), Some(50_000));
        assert_eq!(parse(&["--seed", "3", "--disconnects", "8"]), Some(Soak { disconnects: 8, seed: 3 }));
        for wrong in [["--disconnects", "x"], ["--number", "8"]] {
            assert_eq!(parse(&wrong), None);
        }
        assert_eq!(parse(&["--disconnects"]), None);
    }
}
