//! `mutants`: what no test notices.

use anyhow::Result;
use devservices::workspace;

use super::{cargo, run, say, version_of};

/// Crates that decide and have tests beside them that run in seconds: a mutant costs a build and these.
const CRATES: [&str; 7] = ["model", "wire", "reorder", "batches", "scheduling", "feed", "partition"];
/// Crates whose rules the simulation holds to: the shortest histories of what it has found are run as well.
const SIMULATED: [&str; 2] = ["feed", "partition"];
/// What is generated, and what only people read.
const EXCLUDED: [&str; 3] = ["impl (fmt::)?(Debug|Display) for", "::size$", "Action::name"];

/// `cargo mutants` on the pure crates, or on those that are named. Whatever begins with a dash, and what follows it, is
/// passed on: `--shard 3/8` takes one part of eight, `--file` some files, `--in-diff` what a diff touches. Survivors are in
/// `target/mutants/mutants.out/missed.txt`.
pub(crate) fn mutants(args: &[String]) -> Result<i32> {
    if version_of("cargo-mutants".as_ref(), &["mutants", "--version"]).is_none() {
        say("cargo-mutants is not installed: cargo install cargo-mutants --locked");
        let code = run(&mut cargo(&["install", "cargo-mutants", "--locked"]))?;
        if code != 0 {
            return Ok(code);
        }
    }
    let options = args.iter().position(|arg| arg.starts_with('-')).unwrap_or(args.len());
    let (named, options) = args.split_at(options);
    let crates: Vec<&str> = match named {
        [] => CRATES.to_vec(),
        named => named.iter().map(String::as_str).collect(),
    };
    let output = workspace::root().join("target/mutants");
    std::fs::create_dir_all(&output)?;
    let mut command = cargo(&["mutants", "--output"]);
    command.arg(&output);
    for name in &crates {
        command.args(["--package", name, "--test-package", name]);
    }
    for pattern in EXCLUDED {
        command.args(["--exclude-re", pattern]);
    }
    command.args(["--baseline", "skip", "--timeout", "120", "--build-timeout", "300"]);
    command.args(options);
    if crates.iter().any(|name| SIMULATED.contains(name)) {
        command.args(["--test-package", "simulation", "--", "--lib", "--test", "regressions"]);
    }
    run(&mut command)
}
