//! Alerts under promtool, and each query of the dashboards in a Prometheus that scrapes a fleet.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use devservices::{
    services::{Port, ScratchDir},
    tools, workspace,
};
use serde_json::Value;
use testkit::{
    fleet::{Process, invoke},
    http,
    sse::{FollowOptions, Follower},
};

use tokio::time::sleep;

use super::{deploy, read, said};
use crate::{api_client::scripted, fixture::Fixture};

/// Prometheus has to start, and to scrape twice.
const LIMIT: Duration = Duration::from_secs(30);

/// The names of the alerts.
fn alerts() -> Vec<String> {
    let rules = read(&deploy().join("chart/antiphon/files/alerts.yaml"));
    let names = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    names.map(str::to_owned).collect()
}

#[test]
fn each_alert_fires_and_is_silent() {
    let promtool = tools::promtool().unwrap().path;
    for (command, file) in [("check", "chart/antiphon/files/alerts.yaml"), ("test", "alerts/tests.yaml")] {
        let output =
            Command::new(&promtool).args([command, "rules"]).arg(deploy().join(file)).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
    }
    let (tests, alerts) = (read(&deploy().join("alerts/tests.yaml")), alerts());
    assert!(alerts.len() >= 15, "{alerts:?}");
    for alert in alerts {
        for case in ["fires", "is silent"] {
            assert!(tests.contains(&format!("- name: {alert} {case}\n")), "{alert} {case}");
        }
    }
}

#[test]
fn each_alert_links_to_its_runbook() {
    let (rules, runbooks) =
        (read(&deploy().join("chart/antiphon/files/alerts.yaml")), read(&deploy().join("alerts/README.md")));
    for alert in alerts() {
        assert!(runbooks.contains(&format!("\n### {alert}\n")), "{alert} has no runbook");
        let link = format!("https://example.com/antiphon/runbooks#{}\n", alert.to_lowercase());
        assert!(rules.contains(&link), "{alert} links to another place");
    }
}

/// A Prometheus that scrapes these processes each second.
struct Prometheus {
    addr: String,
    promtool: PathBuf,
    _process: Killed,
    _port: Port,
    _folder: ScratchDir,
}

/// A process that is killed when this is dropped.
pub(super) struct Killed(pub(super) std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Prometheus {
    fn scraping<'a>(processes: impl Iterator<Item = &'a Process>) -> Self {
        let promtool = tools::promtool().unwrap().path;
        let folder = ScratchDir::new("prometheus").unwrap();
        let targets: Vec<String> = processes.map(|process| format!("'{}'", process.metrics_addr())).collect();
        let config = format!(
            "global: {{scrape_interval: 1s}}\nscrape_configs:\n  - job_name: fleet\n    static_configs: [{{targets: [{}]}}]\n",
            targets.join(", ")
        );
        let file = folder.path().join("prometheus.yml");
        fs::write(&file, config).unwrap();
        let port = Port::reserve().unwrap();
        let addr = format!("127.0.0.1:{}", port.number());
        let mut prometheus = Command::new(promtool.with_file_name("prometheus"));
        prometheus.arg(format!("--config.file={}", file.display()));
        prometheus.arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()));
        prometheus.arg(format!("--web.listen-address={addr}"));
        let log = fs::File::create(folder.path().join("log")).unwrap();
        let process = prometheus.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        Self { addr, promtool, _process: Killed(process), _port: port, _folder: folder }
    }

    /// The series that a query returns now, one a line; what is wrong with it otherwise.
    fn query(&self, query: &str) -> Result<Vec<String>, String> {
        let server = format!("http://{}", self.addr);
        let output =
            Command::new(&self.promtool).args(["query", "instant", &server, query]).output().unwrap();
        if !output.status.success() {
            return Err(said(&output));
        }
        Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
    }
}

/// Title and query of each panel of each dashboard.
fn panels() -> Vec<(String, String)> {
    let folder = workspace::root().join("deploy/chart/antiphon/files/dashboards");
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let dashboard: Value = serde_json::from_str(&read(&entry.unwrap().path())).unwrap();
        for panel in dashboard["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().unwrap() {
                let title = format!("{}, {}", dashboard["title"], panel["title"]);
                found.push((title, target["expr"].as_str().unwrap().to_owned()));
            }
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn each_dashboard_query_returns_series_of_a_live_fleet() {
    let fixture = Fixture::with(scripted).await;
    let fleet = &fixture.fleet;
    let processes = || fleet.workers.iter().chain(&fleet.gateways).chain(&fleet.workflows);
    let prometheus = Prometheus::scraping(processes());
    let follower = Follower::start(&fleet.gateway_addrs(), "panels", FollowOptions::default());
    follower.opened().await.unwrap();
    fixture.api().say("panels", "Hello").await.unwrap();
    fixture.until_messages("panels", 2).await;
    let gateway = fleet.gateways[0].http_addr();
    assert_eq!(http::get(gateway, "/v1/threads/nothing-of-this-name").await.unwrap().status, 404);

    // What `helm test` runs.
    let service = gateway.to_string().replace("127.0.0.1", "localhost");
    let healthy = invoke(&["healthcheck", &service], &[]).await.unwrap();
    assert_eq!((healthy.code, healthy.stdout.trim()), (Some(0), "ready"), "{}", healthy.stderr);

    let panels = panels();
    assert!(panels.len() >= 36, "{}", panels.len());
    let began = Instant::now();
    loop {
        let without = panels.iter().filter_map(|(title, query)| match prometheus.query(query) {
            Ok(series) if !series.is_empty() => None,
            Ok(_) => Some(format!("{title}: no series of {query}")),
            Err(error) => Some(format!("{title}: {error}")),
        });
        let without: Vec<_> = without.collect();
        if without.is_empty() {
            return;
        }
        assert!(began.elapsed() < LIMIT, "{without:#?}");
        sleep(Duration::from_secs(1)).await;
    }
}
