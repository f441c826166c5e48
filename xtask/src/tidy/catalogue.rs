//! Checks that everything visible to operators is documented: each metric and variable in the code
//! is in the reference. The reference is generated from the roles' descriptions and the
//! command-line options.

use super::{RuleViolation, SourceFile};

const REFERENCE: &str = "deploy/REFERENCE.md";
const ROLES_WITH_METRICS: &[&str] =
    &["worker", "http-server", "gateway", "mcp", "workflow", "embeddings", "runtime"];

/// The rule, and what to do instead.
const METRIC: (&str, &str) =
    ("metric-catalogue", "describe it in the `METRICS` of its crate, and generate the page again");
const VARIABLE: (&str, &str) =
    ("env-catalogue", "name the variable of an option, and generate the page again if it is new");

pub(super) fn check(files: &[SourceFile]) -> Vec<RuleViolation> {
    let reference = files.iter().find(|file| file.path == REFERENCE).map_or("", |file| file.text.as_str());
    let mut found = Vec::new();
    for file in files.iter().filter(|file| file.has_extension(&["rs"]) && !file.is_test()) {
        let in_src = |name: &str| file.path.starts_with(&format!("crates/{name}/src/"));
        if ROLES_WITH_METRICS.iter().any(|name| in_src(name)) {
            found.extend(unknown(file, reference, METRIC, metric_names));
        }
        if in_src("antiphon") {
            found.extend(unknown(file, reference, VARIABLE, variable_names));
        }
    }
    found
}

fn unknown(
    file: &SourceFile,
    reference: &str,
    (rule, instead): (&'static str, &str),
    names: fn(&str) -> Vec<String>,
) -> Vec<RuleViolation> {
    let mut found = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        for name in names(line).into_iter().filter(|name| !mentions(reference, name)) {
            let instead = format!("{REFERENCE} does not have `{name}`: {instead}");
            found.push(file.violation(index + 1, rule, instead));
        }
    }
    found
}

/// String literals that are complete metric names.
fn metric_names(line: &str) -> Vec<String> {
    let is_name = |text: &str| text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    let literals = line.split('"').skip(1).step_by(2);
    let metrics = literals
        .filter(|text| text.strip_prefix("antiphon_").is_some_and(|rest| !rest.is_empty() && is_name(rest)));
    metrics.map(str::to_owned).collect()
}

/// Words that look like our variables.
fn variable_names(line: &str) -> Vec<String> {
    line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| {
            word.strip_prefix("ANTIPHON_").is_some_and(|rest| {
                !rest.is_empty()
                    && rest.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
            })
        })
        .map(str::to_owned)
        .collect()
}

/// True if the text has the name as a whole word.
fn mentions(text: &str, name: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|word| word == name)
}
