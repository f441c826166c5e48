//! Counts of the source at one or more commits: lines of each crate, operations, error codes,
//! options, and how plain the prose is.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use devservices::workspace;

use crate::tidy::prose;

/// Calls that declare an operation of the API.
const OPERATIONS: [&str; 6] = [
    "Operation::new(",
    "Operation::get(",
    "Operation::post(",
    "Operation::put(",
    "Operation::patch(",
    "Operation::delete(",
];

/// What is counted of one commit.
#[derive(Debug, Default, PartialEq, Eq)]
struct Figures {
    /// Product lines of each crate: Rust and SQL below `src`, without tests, blanks and comments.
    lines: BTreeMap<String, usize>,
    operations: usize,
    error_codes: usize,
    options: usize,
    short_docs: usize,
    sentences: usize,
    words: usize,
    long_sentences: usize,
}

/// Prints the figures of the commits in columns; without a commit those of `HEAD`.
pub(crate) fn run(commits: &[String]) -> Result<i32> {
    let head = ["HEAD".to_owned()];
    let commits = if commits.is_empty() { &head[..] } else { commits };
    let all = commits.iter().map(|commit| Ok(count(&files(commit)?))).collect::<Result<Vec<_>>>()?;
    let row = |name: &str, value: &dyn Fn(&Figures) -> String| {
        let cells: Vec<String> = all.iter().map(value).collect();
        println!("| {name} | {} |", cells.join(" | "));
    };
    println!("| figure | {} |", commits.join(" | "));
    println!("|---|{}", "---:|".repeat(commits.len()));
    let crates: BTreeSet<&String> = all.iter().flat_map(|figures| figures.lines.keys()).collect();
    for name in crates {
        row(&format!("lines of {name}"), &|figures| {
            figures.lines.get(name).map_or("–".to_owned(), usize::to_string)
        });
    }
    row("lines of all crates", &|figures| figures.lines.values().sum::<usize>().to_string());
    row("operations of the API", &|figures| figures.operations.to_string());
    row("error codes of the API", &|figures| figures.error_codes.to_string());
    row("options with a variable", &|figures| figures.options.to_string());
    row("doc comments of one or two words", &|figures| figures.short_docs.to_string());
    row("sentences of documents", &|figures| figures.sentences.to_string());
    row("words of a sentence, mean", &|figures| {
        format!("{:.1}", figures.words as f64 / figures.sentences.max(1) as f64)
    });
    row("sentences over 30 words", &|figures| {
        format!("{:.1} %", 100.0 * figures.long_sentences as f64 / figures.sentences.max(1) as f64)
    });
    Ok(0)
}

fn count(files: &[(String, String)]) -> Figures {
    let mut figures = Figures::default();
    let mut codes = BTreeSet::new();
    for (path, text) in files {
        if path.ends_with(".md") {
            count_sentences(&mut figures, text);
            continue;
        }
        let Some((name, rest)) = path.strip_prefix("crates/").and_then(|path| path.split_once('/')) else {
            continue;
        };
        figures.short_docs += prose::short_docs(text).len();
        if !rest.starts_with("src/") || rest.split('/').any(|part| part == "tests" || part == "tests.rs") {
            continue;
        }
        *figures.lines.entry(name.to_owned()).or_default() += product_lines(text);
        if name == "gateway" {
            figures.operations += OPERATIONS.iter().map(|call| text.matches(call).count()).sum::<usize>();
        }
        if name == "gateway" || name == "http-server" {
            codes.extend(error_codes(path, text));
        }
        figures.options += text.matches("env = \"").count();
    }
    figures.error_codes = codes.len();
    figures
}

/// A single word is a heading or a table cell, not a sentence.
fn count_sentences(figures: &mut Figures, text: &str) {
    for sentence in prose::sentences(text).into_iter().filter(|sentence| sentence.words > 1) {
        figures.sentences += 1;
        figures.words += sentence.words;
        figures.long_sentences += usize::from(sentence.words > prose::LONGEST_SENTENCE);
    }
}

/// Names in the table of error codes, in each of the formats that the table has had.
fn error_codes(path: &str, text: &str) -> Vec<String> {
    if !path.contains("error") {
        return Vec::new();
    }
    let quoted = |line: &str| line.split('"').nth(1).map(str::to_owned);
    let is_row = |line: &str| line.contains(" => \"") || line.trim_start().starts_with("name: \"");
    let is_call = |line: &str| {
        ["code(\"", "retryable(\"", "..code(\""].iter().any(|call| line.trim_start().starts_with(call))
    };
    let joined = text.replace("(\n", "(").replace("(            ", "(").replace("(        ", "(");
    joined.lines().filter(|line| is_row(line) || is_call(line)).filter_map(quoted).collect()
}

