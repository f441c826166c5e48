//! The services, the fleet and the clients of a run.

use crate::workload::Workload;
use testkit::{fleet::Fleet, nats_cluster::NatsCluster, proxy::Proxy, services::PostgresServer};

pub(super) struct ChaosEnvironment {
    pub(super) nats: NatsCluster,
    pub(super) postgres: PostgresServer,
    pub(super) proxy: Proxy,
    pub(super) fleet: Fleet,
    pub(super) workload: Workload,
}
