//! The fleet of the demo, and what it is watched with.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use model::PartitionCount;
use sqlx::PgPool;

use crate::{options::DemoOptions, queues::plan::Agent};
use testkit::{api::Api, fleet::Fleet, publisher::Publisher};

/// The fleet and what it is watched with.
pub(super) struct DemoEnvironment {
    /// Tells the threads and agents of this demo from those of others in the same database.
    pub(super) tag: String,
    pub(super) options: DemoOptions,
    /// As in the options.
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
