//! The peers that benchmarks compare us with, fetched and built below cargo's target folder. A peer
//! that cannot be obtained is left out, and the benchmark's table says so.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use devservices::{npm, workspace};

use crate::commands::{cargo, run, say, version_of};

/// The exact version of Electric's server.
const DURABLE_STREAMS: &str = "0.1.5";
/// nginx and the module from the distribution, unpacked and not installed.
const NCHAN_PACKAGES: [&str; 2] = ["nginx", "libnginx-mod-nchan"];
/// The module keeps bodies here, whatever its configuration is. Like its package, we create the
/// folder's parent.
const NCHAN_TEMP: &str = "/var/lib/nginx";

/// Builds and installs the queues that `bench tasks` compares us with.
pub(super) fn install_queues() -> Result<()> {
    let source = workspace::root().join("crates/bench/peers");
    let target = target();
    say("peers from the crate registry, and our worker beside them: release build");
    // Not --locked: the lock file includes our own crates, whose dependencies change. The peers'
    // versions are exact.
    let mut build = cargo(&["build", "--release", "--bins"]);
    build.current_dir(&source).env("CARGO_TARGET_DIR", target.join("cargo"));
    ensure!(run(&mut build)? == 0, "the peers from the crate registry were not built");
    if version_of(Path::new("npm"), &["--version"]).is_none() {
        say("there is no npm: the peers that come from it are left out");
        return Ok(());
    }
    say("peers from npm: npm ci, unless they are there");
    if let Err(error) = npm::install(&source.join("node"), &target.join("node")) {
        left_out("graphile-worker", &error);
    }
    Ok(())
}

/// Fetches and builds the servers that `bench sse` compares us with.
pub(super) fn install_streams() {
    if let Err(error) = durable_streams() {
        left_out("durable-streams", &error);
    }
    if let Err(error) = nchan() {
        left_out("nchan", &error);
    }
}

fn left_out(name: &str, error: &anyhow::Error) {
    say(&format!("{name} is left out: {error:#}"));
}

fn target() -> PathBuf {
    workspace::target_dir().join("peers")
}

/// Cargo does nothing if this version is installed.
fn durable_streams() -> Result<()> {
    say(&format!(
        "durable-streams {DURABLE_STREAMS} from the crate registry: cargo install, unless it is there"
    ));
    let mut install =
        cargo(&["install", "durable-streams", "--locked", "--version", DURABLE_STREAMS, "--root"]);
    install.arg(target().join("durable-streams")).env("CARGO_TARGET_DIR", target().join("cargo"));
    ensure!(run(&mut install)? == 0, "cargo install failed");
    Ok(())
}

fn nchan() -> Result<()> {
    let unpacked = target().join("nchan");
    if !unpacked.join("usr/sbin/nginx").is_file() {
        say("nchan and its nginx from the distribution: apt-get download and dpkg -x");
        let downloads = target().join("nchan-packages");
        fs::create_dir_all(&downloads)?;
        let mut download = Command::new("apt-get");
        download.args(["download", "-q"]).args(NCHAN_PACKAGES).current_dir(&downloads);
        ensure!(run(&mut download)? == 0, "apt-get download failed; apt-get update may help");
        let partial = target().join("nchan-partial");
        for package in fs::read_dir(&downloads)? {
            let mut unpack = Command::new("dpkg");
            ensure!(run(unpack.arg("-x").arg(package?.path()).arg(&partial))? == 0, "dpkg -x failed");
        }
        fs::remove_dir_all(&downloads)?;
        fs::rename(&partial, &unpacked)?;
    }
    fs::create_dir_all(NCHAN_TEMP).with_context(|| format!("{NCHAN_TEMP}, without which it does not start"))
}
