//! Checks that paths of code in documents, and links in doc comments, lead to code that exists.
//!
//! rustdoc resolves links exactly, but it needs every dependency checked once more. These rules
//! read only our sources. They find the usual cause: an item or a file was renamed, moved or
//! removed.

use std::collections::{BTreeMap, BTreeSet};

use super::{RuleViolation, SourceFile};

/// First segments of paths that are not ours.
const FOREIGN: &[&str] = &["std", "core", "alloc"];
/// Names that need no import.
const PRELUDE: &[&str] = &[
    "bool", "char", "f64", "i16", "i32", "i64", "str", "u8", "u16", "u32", "u64", "u128", "usize", "Box",
    "Clone", "Copy", "Debug", "Default", "Drop", "Err", "Fn", "From", "Into", "Iterator", "None", "Ok",
    "Option", "Result", "Send", "Some", "String", "Sync", "Vec",
];

/// The sources of the workspace, by crate and by place in it.
struct Sources<'a> {
    /// Crates, by the name in paths of code.
    crates: BTreeMap<String, Vec<Module<'a>>>,
    /// Every word of every crate.
    words: BTreeSet<&'a str>,
}

/// A file of a crate.
struct Module<'a> {
    /// The module path of the file in its crate; empty for the root of a library, a program or a
    /// test.
    place: Vec<&'a str>,
    path: &'a str,
    words: BTreeSet<&'a str>,
}

impl<'a> Sources<'a> {
    fn read(files: &'a [SourceFile]) -> Self {
        let mut sources = Self { crates: BTreeMap::new(), words: BTreeSet::new() };
        for file in files.iter().filter(|file| file.has_extension(&["rs"])) {
            let Some((name, rest)) = crate_and_rest(&file.path) else { continue };
            let words = words_of_code(&file.text);
            sources.words.extend(&words);
            let module = Module { place: place(rest), path: &file.path, words };
            sources.crates.entry(name.replace('-', "_")).or_default().push(module);
        }
        sources
    }

    /// Whether a crate has the modules that a path names, and the items in one of them.
    fn has(&self, name: &str, path: &[&str]) -> bool {
        let Some(modules) = self.crates.get(name) else { return false };
        let deepest = |module: &&Module<'_>| {
            let below = path.iter().zip(&module.place).take_while(|(one, other)| one == other).count();
            (below == module.place.len()).then_some(below)
        };
        // The files of the longest module path that begins the path, and the files below it, whose
        // items it exports.
        let depth = modules.iter().filter_map(|module| deepest(&module)).max().unwrap_or(0);
        let items = &path[depth..];
        modules
            .iter()
            .filter(|module| module.place.len() >= depth && module.place[..depth] == path[..depth])
            .any(|module| items.iter().all(|item| module.words.contains(item)))
    }

    fn module(&self, path: &str) -> Option<&Module<'a>> {
        self.crates.values().flatten().find(|module| module.path == path)
    }
}

/// The name of the crate of a file, and the path in its folder of sources or tests.
fn crate_and_rest(path: &str) -> Option<(&str, &str)> {
    let (name, rest) = match path.strip_prefix("crates/") {
        Some(path) => path.split_once('/')?,
        None => ("xtask", path.strip_prefix("xtask/")?),
    };
    let rest = rest.strip_prefix("src/").or_else(|| rest.strip_prefix("tests/"))?;
    Some((name, rest))
}

fn place(path: &str) -> Vec<&str> {
    let path = path.strip_suffix(".rs").unwrap_or(path);
    let mut place: Vec<&str> = path.split('/').collect();
    if matches!(place.last(), Some(&("lib" | "main"))) {
        place.pop();
    }
    if place.first() == Some(&"main") {
        place.remove(0);
    }
    place
}

fn words_of_code(text: &str) -> BTreeSet<&str> {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    code.flat_map(|line| line.split(move |c| !is_word(c))).filter(|word| !word.is_empty()).collect()
}

pub(super) fn check(files: &[SourceFile]) -> Vec<RuleViolation> {
    let sources = Sources::read(files);
    let mut found = Vec::new();
    for file in files {
        if file.has_extension(&["md"]) {
            found.extend(document(file, &sources));
        } else if file.has_extension(&["rs"]) {
            found.extend(doc_links(file, &sources));
        }
    }
    found
}

