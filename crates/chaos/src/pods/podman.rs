//! podman with runc, used like a kubelet uses a container runtime, and the network of the pods.

use std::{
    fs,
    net::Ipv4Addr,
    process::{Output, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use devservices::{services::ScratchDir, workspace};
use serde_json::Value;
use tokio::{io::AsyncWriteExt, process::Command};

use super::chart::RELEASE;

/// Network for addresses of pods, one for each.
pub(super) const POD_NETWORK: &str = "10.97.0.0/16";
/// Network for addresses of pods and services.
pub(super) const WHOLE_NETWORK: &str = "10.96.0.0/15";
/// The address of NATS, Postgres and the model, on this machine.
pub(super) const HOST_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 96, 77, 1);
/// The address of the service in front of the gateways.
pub(super) const GATEWAY_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 96, 77, 2);
/// Settings of podman. They name runc because crun does not start where cgroups v1 and v2 are both
/// mounted.
const ENGINE: &str =
    "[engine]\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\n";
/// Required programs, and the Debian packages that contain them.
const PROGRAMS: [(&str, &str); 6] = [
    ("podman", "podman"),
    ("runc", "runc"),
    ("iptables", "iptables"),
    ("nft", "nftables"),
    ("ip", "iproute2"),
    ("nsenter", "util-linux"),
];
/// Programs that podman itself starts, by their Debian paths.
const HELPERS: [(&str, &str); 2] =
    [("/usr/lib/podman/netavark", "netavark"), ("/usr/libexec/podman/catatonit", "catatonit")];

/// The container runtime, with its own settings.
#[derive(Debug)]
pub(super) struct Podman {
    folder: ScratchDir,
}

/// The state of a container.
#[derive(Debug, Clone)]
pub(super) struct ContainerState {
    pub(super) pid: u32,
    pub(super) is_running: bool,
    pub(super) exit_code: i64,
    pub(super) restarts: u64,
}

impl Podman {
    /// Checks the requirements, removes leftovers of an earlier run, and creates the network and
    /// the chart's secret.
    pub(super) async fn set_up(database_url: &str) -> Result<Self> {
        let podman = Self { folder: ScratchDir::new("podman")? };
        let conf = format!("{ENGINE}[containers]\ndefault_ulimits = [{}]\n", ulimits()?);
        fs::write(podman.folder.path().join("containers.conf"), conf)?;
        podman.clear().await;
        podman.run(&["network", "create", "--disable-dns", "--subnet", POD_NETWORK, RELEASE]).await?;
        let secret = serde_json::json!({"DATABASE_URL": BASE64_STANDARD.encode(database_url)}).to_string();
        let mut create = podman.command(&["secret", "create", RELEASE, "-"]);
        piped(&mut create, &secret).await?;
        Ok(podman)
    }

    /// Removes all pods and their network and secrets. Ignores what is missing.
    pub(super) async fn clear(&self) {
        let label = format!("label=app.kubernetes.io/instance={RELEASE}");
        let pods = self.run(&["pod", "ps", "--quiet", "--filter", &label]).await.unwrap_or_default();
        for pod in pods.lines() {
            _ = self.run(&["pod", "rm", "--force", "--time", "0", pod]).await;
        }
        _ = self.run(&["secret", "rm", RELEASE]).await;
        _ = self.run(&["network", "rm", "--force", RELEASE]).await;
    }

    /// Starts a pod at this address.
    pub(super) async fn play(&self, pod: &Value, address: Ipv4Addr) -> Result<()> {
        let file = self.folder.path().join(format!("{address}.json"));
        fs::write(&file, pod.to_string())?;
        let network = format!("{RELEASE}:ip={address}");
        self.run(&["play", "kube", "--network", &network, &file.to_string_lossy()]).await.map(drop)
    }

