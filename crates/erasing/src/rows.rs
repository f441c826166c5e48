//! Lists the threads to erase, and deletes their rows.

use std::collections::BTreeSet;

use bus::Bus;
use model::{TaskKind, ThreadId};
use store::{ErasedOwner, Store};

use crate::attempt::ErasureAttempt;
use crate::error::EraseError;
use crate::progress::Share;
use crate::streams;

/// Maximum number of threads in one statement.
pub(crate) const THREADS_AT_ONCE: usize = 200;
/// Maximum number of rounds of deletion. Only writes that began before the mark can make another
/// round necessary.
pub(crate) const MOST_ROUNDS: usize = 10;

/// The current threads of a tenant or a user. For a tenant this includes threads that are only in
/// streams.
pub(crate) async fn threads_of(
    store: &Store,
    bus: Option<&Bus>,
    owner: &ErasedOwner,
) -> Result<BTreeSet<ThreadId>, EraseError> {
    let mut threads: BTreeSet<ThreadId> = store.threads_to_erase(owner).await?.into_iter().collect();
    if let (ErasedOwner::Tenant(tenant), Some(bus)) = (owner, bus) {
        threads.extend(streams::threads_of_tenant(bus, store, tenant.as_ref()).await?);
    }
    Ok(threads)
}

/// Records the agents that may hold something of the threads.
pub(crate) async fn note_agents(attempt: &mut ErasureAttempt<'_>) -> Result<(), EraseError> {
    for threads in attempt.threads.chunks(THREADS_AT_ONCE) {
        let agents = attempt.store.agents_of_threads(threads).await?;
        attempt.store.note_agents(threads, &agents).await?;
        // Tasks that follow turns of these threads may still be on their way to queues that are
        // empty now.
        let queues = agents.iter().flat_map(|agent| {
            [TaskKind::WorkRequest, TaskKind::Memory, TaskKind::Compaction].map(|kind| agent.queue_of(kind))
        });
        attempt.agents.extend(queues);
        attempt.agents.extend(agents);
    }
    Ok(())
}

/// Deletes all rows that exist now, and returns their number.
pub(crate) async fn delete_rows(attempt: &mut ErasureAttempt<'_>) -> Result<u64, EraseError> {
    let progress = attempt.progress.clone();
    progress.timed(Share::Postgres, delete_rows_once(attempt)).await
}

async fn delete_rows_once(attempt: &mut ErasureAttempt<'_>) -> Result<u64, EraseError> {
    let mut all = 0;
    // The agents must be recorded before the rows that name them are deleted.
    note_agents(attempt).await?;
    for threads in attempt.threads.chunks(THREADS_AT_ONCE) {
        loop {
            let rows = attempt.store.erase_some(&attempt.own(threads).await?).await?;
            let sum: u64 = rows.values().sum();
            all += sum;
            attempt.progress.add_rows(&rows);
            if sum == 0 {
                break;
            }
        }
    }
    all += streams::drop_dead_tasks(attempt).await?;
    Ok(all)
}
