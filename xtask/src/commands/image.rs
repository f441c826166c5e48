//! `image`: a container image that holds the binary, what it is linked to, and nothing else.
//!
//! The same sources on the same machine give the same digest: owners, modes and times of what is in it do not depend on who builds it, or when.
//! It has no history, into which buildah writes a digest that does.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail, ensure};
use devservices::workspace;

use super::{build, say, version_of};

/// Programs, and what each is for.
const PROGRAMS: [(&str, &str); 3] = [
    ("buildah", "it writes the image; Debian, Ubuntu and Fedora have a package of that name"),
    ("objcopy", "it takes the symbols out of the binary; install binutils"),
    ("make", "jemalloc is built by it"),
];
const BUILD: [&str; 8] =
    ["build", "--release", "-p", "antiphon", "--bin", "antiphon", "--features", "jemalloc"];
/// Certificates of authorities, where distributions keep them; in the image they are at the first place.
const CERTIFICATES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"];
/// What the C library loads to find addresses of hosts: a part of itself since glibc 2.34, files beside it before.
const NAME_SERVICES: [&str; 2] = ["libnss_files.so.2", "libnss_dns.so.2"];
/// Files that the C library reads, with what stands in them.
const FILES: [(&str, &str); 3] = [
    ("etc/passwd", "antiphon:x:65532:65532::/:/\n"),
    ("etc/group", "antiphon:x:65532:\n"),
    ("etc/nsswitch.conf", "hosts: files dns\n"),
];

/// Builds the binary in the release profile, with jemalloc, and an image of it: `image [name]`. Without a name there are two, `antiphon:latest`
/// and the one that the chart asks for, with the version. Symbols are beside it, in `target/image/antiphon.debug`.
pub(crate) fn image(args: &[String]) -> Result<i32> {
    ensure!(args.len() <= 1, "image takes one argument, the name of the image");
    check_programs()?;
    let names = match args.first() {
        Some(name) => vec![name.clone()],
        None => vec!["antiphon:latest".to_owned(), format!("antiphon:{}", env!("CARGO_PKG_VERSION"))],
    };
    if let Some(code) = build_shipped()? {
        return Ok(code);
    }
    let folder = write_image_of(&workspace::built_binary("antiphon", "release"), &names)?;
    println!("{}: {}", names[0], version_inside(&names[0])?);
    println!("{}", digest_and_size(&names[0], &folder)?);
    Ok(0)
}

/// # Errors
/// A program that images are made with is missing.
pub(super) fn check_programs() -> Result<()> {
    for (program, why) in PROGRAMS {
        ensure!(version_of(Path::new(program), &["--version"]).is_some(), "{program} is missing: {why}");
    }
    Ok(())
}

/// Builds the binary as it is shipped. Returns the exit code when it failed.
pub(super) fn build_shipped() -> Result<Option<i32>> {
    build(&BUILD)
}

/// Writes an image of a binary under each of the names, and returns the folder with what it was made of.
pub(super) fn write_image_of(binary: &Path, names: &[String]) -> Result<PathBuf> {
    let folder = workspace::target_dir().join("image");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let context = folder.join("context");
    fill(&context.join("rootfs"), &stripped(binary, &folder)?)?;
    write_image(names, &context)?;
    Ok(folder)
}

/// A copy of the binary without symbols, and beside it a file with them that debuggers find by its name.
fn stripped(binary: &Path, folder: &Path) -> Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let (copy, debug) = (folder.join("antiphon"), folder.join("antiphon.debug"));
    output_of(Command::new("objcopy").arg("--only-keep-debug").arg(binary).arg(&debug))?;
    output_of(Command::new("objcopy").arg("--strip-all").arg(binary).arg(&copy))?;
    output_of(
        Command::new("objcopy").arg("--add-gnu-debuglink=antiphon.debug").arg(&copy).current_dir(folder),
    )?;
    Ok(copy)
}

/// Fills the root of the image's file system.
fn fill(root: &Path, binary: &Path) -> Result<()> {
    install(binary, &root.join("antiphon"), 0o755)?;
    for library in libraries(binary)? {
        install(&library, &root.join(library.strip_prefix("/")?), 0o755)?;
    }
    let certificates = CERTIFICATES.iter().map(Path::new).find(|file| file.exists());
    let certificates = certificates.context("no certificates of authorities: install ca-certificates")?;
    install(certificates, &root.join(CERTIFICATES[0].trim_start_matches('/')), 0o644)?;
    for (file, text) in FILES {
        fs::write(root.join(file), text)?;
        fs::set_permissions(root.join(file), fs::Permissions::from_mode(0o644))?;
    }
    open_folders(root)
}

