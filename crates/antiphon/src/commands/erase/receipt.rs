//! The receipt of an erasure: what was erased where, and what no command reaches.

use std::collections::BTreeMap;

use model::Timestamp;
use serde_json::{Map, Value, json};
use store::ErasedRows;

use super::streams::Cleared;
use crate::exit::ExitError;
use crate::options::ErasePolicy;
use crate::output;

/// Places that may hold text of a thread and that no command reaches.
const ELSEWHERE: [(&str, &str); 5] = [
    ("logs", "texts of errors that workflow services gave"),
    ("copies", "backups of Postgres and of NATS, exports, and forks of the threads"),
    (
        "quotations",
        "what another thread's answer repeats in its own words, when it was given a summary of one that is erased",
    ),
    (
        "disks",
        "deleted text stays in the files of Postgres until VACUUM and the next checkpoints, and in those of NATS until the whole block of its stream \
         (up to 8 MB) is gone: how to force both is in deploy/README.md, \"Deleted text on disks\"",
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

    /// Records that something is left at a place.
    pub(super) fn leave(&mut self, place: &str, why: String) {
        self.pending.insert(place.to_owned(), why);
    }

    /// Adds what a later run of the same command erased.
    pub(super) fn join(&mut self, later: Self) {
        self.threads += later.threads;
        self.erased_at = later.erased_at;
        self.pending.extend(later.pending);
        for (table, rows) in later.tables {
            let before = self.tables.get(&table).and_then(Value::as_u64).unwrap_or_default();
            self.tables.insert(table, json!(before + rows.as_u64().unwrap_or_default()));
        }
        for (stream, entries) in later.streams {
            *self.streams.entry(stream).or_default() += entries;
        }
    }

    /// Replaces the counts by those that the store has summed over all erasures of one thread.
    pub(super) fn tables_of_thread(&mut self, counts: &Value) {
        let counts = counts.as_object().into_iter().flatten();
        self.tables.extend(counts.map(|(name, rows)| (name.clone(), rows.clone())));
    }

    /// Fails when something is left.
    pub(super) fn print(self, policy: &ErasePolicy, scope: Value) -> Result<(), ExitError> {
        let mut json = match scope {
            Value::Object(map) => map,
            _ => Map::new(),
        };
        json.insert("erased".to_owned(), json!(self.is_erased));
        json.insert("threads".to_owned(), json!(self.threads));
        if let Some(actor) = &self.actor {
            json.insert("erased_at".to_owned(), json!(wire::rfc3339(self.erased_at)));
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
        output::print(policy.database.output.format(), &json, || table(&json))?;
        match self.pending.is_empty() {
            true => Ok(()),
            false => Err(ExitError::Failed("something of it is left: see `pending`".to_owned())),
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
