//! Which crate may use which: the table in crates/ARCHITECTURE.md, checked against every
//! `Cargo.toml`.

use super::{RuleViolation, SourceFile};

/// Pure crates: no I/O, no clock, no random source, no logging.
pub(super) const PURE: &[&str] = &[
    "model",
    "wire",
    "reorder",
    "batches",
    "scheduling",
    "partition",
    "protocols",
    "feed",
    "auth",
    "reasoning",
    "recall",
];
/// Development only: these may use anything.
const DEV: &[&str] = &["bench", "chaos", "demo", "devservices", "e2e", "simulation", "testkit"];

/// Each crate with our crates that it may use. The binary `antiphon` may use all except the
/// development ones.
const MAY_USE: &[(&str, &[&str])] = &[
    ("model", &[]),
    ("wire", &["model"]),
    ("reorder", &["model"]),
    ("batches", &["model"]),
    ("reasoning", &["model"]),
    ("recall", &[]),
    ("tokenizer", &["batches"]),
    ("embeddings", &["runtime"]),
    ("scheduling", &["model"]),
    ("partition", &["model", "reorder", "batches", "scheduling"]),
    ("protocols", &["model"]),
    ("feed", &["model", "wire", "protocols"]),
    ("auth", &["model"]),
    ("store", &["model", "auth", "batches", "reasoning", "recall", "scheduling", "partition", "runtime"]),
    ("bus", &["model", "wire", "runtime"]),
    ("erasing", &["model", "wire", "store", "bus"]),
    ("transfer", &["model", "batches", "store", "runtime"]),
    ("runtime", &[]),
    (
        "worker",
        &[
            "model",
            "wire",
            "reorder",
            "batches",
            "scheduling",
            "partition",
            "protocols",
            "store",
            "tokenizer",
            "embeddings",
            "bus",
            "erasing",
            "runtime",
        ],
    ),
    ("http-server", &["model", "auth", "protocols", "store", "runtime"]),
    (
        "gateway",
        &[
            "model",
            "wire",
            "reorder",
            "batches",
            "scheduling",
            "protocols",
            "reasoning",
            "feed",
            "auth",
            "store",
            "tokenizer",
            "embeddings",
            "bus",
            "http-server",
            "transfer",
            "runtime",
        ],
    ),
    ("mcp", &["model", "auth", "batches", "reasoning", "store", "embeddings", "http-server", "runtime"]),
    ("workflow", &["model", "wire", "bus", "runtime"]),
];

/// Foreign crates that a pure crate may not use.
const IMPURE: &[&str] = &[
    "tokio",
    "tokio-util",
    "async-nats",
    "sqlx",
    "rand",
    "tracing",
    "metrics",
    "axum",
    "hyper",
    "reqwest",
    "futures-util",
    "opentelemetry",
];

/// Foreign crates that only their owners use; other crates call an operation of an owner.
/// Development crates are exempt.
const OWNED: &[(&str, &[&str])] = &[
    ("sqlx", &["store"]),
    ("async-nats", &["bus"]),
    ("axum", &["http-server", "gateway", "runtime", "mcp", "workflow"]),
    ("rmcp", &["mcp", "workflow"]),
    ("jiff", &["scheduling"]),
    ("croner", &["scheduling"]),
    ("opentelemetry", &["runtime"]),
    ("opentelemetry-proto", &["runtime"]),
    ("opentelemetry_sdk", &["runtime"]),
];

pub(super) fn check(file: &SourceFile) -> Vec<RuleViolation> {
    let Some(name) = file.crate_name().filter(|name| file.path == format!("crates/{name}/Cargo.toml")) else {
        return Vec::new();
    };
    let known =
        name == "antiphon" || DEV.contains(&name) || MAY_USE.iter().any(|(crate_, _)| *crate_ == name);
    if !known {
        let instead = format!(
            "`{name}` is new: give it a row in crates/ARCHITECTURE.md and in `xtask/src/tidy/layering.rs`"
        );
        return vec![file.violation(1, "layering", instead)];
    }
    dependencies(&file.text)
        .into_iter()
        .filter_map(|(line, dependency)| {
            Some(file.violation(line, "layering", objection(name, &dependency)?))
        })
        .collect()
}

