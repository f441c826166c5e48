//! What threads are doing, as their owners know it.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::join_all;
use http_server::error::{ErrorCode, Problem};
use model::{PartitionId, QueryTarget, QueueStatus, Tenant, ThreadId};

use crate::backend::Backend;

/// Maximum time to wait for the owners: a list shows no state rather than waiting for one.
const TIMEOUT: Duration = Duration::from_millis(1_000);

/// What a thread is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ThreadState {
    Running,
    Waiting,
    Failed,
    Idle,
}

impl ThreadState {
    pub(crate) const ALL: [Self; 4] = [Self::Running, Self::Waiting, Self::Failed, Self::Idle];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Failed => "failed",
            Self::Idle => "idle",
        }
    }
}

/// The states of threads, as far as their owners have replied.
#[derive(Debug, Default)]
pub(crate) struct ThreadStates {
    running: HashMap<ThreadId, bool>,
    /// Partitions whose busy threads are all known.
    complete: Vec<PartitionId>,
}

impl ThreadStates {
    /// The states of these threads.
    pub(crate) async fn of(
        backend: &Backend,
        tenant: Option<&Tenant>,
        threads: impl Iterator<Item = &ThreadId>,
    ) -> Self {
        let mut partitions: Vec<PartitionId> = threads.map(|thread| backend.partition_of(thread)).collect();
        partitions.sort_unstable();
        partitions.dedup();
        Self::in_partitions(backend, tenant, partitions).await
    }

    /// The states of all threads of the tenant.
    ///
    /// # Errors
    /// An owner does not answer, or too many threads of its partition are busy.
    pub(crate) async fn of_all(backend: &Backend, tenant: Option<&Tenant>) -> Result<Self, Problem> {
        let all: Vec<PartitionId> = backend.count.all().collect();
        let count = all.len();
        let states = Self::in_partitions(backend, tenant, all).await;
        if states.complete.len() < count {
            let detail = "the states of threads are not known: a worker does not answer, or too many threads are busy; \
                          list threads without state";
            return Err(Problem::new(ErrorCode::PartitionUnavailable, detail));
        }
        Ok(states)
    }

    async fn in_partitions(backend: &Backend, tenant: Option<&Tenant>, partitions: Vec<PartitionId>) -> Self {
        let query = wire::status::encode_query(&QueryTarget::BusyThreads(tenant.cloned()));
        let asked = partitions.into_iter().map(|partition| {
            let query = query.clone();
            async move {
                let decode = wire::status::decode_reply;
                (partition, backend.query_owner(partition, query, TIMEOUT, decode).await)
            }
        });
        let mut states = Self::default();
        for (partition, reply) in join_all(asked).await {
            let Some(QueueStatus { busy: Some(busy), reason, .. }) = reply else { continue };
            if reason.is_none() && !busy.is_cut {
                states.complete.push(partition);
            }
            states.running.extend(busy.threads.into_iter().map(|busy| (busy.thread, busy.is_running)));
        }
        states
    }

    /// `has_failed`: whether the last turn that ended has failed. `None` if the owner does not reply.
    pub(crate) fn of_thread(
        &self,
        backend: &Backend,
        thread: &ThreadId,
        has_failed: bool,
    ) -> Option<ThreadState> {
        match self.running.get(thread) {
            Some(true) => Some(ThreadState::Running),
            Some(false) => Some(ThreadState::Waiting),
            None if !self.complete.contains(&backend.partition_of(thread)) => None,
            None if has_failed => Some(ThreadState::Failed),
            None => Some(ThreadState::Idle),
        }
    }

    /// The threads that run, or those that wait.
    pub(crate) fn threads_in(&self, state: ThreadState) -> Vec<ThreadId> {
        let is_wanted = |is_running: bool| is_running == (state == ThreadState::Running);
        let wanted = self.running.iter().filter(|(_, is_running)| is_wanted(**is_running));
        wanted.map(|(thread, _)| thread.clone()).collect()
    }
}
