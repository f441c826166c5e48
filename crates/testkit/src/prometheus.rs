//! A Prometheus that scrapes processes, and evaluates rules if given.

use std::{
    fs,
    net::SocketAddr,
    path::PathBuf,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, ensure};
use devservices::{
    services::{Port, ScratchDir},
    tools,
};

use crate::http;

/// A running server. Dropping it kills it.
#[derive(Debug)]
pub struct Prometheus {
    addr: SocketAddr,
    promtool: PathBuf,
    process: Child,
    _port: Port,
    _folder: ScratchDir,
}

impl Prometheus {
    /// Starts a server that scrapes these addresses and evaluates these rules every second.
    pub fn start(targets: &[SocketAddr], rules: Option<&str>) -> Result<Self> {
        let promtool = tools::promtool()?.path;
        let folder = ScratchDir::new("prometheus")?;
        let targets: Vec<String> = targets.iter().map(|addr| format!("'{addr}'")).collect();
        let mut config = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nscrape_configs:\n  - job_name: fleet\n    static_configs: [{{targets: [{}]}}]\n",
            targets.join(", ")
        );
        if let Some(rules) = rules {
            fs::write(folder.path().join("rules.yml"), rules)?;
            config.push_str("rule_files: [rules.yml]\n");
        }
        let file = folder.path().join("prometheus.yml");
        fs::write(&file, config)?;
        let port = Port::reserve()?;
        let addr = SocketAddr::from(([127, 0, 0, 1], port.number()));
        let mut prometheus = Command::new(promtool.with_file_name("prometheus"));
        prometheus.arg(format!("--config.file={}", file.display()));
        prometheus.arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()));
        prometheus.arg(format!("--web.listen-address={addr}"));
        let log = fs::File::create(folder.path().join("log"))?;
        let process = prometheus.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        let process = process.context("starting prometheus")?;
        Ok(Self { addr, promtool, process, _port: port, _folder: folder })
    }

    /// The series that a query returns now, one per line.
    ///
    /// # Errors
    /// The query is wrong, or the server does not answer yet.
    pub fn query(&self, query: &str) -> Result<Vec<String>> {
        let server = format!("http://{}", self.addr);
        let output = Command::new(&self.promtool).args(["query", "instant", &server, query]).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // If the query returns no series, promtool prints an empty line.
        let printed = String::from_utf8_lossy(&output.stdout);
        Ok(printed.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect())
    }

    /// The names of the alerts that fire now.
    pub async fn firing(&self) -> Result<Vec<String>> {
        let answer = http::get_json(self.addr, "/api/v1/alerts").await?;
        let alerts = answer["data"]["alerts"].as_array().context("no list of alerts")?;
        let firing = alerts.iter().filter(|alert| alert["state"] == "firing");
        let names = firing.map(|alert| alert["labels"]["alertname"].as_str().map(str::to_owned));
        names.collect::<Option<Vec<String>>>().context("an alert without a name")
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
