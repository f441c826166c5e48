//! Measures how long a fault delays two steps: the storing of published entries, and the commit of
//! stored ones.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use simulation::checker::{Publish, Published};

use crate::fault::Fault;
use testkit::db_snapshot::CommitTime;

/// The time at which a fault was made, ms since 1970. The fault lasts until the next one.
#[derive(Debug, Clone, Copy)]
pub(super) struct FaultBegin {
    pub(super) fault: Fault,
    pub(super) at_ms: i64,
}

/// The longest waits that a kind of fault has caused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Waits {
    /// The longest wait between two entries of one partition's stream.
    pub(super) store: Duration,
    /// The longest wait from the entry of a message's last chunk to its commit.
    pub(super) commit: Duration,
}

/// The time of the machine's clock, which the servers share.
pub(super) fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// The longest waits by kind of fault. `log` is in the order of each stream.
pub(super) fn waits(
    begins: &[FaultBegin],
    log: &[Publish],
    commits: &[CommitTime],
) -> BTreeMap<Fault, Waits> {
    let mut waits: BTreeMap<Fault, Waits> = BTreeMap::new();
    let mut last_of_partition = BTreeMap::new();
    // If a chunk was published twice, its first entry counts.
    let mut chunks = BTreeMap::new();
    for publish in log {
        let at = publish.at_ms;
        let before = last_of_partition.insert(publish.partition, at).unwrap_or(at);
        if let Some(fault) = cause(begins, before, at) {
            let store = &mut waits.entry(fault).or_default().store;
            *store = (*store).max(span(before, at));
        }
        if let Published::Chunk { key, attempt, chunk } = &publish.body {
            let of = (key.thread.as_str(), key.message.as_str(), i64::from(*attempt));
            chunks.entry(of).or_insert_with(BTreeMap::new).entry(chunk.id).or_insert(at);
        }
    }
    for CommitTime { thread_id, message_id, attempt, at_ms } in commits {
        let stored = chunks.get(&(thread_id.as_str(), message_id.as_str(), *attempt));
        let Some(&stored) = stored.and_then(|chunks| chunks.values().max()) else { continue };
        if let Some(fault) = cause(begins, stored, *at_ms) {
            let commit = &mut waits.entry(fault).or_default().commit;
            *commit = (*commit).max(span(stored, *at_ms));
        }
    }
    waits
}

/// The cause of the wait between two times: the first fault that began between them, or otherwise
/// the last one that began earlier.
fn cause(begins: &[FaultBegin], from_ms: i64, to_ms: i64) -> Option<Fault> {
    let within = begins.iter().find(|begin| (from_ms..=to_ms).contains(&begin.at_ms));
    let around = || begins.iter().rev().find(|begin| begin.at_ms <= from_ms);
    within.or_else(around).map(|begin| begin.fault)
}

/// The time between two times; zero if the clock was set back in between.
fn span(from_ms: i64, to_ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(to_ms - from_ms).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::{Chunk, MessageId, MessageKey, PartitionCount, ThreadId};

    use super::*;

    fn publish(message: &str, id: u32, at_ms: i64) -> Publish {
        let key =
            MessageKey { thread: ThreadId::parse("t").unwrap(), message: MessageId::parse(message).unwrap() };
        let chunk = Arc::new(Chunk::content(id, "x", false));
        let body = Published::Chunk { key, attempt: 0, chunk };
        Publish {
            partition: PartitionCount::new(1).unwrap().all().next().unwrap(),
            seq: at_ms.unsigned_abs(),
            at_ms,
            body,
        }
    }

    #[test]
    fn waits_belong_to_the_fault_that_made_them() {
        let begin = |fault, at_ms| FaultBegin { fault, at_ms };
        let begins =
            [begin(Fault::KillNats, 1_000), begin(Fault::KillWorker, 5_000), begin(Fault::CutLate, 9_000)];
        let log = [
            publish("m1", 0, 900),
            publish("m1", 1, 1_400),
            publish("m1", 0, 5_100),
            publish("m2", 0, 6_000),
        ];
        let commit = |message: &str, at_ms| CommitTime {
            thread_id: "t".to_owned(),
            message_id: message.to_owned(),
            attempt: 0,
            at_ms,
        };
        let commits = [commit("m1", 1_450), commit("m2", 9_700), commit("m3", 9_900)];
        let waits = waits(&begins, &log, &commits);
        let ms = |store, commit| Waits {
            store: Duration::from_millis(store),
            commit: Duration::from_millis(commit),
        };
        assert_eq!(waits[&Fault::KillNats], ms(500, 50));
        assert_eq!(waits[&Fault::KillWorker], ms(3_700, 0));
        assert_eq!(waits[&Fault::CutLate], ms(0, 3_700));
    }
}
