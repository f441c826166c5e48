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

/// Maximum columns of a comment line.
const WIDTH: usize = 100;
/// Minimum number of words of a doc comment.
const FEWEST_WORDS: usize = 3;
/// Maximum number of words of a sentence in a document.
pub(crate) const LONGEST_SENTENCE: usize = 30;
/// The characters that end a sentence, or a part of it that can be read alone.
const ENDS: [char; 5] = ['.', '?', '!', ':', ';'];

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

/// The marker and the text of a line that is a comment.
fn comment<'a>(line: &'a str, marks: &[&'static str]) -> Option<(&'static str, &'a str)> {
    let line = line.trim_start();
    marks.iter().find_map(|mark| Some((*mark, line.strip_prefix(mark)?.trim())))
}

fn comments(file: &SourceFile, marks: &[&'static str]) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    let mut is_fenced = false;
    for (index, line) in file.text.lines().enumerate() {
        let number = index + 1;
        let Some((_, text)) = comment(line, marks) else { continue };
        is_fenced ^= text.starts_with("```");
        found.extend(phrases(text).map(|instead| file.violation(number, "phrase", instead)));
        // Tables, samples and links may be as wide as they need.
        let is_aligned = text.contains("   ");
        let is_wide = line.chars().count() > WIDTH && text.contains(' ') && !is_aligned;
        if is_wide && !is_fenced && !text.starts_with(['|', '[', '`']) && !text.contains("://") {
            found.push(file.violation(
                number,
                "comment-width",
                format!("wrap the comment at {WIDTH} columns"),
            ));
        }
    }
    let instead = "a doc comment of one or two words: say what the name does not, or leave it out";
    let short = short_docs(&file.text).into_iter();
    found.extend(short.map(|number| file.violation(number, "short-doc", instead)));
    found
}

/// The lines of doc comments that add nothing to the name.
pub(crate) fn short_docs(text: &str) -> Vec<usize> {
    let (mut found, mut doc) = (Vec::new(), Vec::new());
    for (index, line) in text.lines().chain([""]).enumerate() {
        if let Some(text) = line.trim_start().strip_prefix("///") {
            doc.push(text);
            continue;
        }
        let words: usize = doc.iter().map(|text| text.split_whitespace().count()).sum();
        // A link or a code span counts as new information.
        let is_reference = doc.iter().any(|text| text.contains(['`', '[']));
        if !doc.is_empty() && words < FEWEST_WORDS && !is_reference {
            found.push(index);
        }
        doc.clear();
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
    for (number, line) in outside_of_samples(&file.text) {
        found.extend(phrases(line).map(|instead| file.violation(number, "phrase", instead)));
    }
    let long = sentences(&file.text).into_iter().filter(|sentence| sentence.words > LONGEST_SENTENCE);
    let instead = format!("a sentence of over {LONGEST_SENTENCE} words: make two of it");
    found.extend(long.map(|sentence| file.violation(sentence.line, "long-sentence", instead.as_str())));
    found.dedup();
    found
}

/// The lines of a document with their numbers, which begin at 1, without samples of code.
fn outside_of_samples(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_fenced = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        (!is_fenced && !is_fence).then_some((index + 1, line.trim()))
    })
}

/// A sentence of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sentence {
    /// The line in which the sentence begins, from 1.
    pub(crate) line: usize,
    pub(crate) words: usize,
}

/// The sentences of a document. List items, headings and table cells are separate sentences. A code
/// sample ends the sentence before it.
pub(crate) fn sentences(text: &str) -> Vec<Sentence> {
    let mut found: Vec<Sentence> = Vec::new();
    let mut open: Option<Sentence> = None;
    let mut last = 0;
    for (number, text) in outside_of_samples(text) {
        let is_table = text.starts_with('|');
        let is_item = ["* ", "- ", "#", ">"].iter().any(|mark| text.starts_with(mark))
            || text.split_once(". ").is_some_and(|(number, _)| number.parse::<u32>().is_ok());
        if text.is_empty() || is_table || is_item || number != last + 1 {
            found.extend(open.take());
        }
        last = number;
        for cell in if is_table { text.split('|').collect() } else { vec![text] } {
            for part in cell.split_inclusive(ENDS) {
                let sentence = open.get_or_insert(Sentence { line: number, words: 0 });
                sentence.words += words(part).len();
                if part.ends_with(ENDS) {
                    found.extend(open.take());
                }
            }
            if is_table {
                found.extend(open.take());
            }
        }
    }
    found.extend(open);
    found.retain(|sentence| sentence.words > 0);
    found
}
