//! Checks imports inside a crate: no cycles between files, and the layers of some crates' folders.
//!
//! A file depends on what its paths name. `crate::`, `super::` and `self::` are resolved to the
//! file that declares the item, through re-exports: `crate::StoreError` is a use of `error.rs` if
//! `lib.rs` has `pub use error::StoreError`. Tests do not count.

use std::collections::{BTreeMap, BTreeSet};

use super::{RuleViolation, SourceFile};

/// A folder or file at the root of a crate, and the others that it may use.
type Floors = &'static [(&'static str, &'static [&'static str])];

/// Folders and files at the root of a crate, and the others that they may use.
const MODULES: &[(&str, Floors)] = &[
    (
        "http-server",
        &[
            ("metrics", &[]),
            ("transport", &["metrics"]),
            ("error", &["metrics"]),
            ("extract", &["error", "transport"]),
            ("auth", &["error", "transport"]),
            ("config", &["auth", "transport"]),
            ("protected_resource", &["auth", "error"]),
            ("refusals", &["auth", "error", "transport"]),
            ("layers", &["auth", "refusals", "transport"]),
            ("server", &["auth", "config", "metrics", "refusals", "transport"]),
            (
                "role_server",
                &["auth", "config", "error", "layers", "protected_resource", "server", "transport"],
            ),
        ],
    ),
    (
        "gateway",
        &[
            ("metrics", &[]),
            ("config", &[]),
            ("stale_cache", &[]),
            ("backend", &["config", "metrics", "stale_cache"]),
            ("streaming", &["backend", "metrics"]),
            ("commands", &["backend", "metrics", "stale_cache"]),
            ("app", &["backend", "config", "streaming"]),
            ("background", &["app"]),
            ("openapi", &["app", "commands"]),
            ("api", &["app", "backend", "commands", "metrics", "openapi", "streaming"]),
            ("document", &["api", "openapi"]),
            ("book", &[]),
            ("router", &["app", "book", "document"]),
        ],
    ),
];

pub(super) fn check(files: &[SourceFile]) -> Vec<RuleViolation> {
    let mut crates: BTreeMap<&str, Vec<&SourceFile>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.has_extension(&["rs"]) && !file.is_test()) {
        if let Some((root, _)) = file.path.split_once("/src/") {
            crates.entry(root).or_default().push(file);
        }
    }
    crates.into_iter().flat_map(|(root, files)| in_crate(root, &files)).collect()
}

fn in_crate(root: &str, files: &[&SourceFile]) -> Vec<RuleViolation> {
    let name = root.rsplit('/').next().unwrap_or_default();
    let crate_ = Crate::read(root, files);
    let edges = crate_.edges();
    let mut found = Vec::new();
    let file_circles = in_circles(&edges);
    for (from, to, line) in file_circles.clone() {
        let (one, other) = (crate_.short_path(&from), crate_.short_path(&to));
        let instead =
            format!("`{one}` uses `{other}`, which comes back to it: move what both need to a file below");
        found.push(crate_.modules[&from].file.violation(line, "import-circle", instead));
    }
    let between = folder_edges(&edges);
    for (from, to, (place, line)) in in_circles(&between) {
        // A cycle of files is reported once.
        if file_circles
            .iter()
            .any(|(one, other, _)| one.first() == from.first() && other.first() == to.first())
        {
            continue;
        }
        let instead = format!(
            "`{}` uses `{}`, which comes back to it through other files: move what both need to a file below",
            from.join("/"),
            to.join("/")
        );
        found.push(crate_.modules[&place].file.violation(line, "folder-circle", instead));
    }
    let Some((_, floors)) = MODULES.iter().find(|(of, _)| *of == name) else { return found };
    for ((from, to), line) in &edges {
        let (Some(from_top), Some(to_top)) = (from.first(), to.first()) else { continue };
        if from_top == to_top {
            continue;
        }
        let allowed = floors.iter().find(|(floor, _)| floor == from_top).map(|(_, allowed)| *allowed);
        let instead = match allowed {
            Some(allowed) if allowed.contains(&to_top.as_str()) => continue,
            Some(allowed) => format!("`{from_top}` may use {}, and not `{to_top}`", list(allowed)),
            None => format!("`{from_top}` is new: give it a row in MODULES of xtask/src/tidy/imports.rs"),
        };
        found.push(crate_.modules[from].file.violation(*line, "module-layering", instead));
    }
    found
}

