//! Rows of what is erased: which threads there are, and deleting what they have.

use std::collections::BTreeSet;

use bus::Bus;
use model::{TaskKind, ThreadId};
use store::{ErasedOwner, Store};

use super::erasing::{Erasing, add};
use super::streams;
use crate::exit::ExitError;

/// Threads of one statement.
pub(super) const THREADS_AT_ONCE: usize = 200;
/// Rounds of deletion; only writes that began before the mark can make another one necessary.
pub(super) const MOST_ROUNDS: usize = 10;

/// The threads of a tenant or a user that there are now, also those of a tenant that streams alone know of.
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

/// Keeps which agents may hold something of the threads.
pub(super) async fn note_agents(erasing: &mut Erasing<'_>) -> Result<(), ExitError> {
    for threads in erasing.threads.chunks(THREADS_AT_ONCE) {
        let agents = erasing.store.agents_of_threads(threads).await?;
        erasing.store.note_agents(threads, &agents).await?;
        // What follows their turns may still be on its way to queues that are empty.
        let queues = agents.iter().flat_map(|agent| {
            [TaskKind::WorkRequest, TaskKind::Memory, TaskKind::Compaction].map(|kind| agent.queue_of(kind))
        });
        erasing.agents.extend(queues);
        erasing.agents.extend(agents);
    }
    Ok(())
}

/// Deletes all that is there now; how many rows.
pub(super) async fn delete_rows(erasing: &mut Erasing<'_>) -> Result<u64, ExitError> {
    let mut all = 0;
    // Before what names them is gone.
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