/// Dependencies that no file of their crate names: compiling them is useless and delays all crates
/// that depend on this one.
pub(super) fn unused(files: &[SourceFile]) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    for manifest in files {
        let Some(folder) = manifest.path.strip_suffix("Cargo.toml").filter(|folder| !folder.is_empty())
        else {
            continue;
        };
        let sources =
            || files.iter().filter(|file| file.path.starts_with(folder) && file.has_extension(&["rs"]));
        for (line, dependency) in
            dependencies(&manifest.text).into_iter().chain(dev_dependencies(&manifest.text))
        {
            let name = dependency.replace('-', "_");
            if sources().next().is_some() && !sources().any(|file| names(&file.text, &name)) {
                let instead = format!("nothing in `{folder}` names `{dependency}`: remove it");
                found.push(manifest.violation(line, "unused-dependency", instead));
            }
        }
    }
    found
}

/// True if the text has this word.
fn names(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word)
        .any(|(at, _)| !text[..at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part))
}

/// The reason why the crate may not use the dependency, and what to do instead.
fn objection(name: &str, dependency: &str) -> Option<String> {
    let ours = MAY_USE.iter().any(|(crate_, _)| *crate_ == dependency)
        || DEV.contains(&dependency)
        || dependency == "antiphon";
    if ours {
        return objection_to_ours(name, dependency);
    }
    let pure = PURE.contains(&name) || (name == "simulation" && dependency != "rand");
    if pure && IMPURE.contains(&dependency) {
        return Some(format!(
            "`{name}` only decides and may not use `{dependency}`: take time and randomness as arguments, \
             return decisions as values, and act in an edge crate"
        ));
    }
    let (_, owners) = OWNED.iter().find(|(owned, _)| *owned == dependency)?;
    (!DEV.contains(&name) && !owners.contains(&name)).then(|| {
        format!("`{dependency}` belongs to {}: add an operation there and call it", owners.join(" and "))
    })
}

fn objection_to_ours(name: &str, dependency: &str) -> Option<String> {
    if DEV.contains(&name) {
        return None;
    }
    if DEV.contains(&dependency) {
        return Some(format!("`{dependency}` is for development: move it to [dev-dependencies]"));
    }
    if name == "antiphon" {
        return None;
    }
    let allowed = MAY_USE.iter().find(|(crate_, _)| *crate_ == name).map_or(&[][..], |(_, allowed)| *allowed);
    (!allowed.contains(&dependency)).then(|| {
        let list = if allowed.is_empty() { "no crate of ours".to_owned() } else { allowed.join(", ") };
        format!("`{name}` may use {list}; move what needs `{dependency}` to a crate that may use both")
    })
}

/// The names in `[dependencies]`, `[dependencies.<name>]` and their `target` forms, with their
/// lines.
fn dependencies(manifest: &str) -> Vec<(usize, String)> {
    in_sections(manifest, "dependencies")
}

/// Like [`dependencies`], for those that only tests use.
fn dev_dependencies(manifest: &str) -> Vec<(usize, String)> {
    in_sections(manifest, "dev-dependencies")
}

fn in_sections(manifest: &str, kind: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut inside = false;
    for (index, line) in manifest.lines().enumerate() {
        let line = line.trim();
        if let Some(section) = line.strip_prefix('[') {
            let section = section.trim_end_matches(']');
            inside = section == kind
                || section.rsplit('.').next() == Some(kind) && !section.starts_with("workspace");
            let named = section.strip_prefix(kind).and_then(|rest| rest.strip_prefix('.'));
            found.extend(named.map(|name| (index + 1, name.to_owned())));
            continue;
        }
        let name: String =
            line.chars().take_while(|c| c.is_ascii_alphanumeric() || "-_".contains(*c)).collect();
        if inside && !name.is_empty() {
            found.push((index + 1, name));
        }
    }
    found
}
