//! The threads to erase, the agents that may hold their text, and counts of erased rows.

use std::collections::BTreeSet;

use model::{AgentId, Bucket, PartitionCount, PartitionId, ThreadId};
use store::{ErasedRows, Store};

use crate::exit::ExitError;

/// The state of an erasure.
pub(super) struct Erasing<'a> {
    pub(super) store: &'a Store,
    pub(super) partitions: PartitionCount,
    pub(super) threads: Vec<ThreadId>,
    pub(super) agents: BTreeSet<AgentId>,
    pub(super) tables: ErasedRows,
}

impl<'a> Erasing<'a> {
    pub(super) async fn new(store: &'a Store, threads: Vec<ThreadId>) -> Result<Self, ExitError> {
        // While partitions are moved, their owners are unknown.
        if let Some(change) = store.partition_change().await? {
            return Err(change.refusal().into());
        }
        let partitions = store.partition_count().await?;
        let partitions =
            partitions.ok_or_else(|| ExitError::Failed("the database is not laid out".to_owned()))?;
        let agents = threads.iter().map(ThreadId::agent).collect();
        Ok(Self { store, partitions, threads, agents, tables: ErasedRows::new() })
    }

    /// The partitions whose owners may hold something of the threads.
    pub(super) fn touched(&self) -> Vec<PartitionId> {
        let agents = self.agents.iter().map(|agent| Bucket::of_key(agent.as_str()));
        let buckets = self.threads.iter().map(ThreadId::bucket).chain(agents);
        buckets.map(|bucket| bucket.partition(self.partitions)).collect::<BTreeSet<_>>().into_iter().collect()
    }
}

pub(super) fn add(all: &mut ErasedRows, more: ErasedRows) {
    for (name, rows) in more {
        *all.entry(name).or_default() += rows;
    }
}
