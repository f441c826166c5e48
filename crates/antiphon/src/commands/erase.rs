//! Erases a thread, a tenant or a user in Postgres and the streams, including turns in progress.
//!
//! 1. The threads are marked. Whatever is read for them from now on is dropped.
//! 2. Owners are made to drop their state ([`Store::renounce`]), and the rows in Postgres are
//!    deleted. Both are repeated until nothing is found. For a user, the threads are listed again
//!    until no new one is found. For a tenant see [`tenant`].
//! 3. A control command goes through each partition's stream. Once the command is audited and the
//!    checkpoint has passed it, no earlier entry is needed. Then the subjects of the threads are
//!    purged up to the command. This is repeated until no new entries come.

mod erasing;
mod receipt;
mod rows;
mod streams;
mod tenant;

use std::collections::BTreeSet;
use std::time::Duration;

use bus::Bus;
use model::ThreadId;
use serde_json::json;
use store::{ErasedOwner, ErasedRows, Store};
use tokio::time::Instant;

use self::erasing::{Erasing, add};
use self::receipt::Receipt;
use self::rows::{MOST_ROUNDS, THREADS_AT_ONCE, delete_rows, note_agents, threads_of};
use self::streams::ErasedStreams;
use super::lookup::unknown;
use super::timeouts::SERVER_TIMEOUT;
use crate::connect::connect_own_bus;
use crate::exit::ExitError;
use crate::options::{Erase, EraseOwner, ErasePolicy};
use crate::output;

/// Erases one thread.
pub(super) async fn thread(store: &Store, options: &Erase) -> Result<(), ExitError> {
    let thread = &options.thread;
    let there = store.rows_of_threads(std::slice::from_ref(thread)).await?;
    let scope = json!({ "thread_id": thread.as_str() });
    let bus = connected(store, &options.policy).await?;
    let mut erasing = Erasing::new(store, vec![thread.clone()]).await?;
    if there.values().all(|rows| *rows == 0) && store.erased(thread).await?.is_none() {
        let streams = ErasedStreams::of_threads(bus.as_ref(), &erasing);
        if streams.entries().await?.values().all(|entries| *entries == 0) {
            return Err(unknown(thread));
        }
    }
    if !options.policy.yes {
        return dry(&options.policy, scope, &erasing, bus.as_ref(), there).await;
    }
    let mut receipt = run(&mut erasing, &options.policy, bus.as_ref(), None).await?;
    // The receipt includes what was erased earlier.
    if let Some(erased) = store.erased(thread).await? {
        receipt.tables_of_thread(&erased.counts);
        receipt.erased_at = erased.at;
    }
    receipt.print(&options.policy, scope)
}

/// Erases the threads of a tenant or a user, and their other data.
pub(crate) async fn owner(store: &Store, options: &EraseOwner) -> Result<(), ExitError> {
    let owner = options.owner()?;
    let scope = match &owner {
        ErasedOwner::Tenant(tenant) => {
            json!({ "tenant": tenant.as_ref().map_or("-", |tenant| tenant.as_str()) })
        }
        ErasedOwner::User(tenant, user) => {
            json!({ "tenant": tenant.as_ref().map_or("-", |tenant| tenant.as_str()), "user": user })
        }
    };
    let bus = connected(store, &options.policy).await?;
    let threads = threads_of(store, bus.as_ref(), &owner).await?;
    let mut erasing = Erasing::new(store, threads.into_iter().collect()).await?;
    if !options.policy.yes {
        let mut there = ErasedRows::new();
        for threads in erasing.threads.chunks(THREADS_AT_ONCE) {
            add(&mut there, store.rows_of_threads(threads).await?);
        }
        return dry(&options.policy, scope, &erasing, bus.as_ref(), there).await;
    }
    let receipt = match &owner {
        ErasedOwner::Tenant(of) => {
            tenant::run(&mut erasing, &options.policy, bus.as_ref(), of.as_ref()).await?
        }
        ErasedOwner::User(..) => user(&mut erasing, &options.policy, bus.as_ref(), &owner).await?,
    };
    receipt.print(&options.policy, scope)
}