fn document(file: &SourceFile, sources: &Sources<'_>) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    let mut is_fenced = false;
    let own = file.crate_name().unwrap_or_default().replace('-', "_");
    for (index, line) in file.text.lines().enumerate() {
        let is_fence = line.trim_start().starts_with("```");
        is_fenced ^= is_fence;
        if is_fenced || is_fence {
            continue;
        }
        for span in line.split('`').skip(1).step_by(2) {
            for path in paths(span) {
                if !exists(&path, &own, sources) {
                    let instead =
                        format!("there is no `{}`: name the code that does it now", path.join("::"));
                    found.push(file.violation(index + 1, "code-path", instead));
                }
            }
        }
    }
    found
}

/// The paths of code that a span names: one, or one for each name in braces.
fn paths(span: &str) -> Vec<Vec<&str>> {
    let (base, names) = match span.strip_suffix('}').and_then(|span| span.split_once("::{")) {
        Some((base, names)) => (base, names.split(',').map(str::trim).collect()),
        None => match span.trim_end_matches("()").rsplit_once("::") {
            Some((base, name)) => (base, vec![name]),
            None => return Vec::new(),
        },
    };
    let is_name = |name: &&str| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    let base: Vec<&str> = base.split("::").collect();
    match base.iter().all(is_name) && names.iter().all(is_name) {
        true => names.into_iter().map(|name| base.iter().copied().chain([name]).collect()).collect(),
        false => Vec::new(),
    }
}

/// Whether the path leads to code: in the crate that it names, in the crate of the document, or in
/// any crate.
fn exists(path: &[&str], own: &str, sources: &Sources<'_>) -> bool {
    let [first, rest @ ..] = path else { return true };
    let is_ours = sources.words.contains(first) || sources.crates.contains_key(*first);
    if FOREIGN.contains(first) || PRELUDE.contains(first) {
        return true;
    }
    let is_in = |name: &str, path: &[&str]| sources.has(name, path);
    is_ours && (is_in(first, rest) || is_in(own, path) || sources.crates.keys().any(|name| is_in(name, path)))
}

fn doc_links(file: &SourceFile, sources: &Sources<'_>) -> Vec<RuleViolation> {
    let (Some((name, _)), Some(module)) = (crate_and_rest(&file.path), sources.module(&file.path)) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let line = line.trim_start();
        let Some(doc) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) else { continue };
        for link in links(doc) {
            let path: Vec<&str> = link.trim_end_matches("()").trim_end_matches('!').split("::").collect();
            if !resolves(&path, &name.replace('-', "_"), module, sources) {
                let instead = format!("the link `{link}` leads to nothing: name an item that is in scope");
                found.push(file.violation(index + 1, "doc-link", instead));
            } else if !link.ends_with("()") && is_ambiguous(&path, &file.text) {
                let instead = format!("`{link}` is a module and a function: write `{link}()`");
                found.push(file.violation(index + 1, "doc-link", instead));
            }
        }
    }
    found
}

/// The targets of links to code: the link text in brackets, or the path behind another text.
fn links(doc: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (at, _) in doc.match_indices("[`") {
        let rest = &doc[at + 2..];
        let Some((text, after)) = rest.split_once("`]") else { continue };
        let target = match after.strip_prefix('(').and_then(|after| after.split_once(')')) {
            Some((target, _)) => target,
            None => text,
        };
        let is_path = |c: char| c.is_ascii_alphanumeric() || "_:!()".contains(c);
        if !target.is_empty() && target.chars().all(is_path) {
            found.push(target);
        }
    }
    found
}

fn resolves(path: &[&str], own: &str, module: &Module<'_>, sources: &Sources<'_>) -> bool {
    match path {
        ["crate", rest @ ..] => sources.has(own, rest),
        ["Self" | "self" | "super", rest @ ..] => sources.has(own, rest) || rest.len() > 1,
        [first, ..] if FOREIGN.contains(first) || PRELUDE.contains(first) => true,
        [first, rest @ ..] if sources.crates.contains_key(*first) => sources.has(first, rest),
        [first, rest @ ..] => {
            module.words.contains(first) && rest.iter().all(|name| sources.words.contains(name))
        }
        [] => true,
    }
}

/// Whether a module of the file and an item that the file re-exports have the same name.
fn is_ambiguous(path: &[&str], text: &str) -> bool {
    let [name] = path else { return false };
    let is_module = text.lines().any(|line| {
        line.trim_start().trim_start_matches("pub ").trim_end_matches(';') == format!("mod {name}")
    });
    let from = format!("use {name}::");
    let exports = text.split(&from).skip(1);
    let mut exports = exports.map(|export| export.split(';').next().unwrap_or_default());
    is_module && exports.any(|export| words_of_code(export).contains(name))
}
