//! The services, the fleet and the clients of a run.

use std::sync::Arc;

use crate::turns::TurnLoad;
use testkit::{
    acked_publishes::AckLog, db_snapshot, fleet::Fleet, nats_cluster::NatsCluster, proxy::Proxy,
    services::PostgresServer, sse::Follower,
};

/// Everything that a run consists of.
pub(super) struct ChaosEnvironment {
    pub(super) nats: NatsCluster,
    pub(super) postgres: PostgresServer,
    pub(super) proxy: Proxy,
    pub(super) fleet: Fleet,
    pub(super) ack_log: Arc<AckLog>,
    pub(super) followers: Vec<Follower>,
    pub(super) turns: TurnLoad,
    /// The partitions as they were granted first.
    pub(super) granted: Vec<db_snapshot::PartitionRow>,
}
