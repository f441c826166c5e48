//! The keys in metadata by which people and models see what opened a turn or a task. Code must
//! decide by `model::TurnOrigin` and `model::TaskOrigin` instead, so only one file reads and writes
//! the keys.

use super::{RuleViolation, SourceFile};

const RULE: &str = "origins";
const INSTEAD: &str =
    "decide by `TurnOrigin` or `TaskOrigin`: crates/model/src/origin_keys.rs alone has the keys";

/// Keys that are nothing else.
const MARKS: &[&str] = &["synthetic", "trigger_reason", "continues", "continuation_number"];
/// Keys that are also names of columns, of fields in requests and answers, and of arguments.
const SHARED: &[&str] = &[
    "trigger_type",
    "timer_id",
    "heartbeat",
    "assistant_message_id",
    "compaction_id",
    "thread_id",
    "turn_id",
    "batch_id",
];

/// Crates with such names.
const WITH_NAMES: &[&str] = &["antiphon", "gateway", "mcp", "protocols", "store", "workflow"];
/// Crates that are not part of the product.
const DEVELOPMENT: &[&str] = &["bench", "chaos", "demo", "devservices", "e2e", "simulation", "testkit"];

/// Files that may name keys.
const MAY_NAME: &[(&str, &[&str])] = &[
    // A code of incomplete batches.
    ("crates/batches/src/batch/state.rs", &["continues"]),
    // The field of an agent's hint.
    ("crates/model/src/follow_up.rs", &["trigger_type"]),
    // The field of a client's request that names its thread.
    ("crates/protocols/src/chat_completions/request.rs", &["thread_id"]),
    // The body of a timer.
    ("crates/partition/src/machine/follow_up.rs", &["trigger_type"]),
    ("crates/partition/src/timer_decision.rs", &["trigger_type"]),
    // Fields of the encoded origin, in errors.
    ("crates/wire/src/origin.rs", &["heartbeat", "timer_id", "trigger_type"]),
];
const OWNER: &str = "crates/model/src/origin_keys.rs";

/// Statements that read the mark of messages which people do not see.
const HIDES_MESSAGES: &[&str] = &[
    "crates/store/src/api/messages/ends.sql",
    "crates/store/src/api/messages/last_end.sql",
    "crates/store/src/commit/messages.sql",
    "crates/store/src/erase/batches_of_agents.sql",
    "crates/store/src/export_import/append.sql",
    "crates/store/src/export_import/import_batches.sql",
    "crates/store/src/history/backwards.sql",
    "crates/store/src/history/forwards.sql",
    "crates/store/src/retention/delete.sql",
    "crates/store/src/timers/due.sql",
];

pub(super) fn check(file: &SourceFile) -> Vec<RuleViolation> {
    let is_source = file.path.split('/').nth(2) == Some("src") && file.path.starts_with("crates/");
    let Some(name) = file.crate_name().filter(|name| is_source && !DEVELOPMENT.contains(name)) else {
        return Vec::new();
    };
    match file.has_extension(&["sql"]) {
        true => in_sql(file),
        false if file.has_extension(&["rs"]) && !file.is_test() && file.path != OWNER => in_rust(file, name),
        false => Vec::new(),
    }
}

fn in_rust(file: &SourceFile, name: &str) -> Vec<RuleViolation> {
    let allowed = MAY_NAME.iter().find(|(path, _)| *path == file.path).map_or(&[][..], |(_, keys)| *keys);
    let has = |line: &str, key: &&str| !allowed.contains(key) && line.contains(&format!("\"{key}\""));
    let breaks = |line: &str| {
        let counts_shared =
            !WITH_NAMES.contains(&name) || ["metadata.", "metadata["].iter().any(|read| line.contains(read));
        MARKS.iter().any(|key| has(line, key)) || counts_shared && SHARED.iter().any(|key| has(line, key))
    };
    let code = file.text.lines().enumerate().take_while(|(_, line)| *line != "#[cfg(test)]");
    let found = code.filter(|(_, line)| !line.trim_start().starts_with("//") && breaks(line));
    found.map(|(index, _)| file.violation(index + 1, RULE, INSTEAD)).collect()
}

fn in_sql(file: &SourceFile) -> Vec<RuleViolation> {
    let allowed: &[&str] = if HIDES_MESSAGES.contains(&file.path.as_str()) { &["synthetic"] } else { &[] };
    let breaks = |line: &str| {
        let words =
            |key: &&&str| line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == **key);
        MARKS.iter().filter(|key| !allowed.contains(key)).any(|key| words(&key))
    };
    let code = file.text.lines().enumerate();
    let found = code.filter(|(_, line)| !line.trim_start().starts_with("--") && breaks(line));
    found.map(|(index, _)| file.violation(index + 1, RULE, INSTEAD)).collect()
}
