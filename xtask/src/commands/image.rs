//! `image`: a container image with the binary, its libraries and the bill of materials of both, and
//! nothing else.
//!
//! The same sources on the same machine give the same digest: owners, modes and times of its
//! content do not depend on the user or time of the build. The image has no history, because
//! buildah would write a digest into the history that depends on the user and the time.

pub(crate) mod provenance;
pub(crate) mod sbom;

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use devservices::workspace;
use serde_json::Value;

use self::sbom::FEATURES;
use super::{cargo, output_of, say, version_of};

/// Required programs, and the purpose of each.
const PROGRAMS: [(&str, &str); 3] = [
    ("buildah", "it writes the image; Debian, Ubuntu and Fedora have a package of that name"),
    ("objcopy", "it takes the symbols out of the binary; install binutils"),
    ("make", "jemalloc is built by it"),
];
/// Arguments of the build of an image's binary, without the package.
const BUILD: [&str; 4] = ["build", "--profile", PROFILE, MESSAGES];
const PROFILE: &str = "dist";
/// With this, cargo reports where a package's build has put its files; the messages for people
/// still go to standard error.
const MESSAGES: &str = "--message-format=json-render-diagnostics";
/// The package whose build makes the tokenizers' vocabularies, and the files that programs read
/// from the folder beside them.
const TOKENIZERS: &str = "bpe-openai";
const VOCABULARIES: [&str; 2] = ["cl100k_base.dict", "o200k_base.dict"];
/// The folder of the vocabularies.
const VOCABULARIES_FOLDER: &str = "tokenizers";
/// The bill of materials, beside the binary in the image: scanners look for files with such a name.
const BILL: &str = "antiphon.cdx.json";
/// CA certificates, at the places of the distributions; in the image they are at the first one.
const CERTIFICATES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem"];
/// Libraries that the C library loads to resolve host names. Since glibc 2.34 they are a part of
/// it; before, separate files.
const NAME_SERVICES: [&str; 2] = ["libnss_files.so.2", "libnss_dns.so.2"];
/// Files that the C library reads, with their content.
const FILES: [(&str, &str); 3] = [
    ("etc/passwd", "antiphon:x:65532:65532::/:/\n"),
    ("etc/group", "antiphon:x:65532:\n"),
    ("etc/nsswitch.conf", "hosts: files dns\n"),
];

/// Builds the shipped binary and an image of it: `image [name]`. Without a name it makes two,
/// `antiphon:latest` and the chart's image with the version. Symbols are beside it, in
/// `target/image/antiphon.debug`.
pub(crate) fn image(args: &[String]) -> Result<i32> {
    ensure!(args.len() <= 1, "image takes one argument, the name of the image");
    check_programs()?;
    let names = match args.first() {
        Some(name) => vec![name.clone()],
        None => vec!["antiphon:latest".to_owned(), format!("antiphon:{}", env!("CARGO_PKG_VERSION"))],
    };
    let Some(binary) = build_shipped()? else { return Ok(1) };
    let folder = write_image_of(&binary, &names, true)?;
    println!("{}: {}", names[0], version_inside(&names[0])?);
    println!("{}", digest_and_sizes(&names[0], &folder)?);
    Ok(0)
}

/// # Errors
/// A program for making images is missing.
pub(super) fn check_programs() -> Result<()> {
    for (program, why) in PROGRAMS {
        ensure!(version_of(Path::new(program), &["--version"]).is_some(), "{program} is missing: {why}");
    }
    Ok(())
}

/// Builds the shipped binary, with the tokenizers' vocabularies in a folder beside it. `None`: the
/// build failed, and cargo has printed why.
pub(super) fn build_shipped() -> Result<Option<PathBuf>> {
    let args = [BUILD.as_slice(), &FEATURES, &["-p", "antiphon", "--bin", "antiphon"]].concat();
    say(&format!("cargo {}", args.join(" ")));
    let mut build = cargo(&args);
    if let Some(revision) = provenance::revision() {
        build.env("ANTIPHON_REVISION", revision);
    }
    let output = build.stderr(Stdio::inherit()).output().context("starting cargo")?;
    if !output.status.success() {
        return Ok(None);
    }
    let made = folder_of_package(&String::from_utf8(output.stdout)?, TOKENIZERS)?;
    let binary = workspace::built_binary("antiphon", PROFILE);
    for file in VOCABULARIES {
        let to = binary.with_file_name(VOCABULARIES_FOLDER).join(file);
        install(&made.join(format!("bpe_{file}")), &to, 0o644)?;
    }
    Ok(Some(binary))
}

