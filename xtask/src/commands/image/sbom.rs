//! The software bill of materials of the shipped binary, in CycloneDX format: the crates that are
//! linked into it, and the distribution's packages whose files are in the image. The same sources
//! give the same text.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use devservices::workspace;
use serde_json::{Value, json};

use crate::commands::{cargo, output_of};

/// The features of an image's binary.
pub(super) const FEATURES: [&str; 3] = ["--no-default-features", "--features", "jemalloc"];
/// Cargo's metadata of all packages, including those of these features.
const METADATA: [&str; 5] = ["metadata", "--format-version", "1", "--features", "antiphon/jemalloc"];
/// The package that is shipped.
const ROOT: &str = "antiphon";

/// Name and version of a package.
type PackageKey = (String, String);

/// Writes the bill of the binary to standard output: `sbom`.
pub(crate) fn sbom(args: &[String]) -> Result<i32> {
    ensure!(args.is_empty(), "sbom takes no arguments");
    println!("{}", of_binary(super::provenance::revision().as_deref(), &[])?);
    Ok(0)
}

/// The bill of this checkout's binary, and of files of the distribution.
pub(super) fn of_binary(revision: Option<&str>, files: &[PathBuf]) -> Result<String> {
    let linked = linked(&tree()?);
    let metadata: Value = serde_json::from_str(&run_cargo(&METADATA)?)?;
    let lock = fs::read_to_string(workspace::root().join("Cargo.lock"))?;
    let mut bill = bill(&linked, &metadata, &checksums(&lock), revision)?;
    let packages = files.iter().filter_map(|file| package_of(file)).collect::<BTreeSet<_>>();
    let components = bill["components"].as_array_mut().context("a bill has components")?;
    components.extend(packages.iter().map(|(name, version)| debian(name, version)));
    Ok(format!("{bill:#}"))
}

/// The crates that cargo links with the features of the image. Macros and build scripts run during
/// compilation, and are not in the binary.
fn tree() -> Result<String> {
    let arguments = ["tree", "-p", ROOT, "-e", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}"];
    run_cargo(&[arguments.as_slice(), &FEATURES].concat())
}

fn run_cargo(arguments: &[&str]) -> Result<String> {
    output_of(cargo(arguments).arg("--locked"))
}

/// Names and versions in the output of `cargo tree`, with lines `name v1.2.3 (path)`.
fn linked(tree: &str) -> BTreeSet<PackageKey> {
    let package = |line: &str| {
        let mut words = line.split_whitespace();
        Some((words.next()?.to_owned(), words.next()?.strip_prefix('v')?.to_owned()))
    };
    tree.lines().filter_map(package).collect()
}

/// The checksums in a Cargo.lock.
fn checksums(lock: &str) -> BTreeMap<PackageKey, String> {
    let field = |block: &str, name: &str| {
        let line = block.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = \""));
        line.map(|rest| rest.trim_end_matches('"').to_owned())
    };
    let blocks = lock.split("[[package]]");
    let known = blocks.filter_map(|block| {
        Some(((field(block, "name")?, field(block, "version")?), field(block, "checksum")?))
    });
    known.collect()
}

/// The bill of these packages, sorted by name.
fn bill(
    linked: &BTreeSet<PackageKey>,
    metadata: &Value,
    checksums: &BTreeMap<PackageKey, String>,
    revision: Option<&str>,
) -> Result<Value> {
    let packages = metadata["packages"].as_array().context("metadata without packages")?;
    let key = |package: &Value| {
        let text = |name: &str| package[name].as_str().unwrap_or_default().to_owned();
        (text("name"), text("version"))
    };
    let by_id: BTreeMap<&str, &Value> =
        packages.iter().filter_map(|package| Some((package["id"].as_str()?, package))).collect();
    let mut components = BTreeMap::new();
    for package in packages.iter().filter(|package| linked.contains(&key(package))) {
        components.insert(key(package), component(package, checksums.get(&key(package))));
    }
    for package in linked {
        ensure!(components.contains_key(package), "cargo metadata has no package {package:?}");
    }
    let mut edges = BTreeMap::new();
    for node in metadata["resolve"]["nodes"].as_array().context("metadata without a graph")? {
        let Some(package) = node["id"].as_str().and_then(|id| by_id.get(id)) else { continue };
        if !linked.contains(&key(package)) {
            continue;
        }
        let uses = node["dependencies"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let uses = uses.filter_map(|id| by_id.get(id)).filter(|package| linked.contains(&key(package)));
        let uses: BTreeSet<String> = uses.map(|package| reference(package)).collect();
        edges.insert(reference(package), uses);
    }
    let root = packages.iter().find(|package| package["name"] == ROOT).context("no package of the binary")?;
    components.remove(&key(root));
    let mut binary = component(root, None);
    binary["type"] = json!("application");
    if let Some(revision) = revision {
        binary["properties"] = json!([{"name": "antiphon:revision", "value": revision}]);
    }
    let dependencies = edges.iter().map(|(of, uses)| json!({"ref": of, "dependsOn": uses}));
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": binary},
        "components": components.into_values().collect::<Vec<_>>(),
        "dependencies": dependencies.collect::<Vec<_>>(),
    }))
}

