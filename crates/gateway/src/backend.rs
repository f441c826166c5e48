//! Services that requests and feeds use: bus, store, clock, partitions and limits.

use std::sync::Arc;
use std::time::Duration;

use batches::memory::MOST_OF_TURN;
use bus::Bus;
use bytes::Bytes;
use embeddings::Embeddings;
use model::{AgentId, GatewayId, PartitionCount, PartitionId, Tenant, ThreadId, Timestamp};
use runtime::Clock;
use store::{FoundFact, Replica, ReplicaState, Store, StoreError};
use tokio_util::sync::CancellationToken;

use self::activity_notes::ActivityNotes;
use self::transfer_places::TransferPlaces;
use crate::config::{GatewayLimits, ReplicaConfig, RequestDefaults};
use crate::metrics::{self, QueryOutcome, ReadFrom};
use crate::stale_cache::{AliasCache, SettingsCache};

mod activity_notes;
pub(crate) mod transfer_places;

/// Cheap to clone.
#[derive(Clone)]
pub(crate) struct Backend {
    /// The gateway's identity towards the owners of partitions.
    pub(crate) id: GatewayId,
    pub(crate) bus: Bus,
    store: Store,
    replica: Replica,
    embeddings: Option<Embeddings>,
    pub(crate) limits: GatewayLimits,
    pub(crate) requests: Arc<RequestDefaults>,
    /// Cancelled when the gateway begins to drain.
    pub(crate) drain: CancellationToken,
    /// Time that connections have to end in a drain.
    pub(crate) drain_time: Duration,
    pub(crate) count: PartitionCount,
    clock: Clock,
    /// Used for inputs while Postgres is unavailable.
    pub(crate) settings_cache: Arc<SettingsCache>,
    pub(crate) alias_cache: Arc<AliasCache>,
    notes: Arc<ActivityNotes>,
    /// Places for exports, which read much.
    exports: Arc<TransferPlaces>,
    /// Places for imports, which hold parts of threads in memory.
    imports: Arc<TransferPlaces>,
}

/// Maximum numbers of exports that run in a gateway, of all tenants and of one.
const MAX_EXPORTS: (usize, usize) = (6, 4);
/// The same for imports. Each may hold a line of 16 MiB and a batch of 32 MiB.
const MAX_IMPORTS: (usize, usize) = (3, 2);

/// What a backend is made of.
pub(crate) struct BackendParts {
    pub(crate) id: GatewayId,
    pub(crate) bus: Bus,
    pub(crate) store: Store,
    pub(crate) clock: Clock,
    pub(crate) count: PartitionCount,
    pub(crate) limits: GatewayLimits,
    pub(crate) requests: Arc<RequestDefaults>,
    pub(crate) drain: CancellationToken,
    pub(crate) drain_time: Duration,
    /// Computes vectors for memory searches.
    pub(crate) embeddings: Option<Embeddings>,
}

impl Backend {
    pub(crate) fn new(parts: BackendParts) -> Self {
        let BackendParts { id, bus, store, clock, count, limits, requests, drain, drain_time, embeddings } =
            parts;
        let (replica, settings_cache, alias_cache) = (Replica::default(), Arc::default(), Arc::default());
        let notes = Arc::default();
        let exports = Arc::new(TransferPlaces::new(MAX_EXPORTS.0, MAX_EXPORTS.1));
        let imports = Arc::new(TransferPlaces::new(MAX_IMPORTS.0, MAX_IMPORTS.1));
        Self {
            id,
            bus,
            store,
            replica,
            embeddings,
            limits,
            requests,
            drain,
            drain_time,
            count,
            clock,
            settings_cache,
            alias_cache,
            notes,
            exports,
            imports,
        }
    }

    /// A backend that reads and writes on behalf of a tenant, under row-level security.
    pub(crate) fn of_tenant(&self, tenant: Option<Tenant>) -> Self {
        Self { store: self.store.for_tenant(tenant), ..self.clone() }
    }

    /// The places for exports.
    pub(crate) fn exports(&self) -> &TransferPlaces {
        &self.exports
    }

