//! The glossary: words that are not used for types, modules and files, and ambiguous names that
//! several types have.

use std::collections::BTreeMap;

use super::{RuleViolation, SourceFile};

/// Word, and what to use instead.
const UNUSED: &[(&str, &str)] = &[
    ("job", "task (work of an agent) or turn"),
    ("jobs", "tasks or turns"),
    ("conversation", "thread"),
    ("chat", "thread or turn"),
    ("manager", "the verb of what it does (committer, reader, …)"),
    ("helper", "the name of what it helps with, or a function beside its only user"),
    ("helpers", "the names of what they help with"),
    ("util", "the name of what is inside"),
    ("utils", "the name of what is inside"),
    ("common", "the name of what is inside"),
];
/// Words that must not be a whole name; `run` as a function or as part of a name is allowed.
const UNUSED_WHOLE: &[(&str, &str)] = &[("Run", "turn, attempt or task")];

/// The number of types that must not have the same name.
const TOO_MANY: usize = 3;

const KEYWORDS: &[&str] = &["struct ", "enum ", "trait ", "union ", "type ", "mod "];

pub(super) fn check(file: &SourceFile) -> Vec<RuleViolation> {
    if !file.has_extension(&["rs", "sql", "proto"]) {
        return Vec::new();
    }
    let stem = file.path.rsplit('/').next().and_then(|name| name.split('.').next()).unwrap_or_default();
    let mut found: Vec<RuleViolation> =
        objection(stem).into_iter().map(|instead| file.violation(1, "names", instead)).collect();
    if !file.has_extension(&["rs"]) {
        return found;
    }
    for (index, line) in file.text.lines().enumerate() {
        let instead = declared(line).and_then(objection);
        found.extend(instead.map(|instead| file.violation(index + 1, "names", instead)));
    }
    found
}

/// Names that [`TOO_MANY`] or more types of the workspace have.
pub(super) fn shared(files: &[SourceFile]) -> Vec<RuleViolation> {
    let mut places: BTreeMap<&str, Vec<(&SourceFile, usize)>> = BTreeMap::new();
    // Types of `crates/bench/peers` do not count, because it is a separate workspace.
    let is_source = |path: &str| path.starts_with("xtask/src/") || path.split('/').nth(2) == Some("src");
    for file in files.iter().filter(|file| file.has_extension(&["rs"]) && is_source(&file.path)) {
        for (index, line) in file.text.lines().enumerate() {
            // The name of an associated type is fixed by its trait.
            let is_associated = line.starts_with(' ') && line.trim_start().starts_with("type ");
            let is_module = line.split_whitespace().any(|word| word == "mod");
            if let Some(name) = declared(line).filter(|_| !is_associated && !is_module) {
                places.entry(name).or_default().push((file, index + 1));
            }
        }
    }
    let mut found = Vec::new();
    for (name, places) in places.into_iter().filter(|(_, places)| places.len() >= TOO_MANY) {
        let instead = format!("{} types are called `{name}`: name each for what it is", places.len());
        found.extend(
            places.into_iter().map(|(file, line)| file.violation(line, "shared-name", instead.as_str())),
        );
    }
    found
}

/// The name that a line declares as a type or module.
fn declared(line: &str) -> Option<&str> {
    let mut line = line.trim_start();
    if let Some(rest) = line.strip_prefix("pub") {
        line = rest.strip_prefix('(').and_then(|rest| rest.split_once(')')).map_or(rest, |(_, rest)| rest);
        line = line.trim_start();
    }
    let rest = KEYWORDS.iter().find_map(|keyword| line.strip_prefix(keyword))?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    (end > 0).then(|| &rest[..end])
}

fn objection(name: &str) -> Option<String> {
    let whole = UNUSED_WHOLE.iter().find(|(word, _)| *word == name);
    let part = || words(name).into_iter().find_map(|part| UNUSED.iter().find(|(word, _)| *word == part));
    let (word, instead) = whole.or_else(part)?;
    Some(format!("`{name}`: the glossary does not use `{word}`; use {instead}"))
}

/// `CamelCase` and `snake_case` names as lower-case words.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for character in name.chars() {
        let starts_new = character == '_' || character.is_uppercase();
        if starts_new && words.last().is_some_and(|word| !word.is_empty()) {
            words.push(String::new());
        }
        if character != '_' {
            words.last_mut().into_iter().for_each(|word| word.extend(character.to_lowercase()));
        }
    }
    words
}