fn list(names: &[&str]) -> String {
    if names.is_empty() { "no other module".to_owned() } else { names.join(", ") }
}

/// The path of a module in its crate; empty for `lib.rs`.
type Path = Vec<String>;
/// The line of each use of one file by another.
type Edges = BTreeMap<(Path, Path), usize>;

struct Crate<'a> {
    root: &'a str,
    modules: BTreeMap<Path, Module<'a>>,
    /// The re-exports of a module, and their sources.
    exports: BTreeMap<Path, Path>,
}

struct Module<'a> {
    file: &'a SourceFile,
    /// Paths that the file names, with their lines, without those that it only re-exports.
    names: Vec<(usize, Path)>,
    exports: Vec<Path>,
}

impl<'a> Crate<'a> {
    fn read(root: &'a str, files: &[&'a SourceFile]) -> Self {
        let mut modules = BTreeMap::new();
        for file in files {
            let path = file.path.strip_prefix(root).and_then(|path| path.strip_prefix("/src/"));
            let Some(path) = path.and_then(|path| path.strip_suffix(".rs")) else { continue };
            // Programs beside a library use it like any other crate does.
            let is_program = path == "main" || path.starts_with("bin/");
            let has_library = files.iter().any(|file| file.path.ends_with("/src/lib.rs"));
            if is_program && has_library {
                continue;
            }
            let parts = if path == "lib" || path == "main" { Path::new() } else { split(path, "/") };
            let (names, exports) = named_in(&file.text);
            modules.insert(parts, Module { file, names, exports });
        }
        let mut crate_ = Self { root, modules, exports: BTreeMap::new() };
        crate_.exports = crate_.all_exports();
        crate_
    }

    fn all_exports(&self) -> BTreeMap<Path, Path> {
        let of_module = |(at, module): (&Path, &Module<'_>)| {
            let absolute = module.exports.iter().filter_map(|path| self.absolute(at, path));
            let named =
                absolute.filter_map(|path| Some(([at.as_slice(), &[path.last()?.clone()]].concat(), path)));
            named.collect::<Vec<_>>()
        };
        self.modules.iter().flat_map(of_module).collect()
    }

    /// A path from the crate's root; `None` for one of another crate.
    fn absolute(&self, at: &Path, path: &Path) -> Option<Path> {
        let ups = path.iter().take_while(|part| *part == "super").count();
        let (base, rest) = match path.first()?.as_str() {
            "crate" => (&[][..], &path[1..]),
            "self" => (at.as_slice(), &path[1..]),
            "super" => (&at[..at.len().checked_sub(ups)?], &path[ups..]),
            first => {
                let child = [at.as_slice(), &[first.to_owned()]].concat();
                (self.modules.contains_key(&child).then_some(at.as_slice())?, &path[..])
            }
        };
        Some([base, rest].concat())
    }

    /// The file that declares what a path names.
    fn declared(&self, path: &[String], depth: usize) -> Path {
        for length in (0..=path.len()).rev() {
            let begin = path[..length].to_vec();
            if let Some(from) = self.exports.get(&begin).filter(|_| depth < 8) {
                return self.declared(&[from.as_slice(), &path[length..]].concat(), depth + 1);
            }
            if self.modules.contains_key(&begin) {
                return begin;
            }
        }
        Path::new()
    }

    fn edges(&self) -> Edges {
        let mut edges = Edges::new();
        for (at, module) in &self.modules {
            for (line, name) in &module.names {
                let Some(path) = self.absolute(at, name) else { continue };
                let to = self.declared(&path, 0);
                if to != *at {
                    edges.entry((at.clone(), to)).or_insert(*line);
                }
            }
        }
        edges
    }

    fn short_path(&self, module: &Path) -> String {
        let path = &self.modules[module].file.path;
        path.strip_prefix(self.root).and_then(|path| path.strip_prefix("/src/")).unwrap_or(path).to_owned()
    }
}

