//! Refused words: private metaphors, and words for people where programs are meant. They are
//! searched in every name, file name, comment, string and document.

use super::{RuleViolation, SourceFile};

/// Word, and what to use instead.
pub(super) const WORDS: &[(&str, &str)] = &[
    ("desk", "context, or the name of what it holds"),
    ("vigil", "revocation"),
    ("lane", "queue, or turn slot"),
    ("seat", "subscriber, permit"),
    ("seated", "subscribed"),
    ("town", "fixture"),
    ("bed", "fixture"),
    ("ground", "environment"),
    ("patience", "timeout, after what times out"),
    ("errand", "background task"),
    ("errands", "background tasks"),
    ("he", "the caller, the client, the worker"),
    ("his", "its"),
    ("him", "it"),
    ("whoever", "the caller, each client that"),
    ("somebody", "a client, a worker, a person"),
    ("nobody", "no client, no worker"),
];

/// Words that are refused only in names of functions and values, which should name the returned,
/// reported or encoded value.
pub(super) const NAMES: &[(&str, &str)] =
    &[("told", "the name of the value"), ("tell", "return, report or encode")];

/// Files that list the words.
const EXEMPT: &[&str] = &["xtask/src/tidy/words.rs", "xtask/src/tidy/words/tests.rs"];

pub(super) fn check(file: &SourceFile) -> Vec<RuleViolation> {
    let is_text = file.has_extension(&["rs", "md", "sql", "proto", "toml", "sh", "yaml", "yml"]);
    if !is_text || EXEMPT.contains(&file.path.as_str()) {
        return Vec::new();
    }
    let mut found = Vec::new();
    let lines = file.text.lines().enumerate().map(|(index, line)| (index + 1, line));
    for (number, line) in std::iter::once((1, file.path.as_str())).chain(lines) {
        let words = split(line);
        let hits = WORDS.iter().filter(|(word, _)| words.iter().any(|found| found == word));
        let named = declared(line).map(split).unwrap_or_default();
        let hits = hits.chain(NAMES.iter().filter(|(word, _)| named.iter().any(|found| found == word)));
        for (word, instead) in hits {
            found.push(file.violation(number, "words", format!("`{word}`: {instead}")));
        }
    }
    found
}

/// The name of the function or value that a line declares.
fn declared(line: &str) -> Option<&str> {
    let rest = ["fn ", "let mut ", "let "].iter().find_map(|keyword| {
        let at = line.find(keyword)?;
        let is_word = line[..at].chars().next_back().is_none_or(|before| !before.is_alphanumeric());
        is_word.then(|| &line[at + keyword.len()..])
    })?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    Some(&rest[..end])
}

/// The words of a line, in lower case; `CamelCase`, `snake_case` and `SHOUTING_CASE` are split.
fn split(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for run in line.split(|c: char| !c.is_alphabetic()).filter(|run| !run.is_empty()) {
        let is_shouted = run.chars().all(char::is_uppercase);
        let mut word = String::new();
        for character in run.chars() {
            if character.is_uppercase() && !is_shouted && !word.is_empty() {
                words.push(std::mem::take(&mut word));
            }
            word.extend(character.to_lowercase());
        }
        words.push(word);
    }
    words
}

/// The longest name of a test.
const LONGEST_TEST_NAME: usize = 60;

pub(super) fn test_names(file: &SourceFile) -> Vec<RuleViolation> {
    if !file.has_extension(&["rs"]) {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut is_test = false;
    for (index, line) in file.text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with("#[") {
            is_test |= line == "#[test]" || line.starts_with("#[tokio::test");
            continue;
        }
        let name = declared(line).filter(|_| is_test && line.contains("fn ")).unwrap_or_default();
        if name.len() > LONGEST_TEST_NAME {
            let instead =
                format!("{} characters, at most {LONGEST_TEST_NAME}: `subject_condition_result`", name.len());
            found.push(file.violation(index + 1, "test-name", instead));
        }
        is_test = false;
    }
    found
}

#[cfg(test)]
mod tests;
