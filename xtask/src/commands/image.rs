//! `image`: a container image that holds the binary, what it is linked to, and nothing else. Needs buildah.
//!
//! The same sources and the same machine give the same digest: nothing in it depends on the time.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use devservices::workspace;

use super::{build, say};

/// Certificates of authorities, where distributions keep them; in the image they are at the first place.
const CERTIFICATES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"];
/// Files that the C library reads, with what stands in them.
const FILES: [(&str, &str); 3] = [
    ("etc/passwd", "antiphon:x:65532:65532::/:/\n"),
    ("etc/group", "antiphon:x:65532:\n"),
    ("etc/nsswitch.conf", "hosts: files dns\n"),
];

/// Builds the binary in the profile `dist` and an image of it: `image [name]`, `antiphon:latest` without one.
pub(crate) fn image(args: &[String]) -> Result<i32> {
    let name = args.first().map_or("antiphon:latest", String::as_str);
    ensure!(args.len() <= 1, "one name for the image, and nothing else");
    if let Some(code) = build(&["build", "--profile", "dist", "-p", "antiphon", "--features", "jemalloc"])? {
        return Ok(code);
    }
    let folder = workspace::target_dir().join("image");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let binary = workspace::target_dir().join("dist/antiphon");
    fill(&folder.join("rootfs"), &binary)?;
    let containerfile = workspace::root().join("deploy/image/Containerfile");
    fs::copy(&containerfile, folder.join("Containerfile"))?;
    say(&format!("buildah: {name}"));
    let mut bud = Command::new("buildah");
    bud.args(["bud", "--isolation", "chroot", "--timestamp", "0", "--quiet", "--tag", name]).arg(&folder);
    text_of(&mut bud)?;
    say(&format!("in it: {}", runs(name)?));
    let layout = folder.join("oci");
    text_of(
        Command::new("buildah")
            .args(["push", "--quiet", name])
            .arg(format!("oci:{}:latest", layout.display())),
    )?;
    println!("{}", described(name, &layout)?);
    Ok(0)
}

fn fill(root: &Path, binary: &Path) -> Result<()> {
    copy(binary, &root.join("antiphon"))?;
    for library in libraries(binary)? {
        copy(&library, &root.join(library.strip_prefix("/")?))?;
    }
    let certificates = CERTIFICATES.iter().map(Path::new).find(|file| file.exists());
    let certificates = certificates.context("no certificates of authorities: install ca-certificates")?;
    copy(certificates, &root.join(CERTIFICATES[0].trim_start_matches('/')))?;
    for (file, text) in FILES {
        let path = root.join(file);
        fs::create_dir_all(path.parent().context("a folder")?)?;
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644))?;
    }
    Ok(())
}

/// Copies what a link leads to. The owner may write, all may read; what can be executed stays so.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to.parent().context("a folder")?)?;
    fs::copy(from, to).with_context(|| format!("copying {}", from.display()))?;
    let is_executable = fs::metadata(from)?.permissions().mode() & 0o111 != 0;
    let mode = if is_executable { 0o755 } else { 0o644 };
    Ok(fs::set_permissions(to, fs::Permissions::from_mode(mode))?)
}

/// The libraries that the loader would load, itself among them. A static binary has none.
fn libraries(binary: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(binary).output().context("starting ldd")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        return if (said.clone() + &why).contains("not a dynamic executable") {
            Ok(Vec::new())
        } else {
            bail!("ldd: {why}")
        };
    }
    ensure!(!said.contains("not found"), "a library is missing:\n{said}");
    let path = |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(PathBuf::from);
    Ok(said.lines().filter_map(path).collect())
}

/// What the binary says of itself inside the image, as the image's user.
fn runs(name: &str) -> Result<String> {
    let container = text_of(Command::new("buildah").args(["from", "--quiet", name]))?;
    let said = text_of(Command::new("buildah").args([
        "run",
        "--isolation",
        "chroot",
        &container,
        "/antiphon",
        "--version",
    ]));
    text_of(Command::new("buildah").args(["rm", &container]))?;
    said
}

/// Name, digest and size as it is pulled.
fn described(name: &str, layout: &Path) -> Result<String> {
    let index = fs::read_to_string(layout.join("index.json"))?;
    let digest =
        index.split("sha256:").nth(1).and_then(|rest| rest.split('"').next()).context("no digest")?;
    let mut bytes = 0;
    for blob in fs::read_dir(layout.join("blobs/sha256"))? {
        bytes += blob?.metadata()?.len();
    }
    Ok(format!("{name}\nsha256:{digest}\n{:.1} MB compressed", bytes as f64 / 1e6))
}

/// What a program writes to its standard output.
fn text_of(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("starting {program}: is it installed?"))?;
    ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
