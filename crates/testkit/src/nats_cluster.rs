//! A cluster of NATS servers, each of which can be killed, paused, or isolated from the others.

use std::{net::SocketAddr, time::Duration};

use anyhow::{Context as _, Result, bail};
use async_nats::jetstream::{self, stream::PeerInfo};
use devservices::{
    services::{ClusterOptions, NatsOptions, Port},
    tools,
};
use futures_util::TryStreamExt;
use tokio::time::{Instant, sleep};

use crate::{link::Link, nats_addresses, services::NatsServer};

/// Limit until a cluster has a leader, on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(60);

/// A replica of a stream to which entries are being written is always a few entries behind.
const FEW_ENTRIES: u64 = 100;

/// Servers on this machine. Each pair has its own link; clients reach the servers directly.
#[derive(Debug)]
pub struct NatsCluster {
    servers: Vec<NatsServer>,
    routes: Vec<Route>,
    _route_ports: Vec<Port>,
}

#[derive(Debug)]
struct Route {
    ends: [usize; 2],
    link: Link,
}

impl NatsCluster {
    /// Starts `count` servers without the account mapping; a single one is not in a cluster.
    pub async fn start(count: usize) -> Result<Self> {
        if count == 1 {
            let servers = vec![NatsServer::start().await?];
            return Ok(Self { servers, routes: Vec::new(), _route_ports: Vec::new() });
        }
        let ports = (0..count).map(|_| Port::reserve()).collect::<Result<Vec<_>>>()?;
        let (mut servers, mut routes) = (Vec::new(), Vec::new());
        for (from, port) in ports.iter().enumerate() {
            let mut addresses = Vec::new();
            for (to, port) in ports.iter().enumerate() {
                let direct = SocketAddr::from(([127, 0, 0, 1], port.number()));
                if to == from {
                    addresses.push(direct);
                } else {
                    let link = Link::start(direct).await?;
                    addresses.push(link.addr());
                    routes.push(Route { ends: [from, to], link });
                }
            }
            let mut options = NatsOptions::new(tools::nats_server()?.path);
            options.cluster = Some(ClusterOptions { port: port.number(), routes: addresses });
            servers.push(NatsServer::start_as(options).await?);
        }
        let cluster = Self { servers, routes, _route_ports: ports };
        cluster.has_leader().await?;
        Ok(cluster)
    }

    /// The urls of all servers, separated by commas.
    pub fn url(&self) -> String {
        self.servers.iter().map(NatsServer::url).collect::<Vec<_>>().join(",")
    }

    pub fn servers(&self) -> &[NatsServer] {
        &self.servers
    }

    /// If `true`, the server and the others receive nothing from each other; clients still reach
    /// all of them.
    pub fn set_isolated(&self, server: usize, isolated: bool) {
        let routes = self.routes.iter().filter(|route| route.ends.contains(&server));
        routes.for_each(|route| route.link.set_silent(isolated));
    }

    /// The server that leads a stream; `None` if it has no leader at the moment.
    pub async fn leader(&self, stream: &str) -> Result<Option<usize>> {
        let context = self.context().await?;
        let info = context.get_stream(stream).await?.cached_info().cluster.clone();
        let leader = info.and_then(|cluster| cluster.leader).unwrap_or_default();
        Ok(self.servers.iter().position(|server| leader == server.name()))
    }

    /// Waits until every replica of every stream has its leader's entries, except for a few.
    ///
    /// # Errors
    /// It takes longer than `limit`.
    pub async fn in_sync(&self, limit: Duration) -> Result<()> {
        let began = Instant::now();
        loop {
            let behind = self.behind().await;
            match behind {
                Ok(behind) if behind.is_empty() => return Ok(()),
                Ok(behind) if began.elapsed() > limit => bail!("replicas behind after {limit:?}: {behind:?}"),
                Err(error) if began.elapsed() > limit => return Err(error),
                _ => sleep(Duration::from_millis(200)).await,
            }
        }
    }

    /// Names the streams with a replica that is behind or offline.
    async fn behind(&self) -> Result<Vec<String>> {
        let context = self.context().await?;
        let streams: Vec<_> = context.streams().try_collect().await?;
        let others = self.servers.len() - 1;
        let behind = streams.into_iter().filter_map(|info| {
            let replicas = info.cluster.map(|cluster| cluster.replicas).unwrap_or_default();
            let follows =
                |replica: &&PeerInfo| !replica.offline && replica.lag.unwrap_or_default() < FEW_ENTRIES;
            let is_whole = replicas.iter().filter(follows).count() >= others;
            (!is_whole).then(|| format!("{}: {replicas:?}", info.config.name))
        });
        Ok(behind.collect())
    }

    async fn has_leader(&self) -> Result<()> {
        let began = Instant::now();
        loop {
            let account = async { anyhow::Ok(self.context().await?.query_account().await?) };
            match account.await {
                Ok(_) => return Ok(()),
                Err(error) if began.elapsed() > START_LIMIT => {
                    return Err(error).context("the cluster has no leader");
                }
                Err(_) => sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// A fresh connection: an older one may lead to a server that is isolated now.
    async fn context(&self) -> Result<jetstream::Context> {
        Ok(jetstream::new(async_nats::connect(nats_addresses(&self.url())?).await?))
    }
}
