//! deploy/REFERENCE.md is generated from the command line and the metrics of the roles. The test
//! compares the file with the result.

use std::{collections::BTreeSet, fmt::Write as _, fs};

use clap::{Arg, Command};
use runtime::metrics::{MetricDescription, MetricKind};

use crate::options::Options;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/REFERENCE.md");
/// The names of variables that the chart knows.
const CHART_VARIABLES: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/chart/antiphon/files/variables.txt");
/// If this variable is set, the page is written instead of compared.
const WRITE_GOLDEN: &str = "ANTIPHON_WRITE_GOLDEN";

const VARIABLES: &str = "\
# Reference of variables and metrics

This page is generated from the declarations of options and metrics in the code.
`ANTIPHON_WRITE_GOLDEN=1 cargo test -p antiphon reference` writes it again.

## Variables

Every flag of a role is also a variable. `antiphon <command> --help` shows both, `antiphon config check <command>` the current settings. A name that is
similar to one of these stops the start, because a misspelt setting would be ignored. Commands in the row of a section apply to all its variables.

| variable | default | for | commands |
|---|---|---|---|
";

const METRICS: &str = "
## Metrics

Gauges of a worker are sums over its partitions, except those with the label `partition`, which end when the partition leaves the worker. A pod has at
most 400 series with 32 partitions. Buckets of histograms range from half a millisecond to ten minutes. The descriptions are also the help texts of
`/metrics`.

| metric | kind | what |
|---|---|---|
";

/// Links to documents that say more about a variable or a metric.
const LINKS: [(&str, &str); 9] = [
    ("DATABASE_READ_URL", "[reads from a standby](docs/src/operate/growth-figures.md#reads-from-a-standby)"),
    (
        "ANTIPHON_PRICES_FILE",
        "[what a turn has used](docs/src/reference/usage-and-limits.md#what-a-turn-has-used) and [budgets](docs/src/reference/usage-and-limits.md#budgets)",
    ),
    ("ANTIPHON_PARTITIONS", "[another number of partitions](README.md#change-the-number-of-partitions)"),
    ("ANTIPHON_LIMITS_FILE", "[limits](docs/src/reference/usage-and-limits.md#limits)"),
    ("ANTIPHON_EMBEDDINGS_URL", "[memory by vectors](README.md#memory-by-vectors)"),
    ("ANTIPHON_TOOLS_FILE", "[the workflow service](workflow/README.md)"),
    ("ANTIPHON_SCRIPT_FILE", "[the workflow service](workflow/README.md)"),
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "[traces](README.md#traces)"),
    ("antiphon_worker_limited_turns_total", "[limits](docs/src/reference/usage-and-limits.md#limits)"),
];