/// Copies a file, or what a link leads to.
fn install(from: &Path, to: &Path, mode: u32) -> Result<()> {
    fs::create_dir_all(to.parent().context("a file has a folder")?)?;
    fs::copy(from, to).with_context(|| format!("copying {}", from.display()))?;
    Ok(fs::set_permissions(to, fs::Permissions::from_mode(mode))?)
}

/// Makes folders readable by all: the umask under which the image is built would otherwise stand in it.
fn open_folders(folder: &Path) -> Result<()> {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            open_folders(&entry.path())?;
        }
    }
    Ok(())
}

/// The libraries that the loader would load, itself among them, and what they load later. A static binary has none.
fn libraries(binary: &Path) -> Result<Vec<PathBuf>> {
    let mut all = linked(binary)?;
    let libc = all.iter().find(|path| path.file_name().is_some_and(|name| name == "libc.so.6")).cloned();
    for service in NAME_SERVICES {
        let Some(path) = libc.as_ref().map(|libc| libc.with_file_name(service)) else { continue };
        if path.exists() {
            all.extend(linked(&path)?);
            all.push(path);
        }
    }
    all.sort();
    all.dedup();
    Ok(all)
}

fn linked(binary: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(binary).env("LC_ALL", "C").output().context("starting ldd")?;
    let text =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat();
    if text.contains("not a dynamic executable") || text.contains("statically linked") {
        return Ok(Vec::new());
    }
    ensure!(output.status.success(), "ldd: {}", text.trim());
    listed(&text)
}

/// The paths in what ldd prints, one a line; the kernel's own library has none.
fn listed(text: &str) -> Result<Vec<PathBuf>> {
    if let Some(line) = text.lines().find(|line| line.contains("not found")) {
        bail!("a library is missing: {}", line.trim());
    }
    let path = |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(PathBuf::from);
    Ok(text.lines().filter_map(path).collect())
}

/// Writes the image into the local storage of containers, under each of the names.
fn write_image(names: &[String], context: &Path) -> Result<()> {
    say(&format!("buildah: {}", names.join(", ")));
    let containerfile = workspace::root().join("deploy/image/Containerfile");
    let mut buildah = Command::new("buildah");
    buildah.args(["bud", "--quiet", "--isolation", "chroot", "--format", "oci"]);
    buildah.args(["--timestamp", "0", "--omit-history"]);
    buildah.args(names.iter().flat_map(|name| ["--tag", name.as_str()])).arg("--file").arg(containerfile);
    output_of(buildah.arg(context)).map(drop)
}

/// What the binary says of itself in a container of the image, as the image's user.
fn version_inside(name: &str) -> Result<String> {
    let container = output_of(Command::new("buildah").args(["from", "--quiet", "--pull-never", name]))?;
    let run = ["run", "--isolation", "chroot", &container, "/antiphon", "--version"];
    let version = output_of(Command::new("buildah").args(run));
    output_of(Command::new("buildah").args(["rm", &container]))?;
    version
}

/// The digest under which the image would be pulled, and its size then.
fn digest_and_size(name: &str, folder: &Path) -> Result<String> {
    let (layout, digest) = (folder.join("oci"), folder.join("digest"));
    let mut push = Command::new("buildah");
    push.args(["push", "--quiet", "--digestfile"]).arg(&digest).arg(name);
    output_of(push.arg(format!("oci:{}:latest", layout.display())))?;
    let mut bytes = 0;
    for blob in fs::read_dir(layout.join("blobs/sha256"))? {
        bytes += blob?.metadata()?.len();
    }
    let digest = fs::read_to_string(&digest)?;
    Ok(format!("{}, {:.1} MB compressed, also in {}", digest.trim(), bytes as f64 / 1e6, layout.display()))
}

/// What a program writes to its standard output.
///
/// # Errors
/// It cannot be started or fails; with what it wrote to its standard error.
fn output_of(command: &mut Command) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("starting {program}"))?;
    ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_the_paths_that_ldd_lists() {
        let text = "\tlinux-vdso.so.1 (0x00007f46)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f46)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f46)\n";
        let paths = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from);
        assert_eq!(listed(text).unwrap(), paths);
        let error = listed("\tlibjemalloc.so.2 => not found\n").unwrap_err();
        assert_eq!(error.to_string(), "a library is missing: libjemalloc.so.2 => not found");
    }
}
