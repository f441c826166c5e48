//! Rules on comments and documents: phrases that are refused, the width of comments, doc comments
//! that add nothing to the name, and the length of sentences in documents.

use super::{RuleViolation, SourceFile};

/// Phrases that native engineers would not write, and what to write instead.
pub(super) const PHRASES: &[(&str, &str)] = &[
    ("so many", "the number, or `at most N`"),
    ("so much", "the number, or `at most N`"),
    ("so long", "the time, or `for the duration of`"),
    ("so often", "the interval, or the count"),
    ("anew", "again"),
    ("as may", "at most the limit"),
    ("likewise", "also, or nothing"),
];

/// Columns of a line that is a comment.
const WIDTH: usize = 100;
/// Words of a doc comment, at least.
const FEWEST_WORDS: usize = 3;
/// Words of a sentence in a document, at most.
const LONGEST_SENTENCE: usize = 30;

/// Files that list the phrases.
const EXEMPT: &[&str] = &["xtask/src/tidy/prose.rs", "xtask/src/tidy/tests.rs"];

pub(super) fn check(file: &SourceFile) -> Vec<RuleViolation> {
    if EXEMPT.contains(&file.path.as_str()) || file.path.starts_with("migrations/") {
        return Vec::new();
    }
    if file.has_extension(&["md"]) {
        return document(file);
    }
    let marks: &[&str] = match () {
        () if file.has_extension(&["rs"]) => &["///", "//!", "//"],
        () if file.has_extension(&["sql"]) => &["--"],
        () => return Vec::new(),
    };
    comments(file, marks)
}

/// The mark and the text of a line that is a comment.
fn comment<'a>(line: &'a str, marks: &[&'static str]) -> Option<(&'static str, &'a str)> {
    let line = line.trim_start();
    marks.iter().find_map(|mark| Some((*mark, line.strip_prefix(mark)?.trim())))
}

fn comments(file: &SourceFile, marks: &[&'static str]) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    let lines: Vec<&str> = file.text.lines().collect();
    let mut is_fenced = false;
    let mut doc: Vec<&str> = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        let number = index + 1;
        let Some((mark, text)) = comment(line, marks) else {
            doc.clear();
            continue;
        };
        is_fenced ^= text.starts_with("```");
        found.extend(phrases(text).map(|instead| file.violation(number, "phrase", instead)));
        // Tables, samples and links have the width that they need.
        let is_aligned = text.contains("   ");
        let is_wide = line.chars().count() > WIDTH && text.contains(' ') && !is_aligned;
        if is_wide && !is_fenced && !text.starts_with(['|', '[', '`']) && !text.contains("://") {
            found.push(file.violation(
                number,
                "comment-width",
                format!("wrap the comment at {WIDTH} columns"),
            ));
        }
        if mark != "///" {
            continue;
        }
        doc.push(text);
        let is_last =
            lines.get(index + 1).and_then(|next| comment(next, marks)).is_none_or(|(mark, _)| mark != "///");
        let words: usize = doc.iter().map(|text| text.split_whitespace().count()).sum();
        // A link or a code span names a thing.
        let is_reference = doc.iter().any(|text| text.contains(['`', '[']));
        if is_last && words < FEWEST_WORDS && !is_reference {
            let instead = "a doc comment of one or two words: say what the name does not, or leave it out";
            found.push(file.violation(number, "short-doc", instead));
        }
    }
    found
}

fn phrases(text: &str) -> impl Iterator<Item = String> {
    let text = format!(" {} ", words(text).join(" "));
    let refused = PHRASES.iter().filter(move |(phrase, _)| text.contains(&format!(" {phrase} ")));
    refused.map(|(phrase, instead)| format!("`{phrase}`: {instead}"))
}

/// The words of a text in lower case, without the parts between backticks.
fn words(text: &str) -> Vec<String> {
    let outside: Vec<&str> = text.split('`').step_by(2).collect();
    let outside = outside.join(" ` ");
    outside
        .split(|c: char| !(c.is_alphanumeric() || c == '\'' || c == '`'))
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect()
}

fn document(file: &SourceFile) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    let (mut is_fenced, mut sentence, mut begins) = (false, 0, 1);
    for (index, line) in file.text.lines().enumerate() {
        let (number, text) = (index + 1, line.trim());
        if text.starts_with("```") {
            is_fenced = !is_fenced;
            sentence = 0;
            continue;
        }
        if is_fenced {
            continue;
        }
        found.extend(phrases(text).map(|instead| file.violation(number, "phrase", instead)));
        // Cells of a table are sentences of their own.
        let is_table = text.starts_with('|');
        let is_item = ["* ", "- ", "#", ">"].iter().any(|mark| text.starts_with(mark))
            || text.split_once(". ").is_some_and(|(number, _)| number.parse::<u32>().is_ok());
        if text.is_empty() || is_table || is_item {
            sentence = 0;
        }
        let mut parts: Vec<&str> = Vec::new();
        for cell in if is_table { text.split('|').collect() } else { vec![text] } {
            parts.extend(cell.split_inclusive(['.', '?', '!', ':', ';']));
            if is_table {
                parts.push("|");
            }
        }
        for part in parts {
            if sentence == 0 {
                begins = number;
            }
            sentence += words(part).len();
            if sentence > LONGEST_SENTENCE {
                let instead = format!("a sentence of over {LONGEST_SENTENCE} words: make two of it");
                found.push(file.violation(begins, "long-sentence", instead));
                sentence = 0;
            }
            if part == "|" || part.ends_with(['.', '?', '!', ':', ';']) {
                sentence = 0;
            }
        }
        if is_table {
            sentence = 0;
        }
    }
    found.dedup();
    found
}
