//! Faults of a pod that come from outside: its process, its memory, its processor, its network.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use tokio::{process::Command, time::sleep};

use super::{
    pod::Pod,
    podman::{piped, system},
};

/// How long a pod has little processor time, or no network.
const FAULT_TIME: Duration = Duration::from_secs(12);
/// Maximum time until the kernel ends a pod with too little memory.
const MEMORY_LIMIT_TIME: Duration = Duration::from_secs(15);
const FEW_CORES: &str = "0.2";
const PAGES: u64 = 256 * 1024;

/// A kind of fault of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PodFault {
    /// SIGKILL to the process. The container is restarted in the same pod.
    Kill,
    /// The limit is lowered to the process's current memory, so that the next page ends it.
    Memory,
    /// The pod has only a fifth of a core.
    Processor,
    /// The pod has no traffic in either direction, but no connection is closed.
    Network,
}

/// The outcome of a fault.
#[derive(Debug)]
pub(super) struct FaultOutcome {
    /// True if the container was restarted.
    pub(super) restarted: bool,
    pub(super) note: String,
}

impl PodFault {
    pub(super) const ALL: [Self; 4] = [Self::Kill, Self::Memory, Self::Processor, Self::Network];

    /// The name shown to people.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kill => "killed (SIGKILL)",
            Self::Memory => "memory limit below its need",
            Self::Processor => "0.2 cores for 12 s",
            Self::Network => "network cut for 12 s",
        }
    }

    /// Makes the fault completely, and waits until the pod is ready again.
    pub(super) async fn make(self, pod: &Pod) -> Result<FaultOutcome> {
        let before = pod.state().await?;
        let mut note = String::new();
        match self {
            Self::Kill => drop(system("kill", &["-9", &before.pid.to_string()]).await?),
            Self::Memory => note = squeeze(pod, before.pid).await?,
            Self::Processor => {
                pod.update(&["--cpus", FEW_CORES]).await?;
                sleep(FAULT_TIME).await;
                pod.update(&["--cpu-quota", "-1"]).await?;
            }
            Self::Network => {
                let cut = "table inet cut { chain in { type filter hook input priority 0; policy drop; }; \
                           chain out { type filter hook output priority 0; policy drop; }; }";
                within(before.pid, cut).await?;
                sleep(FAULT_TIME).await;
                within(before.pid, "delete table inet cut").await?;
            }
        }
        // Wait until a probe has failed, because the pod may still count as ready from its time
        // before the fault.
        sleep(Duration::from_secs(3)).await;
        pod.ready().await?;
        Ok(FaultOutcome { restarted: pod.state().await?.restarts > before.restarts, note })
    }
}

/// Lowers the limit until the kernel cannot reclaim any memory, and waits for the end of the
/// process.
async fn squeeze(pod: &Pod, pid: u32) -> Result<String> {
    let (limit, usage) =
        (memory_file(pid, "limit_in_bytes", "max")?, memory_file(pid, "usage_in_bytes", "current")?);
    let number = |file: &PathBuf| anyhow::Ok(fs::read_to_string(file)?.trim().parse::<u64>()?);
    let before = number(&limit).unwrap_or(u64::MAX);
    let mut lowest = number(&usage)?;
    while fs::write(&limit, lowest.to_string()).is_ok() && lowest > PAGES {
        lowest -= PAGES;
    }
    let began = Instant::now();
    while began.elapsed() < MEMORY_LIMIT_TIME {
        if pod.state().await?.pid != pid {
            return Ok(format!("ended by the kernel at {} MiB", lowest >> 20));
        }
        sleep(Duration::from_millis(100)).await;
    }
    fs::write(&limit, before.to_string())?;
    Ok(format!("went on within {} MiB", lowest >> 20))
}

/// The peak memory of the container since it was last started, in bytes.
pub(super) async fn peak_memory(pod: &Pod) -> Result<u64> {
    let file = memory_file(pod.state().await?.pid, "max_usage_in_bytes", "peak")?;
    Ok(fs::read_to_string(file)?.trim().parse()?)
}

/// A file of the process's memory cgroup, by its name in cgroups v1 or v2.
fn memory_file(pid: u32, first: &str, second: &str) -> Result<PathBuf> {
    let groups = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let old = groups.lines().find_map(|line| line.split_once(":memory:"));
    let new = groups.lines().find_map(|line| line.strip_prefix("0::"));
    let path = match old {
        Some((_, group)) => format!("/sys/fs/cgroup/memory{group}/memory.{first}"),
        None => format!("/sys/fs/cgroup{}/memory.{second}", new.context("a process without a cgroup")?),
    };
    Ok(PathBuf::from(path))
}

/// Changes the rules in the pod's network namespace.
async fn within(pid: u32, rules: &str) -> Result<()> {
    let pid = pid.to_string();
    piped(Command::new("nsenter").args(["--target", &pid, "--net", "nft", "-f", "-"]), rules).await.map(drop)
}