    /// Fixes the bridge's MAC address, which pods use to reach this machine. Without this, a bridge
    /// takes the lowest address of its ports, so its address changes when pods start and end. Other
    /// pods would then send to the old address for up to half a minute. The bridge exists only
    /// while there are pods.
    pub(super) async fn keep_bridge_address(&self) -> Result<()> {
        let bridge = self.run(&["network", "inspect", "--format", "{{.NetworkInterface}}", RELEASE]).await?;
        let address = fs::read_to_string(format!("/sys/class/net/{bridge}/address"))?;
        system("ip", &["link", "set", "dev", &bridge, "address", address.trim()]).await.map(drop)
    }

    pub(super) async fn state(&self, container: &str) -> Result<ContainerState> {
        let all: Value = serde_json::from_str(&self.run(&["inspect", container]).await?)?;
        let (it, state) = (&all[0], &all[0]["State"]);
        Ok(ContainerState {
            pid: u32::try_from(state["Pid"].as_u64().unwrap_or_default())?,
            is_running: state["Running"] == true,
            exit_code: state["ExitCode"].as_i64().unwrap_or(-1),
            restarts: it["RestartCount"].as_u64().unwrap_or_default(),
        })
    }

    /// Sends SIGTERM, and SIGKILL after the grace period.
    pub(super) async fn stop(&self, container: &str, grace: Duration) -> Result<()> {
        self.run(&["stop", "--time", &grace.as_secs().to_string(), container]).await.map(drop)
    }

    /// The log of the container, over all its starts.
    pub(super) async fn logs(&self, container: &str) -> Result<String> {
        let output = self.command(&["logs", container]).output().await?;
        Ok([output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat())
    }

    /// Runs podman and returns its standard output.
    pub(super) async fn run(&self, arguments: &[&str]) -> Result<String> {
        checked(&format!("podman {}", arguments.join(" ")), self.command(arguments).output().await?)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("podman");
        command.args(arguments).env("CONTAINERS_CONF", self.folder.path().join("containers.conf"));
        // A working directory for the monitor of a container, which writes a file there when the
        // kernel has killed the container's process.
        command.current_dir(self.folder.path()).stdin(Stdio::null()).kill_on_drop(true);
        command
    }
}

/// Runs a program with this standard input.
pub(super) async fn piped(command: &mut Command, input: &str) -> Result<String> {
    let what = format!("{:?}", command.as_std());
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| what.clone())?;
    let mut stdin = child.stdin.take().context("a pipe")?;
    stdin.write_all(input.as_bytes()).await?;
    drop(stdin);
    checked(&what, child.wait_with_output().await?)
}

/// Runs a program of this machine.
pub(super) async fn system(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().await;
    checked(&format!("{program} {}", arguments.join(" ")), output.with_context(|| program.to_owned())?)
}

fn checked(what: &str, output: Output) -> Result<String> {
    ensure!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Checks that all required programs exist.
///
/// # Errors
/// A program is missing; the error says how to install it.
pub(super) fn check_programs() -> Result<()> {
    ensure!(workspace::is_root(), "pods with addresses, limits and users of their own need root");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<_> = std::env::split_paths(&path).chain(["/usr/sbin".into()]).collect();
    let is_here = |program: &str| folders.iter().any(|folder| folder.join(program).is_file());
    let missing = PROGRAMS.iter().filter(|(program, _)| !is_here(program));
    let missing = missing.chain(HELPERS.iter().filter(|(file, _)| !fs::exists(file).unwrap_or_default()));
    let packages: Vec<_> = missing.map(|(_, package)| *package).collect();
    ensure!(
        packages.is_empty(),
        "missing for pods: apt-get install --no-install-recommends {}",
        packages.join(" ")
    );
    Ok(())
}

/// Limits of containers: at most those of this process, because root in a container may not be able
/// to raise them.
fn ulimits() -> Result<String> {
    let limits = fs::read_to_string("/proc/self/limits")?;
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let hard = files.and_then(|words| words.split_whitespace().nth(1)).context("no limit of open files")?;
    Ok(format!("\"nofile={hard}:{hard}\", \"nproc=4096:4096\""))
}