/// The command that shows the settings of other commands.
const CONFIG: &str = "config";
/// Prefix in a help text of a default that clap does not have, because it depends on other
/// settings.
const DEFAULT: &str = "[default: ";
const UNITS: [(u64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];

#[test]
fn reference_is_what_the_code_has() {
    let page = page();
    #[allow(clippy::disallowed_methods, reason = "the page is written when a variable says so")]
    if std::env::var_os(WRITE_GOLDEN).is_some() {
        fs::write(PAGE, &page).unwrap();
    }
    let written = fs::read_to_string(PAGE).unwrap();
    let line = |text: &str, number: usize| text.lines().nth(number).unwrap_or("(nothing)").to_owned();
    let differs = (0..page.lines().count().max(written.lines().count()))
        .find(|number| line(&page, *number) != line(&written, *number));
    if let Some(number) = differs {
        panic!(
            "deploy/REFERENCE.md is not what the code has. Line {}:\n  the page: {}\n  the code: {}\n\
             `{WRITE_GOLDEN}=1 cargo test -p antiphon reference` writes the page again; commit it.",
            number + 1,
            line(&written, number),
            line(&page, number),
        );
    }
}

/// The chart refuses unknown variables, and it cannot read the page.
#[test]
fn reference_of_the_chart_lists_the_variables() {
    let variables: Vec<Variable> = variables().collect();
    let names = variables.iter().map(|variable| variable.name.as_str());
    let names: BTreeSet<_> = names.filter(|name| name.starts_with("ANTIPHON_")).collect();
    let list: String = names.iter().map(|name| format!("{name}\n")).collect();
    #[allow(clippy::disallowed_methods, reason = "the list is written when a variable says so")]
    if std::env::var_os(WRITE_GOLDEN).is_some() {
        fs::write(CHART_VARIABLES, &list).unwrap();
    }
    let written = fs::read_to_string(CHART_VARIABLES).unwrap();
    let write = format!("`{WRITE_GOLDEN}=1 cargo test -p antiphon reference` writes {CHART_VARIABLES}");
    assert_eq!(written, list, "{write}; commit it");
}

fn page() -> String {
    let (variables, metrics) = (variables_by_heading(), metrics());
    for (name, _) in LINKS {
        let is_there = variables.iter().any(|(_, variable)| variable.name == name)
            || metrics.iter().any(|(_, all)| all.iter().any(|metric| metric.name == name));
        assert!(is_there, "there is a link for {name}, which is not there");
    }
    let mut page = VARIABLES.to_owned();
    let mut headings: Vec<&str> = Vec::new();
    for (heading, _) in &variables {
        if !headings.contains(&heading.as_str()) {
            headings.push(heading);
        }
    }
    for heading in headings {
        let section = || variables.iter().filter(|(of, _)| of == heading).map(|(_, variable)| variable);
        let first = section().next().map_or(&[][..], |variable| &variable.commands);
        let is_one_list = section().all(|variable| variable.commands == first);
        row(
            &mut page,
            [&format!("**{heading}**"), "", "", &if is_one_list { list(first) } else { String::new() }],
        );
        for Variable { name, default, help, commands, .. } in section() {
            let commands = if is_one_list { String::new() } else { list(commands) };
            row(&mut page, [&format!("`{name}`"), default, &with_link(name, help), &commands]);
        }
    }
    page += METRICS;
    for (heading, metrics) in metrics {
        row(&mut page, [&format!("**{heading}**"), "", ""]);
        for metric in metrics {
            let labels = match metric.labels {
                [] => String::new(),
                labels => format!("{{{}}}", labels.join(",")),
            };
            let kind = match metric.kind {
                MetricKind::Counter => "counter",
                MetricKind::Gauge => "gauge",
                MetricKind::Histogram => "histogram",
            };
            let unit = metric.unit().map_or(String::new(), |unit| format!(", {}", unit.as_str()));
            let name = format!("`{}{labels}`", metric.name);
            row(&mut page, [&name, &format!("{kind}{unit}"), &with_link(metric.name, metric.help)]);
        }
    }
    page
}

fn row<const N: usize>(page: &mut String, cells: [&str; N]) {
    for cell in cells {
        let space = if cell.is_empty() { "" } else { " " };
        write!(page, "|{space}{cell} ").unwrap();
    }
    page.push_str("|\n");
}

fn metrics() -> [(&'static str, Vec<MetricDescription>); 8] {
    [
        ("Every process", [runtime::metrics::METRICS, runtime::traces::METRICS].concat()),
        ("Worker, gateway and workflow service", bus::METRICS.to_vec()),
        ("Worker", worker::described_metrics()),
        ("Worker and gateway, with an endpoint for vectors", embeddings::METRICS.to_vec()),
        ("Gateway and server of reasoning tools", http_server::METRICS.to_vec()),
        ("Gateway", gateway::METRICS.to_vec()),
        ("Server of reasoning tools", mcp::METRICS.to_vec()),
        ("Workflow service", workflow::METRICS.to_vec()),
    ]
}

#[derive(PartialEq, Eq)]
pub(crate) struct Variable {
    pub(crate) name: String,
    /// Without the two dashes.
    pub(crate) flag: Option<String>,
    pub(crate) default: String,
    help: String,
    commands: Vec<String>,
}

/// The commands that have their own settings.
fn commands() -> impl Iterator<Item = Command> {
    let mut command = Options::whole_command();
    command.build();
    let all: Vec<Command> = command.get_subcommands().cloned().collect();
    all.into_iter().filter(|command| ![CONFIG, "help"].contains(&command.get_name()))
}

/// All variables. A variable occurs twice if commands have different texts for it.
pub(crate) fn variables() -> impl Iterator<Item = Variable> {
    variables_by_heading().into_iter().map(|(_, variable)| variable)
}

/// All variables with the heading that `--help` shows.
fn variables_by_heading() -> Vec<(String, Variable)> {
    let mut found: Vec<(String, Variable)> = Vec::new();
    for command in commands() {
        let mut arguments = Vec::new();
        collect(&command, &mut arguments);
        for argument in arguments {
            let (heading, variable) = variable(&argument);
            let is_same = |(_, known): &&mut (String, Variable)| {
                (&known.name, &known.default, &known.help)
                    == (&variable.name, &variable.default, &variable.help)
            };
            let name = command.get_name().to_owned();
            match found.iter_mut().find(is_same) {
                Some((_, known)) if known.commands.contains(&name) => {}
                Some((_, known)) => known.commands.push(name),
                None => found.push((heading, Variable { commands: vec![name], ..variable })),
            }
        }
    }
    found
}

fn collect(command: &Command, found: &mut Vec<Arg>) {
    found.extend(command.get_arguments().filter(|argument| argument.get_env().is_some()).cloned());
    command.get_subcommands().for_each(|inner| collect(inner, found));
}

fn variable(argument: &Arg) -> (String, Variable) {
    let name = argument.get_env().unwrap().to_string_lossy().into_owned();
    let heading = argument.get_help_heading();
    let heading = heading.unwrap_or_else(|| panic!("give the option of {name} a help_heading")).to_owned();
    let help = argument.get_long_help().or(argument.get_help()).map(ToString::to_string).unwrap_or_default();
    let mut help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let values = argument.get_default_values().iter().map(|value| value.to_string_lossy());
    let mut default = values.collect::<Vec<_>>().join(",");
    if !default.is_empty() {
        let size = if name.ends_with("_BYTES") { in_units(&default) } else { String::new() };
        default = format!("`{default}`{size}");
    } else if let Some((text, computed)) =
        help.strip_suffix(']').and_then(|help| help.rsplit_once(DEFAULT)).map(owned)
    {
        (help, default) = (text, computed);
    } else if argument.is_required_set() {
        "(required)".clone_into(&mut default);
    }
    let mut help = help.trim().trim_end_matches('.').replace('|', "\\|");
    let values: Vec<String> =
        argument.get_possible_values().iter().map(|value| format!("`{}`", value.get_name())).collect();
    if !values.is_empty() && !values.contains(&"`true`".to_owned()) {
        write!(help, ": {}", values.join(", ")).unwrap();
    }
    let flag = argument.get_long().map(str::to_owned);
    (heading, Variable { name, flag, default, help, commands: Vec::new() })
}

fn owned((text, default): (&str, &str)) -> (String, String) {
    (text.to_owned(), default.to_owned())
}

fn in_units(bytes: &str) -> String {
    let bytes: u64 = bytes.parse().unwrap();
    let unit = UNITS.iter().find(|(size, _)| bytes >= *size && bytes.is_multiple_of(*size));
    unit.map_or(String::new(), |(size, unit)| format!(", {} {unit}", bytes / size))
}

fn with_link(name: &str, help: &str) -> String {
    let link = LINKS.iter().find(|(of, _)| *of == name);
    link.map_or(help.to_owned(), |(_, link)| format!("{help}; see {link}"))
}

/// The command names as one text. If nearly all commands have the variable, the exceptions.
fn list(names: &[String]) -> String {
    let quoted =
        |names: Vec<&str>| names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    let all: Vec<Command> = commands().collect();
    let others = all.iter().map(Command::get_name).filter(|other| !names.iter().any(|name| name == other));
    match others.collect::<Vec<_>>() {
        others if others.is_empty() => "every one".to_owned(),
        others if others.len() <= 2 => format!("every one but {}", quoted(others)),
        _ => quoted(names.iter().map(String::as_str).collect()),
    }
}

/// A reader of the help alone cannot find a scope that it omits.
#[test]
fn the_help_of_a_first_key_names_each_scope() {
    let mut command = Options::whole_command();
    let keys = command.find_subcommand_mut("keys").unwrap();
    let help = keys.find_subcommand_mut("create-first").unwrap().render_long_help().to_string();
    let missing: Vec<_> = auth::Permission::ALL
        .into_iter()
        .map(auth::Permission::scope)
        .filter(|scope| ![" ", "\n"].iter().any(|end| help.contains(&format!("{end}{scope}"))))
        .collect();
    assert!(missing.is_empty(), "{missing:?}: {help}");
}