/// The reference of a package within the bill: crates of a registry by their purl, ours by name.
fn reference(package: &Value) -> String {
    let (name, version) = (package["name"].as_str(), package["version"].as_str());
    let name = format!("{}@{}", name.unwrap_or_default(), version.unwrap_or_default());
    if package["source"].is_string() { format!("pkg:cargo/{name}") } else { format!("workspace/{name}") }
}

fn component(package: &Value, checksum: Option<&String>) -> Value {
    let reference = reference(package);
    let mut component = json!({
        "type": "library",
        "bom-ref": reference,
        "name": package["name"],
        "version": package["version"],
    });
    if let Some(licence) = package["license"].as_str() {
        // Crates from before 2018 write MIT/Apache-2.0.
        component["licenses"] = json!([{"expression": licence.replace('/', " OR ")}]);
    }
    if reference.starts_with("pkg:") {
        component["purl"] = json!(reference);
    }
    if let Some(checksum) = checksum {
        component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
    }
    component
}

/// The Debian or Ubuntu package that owns a file, with its version. `None` on other systems.
fn package_of(file: &Path) -> Option<PackageKey> {
    let file = file.canonicalize().ok()?;
    let text = |arguments: &[&str]| output_of(Command::new("dpkg-query").args(arguments)).ok();
    // With a merged /usr, packages name the path before the merge.
    let found = text(&["--search", file.to_str()?])
        .or_else(|| text(&["--search", file.to_str()?.strip_prefix("/usr")?]))?;
    let name = found.split(':').next()?.to_owned();
    let version = text(&["--show", "--showformat", "${Version}\n", &name])?;
    Some((name, version.lines().next()?.to_owned()))
}

fn debian(name: &str, version: &str) -> Value {
    // A plus and a tilde have special meanings in a purl.
    let address = format!("pkg:deb/debian/{name}@{}", version.replace('+', "%2B").replace('~', "%7E"));
    json!({"type": "library", "bom-ref": address, "name": name, "version": version, "purl": address})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bill_lists_what_is_linked_and_nothing_else() {
        let bill: Value = serde_json::from_str(&of_binary(Some("4c0ffee"), &[]).unwrap()).unwrap();
        let components = bill["components"].as_array().unwrap();
        let names: BTreeSet<_> = components.iter().map(|one| one["name"].as_str().unwrap()).collect();
        for linked in
            ["tokio", "async-nats", "sqlx-postgres", "ring", "tikv-jemallocator", "worker", "gateway"]
        {
            assert!(names.contains(linked), "{linked} is missing");
        }
        for other in ["proptest", "bench", "e2e", "simulation", "serde_derive", "prost-build", "antiphon"] {
            assert!(!names.contains(other), "{other} is not in the binary");
        }
        for one in components.iter().filter(|one| one["purl"].is_string()) {
            let hash = one["hashes"][0]["content"].as_str().unwrap_or_default();
            assert!(hash.len() == 64 && one["licenses"][0]["expression"].is_string(), "{one}");
        }
        let known = components.iter().chain([&bill["metadata"]["component"]]);
        let known: BTreeSet<_> = known.map(|one| one["bom-ref"].as_str().unwrap()).collect();
        for edge in bill["dependencies"].as_array().unwrap() {
            let uses = edge["dependsOn"].as_array().unwrap();
            let ends = uses.iter().chain([&edge["ref"]]).map(|end| end.as_str().unwrap());
            assert!(ends.into_iter().all(|end| known.contains(end)), "{edge}");
        }
        assert_eq!(bill["metadata"]["component"]["properties"][0]["value"], "4c0ffee");
        assert_eq!(bill["dependencies"].as_array().unwrap().len(), components.len() + 1);
    }

    #[test]
    fn packages_and_checksums_are_read() {
        let tree = "antiphon v0.1.0 (/src/crates/antiphon)\ntokio v1.48.0\ntokio v1.48.0 (*)\n";
        let package = |name: &str, version: &str| (name.to_owned(), version.to_owned());
        assert_eq!(
            linked(tree).into_iter().collect::<Vec<_>>(),
            [package("antiphon", "0.1.0"), package("tokio", "1.48.0")]
        );
        let lock = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nchecksum = \"ab\"\n\n\
                    [[package]]\nname = \"b\"\nversion = \"2.0.0\"\ndependencies = [\n \"a\",\n]\n";
        let known = checksums(lock);
        assert_eq!(known.get(&package("a", "1.0.0")).map(String::as_str), Some("ab"));
        assert_eq!(known.len(), 1);
    }
}
