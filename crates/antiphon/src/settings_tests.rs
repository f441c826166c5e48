//! Each variable of a role is explained in a page, has a place in the deployment, and a test of the
//! fleet sees its effect. A variable that lacks one of the three is removed, or gets it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::reference_tests::variables;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// These are generated from the options: a name in them explains nothing.
const GENERATED: [&str; 2] = ["deploy/REFERENCE.md", "deploy/chart/antiphon/files/variables.txt"];
/// Folders whose sources start processes of a fleet and look at what they do.
const FLEET_TESTS: [&str; 3] = ["crates/e2e/tests", "crates/chaos/src", "crates/testkit/src/fleet"];
/// Tests here set variables only to check the text of an error or a manifest.
const NO_EFFECT: [&str; 4] = [
    "crates/e2e/tests/inputs.rs",
    "crates/e2e/tests/deployment/chart.rs",
    "crates/e2e/tests/deployment/clusters",
    "crates/e2e/tests/deployment/configuration.rs",
];
/// Variables without a test of the fleet, and why.
const UNTESTED: [(&str, &str); 1] =
    [("OTEL_EXPORTER_OTLP_PROTOCOL", "it has one value; that others are refused is a test of inputs")];

/// The files below a folder with one of these extensions (all when empty), by their path from the
/// root.
fn files(folder: &str, extensions: &[&str]) -> BTreeMap<String, String> {
    fn walk(path: &Path, found: &mut Vec<PathBuf>) {
        let is_foreign = path.file_name().is_some_and(|name| name == "target" || name == "node_modules");
        match fs::read_dir(path) {
            Ok(entries) if !is_foreign => entries.for_each(|entry| walk(&entry.unwrap().path(), found)),
            Ok(_) => {}
            Err(_) => found.push(path.to_owned()),
        }
    }
    let mut found = Vec::new();
    walk(&Path::new(ROOT).join(folder), &mut found);
    let is_read = |path: &PathBuf| {
        let extension = path.extension().unwrap_or_default();
        extensions.is_empty() || extensions.iter().any(|wanted| extension == *wanted)
    };
    let name = |path: &Path| path.strip_prefix(ROOT).unwrap().to_string_lossy().into_owned();
    let read = found.iter().filter(|path| is_read(path));
    read.filter_map(|path| Some((name(path), fs::read_to_string(path).ok()?))).collect()
}

/// Whether the text has the name as a whole word.
fn names(text: &str, name: &str) -> bool {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    text.match_indices(name).any(|(at, _)| {
        let after = &text[at + name.len()..];
        !text[..at].ends_with(is_word) && !after.starts_with(is_word)
    })
}

/// Prose: a sample shows a name without explaining it.
fn outside_of_samples(text: &str) -> String {
    text.split("```").step_by(2).collect()
}

/// Whether a test gives the variable, or its flag, another value than its default.
fn sets(text: &str, name: &str, default: &str) -> bool {
    let quoted = format!("\"{name}\"");
    text.match_indices(&quoted).any(|(at, _)| {
        let rest = &text[at + quoted.len()..];
        let rest = rest.strip_prefix(".to_owned()").unwrap_or(rest);
        let Some(value) = rest.trim_start().strip_prefix(',').map(str::trim_start) else { return false };
        let value = match value.strip_prefix('"') {
            Some(literal) => literal.split('"').next().unwrap_or_default().to_owned(),
            None => value.split([',', ')', ']']).next().unwrap_or_default().replace('_', ""),
        };
        value != default
    })
}

#[test]
fn each_variable_is_explained_deployed_and_tested() {
    let mut pages = files("deploy", &["md"]);
    pages.extend(files("crates", &["md"]));
    pages.extend(files("README.md", &["md"]));
    pages.retain(|path, _| !GENERATED.contains(&path.as_str()));
    let mut deployed = files("deploy", &[]);
    deployed.retain(|path, _| !GENERATED.contains(&path.as_str()));
    let mut tests: BTreeMap<String, String> =
        FLEET_TESTS.iter().flat_map(|folder| files(folder, &["rs"])).collect();
    tests.extend(files("crates/testkit/src/fleet.rs", &["rs"]));
    tests.retain(|path, _| !NO_EFFECT.iter().any(|without| path.starts_with(without)));

    let mut missing = Vec::new();
    for variable in variables() {
        let flag = variable.flag.as_ref().map(|flag| format!("--{flag}"));
        let is_explained = pages.values().any(|page| {
            let prose = outside_of_samples(page);
            names(&prose, &variable.name) || flag.as_ref().is_some_and(|flag| names(&prose, flag))
        });
        let is_deployed = deployed.values().any(|text| names(text, &variable.name));
        let default = variable.default.split('`').nth(1).unwrap_or_default();
        let is_set = tests.values().any(|text| {
            sets(text, &variable.name, default) || flag.as_ref().is_some_and(|flag| sets(text, flag, default))
        });
        let is_excused = UNTESTED.iter().any(|(name, _)| *name == variable.name);
        assert!(!(is_set && is_excused), "{} has a test: remove it from the list", variable.name);
        for (is_there, what) in [
            (is_explained, "a page that says when to set it, such as deploy/docs/src/operate/settings.md"),
            (is_deployed, "a place in the chart, the compose file or a guide of deploy/"),
            (is_set || is_excused, "a test of the fleet that sets it and sees its effect"),
        ] {
            if !is_there {
                missing.push(format!("{} lacks {what}", variable.name));
            }
        }
    }
    missing.dedup();
    assert!(missing.is_empty(), "remove these options, or give them what they lack:\n{}", missing.join("\n"));
}

#[test]
fn a_test_sets_a_variable_to_another_value_than_its_default() {
    for (text, is_set) in [
        (".with_env(\"LIMIT\", 1_000)", false),
        (".with_env(\"LIMIT\", 10)", true),
        (".with_env(\"LIMIT\", \"1000,10\")", true),
        ("(\"LIMIT\", \"1000\"),", false),
        ("(\"LIMIT\", \"999\"),", true),
        ("(\"LIMIT\".to_owned(), limit)", true),
        (".env_remove(\"LIMIT\")", false),
        ("// \"LIMITS\", 10", false),
    ] {
        assert_eq!(sets(text, "LIMIT", "1000"), is_set, "{text}");
    }
    assert!(names("`LIMIT`", "LIMIT") && !names("A_LIMIT LIMIT_S", "LIMIT"));
}
