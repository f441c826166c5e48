//! The benchmarks' programs: built once, and run with JSON output of their figures.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, bail, ensure};
use devservices::workspace;

use super::{figures::BenchFigures, peers};
use crate::commands::{Tools, build, interrupt, program, run};

/// How the programs, and the binary that they measure, are built.
#[derive(Debug, Clone, Copy)]
pub(super) struct BenchBuild<'a> {
    /// The folder of the profile: `release`, or `debug` if figures do not count.
    pub(super) profile: &'static str,
    /// Features of the measured binary.
    pub(super) features: Option<&'a str>,
}

/// The result of a benchmark.
#[derive(Debug)]
pub(super) struct BenchOutcome {
    pub(super) figures: BenchFigures,
    /// Its exit code.
    pub(super) code: i32,
}

impl BenchBuild<'_> {
    /// Builds all programs. Returns the exit code if that failed.
    pub(super) fn build(self) -> Result<Option<i32>> {
        let mut parts = vec!["build", "-p", "antiphon", "-p", "bench", "--bins"];
        if self.profile == "release" {
            parts.push("--release");
        }
        let features = self.features.map(|features| format!("antiphon/{features}"));
        parts.extend(features.iter().flat_map(|features| ["--features", features]));
        build(&parts)
    }

    /// Runs a benchmark with these arguments on the built binary or on another one, and reads its
    /// figures.
    pub(super) fn measure(
        self,
        name: &str,
        args: &[String],
        tools: &Tools,
        other: Option<&Path>,
    ) -> Result<BenchOutcome> {
        let folder = workspace::target_dir().join("bench/figures");
        let path = folder.join(format!("{name}.json"));
        fs::create_dir_all(&folder)?;
        if path.exists() {
            fs::remove_file(&path)?;
        }
        let mut bench = program(&format!("bench_{name}"), self.profile, args)?;
        tools.export(&mut bench);
        if let Some(other) = other {
            bench.env("ANTIPHON_BIN", other);
        }
        let code = run(bench.arg("--json").arg(&path))?;
        ensure!(!interrupt::received(), "interrupted");
        let Ok(json) = fs::read(&path) else { bail!("it ended with {code} before it had figures") };
        Ok(BenchOutcome { figures: BenchFigures::parse(&json).with_context(|| name.to_owned())?, code })
    }
}

/// Fetches and builds the peers of a benchmark.
pub(super) fn install_peers(name: &str) -> Result<()> {
    match name {
        "tasks" => peers::install_queues()?,
        "sse" => peers::install_streams(),
        _ => {}
    }
    Ok(())
}
