//! What requests and feeds work with: bus, store, clock, partitions and limits.

use std::sync::Arc;
use std::time::Duration;

use bus::Bus;
use bytes::Bytes;
use model::{GatewayId, PartitionCount, PartitionId, Tenant, ThreadId, Timestamp};
use runtime::Clock;
use store::Store;
use tokio_util::sync::CancellationToken;

use crate::config::GatewayLimits;
use crate::metrics::{self, QueryOutcome};
use crate::settings_cache::SettingsCache;

/// Cheap to clone.
#[derive(Clone)]
pub(crate) struct Backend {
    /// Who this gateway is to the owners of partitions.
    pub(crate) id: GatewayId,
    pub(crate) bus: Bus,
    store: Store,
    pub(crate) limits: GatewayLimits,
    /// Cancelled when the gateway begins to drain.
    pub(crate) drain: CancellationToken,
    pub(crate) count: PartitionCount,
    clock: Clock,
    /// For inputs while Postgres is away.
    pub(crate) settings_cache: Arc<SettingsCache>,
}

impl Backend {
    pub(crate) fn new(
        id: GatewayId,
        bus: Bus,
        store: Store,
        clock: Clock,
        count: PartitionCount,
        limits: GatewayLimits,
        drain: CancellationToken,
    ) -> Self {
        Self { id, bus, store, limits, drain, count, clock, settings_cache: Arc::default() }
    }

    /// The same for the requests of a tenant: what is read and written for them is subject to row-level security.
    pub(crate) fn of_tenant(&self, tenant: Option<Tenant>) -> Self {
        Self { store: self.store.for_tenant(tenant), ..self.clone() }
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp(self.clock.now_ms())
    }

    pub(crate) fn partition_of(&self, thread: &ThreadId) -> PartitionId {
        thread.bucket().partition(self.count)
    }

    /// Asks the owner of a partition; `None`, counted, when it does not answer or its answer cannot be read.
    pub(crate) async fn query_owner<T>(
        &self,
        partition: PartitionId,
        query: Bytes,
        timeout: Duration,
        decode: impl Fn(&Bytes) -> Result<T, wire::DecodeError>,
    ) -> Option<T> {
        let reply = match self.bus.query_owner(partition, query, timeout).await {
            Ok(reply) => reply,
            Err(error) => {
                metrics::owner_query(error.into());
                return None;
            }
        };
        match decode(&reply) {
            Ok(reply) => {
                metrics::owner_query(QueryOutcome::Answered);
                Some(reply)
            }
            Err(error) => {
                metrics::owner_query(QueryOutcome::Undecodable);
                metrics::frame_decode_error();
                tracing::warn!(%error, "the reply of an owner cannot be decoded");
                None
            }
        }
    }
}
