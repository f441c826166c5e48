//! `docs`: builds the book, and runs the code blocks of its pages and of the README.
//!
//! The blocks of a page run in order in one shell, in a new folder, beside a new fleet. What they
//! print is compared with the `text` block that follows them.

mod expected;
mod fleet;
mod page;
mod runner;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Mutex,
    thread,
    time::Instant,
};

use anyhow::{Context, Result, ensure};
use devservices::{pip, workspace};

use self::{fleet::FleetTemplate, page::Page};
use super::{Tools, build, interrupt, run, say};
use crate::tidy::prose;

/// Pages with blocks that are not run, and the number of these blocks. Each block has its reason in
/// a comment above it. The table makes each further one a deliberate decision.
const LEFT_OUT: &[(&str, usize)] = &[
    ("README.md", 3),
    ("guides/usage-budgets-limits.md", 1),
    ("operate/alerts-and-runbooks.md", 1),
    ("operate/backup-and-restore.md", 2),
    ("operate/growth.md", 1),
    ("operate/kubernetes.md", 8),
    ("operate/nats-and-postgres.md", 5),
    ("operate/nats-users.md", 1),
    ("operate/one-machine.md", 6),
    ("operate/restore-steps.md", 3),
    ("operate/secrets.md", 2),
    ("operate/security-model.md", 1),
    ("operate/sizing.md", 1),
    ("operate/troubleshooting.md", 1),
    ("operate/trust.md", 1),
    ("operate/upgrade.md", 2),
    ("project/contributing.md", 2),
    ("reference/agent-settings.md", 2),
    ("reference/agent-tools.md", 1),
    ("reference/api.md", 1),
    ("reference/authentication.md", 1),
    ("reference/client-protocols.md", 1),
    ("reference/follow-ups-and-schedules.md", 6),
    ("reference/http-requests.md", 2),
    ("reference/usage-and-limits.md", 2),
    ("start/connect-a-model.md", 2),
    ("start/quick-start.md", 2),
];

/// Factor for the durations of sleeps in the second try.
const SLOWER: u32 = 3;
/// Number of pages that run at once per core: they mostly sleep.
const PAGES_PER_CORE: usize = 3;

fn sources() -> PathBuf {
    workspace::root().join("deploy/docs")
}

/// Builds the book and the binary, and runs the named pages, or all of them.
pub(crate) fn docs(args: &[String]) -> Result<i32> {
    if args.iter().any(|arg| arg == "--sentences") {
        return sentences();
    }
    let code = book()?;
    if code != 0 {
        return Ok(code);
    }
    if let Some(code) = build(&["build", "-p", "antiphon"])? {
        return Ok(code);
    }
    blocks(args)
}

/// Builds the book with mdbook; a warning is a failure.
pub(crate) fn book() -> Result<i32> {
    let packages =
        pip::install(&sources().join("requirements.txt"), &workspace::target_dir().join("mdbook"))?;
    let log = workspace::target_dir().join("mdbook/build.log");
    let mut mdbook = Command::new(packages.join("bin/mdbook"));
    mdbook.arg("build").arg(sources()).stderr(fs::File::create(&log)?);
    let code = run(&mut mdbook)?;
    let said = fs::read_to_string(&log)?;
    let warnings: Vec<&str> =
        said.lines().filter(|line| line.contains("WARN") || line.contains("ERROR")).collect();
    warnings.iter().for_each(|line| eprintln!("{line}"));
    if code != 0 && warnings.is_empty() {
        eprint!("{said}");
    }
    Ok(if code == 0 { i32::from(!warnings.is_empty()) } else { code })
}

