//! Finds variables that no flag has: a misspelt one would be a setting that is silently ignored.

use std::collections::BTreeSet;

use clap::{Args, Command, CommandFactory};

use super::Options;
use crate::client::ApiServer;

const PREFIX: &str = "ANTIPHON_";
/// Maximum number of letters in which a misspelt short name differs; for longer names a quarter of
/// their letters.
const MISSPELT: usize = 2;
/// Variables of earlier builds without the prefix, with advice. If set, they would be silently
/// ignored.
const REMOVED: [(&str, &str); 11] = [
    ("AUDIT_LOG_MAX_BYTES", RECORDS),
    ("COMPLETED_TASKS_MAX_BYTES", RECORDS),
    ("DEAD_LETTERS_MAX_BYTES", RECORDS),
    ("ERASED_THREADS_MAX_BYTES", RECORDS),
    ("FAILED_TASKS_MAX_BYTES", RECORDS),
    ("FAILED_TASKS_MAX_DAYS", FAILURES),
    ("FAILED_TURNS_MAX_BYTES", RECORDS),
    ("FAILED_TURNS_MAX_DAYS", FAILURES),
    ("REPLAY_BYTES", "the bound in entries is enough, see ANTIPHON_REPLAY_ENTRIES"),
    ("RETENTION_INTERVAL_SECONDS", "retention follows ANTIPHON_CLEANUP_INTERVAL_SECONDS"),
    (
        "SPILL_AFTER_SECONDS",
        "open messages are saved by the cost of reading them again, see ANTIPHON_REPLAY_ENTRIES",
    ),
];
const RECORDS: &str = "one size holds for all records, see ANTIPHON_RECORDS_MAX_BYTES";
const FAILURES: &str = "one age holds for failed tasks and failed turns, see ANTIPHON_FAILURES_MAX_DAYS";
/// Variables of earlier builds without the prefix whose values are constants now.
const FIXED: [&str; 3] = ["COMMIT_CONNECTIONS", "IDEMPOTENCY_KEY_TTL_SECONDS", "THREAD_CACHE_BYTES"];
/// Suffixes of variables with a unit.
const UNITS: [&str; 8] = ["_MS", "_SECONDS", "_SECS", "_S", "_MINUTES", "_DAYS", "_BYTES", "_MB"];

/// An error about the first variable whose name is similar to that of a flag, or was one; `None` if
/// there is none. Other variables with our prefix may belong to another program.
pub(crate) fn misspelt_variable(set: impl IntoIterator<Item = String>) -> Option<String> {
    let mut known = BTreeSet::new();
    collect(&Options::command(), &mut known);
    // Variables of the API's commands, whose arguments are only added when a command is used.
    collect(&ApiServer::augment_args(Command::new("api")), &mut known);
    let unknown = set.into_iter().filter(|name| name.starts_with(PREFIX) && !known.contains(name));
    unknown
        .filter_map(|name| {
            if let Some((_, instead)) =
                REMOVED.iter().find(|(removed, _)| name.strip_prefix(PREFIX) == Some(removed))
            {
                return Some(format!("there is no variable {name} any more: {instead}"));
            }
            if FIXED.iter().any(|fixed| name.strip_prefix(PREFIX) == Some(fixed)) {
                return Some(format!("there is no variable {name} any more: its value is fixed; remove it"));
            }
            let most = MISSPELT.max((name.len() - PREFIX.len()) / 4);
            let distance = |known: &&String| match without_unit(known) == without_unit(&name) {
                true => 1,
                false => strsim::damerau_levenshtein(&name, known),
            };
            let nearest = known.iter().min_by_key(distance).filter(|known| distance(known) <= most)?;
            Some(format!("there is no variable {name}; is it {nearest}?"))
        })
        .min()
}

fn without_unit(name: &str) -> &str {
    UNITS.iter().find_map(|unit| name.strip_suffix(unit)).unwrap_or(name)
}

fn collect(command: &Command, names: &mut BTreeSet<String>) {
    let variables = command.get_arguments().filter_map(|argument| argument.get_env());
    names.extend(variables.map(|name| name.to_string_lossy().into_owned()));
    command.get_subcommands().for_each(|inner| collect(inner, names));
}

#[cfg(test)]
mod tests;