/// Erases the threads of a user, and lists them again until no new one is found.
async fn user(
    erasing: &mut Erasing<'_>,
    policy: &ErasePolicy,
    bus: Option<&Bus>,
    owner: &ErasedOwner,
) -> Result<Receipt, ExitError> {
    let give_up_at = Instant::now() + Duration::from_secs(policy.wait_seconds.into());
    let mut done: BTreeSet<ThreadId> = erasing.threads.iter().cloned().collect();
    let mut receipt = run(erasing, policy, bus, Some(owner)).await?;
    loop {
        let listed = threads_of(erasing.store, bus, owner).await?;
        let new: Vec<ThreadId> = listed.difference(&done).cloned().collect();
        if new.is_empty() {
            return Ok(receipt);
        }
        if Instant::now() >= give_up_at {
            let threads = new.len();
            receipt.leave(
                "threads",
                format!("{threads} were made for the user meanwhile; stop its clients and erase again"),
            );
            return Ok(receipt);
        }
        done.extend(new.iter().cloned());
        let mut next = Erasing::new(erasing.store, new).await?;
        receipt.join(run(&mut next, policy, bus, Some(owner)).await?);
    }
}

async fn dry(
    policy: &ErasePolicy,
    scope: serde_json::Value,
    erasing: &Erasing<'_>,
    bus: Option<&Bus>,
    tables: ErasedRows,
) -> Result<(), ExitError> {
    output::eprint_line("nothing was erased; --yes erases");
    let streams = ErasedStreams::of_threads(bus, erasing).entries().await?;
    Receipt::of_dry(erasing.threads.len(), tables, streams).print(policy, scope)
}

async fn connected(store: &Store, policy: &ErasePolicy) -> Result<Option<Bus>, ExitError> {
    if policy.database_only {
        return Ok(None);
    }
    match connect_own_bus(store, &policy.nats, "antiphon erase", SERVER_TIMEOUT).await {
        Err(ExitError::Failed(why)) => {
            Err(ExitError::Failed(format!("{why}; --database-only leaves the streams alone")))
        }
        bus => bus.map(Some),
    }
}

async fn run(
    erasing: &mut Erasing<'_>,
    policy: &ErasePolicy,
    bus: Option<&Bus>,
    owner: Option<&ErasedOwner>,
) -> Result<Receipt, ExitError> {
    let store = erasing.store;
    let this_run = uuid::Uuid::now_v7().simple().to_string();
    for threads in erasing.threads.chunks(THREADS_AT_ONCE) {
        store.mark_erased(threads, &policy.actor, &this_run, owner).await?;
    }
    // Saved parts of an answer are found through the task of the answer. So owners that could still
    // save parts must lose their partitions before tasks are deleted.
    note_agents(erasing).await?;
    store.renounce(&erasing.touched()).await?;
    delete_rows(erasing).await?;
    let mut streams = ErasedStreams::of_threads(bus, erasing);
    let mut requests = streams.drop_requests(true).await?;
    for _ in 0..MOST_ROUNDS {
        store.renounce(&erasing.touched()).await?;
        if delete_rows(erasing).await? == 0 {
            break;
        }
    }
    let give_up_at = Instant::now() + Duration::from_secs(policy.wait_seconds.into());
    streams = ErasedStreams::of_threads(bus, erasing);
    let mut cleared = streams.clear(&policy.actor, give_up_at).await?;
    requests += streams.drop_requests(false).await?;
    // Gateways that checked the thread before it was marked may have written since.
    delete_rows(erasing).await?;
    if let Some(owner) = owner {
        add(&mut erasing.tables, store.erase_owner(owner).await?);
    }
    // Remaining entries of the streams would get into new threads of the same names.
    if bus.is_some() && cleared.pending.is_empty() {
        for threads in erasing.threads.chunks(THREADS_AT_ONCE) {
            store.finish_erasing(threads, &this_run).await?;
        }
    }
    if bus.is_some() {
        cleared.removed.insert("WORK".to_owned(), requests);
    }
    Ok(Receipt::of_run(erasing.threads.len(), &policy.actor, std::mem::take(&mut erasing.tables), cleared))
}