/// Runs the blocks of the pages whose path contains one of these words; without words, those of all
/// pages.
pub(crate) fn blocks(words: &[String]) -> Result<i32> {
    let begun = Instant::now();
    let pages = pages()?;
    check_left_out(&pages)?;
    let is_chosen =
        |page: &&Page| words.is_empty() || words.iter().any(|word| page.name.contains(word.as_str()));
    let mut chosen: Vec<&Page> = pages.iter().filter(is_chosen).filter(|page| page.is_run()).collect();
    ensure!(!chosen.is_empty(), "no page with blocks to run has a name like that");
    // The page that takes longest starts first, so that the whole run ends sooner.
    chosen.sort_by_key(|page| page.seconds());
    let blocks: usize = chosen.iter().map(|page| page.run_blocks()).sum();
    let template = FleetTemplate::new(&Tools::resolve()?)?;
    let queue = Mutex::new(chosen.clone());
    let failed = Mutex::new(Vec::new());
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..(cores * PAGES_PER_CORE).min(chosen.len()) {
            scope.spawn(|| {
                while let Some(page) = pop(&queue) {
                    if interrupt::received() {
                        return;
                    }
                    let begun = Instant::now();
                    let outcome = tried(page, &template);
                    let seconds = begun.elapsed().as_secs();
                    match outcome {
                        Ok(()) => say(&format!("ok {} ({seconds} s)", page.name)),
                        Err(error) => {
                            eprintln!("FAILED {} ({seconds} s): {error:#}\n", page.name);
                            failed.lock().unwrap_or_else(|lock| lock.into_inner()).push(page.name.clone());
                        }
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap_or_else(|lock| lock.into_inner());
    let seconds = begun.elapsed().as_secs();
    say(&format!(
        "{blocks} blocks of {} pages in {seconds} s; failed pages: {}",
        chosen.len(),
        if failed.is_empty() { "none".to_owned() } else { failed.join(", ") }
    ));
    Ok(i32::from(!failed.is_empty() || interrupt::received()))
}

/// Runs a page. On a busy machine, steps may take longer than the pages sleep. So a page that fails
/// is tried once more with longer sleeps.
fn tried(page: &Page, template: &FleetTemplate) -> Result<()> {
    let Err(error) = runner::run_page(page, template, 1) else { return Ok(()) };
    say(&format!("again, slower: {}", page.name));
    runner::run_page(page, template, SLOWER).map_err(|_| error)
}

fn pop<'a>(queue: &Mutex<Vec<&'a Page>>) -> Option<&'a Page> {
    queue.lock().unwrap_or_else(|lock| lock.into_inner()).pop()
}

/// The README and all pages of the book.
fn pages() -> Result<Vec<Page>> {
    let read = |(path, name): (PathBuf, String)| {
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        Page::parse(&name, &text)
    };
    page_files()?.into_iter().map(read).collect()
}

fn page_files() -> Result<Vec<(PathBuf, String)>> {
    let (root, book) = (workspace::root(), sources().join("src"));
    let mut files = vec![(root.join("README.md"), "README.md".to_owned())];
    markdown(&book, &book, &mut files)?;
    files.sort_by(|a, b| a.1.cmp(&b.1));
    Ok(files)
}

fn markdown(root: &Path, folder: &Path, into: &mut Vec<(PathBuf, String)>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            markdown(root, &path, into)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            let name = path.strip_prefix(root)?.to_string_lossy().into_owned();
            into.push((path, name));
        }
    }
    Ok(())
}

/// Prints the lengths of the sentences of each page, and of all pages together.
fn sentences() -> Result<i32> {
    println!("| page | sentences | words, mean | words, longest |\n|---|---:|---:|---:|");
    let row = |name: &str, words: &[usize]| {
        let (sum, longest) = (words.iter().sum::<usize>(), words.iter().max().unwrap_or(&0));
        let mean = sum as f64 / words.len().max(1) as f64;
        println!("| {name} | {} | {mean:.1} | {longest} |", words.len());
    };
    let mut all = Vec::new();
    for (path, name) in page_files()? {
        // A single word is a heading or a table cell, not a sentence.
        let sentences = prose::sentences(&fs::read_to_string(path)?).into_iter();
        let words: Vec<usize> = sentences.map(|sentence| sentence.words).filter(|words| *words > 1).collect();
        row(&name, &words);
        all.extend(words);
    }
    row("all", &all);
    Ok(0)
}

fn check_left_out(pages: &[Page]) -> Result<()> {
    let found: BTreeMap<&str, usize> = pages
        .iter()
        .map(|page| (page.name.as_str(), page.left_out()))
        .filter(|(_, blocks)| *blocks > 0)
        .collect();
    let listed: BTreeMap<&str, usize> = LEFT_OUT.iter().copied().collect();
    ensure!(
        found == listed,
        "blocks that are not run: the pages have {found:?}, the table LEFT_OUT has {listed:?}"
    );
    Ok(())
}
