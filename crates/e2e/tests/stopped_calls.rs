//! Model calls whose turns were stopped: they are counted, and no service works on for an ended
//! turn.

use std::time::Duration;

use devservices::services::{Port, ScratchDir};
use serde_json::{Value, json};
use testkit::fleet::{FleetOptions, WorkflowOptions, WorkflowProgram, binary};
use tokio::time::sleep;

use crate::api_client::{SOON, alone};
use crate::fixture::Fixture;

/// A request of a service that has died is redelivered after 30 s.
const REDELIVERY: Duration = Duration::from_secs(60);
const BUDGET: i64 = 600;

/// A model that writes 60 pieces within 3 s, at an endpoint that counts tokens at the end, and the
/// reference workflow that calls it.
struct Model {
    scratch: ScratchDir,
    port: Port,
}

impl Model {
    fn new() -> Self {
        Self { scratch: ScratchDir::new("stopped-calls").unwrap(), port: Port::reserve().unwrap() }
    }

    fn services(&self) -> [WorkflowOptions; 2] {
        let text = json!({"text": {"content": "sixteen bytes...".repeat(60), "chars": 16, "every_ms": 50}});
        let script = json!({"scenarios": [{"name": "any", "steps": [text]}]});
        let file = self.scratch.path().join("script.json");
        std::fs::write(&file, script.to_string()).unwrap();
        let address = format!("127.0.0.1:{}", self.port.number());
        let (base, file) = (format!("http://{address}/v1"), file.display().to_string());
        let service = |arguments: &[&str]| {
            let arguments = ["workflow"].iter().chain(arguments).map(|word| (*word).to_owned()).collect();
            let dir = self.scratch.path().to_path_buf();
            let program = WorkflowProgram::Program { binary: binary().unwrap(), arguments, dir };
            WorkflowOptions { workflow: "default".to_owned(), program }
        };
        [
            service(&["--workflow-engine", "none", "--serve-openai", &address, "--script-file", &file]),
            service(&["--workflow-engine", "openai", "--llm-base-url", &base, "--llm-model", "m-1"]),
        ]
    }
}

fn with(options: FleetOptions, services: [WorkflowOptions; 2]) -> FleetOptions {
    services.into_iter().fold(alone(options), FleetOptions::with_workflow)
}

/// The sums of all calls so far.
async fn usage(fixture: &Fixture) -> Value {
    let path = "/v1/usage?from=2026-01-01T00:00:00Z&to=2126-01-01T00:00:00Z&group_by=model";
    let report = fixture.api().call("GET", path, None).await.unwrap();
    assert!(report["usage"].as_array().unwrap().len() <= 1, "{report}");
    report["usage"][0].clone()
}

