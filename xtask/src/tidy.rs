//! Our static checks: what rustc, clippy and rustfmt cannot know about this workspace.
//!
//! Entry: [`check`]. Every rule is a pure function from a file's text to violations, each of which
//! says what to do instead. A line that must break a rule has `tidy: allow(<rule>): <why>` in a
//! comment on it or above it.

mod catalogue;
mod code_paths;
mod imports;
mod layering;
mod links;
mod names;
mod origins;
pub(crate) mod prose;
mod source;
#[cfg(test)]
mod tests;
mod text;
mod words;

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

/// A file of the checkout, by its path from the root.
#[derive(Debug, Clone)]
pub(crate) struct SourceFile {
    path: String,
    text: String,
}

impl SourceFile {
    /// The crate of `crates/<name>/…`.
    fn crate_name(&self) -> Option<&str> {
        self.path.strip_prefix("crates/")?.split('/').next()
    }

    fn has_extension(&self, extensions: &[&str]) -> bool {
        self.path.rsplit_once('.').is_some_and(|(_, extension)| extensions.contains(&extension))
    }

    /// True if the whole file is test code.
    fn is_test(&self) -> bool {
        let mut parts = self.path.split('/').rev();
        let file = parts.next().unwrap_or_default();
        file == "tests.rs" || file.ends_with("_tests.rs") || parts.any(|dir| dir == "tests")
    }

    fn violation(&self, line: usize, rule: &'static str, instead: impl Into<String>) -> RuleViolation {
        RuleViolation { path: self.path.clone(), line, rule, instead: instead.into() }
    }

    /// True if the line (from 1) is exempted from the rule, on the line itself or on the one above.
    fn allows(&self, line: usize, rule: &str) -> bool {
        let mark = format!("tidy: allow({rule}): ");
        let first = line.saturating_sub(2);
        self.text.lines().skip(first).take(line - first).any(|text| text.contains(&mark))
    }
}

/// One broken rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RuleViolation {
    /// From the root of the checkout.
    pub(crate) path: String,
    /// Counted from 1.
    pub(crate) line: usize,
    /// The rule's name.
    pub(crate) rule: &'static str,
    /// What to do instead.
    pub(crate) instead: String,
}

impl fmt::Display for RuleViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.rule, self.instead)
    }
}

/// The outcome of a run.
#[derive(Debug)]
pub(crate) struct TidyReport {
    /// Broken rules, by path and line.
    pub(crate) violations: Vec<RuleViolation>,
    /// Number of files that were read.
    pub(crate) files: usize,
    /// The outcome of cargo-deny.
    pub(crate) deny: Deny,
}

/// The outcome of `cargo deny`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Deny {
    /// Bans, licences and sources are as required.
    Passed,
    /// The tool is not installed.
    Skipped,
    Failed(String),
}

impl TidyReport {
    /// True if nothing needs to be done.
    pub(crate) fn is_clean(&self) -> bool {
        self.violations.is_empty() && !matches!(self.deny, Deny::Failed(_))
    }
}

impl fmt::Display for TidyReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for violation in &self.violations {
            writeln!(f, "{violation}")?;
        }
        match &self.deny {
            Deny::Passed => {}
            Deny::Skipped => writeln!(f, "SKIPPED: cargo deny (not installed)")?,
            Deny::Failed(report) => writeln!(f, "{report}")?,
        }
        writeln!(f, "tidy: {} files, {} violations", self.files, self.violations.len())
    }
}

pub(crate) fn check(root: &Path) -> Result<TidyReport> {
    let files = read(root)?;
    Ok(TidyReport { violations: violations(&files), files: files.len(), deny: deny(root) })
}

fn violations(files: &[SourceFile]) -> Vec<RuleViolation> {
    let mut found: Vec<RuleViolation> = files
        .iter()
        .flat_map(|file| {
            [
                layering::check(file),
                source::check(file),
                names::check(file),
                origins::check(file),
                prose::check(file),
                text::check(file),
                words::check(file),
                words::test_names(file),
            ]
        })
        .flatten()
        .chain(catalogue::check(files))
        .chain(imports::check(files))
        .chain(links::check(files))
        .chain(code_paths::check(files))
        .chain(layering::unused(files))
        .chain(names::shared(files))
        .collect();
    found.retain(|violation| {
        let file = files.iter().find(|file| file.path == violation.path);
        !file.is_some_and(|file| file.allows(violation.line, violation.rule))
    });
    found.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    found
}

/// All text files that git tracks or would track.
fn read(root: &Path) -> Result<Vec<SourceFile>> {
    let paths = match git_files(root) {
        Some(paths) => paths,
        None => walk(root, Path::new(""))?,
    };
    let mut files = Vec::new();
    for path in paths {
        let full = root.join(&path);
        if !full.is_file() {
            continue;
        }
        let bytes = fs::read(&full).with_context(|| format!("reading {}", full.display()))?;
        if let Ok(text) = String::from_utf8(bytes)
            && !text.contains('\0')
        {
            files.push(SourceFile { path: path.to_string_lossy().into_owned(), text });
        }
    }
    Ok(files)
}

fn git_files(root: &Path) -> Option<Vec<PathBuf>> {
    let args = ["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"];
    let output = Command::new("git").args(args).current_dir(root).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.split('\0').filter(|p| !p.is_empty()).map(PathBuf::from).collect())
}

/// Lists the files of a checkout without git.
fn walk(root: &Path, below: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(root.join(below))? {
        let entry = entry?;
        let name = entry.file_name();
        let path = below.join(&name);
        if !entry.file_type()?.is_dir() {
            paths.push(path);
        } else if ![".git", "target", "node_modules", ".dev"].iter().any(|skip| name == **skip) {
            paths.extend(walk(root, &path)?);
        }
    }
    Ok(paths)
}

fn deny(root: &Path) -> Deny {
    let installed = Command::new("cargo-deny").arg("--version").output().is_ok_and(|o| o.status.success());
    if !installed {
        return Deny::Skipped;
    }
    let args = ["--offline", "check", "bans", "licenses", "sources"];
    match Command::new("cargo-deny").args(args).current_dir(root).output() {
        Ok(output) if output.status.success() => Deny::Passed,
        Ok(output) => Deny::Failed(String::from_utf8_lossy(&output.stderr).into_owned()),
        Err(error) => Deny::Failed(format!("cargo deny: {error}")),
    }
}
