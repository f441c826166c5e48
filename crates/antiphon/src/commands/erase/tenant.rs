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

use super::erasing::{Erasing, add};
use super::receipt::Receipt;
use super::rows::{MOST_ROUNDS, delete_rows, threads_of};
use super::streams::{Cleared, ErasedStreams};
use crate::exit::ExitError;
use crate::options::ErasePolicy;

/// Pause between two attempts to write the mark, and between two lists.
const PAUSE: Duration = Duration::from_millis(250);
/// After this time gateways have read the mark, and everything that they accepted before is in the
/// streams.
const SETTLED: Duration = Duration::from_secs(4);

pub(super) async fn run(
    erasing: &mut Erasing<'_>,
    policy: &ErasePolicy,
    bus: Option<&Bus>,
    tenant: Option<&Tenant>,
) -> Result<Receipt, ExitError> {
    let give_up_at = Instant::now() + Duration::from_secs(policy.wait_seconds.into());
    let this_run = uuid::Uuid::now_v7().simple().to_string();
    mark(erasing, policy, tenant, &this_run, give_up_at).await?;
    let marked_at = Instant::now();
    // This prevents owners from writing what they decided before the mark.
    let everything: Vec<PartitionId> = erasing.partitions.all().collect();
    erasing.store.renounce(&everything).await?;
    let owner = ErasedOwner::Tenant(tenant.cloned());
    let streams = ErasedStreams::of_tenant(bus, erasing, tenant);
    let (mut cleared, mut requests) = (Cleared::default(), 0);
    let mut threads: BTreeSet<ThreadId> = erasing.threads.drain(..).collect();
    loop {
        threads.extend(delete_everything(erasing, bus, &owner, tenant).await?);
        requests += streams.drop_requests(false).await?;
        let pass = streams.clear(&policy.actor, give_up_at).await?;
        for (stream, entries) in pass.removed {
            *cleared.removed.entry(stream).or_default() += entries;
        }
        cleared.pending = pass.pending;
        let rows = erasing.store.threads_to_erase(&owner).await?.len();
        let entries = streams.left().await?;
        let is_empty = rows == 0 && entries == 0 && cleared.pending.is_empty();
        if is_empty && marked_at.elapsed() >= SETTLED {
            break;
        }
        if Instant::now() >= give_up_at {
            if rows > 0 {
                let why = format!("{rows} threads and agents have rows again; erase again");
                cleared.pending.insert("postgres".to_owned(), why);
            }
            if entries > 0 {
                let why = format!(
                    "{entries} entries came meanwhile; erase again when nothing is published any more"
                );
                cleared.pending.insert("streams".to_owned(), why);
            }
            break;
        }
        sleep(PAUSE).await;
    }
    if bus.is_some() {
        cleared.removed.insert("WORK".to_owned(), requests);
        if cleared.pending.is_empty() {
            erasing.store.finish_erasing_tenant(tenant, &this_run).await?;
        }
    }
    Ok(Receipt::of_run(threads.len(), &policy.actor, std::mem::take(&mut erasing.tables), cleared))
}

/// Writes the mark. It waits for statements of the tenant that are in progress.
async fn mark(
    erasing: &Erasing<'_>,
    policy: &ErasePolicy,
    tenant: Option<&Tenant>,
    run: &str,
    give_up_at: Instant,
) -> Result<(), ExitError> {
    loop {
        let marked: Result<(), StoreError> =
            erasing.store.mark_tenant_erased(tenant, &policy.actor, run).await;
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
    erasing: &mut Erasing<'_>,
    bus: Option<&Bus>,
    owner: &ErasedOwner,
    tenant: Option<&Tenant>,
) -> Result<BTreeSet<ThreadId>, ExitError> {
    let store = erasing.store;
    let mut all = BTreeSet::new();
    for _ in 0..MOST_ROUNDS {
        let listed = threads_of(store, bus, owner).await?;
        all.extend(listed.iter().cloned());
        erasing.threads = listed.into_iter().collect();
        erasing.agents = erasing.threads.iter().map(ThreadId::agent).collect();
        let besides = store.erase_owner(owner).await?;
        let rows = delete_rows(erasing).await? + besides.values().sum::<u64>();
        add(&mut erasing.tables, besides);
        add(&mut erasing.tables, store.delete_thread_marks(tenant).await?);
        if rows == 0 {
            break;
        }
        // Owners that read rows before the deletion would otherwise write data about them.
        store.renounce(&erasing.touched()).await?;
    }
    Ok(all)
}
