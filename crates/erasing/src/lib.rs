//! Erases a thread, a tenant or a user in Postgres and the streams, including turns in progress.
//!
//! Entry points: [`erase`], and [`preview`], which only counts.
//!
//! 1. The threads are marked. Whatever is read for them from now on is dropped.
//! 2. Owners are made to drop their state ([`Store::renounce`]), and the rows in Postgres are
//!    deleted. Both are repeated until nothing is found. For a user, the threads are listed again
//!    until no new one is found. For a tenant see [`tenant`].
//! 3. A control command goes through each partition's stream. Once it is audited and the checkpoint
//!    has passed it, nothing before it is needed. Then the subjects of the threads are purged up to
//!    it. This is repeated until no new entries come.
//!
//! Every step can be repeated: an erasure that was interrupted is run again from its beginning.

mod attempt;
mod erasure;
mod error;
mod progress;
mod receipt;
mod rows;
mod streams;
mod tenant;

use std::collections::{BTreeMap, BTreeSet};

use bus::Bus;
use model::ThreadId;
use store::{ErasedData, ErasedOwner, Store};
use tokio::time::Instant;

use self::attempt::ErasureAttempt;
pub use self::erasure::Erasure;
pub use self::error::EraseError;
pub use self::progress::ErasureProgress;
pub use self::receipt::Receipt;
use self::rows::{MOST_ROUNDS, THREADS_AT_ONCE, delete_rows, note_agents, threads_of};
use self::streams::ErasedStreams;

/// Erases the data and returns the receipt. Without a `bus` the streams are left alone.
///
/// # Errors
/// Postgres or NATS does not answer, or the number of partitions is being changed.
pub async fn erase(
    store: &Store,
    bus: Option<&Bus>,
    erasure: &Erasure,
    progress: &ErasureProgress,
) -> Result<Receipt, EraseError> {
    let servers = ErasureServers { store, bus };
    match &erasure.data {
        ErasedData::Thread(thread) => servers.thread(thread, erasure, progress).await,
        ErasedData::Owner(owner @ ErasedOwner::User(..)) => servers.user(owner, erasure, progress).await,
        ErasedData::Owner(owner @ ErasedOwner::Tenant(tenant)) => {
            let threads = threads_of(store, bus, owner).await?;
            let mut attempt =
                ErasureAttempt::new(store, threads.into_iter().collect(), progress.clone()).await?;
            tenant::run(&mut attempt, erasure, bus, tenant.as_ref()).await
        }
    }
}

/// Counts what an erasure would remove.
///
/// # Errors
/// As [`erase`].
pub async fn preview(
    store: &Store,
    bus: Option<&Bus>,
    erasure: &Erasure,
    progress: &ErasureProgress,
) -> Result<Receipt, EraseError> {
    let threads = match &erasure.data {
        ErasedData::Thread(thread) => vec![thread.clone()],
        ErasedData::Owner(owner) => threads_of(store, bus, owner).await?.into_iter().collect(),
    };
    let attempt = ErasureAttempt::new(store, threads, progress.clone()).await?;
    for threads in attempt.threads.chunks(THREADS_AT_ONCE) {
        progress.add_rows(&store.rows_of_threads(threads).await?);
    }
    if let ErasedData::Owner(owner) = &erasure.data {
        let rows = store.rows_of_owner(owner, &attempt.threads).await?;
        match owner {
            ErasedOwner::User(..) => progress.add_rows(&rows),
            ErasedOwner::Tenant(_) => progress.add_rows_of_tenant(&rows),
        }
    }
    progress.set_threads(attempt.threads.len());
    for (stream, entries) in ErasedStreams::of_threads(bus, &attempt).entries().await? {
        progress.add_entries(&stream, entries);
    }
    Ok(Receipt::of_preview(progress))
}

/// Whether data of a thread is stored, or the thread was erased earlier.
///
/// # Errors
/// As [`erase`].
pub async fn is_known(store: &Store, bus: Option<&Bus>, thread: &ThreadId) -> Result<bool, EraseError> {
    if store.erased(thread).await?.is_some() || store.has_rows(thread).await? {
        return Ok(true);
    }
    let attempt = ErasureAttempt::new(store, vec![thread.clone()], ErasureProgress::default()).await?;
    let entries = ErasedStreams::of_threads(bus, &attempt).entries().await?;
    Ok(entries.values().any(|entries| *entries > 0))
}

/// Where the data is.
#[derive(Clone, Copy)]
struct ErasureServers<'a> {
    store: &'a Store,
    bus: Option<&'a Bus>,
}

