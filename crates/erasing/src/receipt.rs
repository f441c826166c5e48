//! The receipt of an erasure: what was erased where, and what no command reaches.

use std::collections::BTreeMap;

use model::Timestamp;
use serde_json::{Map, Value, json};

use crate::progress::ErasureProgress;

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

/// What was removed where, what is left, and what no erasure reaches.
#[derive(Debug, Clone)]
pub struct Receipt {
    threads: u64,
    is_erased: bool,
    actor: Option<String>,
    pub(crate) erased_at: Timestamp,
    tables: BTreeMap<String, Value>,
    streams: BTreeMap<String, u64>,
    /// Places where data is left, with the reason.
    pub pending: BTreeMap<String, String>,
    spent_ms: BTreeMap<&'static str, u64>,
}

impl Receipt {
    pub(crate) fn of_preview(progress: &ErasureProgress) -> Self {
        Self {
            is_erased: false,
            actor: None,
            erased_at: Timestamp(0),
            ..Self::of_run("", progress, BTreeMap::new())
        }
    }

    pub(crate) fn of_run(actor: &str, progress: &ErasureProgress, pending: BTreeMap<String, String>) -> Self {
        let counts = progress.counts();
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        Self {
            threads: counts.threads,
            is_erased: true,
            actor: Some(actor.to_owned()),
            erased_at: Timestamp(i64::try_from(now.as_millis()).unwrap_or(i64::MAX)),
            tables: counts.tables.into_iter().map(|(name, rows)| (name, json!(rows))).collect(),
            streams: counts.streams,
            pending,
            spent_ms: progress.spent_ms(),
        }
    }

    /// Replaces the counts by those that the store has summed over all erasures of one thread.
    pub(crate) fn use_counts_of_thread(&mut self, counts: &Value) {
        let counts = counts.as_object().into_iter().flatten();
        self.tables.extend(counts.map(|(name, rows)| (name.clone(), rows.clone())));
    }

    /// The data that is left, with its place, as one line; `None` if there is none.
    pub fn left(&self) -> Option<String> {
        let parts: Vec<String> = self.pending.iter().map(|(place, why)| format!("{place}: {why}")).collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    /// The receipt as an object of JSON.
    pub fn to_json(&self) -> Map<String, Value> {
        let mut json = Map::new();
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
            json.insert("spent_ms".to_owned(), json!(self.spent_ms));
            json.insert("elsewhere".to_owned(), json!(BTreeMap::from(ELSEWHERE)));
        }
        json
    }
}
