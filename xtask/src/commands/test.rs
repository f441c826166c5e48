//! `test`: all checks of a change, in one command.

use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::Result;
use devservices::{
    services::{Postgres, PostgresOptions},
    workspace,
};

use super::{
    Service, Tools, antiphon, build_antiphon_and, cargo, database, docs, interrupt, run, say, version_of,
};
use crate::tidy;

/// Runs the stages in order. Locally the first failure ends the run; with `--ci` the rest still
/// runs, so that one run finds everything. The exit code is always the first failure's. The test
/// runner's summary is the last output before the times of the stages.
pub(crate) fn test(args: &[String]) -> Result<i32> {
    say("cargo xtask test: fmt, tidy, book, build with clippy, code of the book, tests");
    let has = |option: &str| args.iter().any(|arg| arg == option);
    let (ci, fast) = (has("--ci"), has("--fast"));
    anyhow::ensure!(!fast || has_nextest(), "--fast needs cargo-nextest: cargo install cargo-nextest");
    let runner_args = args.iter().map(String::as_str).filter(|arg| !["--ci", "--fast"].contains(arg));
    let runner_args: Vec<&str> =
        fast.then_some(WITHOUT_SERVICES).into_iter().flatten().copied().chain(runner_args).collect();
    let services = if fast { None } else { Some(Services::start()?) };

    let mut failures = Failures::default();
    let stages: [(&str, &dyn Fn() -> Result<i32>); 4] = [
        ("fmt: cargo fmt --check", &|| run(&mut cargo(&["fmt", "--all", "--check"]))),
        ("tidy: cargo xtask tidy", &tidy_stage),
        ("book: mdbook build", &|| if fast { Ok(0) } else { docs::book() }),
        (LINTED_BUILD, &|| run(linted(ci, &mut cargo(BUILD)))),
    ];
    let mut times = StageTimes::default();
    for (name, stage) in stages {
        say(name);
        failures.note(name, times.measure(name, stage)?);
        if interrupt::received() || (!ci && failures.first.is_some()) {
            return Ok(failures.exit_code());
        }
    }
    let mut runner = runner(ci, &["--workspace"], &runner_args);
    if failures.names.contains(&LINTED_BUILD) {
        // The build with lints failed. The tests run anyway, from a build without lints.
        without_incremental(ci, &mut runner);
        let build = || run(without_incremental(ci, &mut cargo(BUILD)));
        failures.note("build", times.measure("build", build)?);
    } else {
        linted(ci, &mut runner);
    }
    failures.announce();
    if let Some(services) = &services {
        services.export(&mut runner);
    }
    let begun = Instant::now();
    failures.note("tests", run(&mut runner)?);
    times.add("tests", begun);
    say(&times.to_string());
    Ok(failures.exit_code())
}

/// The checks of one crate, for use while it is being changed.
pub(crate) fn check(args: &[String]) -> Result<i32> {
    let Some((name, args)) = args.split_first() else { anyhow::bail!("which crate is to be checked?") };
    let services = Services::start()?;
    let mut times = StageTimes::default();
    let build = || run(linted(false, &mut cargo(&["build", "--all-targets", "-p", name])));
    say(LINTED_BUILD);
    let mut code = times.measure(LINTED_BUILD, build)?;
    if code == 0 {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let mut runner = runner(false, &["-p", name], &args);
        services.export(linted(false, &mut runner));
        code = times.measure("tests", || run(&mut runner))?;
    }
    let tidy = times.measure("tidy", tidy_stage)?;
    say(&times.to_string());
    Ok(if code == 0 { tidy } else { code })
}

/// The tools and services for tests.
struct Services {
    tools: Tools,
    database: Service<Postgres>,
}

impl Services {
    fn start() -> Result<Self> {
        let tools = Tools::resolve()?;
        let database = database(|| Ok(PostgresOptions::new(&tools.pg_bin)))?;
        Ok(Self { tools, database })
    }

    fn export(&self, runner: &mut Command) {
        self.tools.export(runner);
        runner.env("DATABASE_URL", &self.database.url).env("ANTIPHON_BIN", antiphon("debug"));
    }
}

/// The duration of each stage.
#[derive(Default)]
struct StageTimes(Vec<(&'static str, Duration)>);

impl StageTimes {
    fn measure(&mut self, name: &'static str, stage: impl FnOnce() -> Result<i32>) -> Result<i32> {
        let begun = Instant::now();
        let code = stage();
        self.add(name, begun);
        code
    }

    fn add(&mut self, name: &'static str, begun: Instant) {
        // The rest of a stage's name describes how it is done.
        let short = name.split_once(':').map_or(name, |(short, _)| short);
        self.0.push((short, begun.elapsed()));
    }
}

impl std::fmt::Display for StageTimes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("times:")?;
        for (at, (name, time)) in self.0.iter().enumerate() {
            write!(f, "{} {name} {:.0} s", if at == 0 { "" } else { "," }, time.as_secs_f64())?;
        }
        Ok(())
    }
}

