//! `upgrade`: a build of an earlier commit together with this one, under load.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use devservices::workspace;

use super::{Tools, build_antiphon_and, cargo, program, run, say};

/// Runs `chaos` with processes of both builds, started in any order, so that it upgrades and
/// downgrades. The tables are those of this build. The default commit is the last one without this
/// build's newest migration, or the first one with this build's subjects.
pub(crate) fn upgrade(args: &[String]) -> Result<i32> {
    let (named, args) = match args.split_first() {
        Some((commit, args)) if !commit.starts_with('-') => (Some(commit.clone()), args),
        _ => (None, args),
    };
    let commit = match named {
        Some(commit) => commit,
        None => default_base()?,
    };
    let commit = git(workspace::root(), &["rev-parse", "--short", &commit])?;
    if !has_subjects(&commit)? {
        let first = first_with_subjects()?.unwrap_or_else(|| "one that has them".to_owned());
        say(&format!(
            "cargo xtask upgrade: {commit} sends commands on the subjects of chunks and tasks, and owners of this build take them on \
             `commands.<p>.<key>` alone, so that the two cannot run beside each other: stop the one fleet, migrate, start the other. Name {first} or \
             a later commit"
        ));
        return Ok(1);
    }
    say(&format!("cargo xtask upgrade: {commit} beside this build"));
    let Some(earlier) = build_earlier(&commit, "debug", None)? else { return Ok(1) };
    if let Some(code) = build_antiphon_and("chaos")? {
        return Ok(code);
    }
    let tools = Tools::resolve()?;
    let mut chaos = program("chaos", "debug", args)?;
    tools.export(&mut chaos);
    run(chaos.arg("--other-binary").arg(earlier))
}

/// The newest commit without this build's newest migration, or, if that one has other subjects, the
/// first one with this build's subjects.
fn default_base() -> Result<String> {
    let newest =
        git(workspace::root(), &["log", "-1", "--diff-filter=A", "--format=%H", "--", "migrations"])?;
    let before = format!("{newest}^");
    if has_subjects(&before)? {
        return Ok(before);
    }
    Ok(first_with_subjects()?.unwrap_or(before))
}

/// The file that defines the subject classes of a partition's stream.
const SUBJECTS: &str = "crates/wire/src/subject.rs";
const CLASSES: &str = "pub enum SubjectClass";

/// True if a commit's processes send commands to the subjects that this build's owners read.
fn has_subjects(commit: &str) -> Result<bool> {
    let file = git(workspace::root(), &["show", &format!("{commit}:{SUBJECTS}")])?;
    Ok(file.contains(CLASSES))
}

fn first_with_subjects() -> Result<Option<String>> {
    let with = git(workspace::root(), &["log", "--reverse", "-S", CLASSES, "--format=%h", "--", SUBJECTS])?;
    Ok(with.lines().next().map(str::to_owned))
}

/// The binary of another commit, built with these features in the profile of the `debug` or
/// `release` folder. `None`: the build failed, and cargo has printed why.
pub(super) fn build_earlier(commit: &str, profile: &str, features: Option<&str>) -> Result<Option<PathBuf>> {
    let folder = workspace::target_dir().join("upgrade");
    let (source, binary) = (folder.join("source"), folder.join(binary_name(commit, profile, features)));
    if binary.is_file() {
        return Ok(Some(binary));
    }
    _ = fs::remove_dir_all(&source);
    fs::create_dir_all(&folder)?;
    let root = workspace::root();
    let (from, to) = (root.to_string_lossy(), source.to_string_lossy());
    git(&root, &["clone", "--quiet", "--shared", "--no-checkout", &from, &to])?;
    git(&source, &["checkout", "--quiet", "--detach", commit])?;
    // A separate target folder: cargo would take the crates of one checkout for those of the other.
    let target = folder.join("target");
    let mut build = cargo(&["build", "--package", "antiphon", "--target-dir"]);
    build.arg(&target).current_dir(&source);
    if profile == "release" {
        build.arg("--release");
    }
    build.args(features.iter().flat_map(|features| ["--features", features]));
    if run(&mut build)? != 0 {
        return Ok(None);
    }
    fs::copy(target.join(profile).join("antiphon"), &binary)?;
    Ok(Some(binary))
}

/// The file name under which the binary is kept.
fn binary_name(commit: &str, profile: &str, features: Option<&str>) -> String {
    let profile = Some(profile).filter(|profile| *profile != "debug");
    let parts = ["antiphon", commit].into_iter().chain(profile).chain(features);
    parts.collect::<Vec<_>>().join("-")
}

pub(super) fn git(folder: impl AsRef<Path>, args: &[&str]) -> Result<String> {
    let output = Command::new("git").args(args).current_dir(folder).output().context("starting git")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "git {}: {said}", args.join(" "));
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_build_of_a_commit_has_its_own_name() {
        assert_eq!(binary_name("abc", "debug", None), "antiphon-abc");
        assert_eq!(binary_name("abc", "release", None), "antiphon-abc-release");
        assert_eq!(binary_name("abc", "release", Some("jemalloc")), "antiphon-abc-release-jemalloc");
    }
}
