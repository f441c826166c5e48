//! Erases a tenant.
//!
//! 1. The tenant is marked. From then on its credentials are refused, no statement in its scope
//!    runs, and owners drop what they read for it.
//! 2. Everything of the tenant is listed and deleted, in Postgres and in the streams. This is
//!    repeated until a list is empty and gateways know the mark.
//! 3. The marks of its threads are deleted. The tenant's own mark replaces them, until an operator
//!    reopens the name or the mark expires.

use std::collections::BTreeSet;
use std::time::Duration;

use bus::Bus;
use model::{PartitionId, Tenant, ThreadId};
use store::{Disposition, ErasedOwner, StoreError};
use tokio::time::{Instant, sleep};

use crate::attempt::ErasureAttempt;
use crate::erasure::Erasure;
use crate::error::EraseError;
use crate::progress::Share;
use crate::receipt::Receipt;
use crate::rows::{MOST_ROUNDS, delete_rows, threads_of};
use crate::streams::ErasedStreams;

/// Pause between two attempts to write the mark, and between two lists.
const PAUSE: Duration = Duration::from_millis(250);
/// After this time gateways have read the mark, and everything that they accepted before is in the
/// streams.
const SETTLED: Duration = Duration::from_secs(4);

pub(crate) async fn run(
    attempt: &mut ErasureAttempt<'_>,
    erasure: &Erasure,
    bus: Option<&Bus>,
    tenant: Option<&Tenant>,
) -> Result<Receipt, EraseError> {
    let give_up_at = Instant::now() + erasure.wait;
    let (progress, id) = (attempt.progress.clone(), uuid::Uuid::now_v7().simple().to_string());
    mark(attempt, erasure, tenant, &id, give_up_at).await?;
    let marked_at = Instant::now();
    // This prevents owners from writing data that they decided on before the mark.
    let everything: Vec<PartitionId> = attempt.partitions.all().collect();
    attempt.store.renounce(&everything).await?;
    let owner = ErasedOwner::Tenant(tenant.cloned());
    let streams = ErasedStreams::of_tenant(bus, attempt, tenant);
    let mut threads: BTreeSet<ThreadId> = attempt.threads.drain(..).collect();
    let pending = loop {
        threads.extend(delete_everything(attempt, bus, &owner, tenant).await?);
        progress.add_entries(wire::subject::WORK_STREAM, streams.drop_requests(false).await?);
        let mut pending = streams.clear(&erasure.actor, give_up_at, &progress).await?;
        let rows = attempt.store.threads_to_erase(&owner).await?.len();
        let entries = streams.left(&progress).await?;
        let is_empty = rows == 0 && entries == 0 && pending.is_empty();
        if is_empty && marked_at.elapsed() >= SETTLED {
            break pending;
        }
        if Instant::now() >= give_up_at {
            if rows > 0 {
                let why = format!("{rows} threads and agents have rows again; erase again");
                pending.insert("postgres".to_owned(), why);
            }
            if entries > 0 {
                let why = format!(
                    "{entries} entries came meanwhile; erase again when nothing is published any more"
                );
                pending.insert("streams".to_owned(), why);
            }
            break pending;
        }
        progress.timed(Share::Caches, sleep(PAUSE)).await;
    };
    if bus.is_some() && pending.is_empty() {
        attempt.store.finish_erasing_tenant(tenant, &id).await?;
    }
    progress.set_threads(threads.len());
    Ok(Receipt::of_run(&erasure.actor, &progress, pending))
}

/// Writes the mark. It waits for statements of the tenant that are in progress.
async fn mark(
    attempt: &ErasureAttempt<'_>,
    erasure: &Erasure,
    tenant: Option<&Tenant>,
    id: &str,
    give_up_at: Instant,
) -> Result<(), EraseError> {
    loop {
        let marked: Result<(), StoreError> =
            attempt.store.mark_tenant_erased(tenant, &erasure.actor, id).await;
        match marked {
            Err(error) if error.disposition() == Disposition::Retry && Instant::now() < give_up_at => {
                sleep(PAUSE).await;
            }
            marked => return Ok(marked?),
        }
    }
}

/// Lists what the tenant has and deletes it from Postgres, until nothing is found. Returns the
/// threads.
async fn delete_everything(
    attempt: &mut ErasureAttempt<'_>,
    bus: Option<&Bus>,
    owner: &ErasedOwner,
    tenant: Option<&Tenant>,
) -> Result<BTreeSet<ThreadId>, EraseError> {
    let store = attempt.store;
    let mut all = BTreeSet::new();
    for _ in 0..MOST_ROUNDS {
        let listed = threads_of(store, bus, owner).await?;
        all.extend(listed.iter().cloned());
        attempt.threads = listed.into_iter().collect();
        attempt.agents = attempt.threads.iter().map(ThreadId::agent).collect();
        let besides = store.erase_owner(owner).await?;
        let rows = delete_rows(attempt).await? + besides.values().sum::<u64>();
        attempt.progress.add_rows(&besides);
        attempt.progress.add_rows(&store.delete_thread_marks(tenant).await?);
        if rows == 0 {
            break;
        }
        // Without this, owners that read rows before the deletion would write data about these
        // rows.
        store.renounce(&attempt.touched()).await?;
    }
    Ok(all)
}
