//! Checks that links of the documents lead to existing files and headings, and that the lists of
//! the book's pages are complete.

use std::collections::{BTreeMap, BTreeSet};

use super::{RuleViolation, SourceFile};

/// Where the book's pages are, and the files that list all of them.
const BOOK: &str = "deploy/docs/src/";
const LISTS: [&str; 2] = ["SUMMARY.md", "llms.txt"];

pub(super) fn check(files: &[SourceFile]) -> Vec<RuleViolation> {
    let by_path: BTreeMap<&str, &SourceFile> = files.iter().map(|file| (file.path.as_str(), file)).collect();
    let folders: BTreeSet<&str> = files
        .iter()
        .flat_map(|file| file.path.match_indices('/').map(|(end, _)| &file.path[..end]))
        .collect();
    let mut found = Vec::new();
    for file in files.iter().filter(|file| file.has_extension(&["md"]) || file.path.ends_with("/llms.txt")) {
        for (line, link) in links(&file.text) {
            let (path, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { file.path.clone() } else { resolved(&file.path, path) };
            let is_there = by_path.contains_key(target.as_str()) || folders.contains(target.as_str());
            if !is_there {
                found.push(file.violation(line, "link", format!("there is no `{target}`")));
                continue;
            }
            let lacks = |document: &&SourceFile| !headings(&document.text).contains(heading);
            if !heading.is_empty() && by_path.get(target.as_str()).is_some_and(lacks) {
                found.push(file.violation(line, "link", format!("`{target}` has no heading `#{heading}`")));
            }
        }
    }
    found.extend(unlisted(files));
    found
}

/// Pages of the book that are missing in a list of its pages.
fn unlisted(files: &[SourceFile]) -> Vec<RuleViolation> {
    let page = |file: &SourceFile| {
        let name = file.path.strip_prefix(BOOK).filter(|name| name.ends_with(".md") && *name != LISTS[0])?;
        Some(name.to_owned())
    };
    let mut found = Vec::new();
    for list in files.iter().filter(|file| LISTS.iter().any(|list| file.path == format!("{BOOK}{list}"))) {
        let listed: BTreeSet<&str> = links(&list.text).into_iter().map(|(_, link)| link).collect();
        let missing = files.iter().filter_map(page).filter(|page| !listed.contains(page.as_str()));
        found.extend(missing.map(|page| list.violation(1, "unlisted-page", format!("list the page {page}"))));
    }
    found
}

/// Relative links with their line number, from 1.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (index, line) in outside_of_code(text) {
        for rest in line.split("](").skip(1) {
            let link = rest.split([')', ' ']).next().unwrap_or_default();
            if !link.contains("://") && !link.starts_with("mailto:") && !link.is_empty() {
                found.push((index + 1, link));
            }
        }
    }
    found
}

/// The anchors of headings as repository pages make them: lower case, only letters and digits, and
/// hyphens in place of spaces.
fn headings(text: &str) -> BTreeSet<String> {
    let titles = outside_of_code(text).filter_map(|(_, line)| {
        line.trim_start_matches('#').strip_prefix(' ').filter(|_| line.starts_with('#'))
    });
    titles
        .map(|title| {
            let kept = title.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect::<String>().to_lowercase()
        })
        .collect()
}

fn outside_of_code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    text.lines().enumerate().filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

/// The path of a file's link, from the root.
fn resolved(from: &str, link: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => _ = parts.pop(),
            part => parts.push(part),
        }
    }
    parts.join("/")
}
