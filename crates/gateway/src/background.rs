//! Loops beside the requests: what is read once at the start, and credentials that are looked at again.

use std::time::Duration;

use model::PartitionCount;
use runtime::Backoff;
use store::Store;

use crate::app::state::Counter;

/// How often it is looked whether credentials still count.
const LOOK_EVERY: Duration = Duration::from_secs(4);

/// Reads what tickets are signed with and which keys there are, and says when the second wall between tenants is wanted and does not stand.
pub(crate) async fn secure(store: &Store, counter: &Counter, wants_wall: bool) {
    let credentials = &counter.credentials;
    let mut backoff = Backoff::default();
    loop {
        match tokio::try_join!(
            store.signing_key(),
            store.bypasses_rls(),
            credentials.learn_keys(store, counter.now())
        ) {
            Ok((key, passes, ())) => {
                credentials.sign_with(&key);
                if passes && wants_wall {
                    tracing::warn!(
                        "the role of DATABASE_URL passes row-level security: only the gateway separates tenants"
                    );
                }
                return;
            }
            Err(error) => tracing::warn!(%error, "waiting for the database"),
        }
        backoff.wait().await;
    }
}

/// Looks at credentials again while streams are open in their name.
pub(crate) async fn look_after(counter: &Counter, store: &Store) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let now = counter.now();
        // What ends by itself ends, whether or not the store can be asked.
        let keys = counter.vigil.end_expired(now);
        let revoked = counter.credentials.revoked(store, &keys, now).await;
        counter.vigil.end_revoked(&revoked);
    }
}

/// Beside it, for an identity provider may take its time. Neither loop has a heartbeat: they wait for others, and that these hang is no
/// reason to restart the gateway.
pub(crate) async fn keep_fresh(counter: &Counter, store: &Store) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        counter.credentials.keep_fresh(store, counter.now()).await;
    }
}

pub(crate) async fn partition_count(store: &Store) -> PartitionCount {
    let mut backoff = Backoff::default();
    loop {
        match store.partition_count().await {
            Ok(Some(count)) => return count,
            Ok(None) => tracing::info!("waiting for the database to be migrated"),
            Err(error) => tracing::warn!(%error, "waiting for the database"),
        }
        backoff.wait().await;
    }
}
