//! Loops beside the requests: what is read once at the start, and authenticator that are looked at again.

use std::time::Duration;

use model::PartitionCount;
use runtime::{Backoff, retry};
use store::Store;

use crate::app::state::AppState;

/// How often it is looked whether authenticator still count.
const REVALIDATE_INTERVAL: Duration = Duration::from_secs(4);

/// Reads what tickets are signed with and which keys there are, and says when the second wall between tenants is wanted and does not stand.
pub(crate) async fn secure(store: &Store, state: &AppState, is_rls_required: bool) {
    let authenticator = &state.authenticator;
    let (key, bypasses_rls, ()) = retry(Backoff::default(), "reading the keys", || async {
        tokio::try_join!(
            store.signing_key(),
            store.bypasses_rls(),
            authenticator.load_keys(store, state.now())
        )
    })
    .await;
    authenticator.set_signing_key(&key);
    if bypasses_rls && is_rls_required {
        tracing::warn!(
            "the role of DATABASE_URL passes row-level security: only the gateway separates tenants"
        );
    }
}

/// Looks at authenticator again while streams are open in their name.
pub(crate) async fn revalidate_loop(state: &AppState, store: &Store) {
    loop {
        tokio::time::sleep(REVALIDATE_INTERVAL).await;
        let now = state.now();
        // What ends by itself ends, whether or not the store can be asked.
        let keys = state.open_streams.end_expired(now);
        let revoked = state.authenticator.revoked(store, &keys, now).await;
        state.open_streams.end_revoked(&revoked);
    }
}

/// Beside it, for an identity provider may take its time. Neither loop has a heartbeat: they wait for others, and that these hang is no
/// reason to restart the gateway.
pub(crate) async fn refresh(state: &AppState, store: &Store) {
    loop {
        tokio::time::sleep(REVALIDATE_INTERVAL).await;
        state.authenticator.refresh(store, state.now()).await;
    }
}

pub(crate) async fn partition_count(store: &Store) -> PartitionCount {
    retry(Backoff::default(), "reading the number of partitions", || async {
        match store.partition_count().await {
            Ok(count) => count.ok_or_else(|| "the database is not migrated yet".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    })
    .await
}