/// The long forms of the tests that fuzz the API, or the reader of models' responses; cargo's own
/// runner has no time limit.
pub(crate) fn fuzz(args: &[String]) -> Result<i32> {
    if args.first().is_some_and(|target| target == "reader") {
        return fuzz_reader(args.get(1).map_or("100000", String::as_str));
    }
    let examples = args.first().map_or("200", String::as_str);
    anyhow::ensure!(
        examples.parse::<u32>().is_ok_and(|count| count > 0),
        "`{examples}` is no number of requests"
    );
    let tools = Tools::resolve()?;
    let database = database(|| Ok(PostgresOptions::new(&tools.pg_bin)))?;
    if let Some(code) = build_antiphon_and("e2e")? {
        return Ok(code);
    }
    let mut runner = cargo(&["test", "-p", "e2e", "--test", "main", "fuzz::", "--", "--nocapture"]);
    tools.export(&mut runner);
    runner.env("DATABASE_URL", &database.url).env("ANTIPHON_BIN", antiphon("debug"));
    run(runner.env("ANTIPHON_FUZZ_EXAMPLES", examples))
}

fn fuzz_reader(streams: &str) -> Result<i32> {
    anyhow::ensure!(
        streams.parse::<u64>().is_ok_and(|count| count > 0),
        "`{streams}` is no number of streams"
    );
    let mut runner =
        cargo(&["test", "-p", "workflow", "--lib", "reader::tests::fuzz::", "--", "--nocapture"]);
    run(runner.env("ANTIPHON_FUZZ_STREAMS", streams))
}

/// nextest's test slots per core; `.config/nextest.toml` sets how many a test takes.
const PLACES_PER_CORE: usize = 6;

/// Tests that start no server and no process, and have no long search.
const WITHOUT_SERVICES: &[&str] = &[
    "-E",
    "not (kind(test) & (package(auth) | package(bus) | package(e2e) | package(gateway) | package(protocols) | package(simulation) \
     | package(store) | package(worker) | package(workflow))) & not (package(bench) | package(demo) | package(devservices) | package(testkit))",
];

const LINTED_BUILD: &str = "clippy and build: cargo build --all-targets by clippy-driver";
/// Everything at once: with one set of features nothing is compiled twice.
const BUILD: &[&str] = &["build", "--workspace", "--all-targets"];

/// Compiles our crates with clippy's compiler, which lints what it compiles. So our crates are
/// compiled once, and foreign crates are not checked for lints alone. Every command must set the
/// same variables, or cargo rebuilds everything.
fn linted(ci: bool, command: &mut Command) -> &mut Command {
    without_incremental(ci, command);
    let deny = "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__";
    command.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver").env("CLIPPY_ARGS", deny)
}

/// A machine that builds only once gains nothing from incremental builds.
fn without_incremental(ci: bool, command: &mut Command) -> &mut Command {
    if ci {
        command.env("CARGO_INCREMENTAL", "0");
    }
    command
}

fn has_nextest() -> bool {
    version_of(Path::new("cargo-nextest"), &["nextest", "--version"]).is_some()
}

/// nextest, or cargo's own runner if it is missing: installing nextest would take minutes.
fn runner(ci: bool, packages: &[&str], args: &[&str]) -> Command {
    let has_nextest = has_nextest();
    let base: &[&str] = if has_nextest { &["nextest", "run"] } else { &["test"] };
    let options: &[&str] = match (has_nextest, ci) {
        (true, true) => &["--profile", "ci"],
        // A crate may have no tests; otherwise a filter that matches none is a typing error.
        (true, false) if packages.first() == Some(&"-p") => &["--no-tests", "pass"],
        (true, false) => &[],
        (false, true) => &["--lib", "--bins", "--tests", "--no-fail-fast"],
        (false, false) => &["--lib", "--bins", "--tests"],
    };
    if !has_nextest {
        say("cargo-nextest is not installed: using cargo test");
    }
    let all = [base, packages, options, args].concat();
    say(&format!("tests: cargo {}", all.join(" ")));
    let mut runner = cargo(&all);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    runner.env("NEXTEST_TEST_THREADS", (cores * PLACES_PER_CORE).to_string());
    if ci && std::env::var_os("PROPTEST_RNG_SEED").is_none() {
        // In CI, a change is tested with the same inputs as the previous one. Other runs draw new
        // inputs.
        runner.env("PROPTEST_RNG_SEED", "1");
    }
    runner
}

fn tidy_stage() -> Result<i32> {
    let report = tidy::check(&workspace::root())?;
    print!("{report}");
    Ok(i32::from(!report.is_clean()))
}

/// Runs `tidy` alone.
pub(crate) fn tidy() -> Result<i32> {
    tidy_stage()
}

#[derive(Default)]
struct Failures {
    first: Option<i32>,
    names: Vec<&'static str>,
}

impl Failures {
    fn note(&mut self, name: &'static str, code: i32) {
        if code != 0 {
            self.first.get_or_insert(code);
            self.names.push(name);
        }
    }

    /// Printed before the tests, because nothing is printed after their summary.
    fn announce(&self) {
        for name in &self.names {
            say(&format!("FAILED already: {name}; the run will fail even if all tests pass"));
        }
    }

    fn exit_code(&self) -> i32 {
        self.first.unwrap_or(0)
    }
}
