//! Lists the threads to erase, and deletes their rows.

use std::collections::BTreeSet;

use bus::Bus;
use model::{TaskKind, ThreadId};
use store::{ErasedOwner, Store};

use super::erasing::{Erasing, add};
use super::streams;
use crate::exit::ExitError;

/// Maximum number of threads in one statement.
pub(super) const THREADS_AT_ONCE: usize = 200;
/// Maximum number of rounds of deletion. Only writes that began before the mark can make another
/// round necessary.
pub(super) const MOST_ROUNDS: usize = 10;

/// The current threads of a tenant or a user. For a tenant this includes threads that are only in
/// streams.
pub(super) async fn threads_of(
    store: &Store,
    bus: Option<&Bus>,
    owner: &ErasedOwner,
) -> Result<BTreeSet<ThreadId>, ExitError> {
    let mut threads: BTreeSet<ThreadId> = store.threads_to_erase(owner).await?.into_iter().collect();
    if let (ErasedOwner::Tenant(tenant), Some(bus)) = (owner, bus) {
        threads.extend(streams::threads_of_tenant(bus, store, tenant.as_ref()).await?);
    }
    Ok(threads)
}

/// Records the agents that may hold something of the threads.
pub(super) async fn note_agents(erasing: &mut Erasing<'_>) -> Result<(), ExitError> {
    for threads in erasing.threads.chunks(THREADS_AT_ONCE) {
        let agents = erasing.store.agents_of_threads(threads).await?;
        erasing.store.note_agents(threads, &agents).await?;
        // Tasks that follow turns of these threads may still be on their way to queues that are
        // empty now.
        let queues = agents.iter().flat_map(|agent| {
            [TaskKind::WorkRequest, TaskKind::Memory, TaskKind::Compaction].map(|kind| agent.queue_of(kind))
        });
        erasing.agents.extend(queues);
        erasing.agents.extend(agents);
    }
    Ok(())
}

/// Deletes all rows that exist now, and returns their number.
pub(super) async fn delete_rows(erasing: &mut Erasing<'_>) -> Result<u64, ExitError> {
    let mut all = 0;
    // The agents must be recorded before the rows that name them are deleted.
    note_agents(erasing).await?;
    for threads in erasing.threads.chunks(THREADS_AT_ONCE) {
        loop {
            let rows = erasing.store.erase_some(threads).await?;
            let sum: u64 = rows.values().sum();
            all += sum;
            add(&mut erasing.tables, rows);
            if sum == 0 {
                break;
            }
        }
    }
    all += streams::drop_dead_tasks(erasing).await?;
    Ok(all)
}
