//! Runs the blocks of one page in one shell.
#![allow(unsafe_code, reason = "kill has no safe form in std")]

use std::{
    env,
    fmt::Write as _,
    fs,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use devservices::{
    services::{Port, ScratchDir},
    workspace,
};
use regex::{Captures, Regex};

use super::{
    super::{antiphon, interrupt},
    expected::Printed,
    fleet::{FleetTemplate, PageFleet},
    page::{Block, BlockKind, Page},
};

/// The longest page takes a minute, and another one installs packages.
const LIMIT: Duration = Duration::from_secs(240);
/// Maximum number of output lines of a block in a report.
const SHORT_LINES: usize = 40;
/// Pages install packages as of this day, so that a new release does not break our checks.
const PACKAGES_OF: &str = "2026-11-29";
/// pip has no such option, so the versions of its packages are in this file.
const PYTHON_PACKAGES: &str = "deploy/docs/constraints.txt";
/// Addresses in texts and programs of the pages.
const ADDRESS: &str = r#"(127\.0\.0\.1(?::|", ?)|listen\()(\d{4,5})\b"#;

/// `slower`: factor for the durations of the page's sleeps.
pub(super) fn run_page(page: &Page, template: &FleetTemplate, slower: u32) -> Result<()> {
    let folder = ScratchDir::new("docs")?;
    let (work, out) = (folder.path().join("work"), folder.path().join("out"));
    fs::create_dir_all(&work)?;
    fs::create_dir_all(&out)?;
    // The blocks of a page are written to run in the root of a checkout.
    std::os::unix::fs::symlink(workspace::root().join("deploy"), work.join("deploy"))?;
    let fleet = PageFleet::start(template, folder.path())?;
    if !page.begins_with_no_thread() {
        fleet.say_hello()?;
    }
    let addresses = Addresses::new(page, &fleet)?;
    fs::write(folder.path().join("page.sh"), script(page, &addresses, &work, &out, slower)?)?;
    let mut shell = Command::new("bash");
    fleet.export(&mut shell);
    shell
        .arg(folder.path().join("page.sh"))
        .current_dir(&work)
        .env("PATH", path()?)
        .env("npm_config_before", PACKAGES_OF)
        .env("PIP_CONSTRAINT", workspace::root().join(PYTHON_PACKAGES))
        .env("PIP_DISABLE_PIP_VERSION_CHECK", "1")
        // Most of the time of an installation is spent on compiling modules that no page uses.
        .env("PIP_NO_COMPILE", "1")
        .stdin(Stdio::null())
        .process_group(0);
    let mut child = shell.spawn().context("starting bash")?;
    let ended = wait(&mut child, LIMIT * slower);
    kill_group(&child);
    let _ = child.wait();
    let code = ended?;
    compare(page, &addresses, &out, code).with_context(|| logs(&work))
}

/// The folder of the binary comes first.
fn path() -> Result<std::ffi::OsString> {
    let binary = antiphon("debug");
    let folder = binary.parent().context("the folder of the binary")?.to_path_buf();
    let before = env::var_os("PATH").unwrap_or_default();
    Ok(env::join_paths([folder].into_iter().chain(env::split_paths(&before)))?)
}

fn wait(child: &mut Child, limit: Duration) -> Result<Option<i32>> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status.code());
        }
        ensure!(begun.elapsed() < limit, "the page runs for more than {} s", limit.as_secs());
        ensure!(!interrupt::received(), "interrupted");
        thread::sleep(Duration::from_millis(50));
    }
}

/// Ends the processes that the page has left running.
fn kill_group(child: &Child) {
    if let Ok(pid) = libc::pid_t::try_from(child.id()) {
        // SAFETY: kill has no memory effects; the group is that of our child.
        unsafe { libc::kill(-pid, libc::SIGKILL) };
    }
}

