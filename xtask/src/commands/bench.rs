//! `bench` and `simulate`: what is measured and searched in the release profile.

mod peers;

use std::fs;

use anyhow::Result;
use devservices::workspace;

use super::{Tools, build, cargo, program, run, say};

/// Runs `bench_<name>`, which starts the services that it measures; without a name, lists the benches.
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
    let (features, args) = features(args);
    let mut parts = vec!["build", "--release", "-p", "antiphon", "-p", "bench", "--bins"];
    let features = features.map(|features| format!("antiphon/{features}"));
    parts.extend(features.iter().flat_map(|features| ["--features", features]));
    if let Some(code) = build(&parts)? {
        return Ok(code);
    }
    match name.as_str() {
        "tasks" => peers::install_queues()?,
        "sse" => peers::install_streams(),
        _ => {}
    }
    let tools = Tools::resolve()?;
    let mut bench = program(&format!("bench_{name}"), "release", args)?;
    tools.export(&mut bench);
    run(&mut bench)
}

/// `--features <name>` first: how the binary that is measured is built.
fn features(args: &[String]) -> (Option<&str>, &[String]) {
    match args {
        [flag, features, rest @ ..] if flag == "--features" => (Some(features), rest),
        _ => (None, args),
    }
}

/// The benches by their files, `crates/bench/src/bin/bench_<name>.rs`.
fn benches() -> Vec<String> {
    let dir = workspace::root().join("crates/bench/src/bin");
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
