//! What was erased where, and what no command reaches.

use std::collections::BTreeMap;

use gateway::views;
use model::Timestamp;
use serde_json::{Map, Value, json};
use store::ErasedRows;

use super::streams::Cleared;
use crate::commands::output;
use crate::exit::ExitError;
use crate::options::ErasePolicy;

/// Where something of a thread may be that no command reaches.
const ELSEWHERE: [(&str, &str); 5] = [
    ("logs", "texts of errors that workflow services gave"),
    ("copies", "backups of Postgres and of NATS, exports, and forks of the threads"),
    (
        "quotations",
        "what another thread's answer repeats in its own words, when it was given a summary of one that is erased",
    ),
    (
        "disks",
        "what is deleted stays on disks until Postgres (VACUUM) and NATS (compaction of blocks) write over it",
    ),
    (
        "processes",
        "texts that a gateway or a workflow service holds in memory: gone when they are idle or restarted",
    ),
];

pub(super) struct Receipt {
    threads: usize,
    is_erased: bool,
    actor: Option<String>,
    pub(super) erased_at: Timestamp,
    tables: BTreeMap<String, Value>,
    streams: BTreeMap<String, u64>,
    pending: BTreeMap<String, String>,
}

impl Receipt {
    pub(super) fn of_dry(threads: usize, tables: ErasedRows, streams: BTreeMap<String, u64>) -> Self {
        let tables = tables.into_iter().map(|(name, rows)| (name, json!(rows))).collect();
        let (pending, erased_at) = (BTreeMap::new(), Timestamp(0));
        Self { threads, is_erased: false, actor: None, erased_at, tables, streams, pending }
    }

    pub(super) fn of_run(threads: usize, actor: &str, tables: ErasedRows, cleared: Cleared) -> Self {
        let tables = tables.into_iter().map(|(name, rows)| (name, json!(rows))).collect();
        let Cleared { removed: streams, pending } = cleared;
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let erased_at = Timestamp(i64::try_from(now.as_millis()).unwrap_or(i64::MAX));
        Self { threads, is_erased: true, actor: Some(actor.to_owned()), erased_at, tables, streams, pending }
    }

    /// What the store has counted for one thread, all times together.
    pub(super) fn tables_of_thread(&mut self, counts: &Value) {
        let counts = counts.as_object().into_iter().flatten();
        self.tables.extend(counts.map(|(name, rows)| (name.clone(), rows.clone())));
    }

    /// Fails when something is still there.
    pub(super) fn print(self, policy: &ErasePolicy, scope: Value) -> Result<(), ExitError> {
        let mut json = match scope {
            Value::Object(map) => map,
            _ => Map::new(),
        };
        json.insert("erased".to_owned(), json!(self.is_erased));
        json.insert("threads".to_owned(), json!(self.threads));
        if let Some(actor) = &self.actor {
            json.insert("erased_at".to_owned(), json!(views::rfc3339(self.erased_at)));
            json.insert("actor".to_owned(), json!(actor));
        }
        json.insert("tables".to_owned(), json!(self.tables));
        json.insert("streams".to_owned(), json!(self.streams));
        if self.is_erased {
            json.insert("pending".to_owned(), json!(self.pending));
            json.insert("elsewhere".to_owned(), json!(BTreeMap::from(ELSEWHERE)));
        }
        if policy.database_only {
            json.insert("streams".to_owned(), Value::Null);
        }
        let json = Value::Object(json);
        output::print(policy.database.format, &json, || table(&json))?;
        match self.pending.is_empty() {
            true => Ok(()),
            false => {
                Err(ExitError::Failed("some streams still have something of it: see `pending`".to_owned()))
            }
        }
    }
}

fn table(json: &Value) -> output::Table {
    let mut table = output::Table::new(["PLACE", "REMOVED"]);
    for (name, rows) in json["tables"].as_object().into_iter().flatten() {
        table.row([name.clone(), output::cell(rows)]);
    }
    for (name, entries) in json["streams"].as_object().into_iter().flatten() {
        table.row([format!("stream {name}"), output::cell(entries)]);
    }
    for (place, why) in json["pending"].as_object().into_iter().flatten() {
        table.row([format!("not yet: {place}"), output::cell(why)]);
    }
    for (place, what) in json["elsewhere"].as_object().into_iter().flatten() {
        table.row([format!("not: {place}"), output::cell(what)]);
    }
    table
}