/// The output folder of a package's build, from cargo's messages, one JSON object per line.
fn folder_of_package(messages: &str, package: &str) -> Result<PathBuf> {
    let mut messages = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let folder = messages.find_map(|message| {
        let is_wanted = message["reason"] == "build-script-executed"
            && message["package_id"].as_str().is_some_and(|id| id.contains(&format!("{package}@")));
        is_wanted.then(|| message["out_dir"].as_str().map(PathBuf::from)).flatten()
    });
    folder.with_context(|| format!("cargo does not say where {package} was built"))
}

/// Writes an image of a binary under each of the names, and returns the folder with its parts.
/// `is_of_checkout`: the binary is built from these sources. The image then names the sources, and
/// contains the bill of materials.
pub(super) fn write_image_of(binary: &Path, names: &[String], is_of_checkout: bool) -> Result<PathBuf> {
    let folder = workspace::target_dir().join("image");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let context = folder.join("context");
    // A binary with embedded vocabularies has no such folder beside it; the folder in the image is
    // then empty.
    let (vocabularies, tokenizers) = (binary.with_file_name(VOCABULARIES_FOLDER), context.join("tokenizers"));
    fs::create_dir_all(&tokenizers)?;
    for file in VOCABULARIES.iter().filter(|file| vocabularies.join(file).exists()) {
        install(&vocabularies.join(file), &tokenizers.join(file), 0o644)?;
    }
    open_folders(&tokenizers)?;
    let libraries = context.join("libraries");
    fill(&libraries, binary)?;
    let program = context.join("program");
    install(&stripped(binary, &folder)?, &program.join("antiphon"), 0o755)?;
    let mut labels = Vec::new();
    if is_of_checkout {
        let (revision, source) = (provenance::revision(), provenance::source());
        labels = provenance::labels(env!("CARGO_PKG_VERSION"), revision.as_deref(), source.as_deref());
        let bill = folder.join(BILL);
        fs::write(&bill, sbom::of_binary(revision.as_deref(), &libraries_and_certificates(binary)?)?)?;
        install(&bill, &program.join(BILL), 0o644)?;
    }
    open_folders(&program)?;
    write_image(names, &context, &labels)?;
    Ok(folder)
}

/// A copy of the binary without symbols, and beside it a file with the symbols that debuggers find
/// by its name.
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

/// Fills the root of the image's file system with everything that a binary needs, except the binary
/// itself.
fn fill(root: &Path, binary: &Path) -> Result<()> {
    for library in libraries(binary)? {
        install(&library, &root.join(library.strip_prefix("/")?), 0o755)?;
    }
    install(certificates()?, &root.join(CERTIFICATES[0].trim_start_matches('/')), 0o644)?;
    for (file, text) in FILES {
        fs::write(root.join(file), text)?;
        fs::set_permissions(root.join(file), fs::Permissions::from_mode(0o644))?;
    }
    open_folders(root)
}

fn certificates() -> Result<&'static Path> {
    let found = CERTIFICATES.iter().map(Path::new).find(|file| file.exists());
    found.context("no certificates of authorities: install ca-certificates")
}

/// The distribution's files in the image.
fn libraries_and_certificates(binary: &Path) -> Result<Vec<PathBuf>> {
    let mut files = libraries(binary)?;
    files.push(certificates()?.to_owned());
    Ok(files)
}

/// Copies a file, or the target of a link.
fn install(from: &Path, to: &Path, mode: u32) -> Result<()> {
    fs::create_dir_all(to.parent().context("a file has a folder")?)?;
    fs::copy(from, to).with_context(|| format!("copying {}", from.display()))?;
    Ok(fs::set_permissions(to, fs::Permissions::from_mode(mode))?)
}

/// Makes folders readable by all; otherwise the umask of the build would affect the image.
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