fn product_lines(text: &str) -> usize {
    let product = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let is_counted = |line: &&str| {
        let line = line.trim();
        !line.is_empty() && !line.starts_with("//") && !line.starts_with("--")
    };
    product.lines().filter(is_counted).count()
}

/// The paths and texts of code and documents, all read by one process.
fn files(commit: &str) -> Result<Vec<(String, String)>> {
    let listed = Command::new("git")
        .args(["ls-tree", "-r", "--name-only", commit])
        .current_dir(workspace::root())
        .output()
        .context("git ls-tree")?;
    ensure!(listed.status.success(), "{commit} is no commit of this repository");
    let listed = String::from_utf8_lossy(&listed.stdout);
    let is_read = |path: &&str| [".rs", ".sql", ".md"].iter().any(|end| path.ends_with(end));
    let paths: Vec<String> = listed.lines().filter(is_read).map(str::to_owned).collect();
    let mut reader = Command::new("git")
        .args(["cat-file", "--batch"])
        .current_dir(workspace::root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("git cat-file")?;
    let mut input = reader.stdin.take().context("the input of git")?;
    let mut output = BufReader::new(reader.stdout.take().context("the output of git")?);
    let mut found = Vec::with_capacity(paths.len());
    for path in paths {
        writeln!(input, "{commit}:{path}")?;
        let mut header = String::new();
        output.read_line(&mut header)?;
        let size = header.split_whitespace().nth(2).and_then(|size| size.parse::<usize>().ok());
        // A newline follows each text.
        let mut text = vec![0; size.with_context(|| format!("{path}: {header}"))? + 1];
        output.read_exact(&mut text)?;
        found.push((path, String::from_utf8_lossy(&text).into_owned()));
    }
    drop(input);
    reader.wait()?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(files: &[(&str, &str)]) -> Figures {
        let files = files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned()));
        count(&files.collect::<Vec<_>>())
    }

    #[test]
    fn tests_blanks_and_comments_are_no_lines_of_a_product() {
        let source =
            "//! A module.\nuse a;\n\n    // why\nfn f() {}\n\n#[cfg(test)]\nmod tests {\n    fn t() {}\n}\n";
        let figures = counted(&[
            ("crates/a/src/lib.rs", source),
            ("crates/a/src/query.sql", "-- why\nSELECT 1\n"),
            ("crates/a/src/lib/tests.rs", "fn t() {}\n"),
            ("crates/a/tests/main.rs", "fn t() {}\n"),
            ("xtask/src/main.rs", "fn main() {}\n"),
        ]);
        assert_eq!(figures.lines, BTreeMap::from([("a".to_owned(), 3)]));
    }

    #[test]
    fn operations_codes_and_options_count_where_they_are_declared() {
        let gateway = "Operation::get(\"/v1\")\nOperation::new(Method::PUT)\n";
        let codes = "    Busy => \"busy\", CONFLICT,\n    Gone => \"gone\", GONE,\n";
        let options =
            "#[arg(long, env = \"ANTIPHON_A\")]\n#[arg(long, env = \"ANTIPHON_B\")]\n#[arg(long)]\n";
        let figures = counted(&[
            ("crates/gateway/src/api.rs", gateway),
            ("crates/bench/src/api.rs", gateway),
            ("crates/http-server/src/error/code.rs", codes),
            ("crates/gateway/src/error.rs", "    Busy => \"busy\", CONFLICT,\n"),
            ("crates/gateway/src/names.rs", codes),
            ("crates/antiphon/src/options.rs", options),
        ]);
        assert_eq!((figures.operations, figures.error_codes, figures.options), (2, 2, 2));
    }

    #[test]
    fn prose_is_counted_by_the_rules_of_tidy() {
        let long = ["word"; 31].join(" ");
        let page = format!(
            "# Title\n\nTwo words. Then\nthree more: {long}.\n\n```sh\n{long}\n```\n\n| a cell | b |\n"
        );
        let figures = counted(&[
            ("deploy/README.md", &page),
            (
                "crates/a/src/lib.rs",
                "/// An answer.\nstruct Answer;\n/// The answer of a model.\nstruct B;\n",
            ),
        ]);
        assert_eq!((figures.sentences, figures.long_sentences, figures.words), (4, 1, 2 + 3 + 31 + 2));
        assert_eq!(figures.short_docs, 1);
    }
}
