//! Tests the API against its own description: schemathesis generates valid and invalid requests to
//! a real gateway.
//!
//! `ANTIPHON_FUZZ_EXAMPLES` is the number of requests generated for each operation; `cargo xtask
//! fuzz` generates many.

use std::{collections::BTreeSet, env, path::PathBuf, process::Stdio, time::Duration};

use devservices::{pip, workspace};
use serde_json::{Value, json};
use testkit::http;
use tokio::{
    process::{Child, Command},
    time::timeout,
};

use crate::{api_client::scripted, fixture::Fixture, timers::in_seconds};

/// Number of requests generated for each operation, besides the systematic ones at the bounds of
/// each value.
const EXAMPLES: u32 = 3;
/// The concurrent runs: each is a process with one thread, because most of the time is spent
/// waiting.
const RUNS: [&[&str]; 5] = [
    &["threads"],
    &["turns", "agents", "tasks"],
    &["timers", "memory", "budgets"],
    &["openai"],
    &["ai-sdk", "ag-ui", "keys", "gateway"],
];
/// After the others: it erases what they use.
const LAST_RUN: &[&str] = &["erasures"];
/// Limit for the runs alone.
const LIMIT: Duration = Duration::from_secs(150);
/// Codes that a gateway may return for a moment on a busy machine, and how often.
const PASSING: [&str; 4] =
    ["partition_unavailable", "nats_unavailable", "input_unconfirmed", "stream_aborted"];
const MOST_PASSING: f64 = 25.0;