fn split(text: &str, by: &str) -> Path {
    text.split(by).map(|part| part.trim().to_owned()).collect()
}

/// The paths of a file, and those that it only re-exports (`pub use`).
fn named_in(text: &str) -> (Vec<(usize, Path)>, Vec<Path>) {
    let (mut names, mut exports) = (Vec::new(), Vec::new());
    let mut pending: Option<(usize, String)> = None;
    let mut lines = text.lines().enumerate().peekable();
    while let Some((index, line)) = lines.next() {
        let begins_tests = |next: &&(usize, &str)| next.1.trim_start().starts_with("mod ");
        if line.trim() == "#[cfg(test)]" && lines.peek().as_ref().is_some_and(begins_tests) {
            break;
        }
        let code = line.split("//").next().unwrap_or_default();
        let (start, statement) = match pending.take() {
            Some((start, before)) => (start, before + code.trim()),
            None => (index + 1, code.trim().to_owned()),
        };
        let Some((is_public, tree)) = use_tree(&statement) else {
            names.extend(paths_of(code).into_iter().map(|path| (start, path)));
            continue;
        };
        let Some(tree) = tree.trim_end().strip_suffix(';') else {
            pending = Some((start, statement));
            continue;
        };
        for path in super::source::expand(tree) {
            let path: Path =
                split(&path, "::").into_iter().filter(|part| part != "self" && part != "*").collect();
            if is_public { exports.push(path) } else { names.push((start, path)) }
        }
    }
    (names, exports)
}

/// The tree of a complete or begun `use` statement, and whether it is public.
fn use_tree(statement: &str) -> Option<(bool, &str)> {
    let public = statement.strip_prefix("pub").map(|rest| match rest.strip_prefix('(') {
        Some(rest) => rest.split_once(')').map_or(rest, |(_, rest)| rest),
        None => rest,
    });
    let tree = public.unwrap_or(statement).trim_start().strip_prefix("use ")?;
    Some((public.is_some(), tree))
}

/// Paths in a line of code: `a::b::c`.
fn paths_of(code: &str) -> Vec<Path> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let words = code.split(|c| !is_part(c)).map(|word| word.trim_matches(':'));
    words.filter(|word| word.contains("::") && !word.contains(":::")).map(|word| split(word, "::")).collect()
}

/// Uses between folders and files at the root of a crate, each with one file and its line.
fn folder_edges(edges: &Edges) -> BTreeMap<(Path, Path), (Path, usize)> {
    let mut between = BTreeMap::new();
    for ((from, to), line) in edges {
        if let (Some(one), Some(other)) = (from.first(), to.first())
            && one != other
        {
            let edge = (vec![one.clone()], vec![other.clone()]);
            between.entry(edge).or_insert_with(|| (from.clone(), *line));
        }
    }
    between
}

/// The edges that are part of a cycle.
fn in_circles<Place: Clone>(edges: &BTreeMap<(Path, Path), Place>) -> Vec<(Path, Path, Place)> {
    let mut next: BTreeMap<&Path, Vec<&Path>> = BTreeMap::new();
    for (from, to) in edges.keys() {
        next.entry(from).or_default().push(to);
    }
    let reaches = |from: &Path, goal: &Path| {
        let (mut seen, mut open) = (BTreeSet::from([from]), vec![from]);
        while let Some(at) = open.pop() {
            if at == goal {
                return true;
            }
            let further = next.get(at).into_iter().flatten().filter(|to| seen.insert(to));
            open.extend(further.copied());
        }
        false
    };
    let circular = edges.iter().filter(|((from, to), _)| reaches(to, from));
    circular.map(|((from, to), place)| (from.clone(), to.clone(), place.clone())).collect()
}
