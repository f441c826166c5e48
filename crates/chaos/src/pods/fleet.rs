//! The Deployments of the chart, and their upgrade to another image.

use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use anyhow::{Context, Result};
use futures_util::future::{join_all, try_join_all};
use tokio::task::JoinSet;

use super::{
    chart::{PodTemplate, RELEASE, Rendered},
    pod::{self, Pod, PodEnd},
    podman::Podman,
    service::GatewayService,
};

/// Pods, and the values with which they are created.
#[derive(Debug)]
pub(super) struct PodFleet {
    pub(super) deployments: Vec<Deployment>,
    pub(super) ends: Vec<PodEnd>,
    maker: PodMaker,
}

#[derive(Debug)]
pub(super) struct Deployment {
    pub(super) role: String,
    pub(super) pods: Vec<Pod>,
}

#[derive(Debug)]
struct PodMaker {
    podman: Arc<Podman>,
    service: Arc<GatewayService>,
    log_dir: PathBuf,
    count: AtomicU32,
}

impl PodFleet {
    /// Migrates, starts all pods, and waits until they are ready.
    pub(super) async fn start(
        rendered: &Rendered,
        podman: Arc<Podman>,
        service: Arc<GatewayService>,
        log_dir: PathBuf,
    ) -> Result<Self> {
        let maker = PodMaker { podman, service, log_dir, count: AtomicU32::new(0) };
        maker.migrate(&rendered.migration).await?;
        let deployments = rendered.deployments.iter().map(|template| maker.deploy(template));
        let deployments = try_join_all(deployments).await?;
        maker.podman.keep_bridge_address().await?;
        let fleet = Self { deployments, ends: Vec::new(), maker };
        for pod in fleet.pods() {
            pod.ready().await?;
        }
        Ok(fleet)
    }

    pub(super) fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.deployments.iter().flat_map(|deployment| &deployment.pods)
    }

    /// Writes the logs of the running pods.
    pub(super) async fn write_logs(&self, log_dir: &Path) -> Result<()> {
        for pod in self.pods() {
            pod.write_log(log_dir).await?;
        }
        Ok(())
    }

    /// Upgrades like `helm upgrade`: the migration first, then all Deployments concurrently, each
    /// pod by pod.
    pub(super) async fn upgrade(&mut self, rendered: &Rendered) -> Result<()> {
        self.maker.migrate(&rendered.migration).await?;
        let maker = &self.maker;
        let rolled = self.deployments.iter_mut().map(|deployment| async move {
            let template = rendered.deployments.iter().find(|template| template.role == deployment.role);
            deployment.roll(template.context("a Deployment is gone")?, maker).await
        });
        for ends in join_all(rolled).await {
            self.ends.extend(ends?);
        }
        Ok(())
    }
}

impl Deployment {
    /// For gateways, the pod with the most subscribers; for other roles, the oldest pod.
    pub(super) async fn busiest(&self) -> Result<&Pod> {
        let mut found = (0.0, self.pods.first().context("a Deployment without pods")?);
        for pod in &self.pods {
            let subscribers = pod.metrics().await?.sum("antiphon_gateway_subscribers");
            if subscribers > found.0 {
                found = (subscribers, pod);
            }
        }
        Ok(found.1)
    }

    /// Replaces the pods as with `maxSurge: 1` and `maxUnavailable: 0`: a pod is ended when its
    /// replacement is ready.
    async fn roll(&mut self, template: &PodTemplate, maker: &PodMaker) -> Result<Vec<PodEnd>> {
        let mut ending = JoinSet::new();
        for old in std::mem::take(&mut self.pods) {
            let new = maker.make(template).await?;
            new.ready().await?;
            self.pods.push(new);
            let log_dir = maker.log_dir.clone();
            ending.spawn(async move { old.end(&log_dir).await });
        }
        ending.join_all().await.into_iter().collect()
    }
}

impl PodMaker {
    async fn migrate(&self, template: &PodTemplate) -> Result<()> {
        let (name, address) = self.next(template);
        pod::run_to_end(template, &name, address, &self.podman).await
    }

    async fn deploy(&self, template: &PodTemplate) -> Result<Deployment> {
        let mut pods = Vec::new();
        for _ in 0..template.replicas {
            pods.push(self.make(template).await?);
        }
        Ok(Deployment { role: template.role.clone(), pods })
    }

    async fn make(&self, template: &PodTemplate) -> Result<Pod> {
        let (name, address) = self.next(template);
        let service = (template.role == "gateway").then(|| Arc::clone(&self.service));
        Pod::start(template, name, address, &self.podman, service).await
    }

    /// The name and the address of the next pod. An address is never reused, because connections to
    /// the earlier pod would reach the later one.
    fn next(&self, template: &PodTemplate) -> (String, Ipv4Addr) {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 97, 0, 10)) + number);
        (format!("{RELEASE}-{}-{number}", template.role), address)
    }
}
