//! Rules on all text files: white space, ends of files, numbers of migrations.

use super::{RuleViolation, SourceFile};

/// Extensions of files that we write.
const WRITTEN: &[&str] = &["rs", "toml", "md", "sql", "proto", "yaml", "yml", "json", "sh"];

pub(super) fn check(file: &SourceFile) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    if !file.text.is_empty() && !file.text.ends_with('\n') {
        found.push(file.violation(file.text.lines().count(), "final-newline", "end the file with a newline"));
    }
    if file.has_extension(WRITTEN) {
        found.extend(white_space(file));
    }
    found.extend(migration(file));
    found
}

fn white_space(file: &SourceFile) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        if line.contains('\t') {
            found.push(file.violation(index + 1, "tab", "indent with spaces"));
        }
        if line.ends_with([' ', '\t', '\r']) {
            found.push(file.violation(index + 1, "trailing-space", "remove the white space at the end"));
        }
    }
    found
}

fn migration(file: &SourceFile) -> Option<RuleViolation> {
    let name = file.path.strip_prefix("migrations/").filter(|name| name.ends_with(".sql"))?;
    let (number, rest) = name.split_once('_').unwrap_or((name, ""));
    let numbered =
        number.len() >= 4 && number.chars().all(|c| c.is_ascii_digit()) && rest.len() > ".sql".len();
    (!numbered)
        .then(|| file.violation(1, "migration-name", "name it `<4 digits or more>_<what it does>.sql`"))
}