impl ErasureServers<'_> {
    async fn thread(
        self,
        thread: &ThreadId,
        erasure: &Erasure,
        progress: &ErasureProgress,
    ) -> Result<Receipt, EraseError> {
        let mut attempt = ErasureAttempt::new(self.store, vec![thread.clone()], progress.clone()).await?;
        let mut receipt = self.threads(&mut attempt, erasure, None).await?;
        // The receipt includes what was erased earlier.
        if let Some(erased) = self.store.erased(thread).await? {
            receipt.use_counts_of_thread(&erased.counts);
            receipt.erased_at = erased.at;
        }
        Ok(receipt)
    }

    /// Erases the threads of a user, and lists them again until no new one is found.
    async fn user(
        self,
        owner: &ErasedOwner,
        erasure: &Erasure,
        progress: &ErasureProgress,
    ) -> Result<Receipt, EraseError> {
        let give_up_at = Instant::now() + erasure.wait;
        let (mut done, mut pending) = (BTreeSet::new(), BTreeMap::new());
        let mut new: Vec<ThreadId> = threads_of(self.store, self.bus, owner).await?.into_iter().collect();
        // The loop runs once even without threads, because the user may have other data.
        loop {
            done.extend(new.iter().cloned());
            let mut attempt = ErasureAttempt::new(self.store, new, progress.clone()).await?;
            pending.extend(self.threads(&mut attempt, erasure, Some(owner)).await?.pending);
            let listed = threads_of(self.store, self.bus, owner).await?;
            new = listed.difference(&done).cloned().collect();
            if new.is_empty() {
                break;
            }
            if Instant::now() >= give_up_at {
                let threads = new.len();
                let why =
                    format!("{threads} were made for the user meanwhile; stop its clients and erase again");
                pending.insert("threads".to_owned(), why);
                break;
            }
        }
        progress.set_threads(done.len());
        Ok(Receipt::of_run(&erasure.actor, progress, pending))
    }

    /// Erases the threads of `attempt` and, if there is an owner, all other data that names the
    /// owner.
    async fn threads(
        self,
        attempt: &mut ErasureAttempt<'_>,
        erasure: &Erasure,
        owner: Option<&ErasedOwner>,
    ) -> Result<Receipt, EraseError> {
        let Self { store, bus } = self;
        let (progress, id) = (attempt.progress.clone(), uuid::Uuid::now_v7().simple().to_string());
        let mut marked = Vec::with_capacity(attempt.threads.len());
        for threads in attempt.threads.chunks(THREADS_AT_ONCE) {
            match &erasure.hold {
                Some(hold) => {
                    marked.extend(store.mark_held(threads, &erasure.actor, &id, owner, hold).await?);
                }
                None => {
                    store.mark_erased(threads, &erasure.actor, &id, owner).await?;
                    marked.extend_from_slice(threads);
                }
            }
        }
        (attempt.threads, attempt.run) = (marked, Some(id.clone()));
        // Saved parts of an answer are found by its task. An owner that could still save some must
        // therefore lose its partition before tasks are deleted.
        note_agents(attempt).await?;
        store.renounce(&attempt.touched()).await?;
        delete_rows(attempt).await?;
        let mut streams = ErasedStreams::of_threads(bus, attempt);
        let mut requests = streams.drop_requests(true).await?;
        for _ in 0..MOST_ROUNDS {
            store.renounce(&attempt.touched()).await?;
            if delete_rows(attempt).await? == 0 {
                break;
            }
        }
        let give_up_at = Instant::now() + erasure.wait;
        streams = ErasedStreams::of_threads(bus, attempt);
        let pending = streams.clear(&erasure.actor, give_up_at, &progress).await?;
        requests += streams.drop_requests(false).await?;
        // Gateways that had checked the marks earlier may have written since the first deletion.
        delete_rows(attempt).await?;
        if let Some(owner) = owner {
            progress.add_rows(&store.erase_owner(owner).await?);
        }
        if bus.is_some() {
            // Remaining entries of the streams would get into new threads of the same names.
            if pending.is_empty() {
                for threads in attempt.threads.chunks(THREADS_AT_ONCE) {
                    store.finish_erasing(threads, &id).await?;
                }
            }
            progress.add_entries(wire::subject::WORK_STREAM, requests);
        }
        progress.set_threads(attempt.threads.len());
        Ok(Receipt::of_run(&erasure.actor, &progress, pending))
    }
}