async fn until_text(fixture: &Fixture, turn: &str) {
    let path = format!("/v1/turns/{turn}");
    fixture
        .until("the turn has begun to answer", SOON, async || {
            let shown = fixture.api().call("GET", &path, None).await.unwrap_or_default();
            shown["state"] == "running" && shown["waiting"].is_null()
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_always_stops_just_before_the_end_fills_the_budget() {
    let model = Model::new();
    let fixture = Fixture::with(|options| with(options, model.services())).await;
    let api = fixture.api();
    let budget = json!({"tokens": BUDGET, "period": "day"});
    let put = api.send("PUT", "/v1/budgets/all", Some(&budget), &[]).await.unwrap();
    assert_eq!(put.status, 201, "{}", put.text);
    let mut stopped = 0;
    loop {
        let said = api.say_with("talk", &json!({"content": "hello"}), &[]).await.unwrap();
        if said.status == 429 {
            break;
        }
        assert_eq!(said.status, 202, "{}", said.text);
        assert!(stopped < 10, "the budget does not fill: {}", usage(&fixture).await);
        let turn = said.json().unwrap()["turn_id"].as_str().unwrap().to_owned();
        until_text(&fixture, &turn).await;
        sleep(Duration::from_millis(1_500)).await;
        api.stop(&turn).await.unwrap();
        stopped += 1;
        fixture.until_messages("talk", stopped * 2).await;
    }
    let used = usage(&fixture).await;
    assert_eq!((&used["model"], &used["calls"]), (&json!("m-1"), &json!(stopped)), "{used}");
    assert_eq!((&used["estimated_calls"], &used["partial_calls"]), (&json!(stopped), &json!(stopped)));
    let sum = used["input_tokens"].as_i64().unwrap() + used["output_tokens"].as_i64().unwrap();
    assert!(sum >= BUDGET && used["output_tokens"].as_i64().unwrap() >= 60 * stopped as i64, "{used}");
    let shown = api.call("GET", "/v1/budgets/all", None).await.unwrap();
    assert_eq!(shown["spent"], json!(sum.to_string()));
    let path = "/v1/usage?from=2026-01-01T00:00:00Z&to=2126-01-01T00:00:00Z&format=csv";
    let csv = api.send("GET", path, None, &[]).await.unwrap().text;
    assert!(csv.starts_with("day,") && csv.contains(",partial_calls,estimated_calls,"), "{csv}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_of_a_turn_that_has_ended_calls_no_model_again() {
    let model = Model::new();
    let mut fixture = Fixture::with(|options| with(options, model.services())).await;
    let turn = fixture.api().say("talk", "hello").await.unwrap().id;
    until_text(&fixture, &turn).await;
    let responses = async |fixture: &Fixture| {
        let served = fixture.fleet.workflows[0].metrics().await.unwrap();
        served.sum("antiphon_workflow_script_responses_total")
    };
    // The restarted worker does not know where the request is, and the restarted service has not
    // received the stop.
    fixture.fleet.workers[0].kill().await.unwrap();
    fixture.fleet.workflows[1].kill().await.unwrap();
    fixture.fleet.workers[0].restart().await.unwrap();
    fixture.until("the partition is owned again", SOON, async || fixture.is_answered().await).await;
    fixture.api().stop(&turn).await.unwrap();
    fixture.until_messages("talk", 2).await;
    let before = usage(&fixture).await;
    assert_eq!((&before["calls"], &before["estimated_calls"]), (&json!(1), &json!(1)), "{before}");
    fixture.until("the response is cut", SOON, async || responses(&fixture).await == 1.0).await;
    fixture.fleet.workflows[1].restart().await.unwrap();
    fixture
        .until("the request is delivered again and its service stopped", REDELIVERY, async || {
            fixture.metric("antiphon_worker_late_stops_total").await >= 1.0
        })
        .await;
    fixture
        .until("the request is acknowledged", SOON, async || {
            let metrics = fixture.fleet.workflows[1].metrics().await.unwrap();
            metrics.sum_where("antiphon_workflow_turns_total", "outcome", "stopped") == 1.0
        })
        .await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(responses(&fixture).await, 1.0, "no other call was made");
    assert_eq!(usage(&fixture).await, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_begins_after_the_end_is_stopped_and_counted() {
    let fixture = Fixture::with(alone).await;
    let workflow = fixture.manual_workflow().await;
    let turn = fixture.api().say("talk", "hello").await.unwrap().id;
    let mut asked = workflow.next(SOON).await.unwrap();
    assert!(asked.raw["expires_at"].as_str().unwrap().ends_with('Z'), "{}", asked.raw);
    let begins = json!([{"id": "call-0", "model": "m-1", "input_tokens": 100, "estimated": true}]);
    let report = |more: Value| {
        let mut chunk = json!({"chunk_type": "metadata", "metadata": {"model_calls": begins}});
        chunk.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        chunk
    };
    asked.say_with("", report(json!({}))).await.unwrap();
    asked.say("sixteen bytes...").await.unwrap();
    until_text(&fixture, &turn).await;
    fixture.api().stop(&turn).await.unwrap();
    fixture.until_messages("talk", 2).await;
    let mut stops = workflow.stops(&asked).await.unwrap();
    for chunk_id in 0..3 {
        let late = if chunk_id == 0 { report(json!({"attempt": 1})) } else { json!({"attempt": 1}) };
        let mut late = late.as_object().unwrap().clone();
        late.insert("chunk_id".to_owned(), json!(chunk_id));
        asked.say_with("late ", Value::Object(late)).await.unwrap();
    }
    let stop = tokio::time::timeout(SOON, futures_util::StreamExt::next(&mut stops)).await.unwrap();
    assert!(stop.is_some());
    fixture.until("both calls are counted", SOON, async || usage(&fixture).await["calls"] == 2).await;
    let used = usage(&fixture).await;
    assert_eq!((&used["estimated_calls"], &used["input_tokens"]), (&json!(2), &json!(200)), "{used}");
    assert_eq!(used["output_tokens"], json!(5), "of the attempt that came in time: {used}");
    fixture
        .until("the late call is in the metrics", SOON, async || {
            fixture.metric("antiphon_worker_late_model_calls_total").await == 1.0
        })
        .await;
}
