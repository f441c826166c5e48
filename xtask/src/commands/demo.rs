//! `demo`, `services` and `chaos`: Antiphon on this machine, with services of its own.

use std::{thread, time::Duration};

use anyhow::Result;
use xtask::services::PostgresOptions;

use super::{BUILD_BINARIES, Tools, build, database, interrupt, nats, run, say, testkit};

/// Builds, starts services unless they are given, and runs testkit's `demo`.
pub(crate) fn demo(args: &[String]) -> Result<i32> {
    say("cargo xtask demo: builds Antiphon, starts NATS and Postgres, and lets you talk with it");
    if let Some(code) = build(BUILD_BINARIES)? {
        return Ok(code);
    }
    let nats = nats()?;
    let database = database(development_postgres)?;
    let mut demo = testkit("demo", "debug", args)?;
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

/// Builds and runs testkit's `chaos`, which starts and kills services itself.
pub(crate) fn chaos(args: &[String]) -> Result<i32> {
    if let Some(code) = build(BUILD_BINARIES)? {
        return Ok(code);
    }
    let tools = Tools::resolve()?;
    let mut chaos = testkit("chaos", "debug", args)?;
    tools.export(&mut chaos);
    run(&mut chaos)
}

fn development_postgres() -> Result<PostgresOptions> {
    Ok(PostgresOptions::new(xtask::tools::postgres()?.path))
}
