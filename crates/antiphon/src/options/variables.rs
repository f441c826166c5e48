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
const REMOVED: [(&str, &str); 1] = [(
    "SPILL_AFTER_SECONDS",
    "open messages are saved by the cost of reading them again, see ANTIPHON_REPLAY_ENTRIES",
)];
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
