//! Rules on Rust files: forbidden names in pure crates, file length, and unfinished code.

use super::{RuleViolation, SourceFile, layering::PURE};

const LONGEST: usize = 600;
const LONGEST_TEST: usize = 1000;

/// Paths that a pure crate's source may not name, and what to do instead.
const IMPURE_PATHS: &[(&str, &str)] = &[
    ("std::time::Instant", "take the time as an argument (model's Timestamp)"),
    ("std::time::SystemTime", "take the time as an argument (model's Timestamp)"),
    ("std::thread", "return a value; an edge crate decides where it runs"),
    ("std::env", "take the setting as an argument; the binary reads the environment"),
    ("std::fs", "take the text as an argument; an edge crate reads files"),
    ("std::net", "return a value; an edge crate talks to the network"),
];

/// Split in two parts, so that this file passes its own check.
const UNFINISHED: &[(&str, &str)] = &[
    (concat!("TO", "DO"), "do it, or open an issue and leave the code complete without it"),
    (concat!("FIX", "ME"), "fix it, or open an issue and leave the code complete without it"),
    (concat!("unimple", "mented!"), "return an error that says what is not supported"),
    (concat!("to", "do!("), "write it, or leave the function out"),
    (concat!("db", "g!("), "remove it, or use a tracing span in an edge crate"),
];

pub(super) fn check(file: &SourceFile) -> Vec<RuleViolation> {
    if !file.has_extension(&["rs"]) {
        return Vec::new();
    }
    let mut found = whole_file(file);
    found.extend(unfinished(file));
    found.extend(impure(file));
    found
}

fn whole_file(file: &SourceFile) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    if file.path.ends_with("/mod.rs") {
        let instead = "name the file after the module: `foo.rs` beside the folder `foo/`";
        found.push(file.violation(1, "mod-rs", instead));
    }
    if file.path.ends_with("/src/lib.rs") && !file.text.starts_with("//!") {
        let instead = "begin with `//!`: what the crate is for, its entry type, its invariants";
        found.push(file.violation(1, "crate-doc", instead));
    }
    let generated = file.text.lines().take(5).any(|line| line.contains("@generated"));
    let longest = if file.is_test() { LONGEST_TEST } else { LONGEST };
    let lines = file.text.lines().count();
    if lines > longest && !generated {
        let instead = format!("{lines} lines, at most {longest}: split it by what changes together");
        found.push(file.violation(longest + 1, "file-length", instead));
    }
    found
}

fn unfinished(file: &SourceFile) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let hit = UNFINISHED.iter().find(|(word, _)| names_word(line, word));
        found.extend(hit.map(|(_, instead)| file.violation(index + 1, "unfinished", *instead)));
    }
    found
}

fn impure(file: &SourceFile) -> Vec<RuleViolation> {
    let in_src = |name: &str| file.path.starts_with(&format!("crates/{name}/src/"));
    if file.is_test() || !file.crate_name().is_some_and(|name| PURE.contains(&name) && in_src(name)) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (line, path) in std_paths(&file.text) {
        let hit = IMPURE_PATHS.iter().find(|(impure, _)| {
            path.strip_prefix(impure).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        });
        let instead = |(impure, instead): &(&str, &str)| format!("a pure crate has no `{impure}`: {instead}");
        found.extend(hit.map(|hit| file.violation(line, "purity", instead(hit))));
    }
    found
}

/// Every path that begins with `std::` outside comments and before the inline tests, with its line;
/// `use` groups are expanded.
fn std_paths(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut group: Option<(String, usize)> = None;
    for (index, line) in text.lines().enumerate() {
        if line.trim() == "#[cfg(test)]" {
            break;
        }
        let code = line.split("//").next().unwrap_or_default();
        // A group may span lines: its lines are joined until its braces close.
        let (joined, start) = match group.take() {
            Some((before, start)) => (before + code.trim(), start),
            None => (code.trim().to_owned(), index + 1),
        };
        let is_use = joined.trim_start_matches("pub ").starts_with("use std::");
        if is_use && !joined.contains(';') {
            group = Some((joined, start));
            continue;
        }
        if is_use {
            let tree = joined.trim_start_matches("pub ").trim_start_matches("use ").trim_end_matches(';');
            found.extend(expand(tree).into_iter().map(|path| (start, path)));
            continue;
        }
        for (at, _) in joined.match_indices("std::") {
            let path: String =
                joined[at..].chars().take_while(|c| c.is_alphanumeric() || "_:".contains(*c)).collect();
            found.push((start, path.trim_end_matches(':').to_owned()));
        }
    }
    found
}

/// Expands `std::{env, time::{Duration, Instant}}` to full paths.
pub(super) fn expand(tree: &str) -> Vec<String> {
    let tree = tree.trim();
    let Some((prefix, rest)) = tree.split_once('{') else {
        return vec![tree.split(" as ").next().unwrap_or_default().to_owned()];
    };
    let inner = rest.strip_suffix('}').unwrap_or(rest);
    let mut parts = vec![String::new()];
    let mut depth = 0_i32;
    for character in inner.chars() {
        depth += i32::from(character == '{') - i32::from(character == '}');
        match (character, depth) {
            (',', 0) => parts.push(String::new()),
            _ => parts.last_mut().into_iter().for_each(|part| part.push(character)),
        }
    }
    let full = parts.iter().filter(|part| !part.trim().is_empty());
    full.flat_map(|part| expand(&format!("{prefix}{}", part.trim()))).collect()
}

/// True if the line has the word by itself, not as part of a longer one.
fn names_word(line: &str, word: &str) -> bool {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        let ends_in_word = word.ends_with(part_of_word);
        let inside_longer =
            before.is_some_and(part_of_word) || (ends_in_word && after.is_some_and(part_of_word));
        !inside_longer
    })
}
