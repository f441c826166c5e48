//! The fleet of the demo, and the connections that observe it.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use model::PartitionCount;
use sqlx::PgPool;

use crate::{options::DemoOptions, queues::plan::Agent};
use testkit::{api::Api, fleet::Fleet, publisher::Publisher};

/// The fleet, and the connections that observe it.
pub(super) struct DemoEnvironment {
    /// Distinguishes this demo's threads and agents from others in the same database.
    pub(super) tag: String,
    pub(super) options: DemoOptions,
    pub(super) partitions: u16,
    pub(super) count: PartitionCount,
    pub(super) agents: Vec<Agent>,
    pub(super) api: Api,
    pub(super) publisher: Publisher,
    pub(super) pool: PgPool,
    pub(super) fleet: Fleet,
}

impl DemoEnvironment {
    pub(super) fn gateway(&self) -> Result<SocketAddr> {
        self.fleet.gateway_addrs().first().copied().context("the fleet has no gateway")
    }

    pub(super) fn task_subject(&self, agent: &Agent) -> String {
        wire::subject::partition_tasks(self.count, &agent.id)
    }
}
