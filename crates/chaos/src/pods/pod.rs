//! One pod. It is started by podman, probed from outside like by a kubelet, and ended with its
//! grace period.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

use super::{
    chart::{PodTemplate, Probe},
    podman::{ContainerState, Podman},
    service::GatewayService,
};
use testkit::{fleet::Metrics, http};

/// Time until an ending pod is removed from the service. A pod must not end before clients are
/// directed to other pods.
const ENDPOINT_DELAY: Duration = Duration::from_secs(1);
/// Maximum time until a pod is ready.
const READY_LIMIT: Duration = Duration::from_secs(120);

/// A running pod. It is probed until this value is dropped. [`Pod::end`] or the end of the run
/// removes the pod.
#[derive(Debug)]
pub(super) struct Pod {
    pub(super) name: String,
    pub(super) container: String,
    pub(super) template: PodTemplate,
    address: Ipv4Addr,
    podman: Arc<Podman>,
    service: Option<Arc<GatewayService>>,
    health: Arc<Health>,
    prober: JoinHandle<()>,
}

/// The results of its probes.
#[derive(Debug, Default)]
struct Health {
    is_ready: AtomicBool,
    /// Number of times that a kubelet would have restarted the container.
    deaths: AtomicU32,
}

/// The end of a pod.
#[derive(Debug)]
pub(super) struct PodEnd {
    pub(super) name: String,
    pub(super) role: String,
    pub(super) took: Duration,
    pub(super) grace: Duration,
    pub(super) exit_code: i64,
}

impl Pod {
    /// Starts a pod. With a service, the pod gets connections while it is ready.
    pub(super) async fn start(
        template: &PodTemplate,
        name: String,
        address: Ipv4Addr,
        podman: &Arc<Podman>,
        service: Option<Arc<GatewayService>>,
    ) -> Result<Self> {
        podman.play(&template.pod(&name), address).await?;
        let health = Arc::new(Health::default());
        let prober = Prober {
            name: name.clone(),
            address,
            readiness: template.probe("readinessProbe")?,
            liveness: template.probe("livenessProbe")?,
            health: Arc::clone(&health),
            service: service.clone(),
        };
        Ok(Self {
            container: container(&name, template),
            name,
            template: template.clone(),
            address,
            podman: Arc::clone(podman),
            service,
            health,
            prober: tokio::spawn(prober.run()),
        })
    }

    /// Waits until the readiness probe succeeds.
    ///
    /// # Errors
    /// The probe does not succeed; the error contains the end of the pod's log.
    pub(super) async fn ready(&self) -> Result<()> {
        let began = Instant::now();
        while !self.health.is_ready.load(Ordering::Relaxed) {
            if began.elapsed() > READY_LIMIT {
                let logs = self.podman.logs(&self.container).await?;
                let lines: Vec<_> = logs.lines().collect();
                let tail = lines[lines.len().saturating_sub(15)..].join("\n");
                bail!("{} is not ready after {READY_LIMIT:?}; its log ends with:\n{tail}", self.name);
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// The state of its container.
    pub(super) async fn state(&self) -> Result<ContainerState> {
        self.podman.state(&self.container).await
    }

    pub(super) async fn metrics(&self) -> Result<Metrics> {
        let port = self.template.ports.get("metrics").context("a pod without metrics")?;
        let answer = http::get(SocketAddr::from((self.address, *port)), "/metrics").await?;
        Ok(Metrics::parse(&answer.text))
    }

    /// Writes its log.
    pub(super) async fn write_log(&self, log_dir: &Path) -> Result<()> {
        let logs = self.podman.logs(&self.container).await?;
        Ok(fs::write(log_dir.join(format!("{}.log", self.name)), logs)?)
    }

    /// Changes the limits of its container.
    pub(super) async fn update(&self, limits: &[&str]) -> Result<()> {
        self.podman.run(&[&["update"], limits, &[self.container.as_str()]].concat()).await.map(drop)
    }

    /// Number of times that the liveness probe failed until a kubelet would have restarted the
    /// container.
    pub(super) fn deaths(&self) -> u32 {
        self.health.deaths.load(Ordering::Relaxed)
    }

    /// Ends the pod like Kubernetes: SIGTERM, a moment later no new connections, SIGKILL after its
    /// grace period. The log is written to `log_dir`.
    pub(super) async fn end(self, log_dir: &Path) -> Result<PodEnd> {
        self.prober.abort();
        let began = Instant::now();
        let out_of_service = async {
            sleep(ENDPOINT_DELAY).await;
            match &self.service {
                Some(service) => service.remove(&self.name).await,
                None => Ok(()),
            }
        };
        let stopped = async {
            self.podman.stop(&self.container, self.template.grace).await?;
            anyhow::Ok(began.elapsed())
        };
        let (removed, took) = tokio::join!(out_of_service, stopped);
        removed?;
        let exit_code = self.state().await?.exit_code;
        self.write_log(log_dir).await?;
        self.podman.run(&["pod", "rm", "--force", &self.name]).await?;
        let (name, role) = (self.name.clone(), self.template.role.clone());
        Ok(PodEnd { name, role, took: took?, grace: self.template.grace, exit_code })
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        self.prober.abort();
    }
}

/// Runs a pod until it ends, like a Job.
///
/// # Errors
/// The pod ends with a code other than 0; the error contains its log.
pub(super) async fn run_to_end(
    template: &PodTemplate,
    name: &str,
    address: Ipv4Addr,
    podman: &Podman,
) -> Result<()> {
    podman.play(&template.pod(name), address).await?;
    let container = container(name, template);
    let code = podman.run(&["wait", &container]).await?;
    let logs = podman.logs(&container).await?;
    podman.run(&["pod", "rm", "--force", name]).await?;
    if code != "0" {
        bail!("{name} ended with {code}:\n{logs}");
    }
    Ok(())
}

/// Podman's name for the only container of a pod.
fn container(pod: &str, template: &PodTemplate) -> String {
    format!("{pod}-{}", template.role)
}

/// Probes like a kubelet, at the same intervals.
struct Prober {
    name: String,
    address: Ipv4Addr,
    readiness: Probe,
    liveness: Probe,
    health: Arc<Health>,
    service: Option<Arc<GatewayService>>,
}

impl Prober {
    async fn run(self) {
        let (mut asked_at, mut failures) = (Instant::now(), 0);
        loop {
            let is_ready = self.succeeds(&self.readiness).await;
            if let Err(error) = self.note(is_ready).await {
                eprintln!("{}: {error:#}", self.name);
            }
            if asked_at.elapsed() >= self.liveness.period {
                asked_at = Instant::now();
                failures = if self.succeeds(&self.liveness).await { 0 } else { failures + 1 };
                if failures == self.liveness.failure_threshold {
                    self.health.deaths.fetch_add(1, Ordering::Relaxed);
                }
            }
            sleep(self.readiness.period).await;
        }
    }

    async fn note(&self, is_ready: bool) -> Result<()> {
        if self.health.is_ready.swap(is_ready, Ordering::Relaxed) == is_ready {
            return Ok(());
        }
        let Some(service) = &self.service else { return Ok(()) };
        let changed = match is_ready {
            true => service.add(&self.name, self.address).await,
            false => service.remove(&self.name).await,
        };
        changed.context("changing the service")
    }

    async fn succeeds(&self, probe: &Probe) -> bool {
        let addr = SocketAddr::from((self.address, probe.port));
        let answer = timeout(probe.timeout, http::get(addr, &probe.path)).await;
        answer.is_ok_and(|answer| answer.is_ok_and(|answer| (200..400).contains(&answer.status)))
    }
}
