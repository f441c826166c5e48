//! Alerts under promtool, and each query of the dashboards in a Prometheus that scrapes a fleet.

use std::{
    fs,
    process::Command,
    time::{Duration, Instant},
};

use devservices::{tools, workspace};
use serde_json::Value;
use testkit::{
    fleet::invoke,
    http,
    prometheus::Prometheus,
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
    let targets: Vec<_> = processes().map(|process| process.metrics_addr()).collect();
    let prometheus = Prometheus::start(&targets, None).unwrap();
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
            Err(error) => Some(format!("{title}: {error:#}")),
        });
        let without: Vec<_> = without.collect();
        if without.is_empty() {
            return;
        }
        assert!(began.elapsed() < LIMIT, "{without:#?}");
        sleep(Duration::from_secs(1)).await;
    }
}
