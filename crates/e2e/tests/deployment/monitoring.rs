//! Alerts in promtool, and each query of the dashboards in a Prometheus that scrapes a fleet.

use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use devservices::{tools, workspace};
use serde_json::Value;
use testkit::{
    WAIT_TIMEOUT,
    fleet::invoke,
    http,
    prometheus::Prometheus,
    sse::{FollowOptions, Follower},
};

use tokio::time::sleep;

use super::{deploy, read, render, said};
use crate::{api_client::scripted, fixture::Fixture};

const RULES: &str = "chart/antiphon/files/alerts.yaml";

/// The `job` label that the tests' Prometheus gives its targets.
const JOB: &str = "fleet";

fn alerts() -> Vec<String> {
    let rules = read(&deploy().join(RULES));
    let names = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    names.map(str::to_owned).collect()
}

#[test]
fn each_alert_fires_and_is_silent() {
    let promtool = tools::promtool().unwrap().path;
    let promtool = |command: &str, file: &Path| {
        let output = Command::new(&promtool).args([command, "rules"]).arg(file).output().unwrap();
        assert!(output.status.success(), "{}: {}", file.display(), said(&output));
    };
    promtool("check", &deploy().join(RULES));
    let mut tests = String::new();
    for entry in fs::read_dir(deploy().join("alerts")).unwrap() {
        let file = entry.unwrap().path();
        if file.extension().is_some_and(|extension| extension == "yaml") {
            promtool("test", &file);
            tests += &read(&file);
        }
    }
    let alerts = alerts();
    assert!(alerts.len() >= 15, "{alerts:?}");
    for alert in alerts {
        for case in ["fires", "is silent"] {
            assert!(tests.contains(&format!("- name: {alert} {case}\n")), "{alert} {case}");
        }
    }
}

/// The anchor of a heading on a code host's page.
fn anchor(heading: &str) -> String {
    let kept = heading
        .to_lowercase()
        .chars()
        .filter(|it| it.is_alphanumeric() || matches!(it, ' ' | '-' | '_'))
        .collect::<String>();
    kept.trim().replace(' ', "-")
}