/// The libraries that the loader would load, including itself, and those loaded later. A static
/// binary has none.
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

/// The paths in the output of ldd, one per line; the kernel's own library has none.
fn listed(text: &str) -> Result<Vec<PathBuf>> {
    if let Some(line) = text.lines().find(|line| line.contains("not found")) {
        bail!("a library is missing: {}", line.trim());
    }
    let path = |line: &str| line.split_whitespace().find(|word| word.starts_with('/')).map(PathBuf::from);
    Ok(text.lines().filter_map(path).collect())
}

/// Writes the image into the local container storage, under each of the names.
fn write_image(names: &[String], context: &Path, labels: &[String]) -> Result<()> {
    say(&format!("buildah: {}", names.join(", ")));
    let containerfile = workspace::root().join("deploy/image/Containerfile");
    let mut buildah = Command::new("buildah");
    buildah.args(["bud", "--quiet", "--layers", "--isolation", "chroot", "--format", "oci"]);
    buildah.args(["--timestamp", "0", "--omit-history"]);
    buildah.args(labels.iter().flat_map(|label| ["--label", label.as_str()]));
    buildah.args(names.iter().flat_map(|name| ["--tag", name.as_str()])).arg("--file").arg(containerfile);
    output_of(buildah.arg(context)).map(drop)
}

/// The version that the binary prints in a container of the image, as the image's user.
fn version_inside(name: &str) -> Result<String> {
    let container = output_of(Command::new("buildah").args(["from", "--quiet", "--pull-never", name]))?;
    let run = ["run", "--isolation", "chroot", &container, "/antiphon", "--version"];
    let version = output_of(Command::new("buildah").args(run));
    output_of(Command::new("buildah").args(["rm", &container]))?;
    version
}

/// The digest for pulling the image, and the sizes of its layers.
fn digest_and_sizes(name: &str, folder: &Path) -> Result<String> {
    let (layout, digest) = (folder.join("oci"), folder.join("digest"));
    let mut push = Command::new("buildah");
    push.args(["push", "--quiet", "--digestfile"]).arg(&digest).arg(name);
    output_of(push.arg(format!("oci:{}:latest", layout.display())))?;
    let digest = fs::read_to_string(&digest)?;
    let manifest = layout.join("blobs").join(digest.trim().replace(':', "/"));
    let layers = layer_sizes(&fs::read_to_string(&manifest)?)?;
    let sizes: Vec<_> = layers.iter().map(|bytes| format!("{:.1}", *bytes as f64 / 1e6)).collect();
    Ok(format!(
        "{}: layers of {} MB compressed (tokenizers, libraries, program), also in {}",
        digest.trim(),
        sizes.join(", "),
        layout.display()
    ))
}

/// The compressed sizes of the layers in an image's manifest, in bytes, from the lowest.
fn layer_sizes(manifest: &str) -> Result<Vec<u64>> {
    let manifest: Value = serde_json::from_str(manifest).context("the manifest of the image")?;
    let layers = manifest["layers"].as_array().context("an image has layers")?;
    layers.iter().map(|layer| layer["size"].as_u64().context("a layer has a size")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_says_where_a_package_was_built() {
        let message = |id: &str, folder: &str| {
            format!(
                r#"{{"reason":"build-script-executed","package_id":"registry#{id}","out_dir":"{folder}"}}"#
            )
        };
        let lines = [
            "{\"reason\":\"build-finished\"}".to_owned(),
            message("bpe@0.2.3", "/a"),
            message("bpe-openai@0.3.2", "/b"),
        ];
        assert_eq!(folder_of_package(&lines.join("\n"), "bpe-openai").unwrap(), PathBuf::from("/b"));
        let error = folder_of_package(&lines[..2].join("\n"), "bpe-openai").unwrap_err();
        assert_eq!(error.to_string(), "cargo does not say where bpe-openai was built");
    }

    #[test]
    fn a_manifest_says_how_large_its_layers_are() {
        let manifest = r#"{"schemaVersion":2,"layers":[{"size":24500000},{"size":1700000}]}"#;
        assert_eq!(layer_sizes(manifest).unwrap(), [24_500_000, 1_700_000]);
        assert!(layer_sizes("{}").is_err());
    }

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
