//! The fleet of the demo, and the connections that observe it.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use model::{AgentId, Bucket, PartitionCount};
use sqlx::PgPool;

use crate::options::DemoOptions;
use testkit::{api::Api, fleet::Fleet, publisher::Publisher};

/// The fleet, and the connections that observe it.
pub(super) struct DemoEnvironment {
    /// Distinguishes this demo's threads and agents from others in the same database.
    pub(super) tag: String,
    pub(super) options: DemoOptions,
    pub(super) partitions: u16,
    pub(super) count: PartitionCount,
    pub(super) agents: Vec<DemoAgent>,
    pub(super) api: Api,
    pub(super) publisher: Publisher,
    pub(super) pool: PgPool,
    pub(super) fleet: Fleet,
}

impl DemoEnvironment {
    pub(super) fn gateway(&self) -> Result<SocketAddr> {
        self.fleet.gateway_addrs().first().copied().context("the fleet has no gateway")
    }

    pub(super) fn task_subject(&self, agent: &DemoAgent) -> String {
        wire::subject::partition_tasks(self.count, &agent.id)
    }
}

/// An agent of the demo, whose id is used by this demo alone.
#[derive(Debug, Clone)]
pub(crate) struct DemoAgent {
    pub(crate) id: AgentId,
    pub(crate) name: &'static str,
}

impl DemoAgent {
    pub(crate) fn bucket(&self) -> i16 {
        Bucket::of_key(self.id.as_str()).get() as i16
    }
}
