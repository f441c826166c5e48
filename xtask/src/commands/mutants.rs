//! `mutants`: finds changes of the code that no test notices.

use anyhow::Result;
use devservices::workspace;

use super::{cargo, run, say, version_of};

/// Pure crates with tests that run in seconds: each mutant costs a build and a run of these tests.
const CRATES: [&str; 7] = ["model", "wire", "reorder", "batches", "scheduling", "feed", "partition"];
/// Crates that the simulation checks: the shortest histories of its earlier findings run too.
const SIMULATED: [&str; 2] = ["feed", "partition"];
/// Generated code, and code whose output only people read.
const EXCLUDED: [&str; 3] = ["impl (fmt::)?(Debug|Display) for", "::size$", "Action::name"];

/// Runs `cargo mutants` on the pure crates, or on the named ones. Arguments from the first dash on
/// are passed through: `--shard 3/8` takes one part of eight, `--file` some files, `--in-diff` what
/// a diff touches. Survivors are in `target/mutants/mutants.out/missed.txt`.
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
