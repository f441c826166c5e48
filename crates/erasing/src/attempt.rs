//! The threads to erase, and the agents that may hold their text.

use std::collections::BTreeSet;

use model::{AgentId, Bucket, PartitionCount, PartitionId, ThreadId};
use store::Store;

use crate::error::EraseError;
use crate::progress::ErasureProgress;

/// The state of an erasure.
pub(crate) struct ErasureAttempt<'a> {
    pub(crate) store: &'a Store,
    pub(crate) partitions: PartitionCount,
    pub(crate) threads: Vec<ThreadId>,
    pub(crate) agents: BTreeSet<AgentId>,
    pub(crate) progress: ErasureProgress,
    /// The run that has marked the threads. `None`: the tenant's mark applies to them.
    pub(crate) run: Option<String>,
}

impl<'a> ErasureAttempt<'a> {
    pub(crate) async fn new(
        store: &'a Store,
        threads: Vec<ThreadId>,
        progress: ErasureProgress,
    ) -> Result<Self, EraseError> {
        // While partitions are moved, their owners are unknown.
        if let Some(change) = store.partition_change().await? {
            return Err(change.refusal().into());
        }
        let partitions = store.partition_count().await?.ok_or(EraseError::NotMigrated)?;
        let agents = threads.iter().map(ThreadId::agent).collect();
        Ok(Self { store, partitions, threads, agents, progress, run: None })
    }

    /// The threads among these that have the mark of this attempt, so that it deletes their rows.
    pub(crate) async fn own(&self, threads: &[ThreadId]) -> Result<Vec<ThreadId>, EraseError> {
        match &self.run {
            Some(run) => Ok(self.store.erasing_by(threads, run).await?),
            None => Ok(threads.to_vec()),
        }
    }

    /// The partitions whose owners may hold something of the threads.
    pub(crate) fn touched(&self) -> Vec<PartitionId> {
        let agents = self.agents.iter().map(|agent| Bucket::of_key(agent.as_str()));
        let buckets = self.threads.iter().map(ThreadId::bucket).chain(agents);
        buckets.map(|bucket| bucket.partition(self.partitions)).collect::<BTreeSet<_>>().into_iter().collect()
    }
}
