//! `bench` and `simulate`: what is measured and searched in the release profile.

use std::{fs, path::Path};

use anyhow::{Result, ensure};
use xtask::{npm, workspace};

use super::{Tools, build, cargo, run, say, testkit};

/// Runs testkit's `bench_<name>`, which starts the services that it measures; without a name, lists the benches.
pub(crate) fn bench(args: &[String]) -> Result<i32> {
    let names = benches();
    let Some((name, args)) = args.split_first() else {
        println!("benches: {}", names.join(", "));
        return Ok(0);
    };
    if !names.contains(name) {
        eprintln!("error: no bench `{name}`; there are: {}", names.join(", "));
        return Ok(2);
    }
    say(&format!("bench {name}: release build"));
    if let Some(code) = build(&["build", "--release", "-p", "antiphon", "-p", "testkit", "--bins"])? {
        return Ok(code);
    }
    if name == "tasks" {
        install_peers()?;
    }
    let tools = Tools::resolve()?;
    let mut bench = testkit(&format!("bench_{name}"), "release", args)?;
    tools.export(&mut bench);
    run(&mut bench)
}

/// Builds and installs what `bench tasks` compares us with, all of it below cargo's target folder. What comes from npm is left
/// out where there is no npm; the bench says so in its table.
fn install_peers() -> Result<()> {
    let source = workspace::root().join("crates/testkit/peers");
    let target = workspace::target_dir().join("peers");
    say("peers from the crate registry, and our worker beside them: release build");
    // Not --locked: our own crates are in it, and what they need changes. The peers' versions are exact.
    let mut build = cargo(&["build", "--release", "--bins"]);
    build.current_dir(&source).env("CARGO_TARGET_DIR", target.join("cargo"));
    ensure!(run(&mut build)? == 0, "the peers from the crate registry were not built");
    if super::version_of(Path::new("npm"), &["--version"]).is_none() {
        say("there is no npm: the peers that come from it are left out");
        return Ok(());
    }
    say("peers from npm: npm ci, unless they are there");
    npm::install(&source.join("node"), &target.join("node"))
}

/// The benches by their files, `crates/testkit/src/bin/bench_<name>.rs`.
fn benches() -> Vec<String> {
    let dir = workspace::root().join("crates/testkit/src/bin");
    let mut names: Vec<String> = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            Some(name.strip_prefix("bench_")?.trim_end_matches(".rs").to_owned())
        })
        .collect();
    names.sort();
    names
}

/// Hands everything to the simulation's own program.
pub(crate) fn simulate(args: &[String]) -> Result<i32> {
    let mut command = cargo(&["run", "--release", "-p", "simulation", "--bin", "simulate", "--"]);
    run(command.args(args))
}