/// Each block writes to its own files, so the last block that began is known.
fn script(page: &Page, addresses: &Addresses, work: &Path, out: &Path, slower: u32) -> Result<String> {
    let mut script = format!("set -e\nsleep() {{ command sleep $(($1 * {slower})); }}\n");
    for (number, block) in page.blocks.iter().enumerate() {
        match &block.kind {
            BlockKind::Shell => {
                let (file, text) = (out.join(number.to_string()), addresses.in_use(&block.text));
                write!(script, "exec > {0}.out 2> {0}.err\n{text}", file.display())?;
            }
            BlockKind::File(name) => {
                ensure!(!name.contains('/'), "{name}: files of a page are in its folder");
                fs::write(work.join(name), addresses.in_use(&block.text))?;
            }
            BlockKind::Output | BlockKind::LeftOut | BlockKind::Illustration => {}
        }
    }
    Ok(script)
}

fn compare(page: &Page, addresses: &Addresses, out: &Path, code: Option<i32>) -> Result<()> {
    let printed = |number: usize| -> Option<Printed> {
        let read = |stream| fs::read_to_string(out.join(format!("{number}.{stream}"))).ok();
        let in_book = |text: String| addresses.in_book(&text);
        Some(Printed { output: read("out").map(in_book)?, errors: read("err").map(in_book)? })
    };
    let mut wrong = String::new();
    let mut last = None;
    for (number, block) in page.blocks.iter().enumerate() {
        if block.kind != BlockKind::Shell {
            continue;
        }
        let Some(printed) = printed(number) else { break };
        let has_shown = |shown: &&Block| shown.kind == BlockKind::Output && !printed.is_shown_by(&shown.text);
        if let Some(Block { line, text, .. }) = page.blocks.get(number + 1).filter(has_shown) {
            let name = &page.name;
            write!(wrong, "\n{name}:{line} shows\n{text}\nand the block has printed\n{}", short(&printed))?;
        }
        last = Some((block.line, printed));
    }
    if code != Some(0) {
        let (line, printed) = last.context("no block has run")?;
        bail!("{}:{line} ended with {code:?} and printed\n{}{wrong}", page.name, short(&printed));
    }
    ensure!(wrong.is_empty(), "{wrong}");
    Ok(())
}

/// The first lines of the output of a block.
fn short(printed: &Printed) -> String {
    let lines = printed.errors.lines().chain(printed.output.lines());
    lines.take(SHORT_LINES).map(|line| format!("{}\n", line.chars().take(300).collect::<String>())).collect()
}

/// The logs that the page has created, shortened to lines that explain a failure.
fn logs(work: &Path) -> String {
    let mut text = "logs of the page:\n".to_owned();
    for entry in fs::read_dir(work).into_iter().flatten().flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "log") {
            let log = fs::read_to_string(entry.path()).unwrap_or_default();
            let last: Vec<&str> = log.lines().rev().take(5).collect();
            let _ = writeln!(text, "{}: {}", entry.file_name().display(), last.join("\n  "));
        }
    }
    text
}

/// The ports that a page names and the ports used instead, so that pages can run at the same time.
struct Addresses {
    pattern: Regex,
    ports: Vec<(u16, u16)>,
    /// Kept until the page has ended.
    _reserved: Vec<Port>,
}

impl Addresses {
    fn new(page: &Page, fleet: &PageFleet) -> Result<Self> {
        let pattern = Regex::new(ADDRESS)?;
        let (mut ports, mut reserved) = (fleet.ports(), Vec::new());
        for block in page.blocks.iter().filter(|block| block.kind != BlockKind::LeftOut) {
            for found in pattern.captures_iter(&block.text) {
                let port: u16 = found[2].parse()?;
                if !ports.iter().any(|(book, _)| *book == port) {
                    let other = Port::reserve()?;
                    ports.push((port, other.number()));
                    reserved.push(other);
                }
            }
        }
        Ok(Self { pattern, ports, _reserved: reserved })
    }

    fn in_use(&self, text: &str) -> String {
        self.replaced(text, |port| self.ports.iter().find(|(book, _)| *book == port).map(|(_, used)| *used))
    }

    fn in_book(&self, text: &str) -> String {
        self.replaced(text, |port| self.ports.iter().find(|(_, used)| *used == port).map(|(book, _)| *book))
    }

    fn replaced(&self, text: &str, other: impl Fn(u16) -> Option<u16>) -> String {
        let replace = |found: &Captures<'_>| {
            let port = found[2].parse().ok().and_then(&other);
            port.map_or_else(|| found[0].to_owned(), |port| format!("{}{port}", &found[1]))
        };
        self.pattern.replace_all(text, replace).into_owned()
    }
}
