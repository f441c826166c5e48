//! Background work: data read once at the start, and loops that check credentials again.

use std::time::Duration;

use bus::Bus;
use model::PartitionCount;
use runtime::{Backoff, Health, retry};
use store::Store;
use tokio::time::Instant;

use crate::app::state::AppState;

/// Interval at which the credentials of open streams are checked.
const REVALIDATE_INTERVAL: Duration = Duration::from_secs(4);

/// Readiness condition of the gateway's connection to NATS.
const NATS_CONDITION: &str = "NATS of the gateway";
/// Time without NATS after which the gateway is not ready.
const NATS_AWAY_LIMIT: Duration = Duration::from_secs(10);
/// Interval at which the connection is checked.
const NATS_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Interval at which the marks of erased tenants are read. An erasure of a tenant waits for
/// longer than this.
const ERASED_TENANTS_INTERVAL: Duration = Duration::from_secs(2);

/// Reads the ticket keys and the API keys, and warns if row-level security is required but the
/// database's role bypasses it.
pub(crate) async fn secure(store: &Store, state: &AppState, is_rls_required: bool) {
    let authenticator = &state.authenticator;
    let ((), bypasses_rls, ()) = retry(Backoff::default(), "reading the keys", || async {
        tokio::try_join!(
            authenticator.load_ticket_keys(store),
            store.bypasses_rls(),
            authenticator.load_keys(store, state.now())
        )
    })
    .await;
    if bypasses_rls && is_rls_required {
        tracing::warn!(
            "the role of DATABASE_URL passes row-level security: only the gateway separates tenants"
        );
    }
}

/// Reads the ticket keys again, checks the credentials of open streams, and ends streams whose
/// credential is no longer valid.
pub(crate) async fn revalidate_loop(state: &AppState, store: &Store) {
    loop {
        tokio::time::sleep(REVALIDATE_INTERVAL).await;
        let now = state.now();
        if let Err(error) = state.authenticator.load_ticket_keys(store).await {
            tracing::debug!(%error, "the keys of tickets cannot be read");
        }
        // Expiry does not depend on whether the store answers.
        let keys = state.open_streams.end_expired(now);
        let revoked = state.authenticator.revoked(store, &keys, now).await;
        state.open_streams.end_revoked(&revoked);
    }
}

/// Reads which tenants are erased, and ends their open streams.
pub(crate) async fn watch_erased_tenants(state: &AppState, store: &Store) {
    loop {
        match state.erased_tenants.refresh(store).await {
            Ok(()) => state.open_streams.end_erased(&state.erased_tenants),
            Err(error) => tracing::debug!(%error, "the marks of erased tenants cannot be read"),
        }
        tokio::time::sleep(ERASED_TENANTS_INTERVAL).await;
    }
}

/// Reports the gateway as not ready while NATS is unavailable, because it then accepts no input and
/// shows nothing new. A short interruption does not count: otherwise the restart of a NATS server
/// would make all gateways unready at once.
pub(crate) async fn watch_nats(bus: &Bus, health: &Health) {
    let mut connected_at = Instant::now();
    loop {
        if bus.is_connected() {
            connected_at = Instant::now();
        }
        let away_for = connected_at.elapsed();
        let fault =
            (away_for > NATS_AWAY_LIMIT).then(|| format!("no connection for {} s", away_for.as_secs()));
        health.set_fault(NATS_CONDITION, fault);
        tokio::time::sleep(NATS_CHECK_INTERVAL).await;
    }
}

/// A separate loop, because an identity provider may be slow. Neither loop has a heartbeat: they
/// wait for other services, and a loop that hangs is no reason to restart the gateway.
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
