//! `bench` and `simulate`: benchmarks and searches in the release profile.

mod all;
mod columns;
mod compare;
mod figures;
mod forms;
mod peers;
mod programs;

use anyhow::{Context as _, Result, ensure};

use self::{
    compare::Comparison,
    forms::{BenchForm, FORMS},
    programs::BenchBuild,
};
use super::{Tools, cargo, program, run, say};

const ALL: &str = "all";
/// Rounds of each binary.
const ROUNDS: usize = 2;

/// Runs all benchmarks, a comparison of two binaries, or one program `bench_<name>`, which starts
/// the services that it measures. Without a name, lists the benchmarks.
pub(crate) fn bench(args: &[String]) -> Result<i32> {
    let names: Vec<&str> = FORMS.iter().map(|form| form.name).collect();
    let Some((name, args)) = args.split_first() else {
        println!("benches: {}, {ALL}", names.join(", "));
        return Ok(0);
    };
    let forms: Vec<&BenchForm> = FORMS.iter().filter(|form| name == ALL || name == form.name).collect();
    if forms.is_empty() {
        eprintln!("error: no bench `{name}`; there are: {}, {ALL}", names.join(", "));
        return Ok(2);
    }
    let options = BenchOptions::parse(name == ALL, args)?;
    let profile = if options.is_quick { "debug" } else { "release" };
    let build = BenchBuild { profile, features: options.features.as_deref() };
    if let Some(commit) = &options.compare {
        let BenchOptions { rounds, is_quick, rest, .. } = &options;
        let is_some = forms.iter().any(|form| form.compared(*is_quick).is_some());
        ensure!(is_some, "bench {name} calls the crates: there is no binary to compare");
        let (rounds, is_quick) = (*rounds, *is_quick);
        return compare::compare(&forms, build, &Comparison { commit, rounds, is_quick, args: rest });
    }
    if name == ALL {
        return all::all(build, options.is_quick);
    }
    say(&format!("bench {name}: release build"));
    if let Some(code) = build.build()? {
        return Ok(code);
    }
    programs::install_peers(name)?;
    let tools = Tools::resolve()?;
    let mut bench = program(&format!("bench_{name}"), profile, &options.rest)?;
    tools.export(&mut bench);
    run(&mut bench)
}

/// The arguments for this command; the rest is for the program.
#[derive(Debug, PartialEq, Eq)]
struct BenchOptions {
    /// Features of the measured binary.
    features: Option<String>,
    /// The commit of the other binary.
    compare: Option<String>,
    rounds: usize,
    /// Debug builds and quick forms, only to check that the benchmarks work.
    is_quick: bool,
    rest: Vec<String>,
}

impl BenchOptions {
    fn parse(is_all: bool, args: &[String]) -> Result<Self> {
        let is_compared = args.iter().any(|arg| arg == "--compare");
        let mut options =
            Self { features: None, compare: None, rounds: ROUNDS, is_quick: false, rest: Vec::new() };
        let mut args = args.iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().cloned().with_context(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--features" => options.features = Some(value()?),
                "--compare" => options.compare = Some(value()?),
                "--rounds" if is_compared => options.rounds = value()?.parse().context("--rounds")?,
                "--quick" if is_compared || is_all => options.is_quick = true,
                _ => options.rest.push(arg.clone()),
            }
        }
        ensure!(options.rounds > 0, "no rounds");
        ensure!(!is_all || options.rest.is_empty(), "bench all has no argument {}", options.rest.join(" "));
        Ok(options)
    }
}

/// Passes everything on to the simulation's own program.
pub(crate) fn simulate(args: &[String]) -> Result<i32> {
    let mut command = cargo(&["run", "--release", "-p", "simulation", "--bin", "simulate", "--"]);
    run(command.args(args))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(is_all: bool, args: &str) -> Result<BenchOptions> {
        let args: Vec<String> = args.split_whitespace().map(str::to_owned).collect();
        BenchOptions::parse(is_all, &args)
    }

    #[test]
    fn what_is_not_ours_goes_to_the_program() {
        let alone = parse(false, "--features jemalloc --rounds 1 --quick --rows a").unwrap();
        assert_eq!(
            (alone.features.as_deref(), alone.compare, alone.is_quick),
            (Some("jemalloc"), None, false)
        );
        assert_eq!(alone.rest.join(" "), "--rounds 1 --quick --rows a");
        let compared = parse(false, "--rounds 3 --compare HEAD^ --quick --rows b").unwrap();
        assert_eq!(
            (compared.compare.as_deref(), compared.rounds, compared.is_quick),
            (Some("HEAD^"), 3, true)
        );
        assert_eq!(compared.rest, ["--rows", "b"]);
    }

    #[test]
    fn all_takes_nothing_that_one_bench_alone_knows() {
        assert!(parse(true, "--quick --features jemalloc").unwrap().is_quick);
        assert!(parse(true, "--rows a").is_err() && parse(true, "--rounds 1").is_err());
        assert_eq!(parse(true, "--compare abc --rounds 1").unwrap().rounds, 1);
        assert!(parse(false, "--compare").is_err() && parse(false, "--compare abc --rounds 0").is_err());
    }
}