#[tokio::test(flavor = "multi_thread")]
async fn what_is_described_is_what_is_answered() {
    let fixture = Fixture::with(scripted).await;
    let examples = env::var("ANTIPHON_FUZZ_EXAMPLES").map_or(EXAMPLES, |count| count.parse().unwrap());
    let python = Python::installed().await;
    let address = fixture.fleet.gateway_addrs()[0];
    let description = http::get(address, "/openapi.json").await.unwrap();
    assert_eq!(description.header("content-type"), Some("application/json"));
    python.check(&description.text).await;
    let tags = description.json().unwrap()["tags"].as_array().unwrap().clone();
    let tags: BTreeSet<_> = tags.iter().map(|tag| tag["name"].as_str().unwrap().to_owned()).collect();
    let asked = RUNS.concat().into_iter().chain(LAST_RUN.iter().copied());
    assert_eq!(tags, asked.map(str::to_owned).collect(), "some are never asked");

    let known = known(&fixture).await;
    let limit = LIMIT * examples.div_ceil(EXAMPLES);
    let mut faults = Vec::new();
    for concurrent in [&RUNS[..], &[LAST_RUN]] {
        let runs: Vec<_> = concurrent
            .iter()
            .map(|tags| {
                let mut command = python.schemathesis(&format!("http://{address}/openapi.json"), examples);
                command.args(tags.iter().flat_map(|tag| ["--include-tag", tag]));
                (tags, command.env("FUZZ_KNOWN", known.to_string()).spawn().unwrap())
            })
            .collect();
        for (tags, run) in runs {
            let (is_well, said) = ended(run, limit).await;
            println!("{tags:?}: {}", said.trim_end().lines().next_back().unwrap_or_default());
            if !is_well {
                faults.push(said);
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    nothing_else_went_wrong(&fixture).await;
}

/// Checks for defects that schemathesis accepts: answers that the gateway was not able to give.
async fn nothing_else_went_wrong(fixture: &Fixture) {
    let metrics = fixture.fleet.gateways[0].metrics().await.unwrap();
    let refused = |code: &str| metrics.sum_where("antiphon_gateway_http_errors_total", "code", code);
    for code in
        ["internal_error", "not_ready", "draining", "stream_full", "too_many_feeds", "too_many_subscribers"]
    {
        assert_eq!(refused(code), 0.0, "{code}\n{}", fixture.fleet.log_tails());
    }
    let passing: f64 = PASSING.iter().map(|code| refused(code)).sum();
    assert!(
        passing <= MOST_PASSING,
        "{passing} requests were refused for now\n{}",
        fixture.fleet.log_tails()
    );
}

/// Existing objects, by the names of the path variables.
async fn known(fixture: &Fixture) -> Value {
    let by_default = json!({"trigger_type": "check_in", "after_seconds": 3_600});
    fixture.settle("talk", json!({"follow_ups": {"enabled": true, "default": by_default}})).await;
    let api = fixture.api();
    let turn = api.say("talk", "tools").await.unwrap();
    fixture.until_messages("talk", 2).await;
    let follow_ups = api.call("GET", "/v1/threads/talk/follow-ups", None).await.unwrap();
    let failed = api.say("talk", "fails-for-good").await.unwrap();
    fixture.until_failed("talk", 1).await;
    api.send_task("talk", "done", "Write the report").await.unwrap();
    let in_a_month = in_seconds(fixture, 2_592_000.0).await;
    let later = json!({"task_id": "later", "content": "Call back", "not_before": in_a_month});
    api.call("POST", "/v1/agents/talk/tasks", Some(&later)).await.unwrap();
    let daily = json!({"cron": "0 9 * * *", "content": "Write the report"});
    api.call("PUT", "/v1/agents/talk/schedules/daily", Some(&daily)).await.unwrap();
    let fact = json!({"text": "Ann lives in Bern", "user_id": "ann"});
    let fact = api.call("POST", "/v1/agents/talk/memory", Some(&fact)).await.unwrap();
    let budget = json!({"tokens": 1_000_000, "period": "month"});
    api.call("PUT", "/v1/budgets/monthly", Some(&budget)).await.unwrap();
    let erasure = api.call("DELETE", "/v1/users/ann?dry_run=true", None).await.unwrap();
    let history = api.history("talk").await.unwrap();
    json!({
        "thread": ["talk", "talk", "hello"],
        "agent": ["talk", "talk", "hello"],
        "task": ["done", "later"],
        "schedule": ["daily"],
        "budget": ["monthly"],
        "erasure": [erasure["erasure_id"]],
        "user": ["ann"],
        "fact": [fact["fact_id"]],
        "timer": [follow_ups["follow_ups"][0]["follow_up_id"]],
        "turn": [turn.id, failed.id],
        "batch": [history[0]["batch_id"]],
        "message": [turn.answer, failed.answer],
        "response_id": [format!("resp_{}", turn.answer), format!("resp_{}", failed.answer)],
        "file": ["swagger-ui.js", "swagger-ui.css", "start.js"],
    })
}

/// Python with the packages that are pinned here.
struct Python {
    sources: PathBuf,
    packages: PathBuf,
}

impl Python {
    async fn installed() -> Self {
        let sources = workspace::root().join("crates/e2e/tests/openapi");
        let requirements = sources.join("requirements.txt");
        let install = move || pip::install(&requirements, &workspace::target_dir().join("fuzz"));
        let packages = tokio::task::spawn_blocking(install).await.unwrap().unwrap();
        Self { sources, packages }
    }

    fn command(&self) -> Command {
        let mut command = Command::new("python3");
        // Hooks are found beside their settings; nothing is written beside the sources.
        command.current_dir(&self.sources).env("PYTHONDONTWRITEBYTECODE", "1");
        let paths = env::join_paths([&self.packages, &self.sources]).unwrap();
        command.env("HYPOTHESIS_STORAGE_DIRECTORY", workspace::target_dir().join("fuzz/hypothesis"));
        command.env("PYTHONPATH", paths).env("NO_COLOR", "1").env("COLUMNS", "120");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }

    /// Checks that the description is valid, with all of its examples.
    async fn check(&self, description: &str) {
        let file = workspace::target_dir().join("fuzz").join(format!("{}.json", std::process::id()));
        tokio::fs::write(&file, description).await.unwrap();
        let golden = workspace::root().join("crates/protocols/tests/golden");
        let checking = self.command().arg("check.py").arg(&file).arg(golden).spawn().unwrap();
        let (is_well, said) = ended(checking, LIMIT).await;
        tokio::fs::remove_file(&file).await.unwrap();
        assert!(is_well, "{said}");
    }

    fn schemathesis(&self, url: &str, examples: u32) -> Command {
        let mut command = self.command();
        command.args(["-m", "schemathesis.cli", "--config-file", "schemathesis.toml", "run", url]);
        command.args(["--max-examples", &examples.to_string(), "--generation-database", "none"]);
        command
    }
}

/// Whether the program succeeded, and its output.
async fn ended(child: Child, limit: Duration) -> (bool, String) {
    let output = timeout(limit, child.wait_with_output()).await.expect("it takes too long").unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    (output.status.success(), said.concat())
}
