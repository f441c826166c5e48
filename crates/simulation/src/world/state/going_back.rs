//! What went back in time, and what it took with it.

use std::collections::{BTreeMap, BTreeSet};

use model::{MessageKey, PartitionId, Seq};
use partition::StreamEntry;

use crate::rng::Rng;
use crate::store::Store;

/// One of these faults.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Back {
    /// A copy of the whole store is made,
    Copy,
    /// and put back. `in_commit`: while a commit is under way; `purges`: after the streams were purged behind what it knew.
    Restore { in_commit: bool, purges: bool },
    /// A stream loses its end, and goes on with the same sequences.
    Cut,
    /// A stream is deleted and made anew.
    Renew,
    /// A stream loses an entry.
    Lose,
}

/// What went back, and what it took with it.
#[derive(Debug)]
pub(crate) struct GoingBack {
    pub(crate) rng: Rng,
    pub(crate) copy: Option<Box<Store>>,
    /// When a copy will be put back in this history.
    pub(crate) put_back_at: Option<i64>,
    pub(crate) purges: bool,
    /// The next commit that is under way finds its server replaced.
    pub(crate) is_armed: bool,
    /// When the store was replaced: what is on its way to it then is cut off.
    pub(crate) stepped_at: Option<i64>,
    /// Entries that no stream has any more, and that the store has to know of: from which mark on it can notice it.
    pub(crate) gone: Vec<(PartitionId, StreamEntry, Option<Seq>)>,
    /// Everything that streams had once.
    pub(crate) vanished: Vec<(PartitionId, StreamEntry)>,
    /// Messages that have lost a chunk, or may have.
    pub(crate) lost: BTreeSet<MessageKey>,
    /// The last epoch of a partition before its store went back.
    pub(crate) stepped_epochs: BTreeMap<PartitionId, u64>,
    /// When the store or the stream of a partition went back last.
    pub(crate) last: BTreeMap<PartitionId, i64>,
    /// How often a stream lost its end or was made anew.
    pub(crate) partings: BTreeMap<PartitionId, u32>,
    /// From when on the database's clock is behind what it was, and by how much, ms.
    pub(crate) slow_clock: Option<(i64, i64)>,
}

impl GoingBack {
    pub(crate) fn new(rng: Rng) -> Self {
        Self {
            rng,
            copy: None,
            put_back_at: None,
            slow_clock: None,
            purges: false,
            is_armed: false,
            stepped_at: None,
            gone: Vec::new(),
            vanished: Vec::new(),
            lost: BTreeSet::new(),
            stepped_epochs: BTreeMap::new(),
            last: BTreeMap::new(),
            partings: BTreeMap::new(),
        }
    }
}