    /// The places for imports.
    pub(crate) fn imports(&self) -> &TransferPlaces {
        &self.imports
    }

    /// The default agent of a tenant.
    pub(crate) fn default_agent_of(&self, tenant: Option<&Tenant>) -> AgentId {
        self.requests.agent.in_tenant(tenant)
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// Notes in the list of threads that a client has written into this thread, unless this gateway
    /// has done so in the last minute. No request waits for it. While many are written, nothing is
    /// noted, and the thread is listed with the end of its turn.
    pub(crate) fn note_activity(&self, thread: &ThreadId, agent: &AgentId, input: &str) {
        let Some(place) = self.notes.begin(thread, self.now()) else { return };
        let (store, thread, agent, input) =
            (self.store.clone(), thread.clone(), agent.clone(), input.to_owned());
        runtime::spawn_named("note of activity", async move {
            let _place = place;
            if let Err(error) = store.note_activity(&thread, &agent, &input).await {
                tracing::debug!(%error, %thread, "an activity was not noted; the end of the turn is");
            }
        });
    }

    /// The facts that match this text in the thread.
    pub(crate) async fn search_facts(
        &self,
        agent: &AgentId,
        thread: &ThreadId,
        text: &str,
        limit: u32,
    ) -> Result<Vec<FoundFact>, StoreError> {
        let vector = self.vector_of(text).await?;
        self.store.search_facts(agent, thread, text, vector.as_deref(), limit).await
    }

    /// The facts that a turn of the thread would be given for this text.
    pub(crate) async fn facts_of_turn(
        &self,
        agent: &AgentId,
        thread: &ThreadId,
        text: &str,
    ) -> Result<Vec<FoundFact>, StoreError> {
        let vector = self.vector_of(text).await?;
        self.store.facts_of_turn(agent, thread, text, vector.as_deref(), MOST_OF_TURN).await
    }

    async fn vector_of(&self, text: &str) -> Result<Option<Vec<f32>>, StoreError> {
        match &self.embeddings {
            Some(embeddings) => {
                Ok(embeddings.of_question(self.store.vectors_of().await?.as_deref(), text).await)
            }
            None => Ok(None),
        }
    }

    /// Reads data that may be slightly stale, from the standby if it is close enough.
    pub(crate) async fn read<T, F>(&self, read: impl Fn(Store) -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        if let Some(standby) = self.replica.near(&self.store) {
            match read(standby).await {
                Ok(found) => {
                    metrics::read(ReadFrom::Replica);
                    return Ok(found);
                }
                // The standby did answer, and the primary would be as busy.
                Err(error @ StoreError::Busy) => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, "the standby could not be read");
                    self.replica.avoid();
                }
            }
        }
        metrics::read(ReadFrom::Primary);
        read(self.store.clone()).await
    }

    /// Monitors the lag of the standby, if there is one.
    pub(crate) async fn follow_replica(&self, config: Option<ReplicaConfig>) {
        let Some(ReplicaConfig { store, max_lag }) = config else { return };
        // Log each change between used and unused once.
        let mut said = None;
        let report = move |state: ReplicaState| {
            let is_used = matches!(state, ReplicaState::Behind(_));
            metrics::replica_lag(&state);
            if said.replace(is_used) == Some(is_used) {
                return;
            }
            match state {
                ReplicaState::Behind(_) => {
                    tracing::info!("lists and history are read from DATABASE_READ_URL")
                }
                ReplicaState::Unusable(why) => {
                    tracing::warn!(
                        "lists and history are read from DATABASE_URL, not from DATABASE_READ_URL: {why}"
                    );
                }
            }
        };
        self.replica.clone().follow(store, self.store.of_installation(), max_lag, report).await;
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp(self.clock.now_ms())
    }

    pub(crate) fn partition_of(&self, thread: &ThreadId) -> PartitionId {
        thread.bucket().partition(self.count)
    }

    /// Queries the owner of a partition. `None`, counted in the metrics, when it does not answer or
    /// its reply cannot be decoded.
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