#[test]
fn each_runbook_url_leads_to_the_part_of_its_alert() {
    let rules = read(&deploy().join(RULES));
    let mut alert = "";
    let mut links = 0;
    for line in rules.lines().map(str::trim) {
        alert = line.strip_prefix("- alert: ").unwrap_or(alert);
        let Some(url) = line.strip_prefix("runbook_url: ") else { continue };
        let (page, part) = url.split_once('#').unwrap();
        let page = read(&workspace::root().join(page));
        let mut headings = page.lines().filter_map(|line| line.strip_prefix("### "));
        let heading = headings.find(|heading| anchor(heading) == part);
        assert_eq!(heading, Some(alert), "{url}");
        links += 1;
    }
    assert_eq!(links, rules.matches("- alert: ").count());
    // In a release the links lead to the published page, or to the repository.
    let values = deploy().join("chart/values/production.yaml");
    for (url, page) in
        [("", "deploy/alerts/README.md"), ("https://wiki.example/page/", "https://wiki.example/page")]
    {
        let rendered = render(&values, &["--set", &format!("metrics.prometheusRule.runbookUrl={url}")]);
        let rendered = said(&rendered);
        let lines = rendered.lines().filter_map(|line| line.trim().strip_prefix("runbook_url: "));
        let lines: Vec<_> = lines.collect();
        assert_eq!(lines.len(), links, "{rendered}");
        assert!(lines.iter().all(|line| line.starts_with(&format!("{page}#"))), "{lines:?}");
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

/// Each metric in a query, with the content of the braces behind it.
fn selectors(query: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let is_part = |it: char| it.is_ascii_lowercase() || it.is_ascii_digit() || it == '_';
    let mut rest = query;
    while let Some(start) = rest.find(is_part) {
        let from_name = &rest[start..];
        let end = from_name.find(|it| !is_part(it)).unwrap_or(from_name.len());
        let (name, behind) = from_name.split_at(end);
        rest = behind;
        if name == "up" || name.starts_with("antiphon_") || name.starts_with("process_") {
            let braces = behind.strip_prefix('{').and_then(|behind| behind.split_once('}'));
            found.push((name.to_owned(), braces.map_or_else(String::new, |(inside, _)| inside.to_owned())));
        }
    }
    found
}

/// The metrics of the reference, which is generated from the code, with their labels.
fn documented() -> BTreeMap<String, Vec<String>> {
    let page = read(&deploy().join("REFERENCE.md"));
    let mut metrics = BTreeMap::new();
    for line in page.lines().filter_map(|line| line.strip_prefix("| `antiphon_")) {
        let (metric, row) = line.split_once('`').unwrap();
        let (name, labels) = metric.split_once('{').unwrap_or((metric, ""));
        let labels: Vec<_> = labels.trim_end_matches('}').split(',').map(str::to_owned).collect();
        let parts: &[&str] = match row.contains("| histogram") {
            true => &["_bucket", "_count", "_sum"],
            false => &[""],
        };
        let named = parts.iter().map(|part| (format!("antiphon_{name}{part}"), labels.clone()));
        metrics.extend(named);
    }
    metrics
}

#[test]
fn metrics_of_alerts_and_dashboards_exist_with_their_labels() {
    let documented = documented();
    assert!(documented.len() > 150, "{}", documented.len());
    let rules = read(&deploy().join(RULES));
    // Comments and texts are not queries.
    let queries = rules
        .lines()
        .filter(|line| !["#", "summary:", "- record:"].iter().any(|it| line.trim().starts_with(it)));
    let all = queries.map(str::to_owned).chain(panels().into_iter().map(|(_, query)| query));
    let mut seen = 0;
    for query in all {
        for (name, inside) in selectors(&query) {
            seen += 1;
            // Process metrics are checked on a live fleet, and `up` is Prometheus' own.
            let Some(of_reference) = name.strip_prefix("antiphon_").map(|_| documented.get(&name)) else {
                continue;
            };
            let known = of_reference.unwrap_or_else(|| panic!("there is no metric {name}: {query}"));
            let labels = inside.split(", ").flat_map(|it| it.split(',')).filter(|it| !it.is_empty());
            for label in labels {
                let label = label.split(['=', '!']).next().unwrap().trim();
                let is_of_scrapes = ["namespace", "job", "instance"].contains(&label);
                assert!(
                    is_of_scrapes || known.iter().any(|it| it == label),
                    "{name} has no label {label}: {query}"
                );
            }
        }
    }
    assert!(seen > 150, "{seen}");
}

#[test]
fn dashboards_show_one_fleet_at_a_time() {
    let folder = workspace::root().join("deploy/chart/antiphon/files/dashboards");
    for entry in fs::read_dir(folder).unwrap() {
        let dashboard: Value = serde_json::from_str(&read(&entry.unwrap().path())).unwrap();
        let variables = dashboard["templating"]["list"].as_array().unwrap();
        for (name, query) in [
            ("namespace", "label_values(antiphon_build_info, namespace)"),
            ("job", "label_values(antiphon_build_info{namespace=~\"$namespace\"}, job)"),
        ] {
            let variable = variables.iter().find(|variable| variable["name"] == name).unwrap();
            assert_eq!(variable["definition"], query, "{}", dashboard["title"]);
        }
    }
    for (title, query) in panels() {
        let selectors = selectors(&query);
        assert!(!selectors.is_empty(), "{title}: {query}");
        for (name, inside) in selectors {
            let has = |variable: &str| inside.contains(&format!("{variable}=~\"${variable}\""));
            assert!(has("namespace") && has("job"), "{title}: {name} is not of one fleet: {query}");
        }
    }
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

    // The command that `helm test` runs.
    let service = gateway.to_string().replace("127.0.0.1", "localhost");
    let healthy = invoke(&["healthcheck", &service], &[]).await.unwrap();
    assert_eq!((healthy.code, healthy.stdout.trim()), (Some(0), "ready"), "{}", healthy.stderr);

    let panels = panels();
    assert!(panels.len() >= 36, "{}", panels.len());
    let began = Instant::now();
    loop {
        let without =
            panels.iter().filter_map(|(title, query)| match prometheus.query(&of_fleet(query, JOB)) {
                Ok(series) if !series.is_empty() => None,
                Ok(_) => Some(format!("{title}: no series of {query}")),
                Err(error) => Some(format!("{title}: {error:#}")),
            });
        let without: Vec<_> = without.collect();
        if without.is_empty() {
            break;
        }
        assert!(began.elapsed() < WAIT_TIMEOUT, "{without:#?}");
        sleep(Duration::from_secs(1)).await;
    }
    for (title, query) in &panels {
        let of_others = prometheus.query(&of_fleet(query, "another")).unwrap();
        assert!(of_others.is_empty(), "{title} shows what is not of its fleet: {of_others:?}");
    }
    let started = prometheus.query("process_start_time_seconds").unwrap();
    assert_eq!(started.len(), targets.len(), "what AntiphonRestarts counts: {started:?}");
}

/// The query with its variables replaced.
fn of_fleet(query: &str, job: &str) -> String {
    query.replace("$namespace", ".*").replace("$job", job)
}
