//! The state of stores and streams that went back in time, and of what was lost.

use std::collections::{BTreeMap, BTreeSet};

use model::{MessageKey, PartitionId, Seq};
use partition::StreamEntry;

use crate::rng::Rng;
use crate::store::Store;

/// One kind of going back.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Back {
    /// The whole store is copied.
    Copy,
    /// The copy is restored. `in_commit`: while a commit is in progress; `purges`: after the
    /// streams were purged beyond the state of the copy.
    Restore { in_commit: bool, purges: bool },
    /// A stream loses its end, and reuses the same sequences.
    Cut,
    /// A stream is deleted and created again.
    Renew,
    /// A stream loses an entry.
    Lose,
}

/// The stores and streams that went back in time, and the data lost with them.
#[derive(Debug)]
pub(crate) struct GoingBack {
    pub(crate) rng: Rng,
    pub(crate) copy: Option<Box<Store>>,
    /// When a copy will be restored in this history.
    pub(crate) put_back_at: Option<i64>,
    pub(crate) purges: bool,
    /// The next commit in progress finds its server replaced.
    pub(crate) is_armed: bool,
    /// When the store was replaced: statements in flight at that time are cut off.
    pub(crate) stepped_at: Option<i64>,
    /// Entries that no stream has any more and that the store must record, with the mark from which
    /// it can notice the loss.
    pub(crate) gone: Vec<(PartitionId, StreamEntry, Option<Seq>)>,
    /// All entries that streams have lost.
    pub(crate) vanished: Vec<(PartitionId, StreamEntry)>,
    /// Messages that have lost a chunk, or may have.
    pub(crate) lost: BTreeSet<MessageKey>,
    /// The last epoch of a partition before its store went back in time.
    pub(crate) stepped_epochs: BTreeMap<PartitionId, u64>,
    /// When the store or the stream of a partition last went back in time.
    pub(crate) last: BTreeMap<PartitionId, i64>,
    /// How often a stream lost its end or was created again.
    pub(crate) partings: BTreeMap<PartitionId, u32>,
    /// Time from which the database's clock is slow, and its delay, both in ms.
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
