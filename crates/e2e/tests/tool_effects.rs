//! Tools with effects: a call that has run is not repeated, and one that may have run waits for a
//! person if it must not run twice.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, extract::Request, response::IntoResponse};
use devservices::services::{Port, ScratchDir};
use serde_json::{Value, json};
use testkit::{
    api::AcceptedTurn,
    fleet::{FleetOptions, WorkflowOptions, WorkflowProgram, binary, invoke},
    http,
    sse::{Parser, SseItem},
};
use tokio::time::{Instant, sleep, timeout};
use wire::subject::{ALL_TOOL_CALLS, TOOL_CALLS_STREAM};

use crate::{
    api_client::{SOON, alone},
    fixture::Fixture,
};

/// The idempotency keys of the calls that the server of the tools has received, oldest first.
type Calls = Arc<Mutex<Vec<String>>>;

/// Duration of a call with `slow` in its arguments.
const SLOW: Duration = Duration::from_secs(2);

/// A server of tools, the script of a model that calls them, and the reference workflow.
struct Tools {
    scratch: ScratchDir,
    port: Port,
    calls: Calls,
}

impl Tools {
    /// The tools `look`, and `pay`, which must not be called twice. A call with `silent` in its
    /// arguments gets no answer the first time.
    async fn start() -> Self {
        let calls = Calls::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = format!("http://{}", listener.local_addr().unwrap());
        let state = calls.clone();
        let router = Router::new().fallback(async move |request: Request| {
            let key = request.headers()["idempotency-key"].to_str().unwrap().to_owned();
            let body = axum::body::to_bytes(request.into_body(), 1 << 20).await.unwrap();
            let times = {
                let mut calls = state.lock().unwrap();
                calls.push(key);
                calls.len()
            };
            let has = |word: &str| String::from_utf8_lossy(&body).contains(word);
            if times == 1 && has("silent") {
                std::future::pending::<()>().await;
            }
            if has("slow") {
                sleep(SLOW).await;
            }
            format!("done, call {times}").into_response()
        });
        tokio::spawn(async move { axum::serve(listener, router).await });
        let scratch = ScratchDir::new("tool-effects").unwrap();
        let tools = json!({"tools": [
            {"name": "look", "url": format!("{at}/look")},
            {"name": "pay", "url": format!("{at}/pay"), "idempotent": false},
            {"name": "pay-soon", "url": format!("{at}/pay"), "idempotent": false, "timeout_seconds": 0.3},
        ]});
        std::fs::write(scratch.path().join("tools.json"), tools.to_string()).unwrap();
        let scenario = |word: &str, tool: &str| {
            json!({"name": tool, "when": {"input_contains": word}, "steps": [
                {"tools": [{"name": tool, "arguments": {"what": "{input}"}}]},
                {"text": {"content": "I can say: {result}, and more", "chars": 1, "every_ms": 60}},
            ]})
        };
        let scenarios =
            [scenario("look", "look"), scenario("patiently", "pay"), scenario("in a hurry", "pay-soon")];
        std::fs::write(scratch.path().join("script.json"), json!({"scenarios": scenarios}).to_string())
            .unwrap();
        Self { scratch, port: Port::reserve().unwrap(), calls }
    }

    fn services(&self) -> [WorkflowOptions; 2] {
        let address = format!("127.0.0.1:{}", self.port.number());
        let base = format!("http://{address}/v1");
        let file = |name: &str| self.scratch.path().join(name).display().to_string();
        let service = |arguments: &[&str]| {
            let arguments = ["workflow"].iter().chain(arguments).map(|word| (*word).to_owned()).collect();
            let dir = self.scratch.path().to_path_buf();
            let program = WorkflowProgram::Program { binary: binary().unwrap(), arguments, dir };
            WorkflowOptions { workflow: "default".to_owned(), program }
        };
        let (script, tools) = (file("script.json"), file("tools.json"));
        [
            service(&["--workflow-engine", "none", "--serve-openai", &address, "--script-file", &script]),
            service(&[
                "--workflow-engine",
                "openai",
                "--llm-base-url",
                &base,
                "--llm-model",
                "m",
                "--tools-file",
                &tools,
            ]),
        ]
    }

    fn count(&self) -> usize {
        self.calls.lock().unwrap().len()
    }

    /// Checks that all calls had one key, that of the turn.
    fn assert_one_key(&self, turn: &AcceptedTurn) {
        let keys: BTreeSet<String> = self.calls.lock().unwrap().drain(..).collect();
        let [key] = &keys.iter().collect::<Vec<_>>()[..] else { panic!("{keys:?}") };
        assert!(key.starts_with(&format!("{}:0-", turn.id)), "{key}");
    }
}

/// Requests of a dead service are redelivered after this time without a progress report; a live
/// service reports every ten seconds.
const ACK_WAIT: Duration = Duration::from_secs(12);
const REDELIVERY: Duration = Duration::from_secs(40);

/// A fleet whose requests are redelivered soon after a service has died.
async fn fixture(tools: &Tools) -> Fixture {
    let with = |options: FleetOptions| {
        tools.services().into_iter().fold(alone(options), FleetOptions::with_workflow)
    };
    let fixture = Fixture::with(with).await;
    fixture.manual_workflow_of("default", ACK_WAIT).await;
    fixture
}

/// The result of the turn's call, once the turn has ended. Its batch is a question, a call, a
/// result and an answer.
async fn result_of(fixture: &Fixture, turn: &AcceptedTurn, limit: Duration) -> String {
    result_in(fixture, "talk", turn, limit).await
}

async fn result_in(fixture: &Fixture, thread: &str, turn: &AcceptedTurn, limit: Duration) -> String {
    let began = Instant::now();
    loop {
        let messages = fixture.messages_of(thread).await;
        if let Some(last) = messages.iter().position(|message| message.message_id == turn.answer) {
            let result =
                &messages[..=last].iter().rev().find(|message| message.role == "tool").unwrap().content;
            assert_eq!(messages[last].content, format!("I can say: {result}, and more"));
            return result.clone();
        }
        assert!(began.elapsed() < limit, "no answer: {messages:?} {}", fixture.fleet.log_tails());
        sleep(Duration::from_millis(50)).await;
    }
}

async fn until_called(fixture: &Fixture, tools: &Tools, times: usize) {
    fixture.until("the tool is called", SOON, async || tools.count() == times).await;
}

/// The only tool call that waits for a decision.
async fn undecided(fixture: &Fixture) -> Value {
    let began = Instant::now();
    loop {
        let shown = fixture.api().call("GET", "/v1/tool-incidents", None).await.unwrap();
        match &shown["tool_incidents"].as_array().unwrap()[..] {
            [] => {}
            [one] => return one.clone(),
            many => panic!("{many:?}"),
        }
        assert!(began.elapsed() < REDELIVERY, "nothing waits: {}", fixture.fleet.log_tails());
        sleep(Duration::from_millis(50)).await;
    }
}

/// Reads the thread's events until one announces that a person must decide.
async fn notice(fixture: &Fixture) -> Value {
    let mut response = http::open(fixture.api().0, "/v1/threads/talk/events", &[]).await.unwrap();
    let mut parser = Parser::default();
    let reading = async {
        loop {
            let mut bytes = Vec::new();
            assert!(response.body.read(&mut bytes).await.unwrap() > 0, "cut");
            for item in parser.feed(&bytes) {
                if let SseItem::Event { data, .. } = item
                    && data.contains("tool_call_undecided")
                {
                    return serde_json::from_str::<Value>(&data).unwrap();
                }
            }
        }
    };
    timeout(SOON, reading).await.expect("a notice")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_has_run_is_not_run_again_by_the_next_attempt() {
    let tools = Tools::start().await;
    let mut fixture = fixture(&tools).await;
    for input in ["look", "patiently"] {
        let turn = fixture.api().say("talk", input).await.unwrap();
        until_called(&fixture, &tools, 1).await;
        // The result is kept, and the model has begun to use it in its answer.
        sleep(Duration::from_millis(700)).await;
        fixture.fleet.workflows[1].restart().await.unwrap();
        assert_eq!(result_of(&fixture, &turn, REDELIVERY).await, "done, call 1", "{input}");
        assert_eq!(fixture.messages_of("talk").await.last().unwrap().attempt, 1, "{input}: another attempt");
        assert_eq!(tools.count(), 1, "{input}");
        tools.assert_one_key(&turn);
    }
    let metrics = fixture.fleet.workflows[1].metrics().await.unwrap();
    assert_eq!(metrics.sum_where("antiphon_workflow_tool_calls_total", "outcome", "kept"), 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotent_tool_is_called_again_under_the_same_key() {
    let tools = Tools::start().await;
    let mut fixture = fixture(&tools).await;
    let turn = fixture.api().say("talk", "look, silent").await.unwrap();
    until_called(&fixture, &tools, 1).await;
    fixture.fleet.workflows[1].restart().await.unwrap();
    assert_eq!(result_of(&fixture, &turn, REDELIVERY).await, "done, call 2");
    tools.assert_one_key(&turn);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_that_must_not_run_twice_waits_for_a_person() {
    let tools = Tools::start().await;
    let mut fixture = fixture(&tools).await;
    let api = fixture.api();
    // The service dies during the tool call, and the person decides to call the tool again.
    let turn = api.say("talk", "patiently, silent").await.unwrap();
    until_called(&fixture, &tools, 1).await;
    fixture.fleet.workflows[1].restart().await.unwrap();
    let waiting = undecided(&fixture).await;
    assert_eq!((&waiting["turn_id"], &waiting["tool"]), (&json!(turn.id), &json!("pay")));
    assert_eq!(waiting["arguments"], json!({"what": "patiently, silent"}).to_string());
    assert_eq!((&waiting["thread_id"], &waiting["decision"]), (&json!("talk"), &Value::Null));
    let shown = notice(&fixture).await;
    assert_eq!(shown["metadata"]["tool_call_undecided"]["call"], waiting["call"], "{shown}");
    sleep(Duration::from_secs(3)).await;
    assert_eq!((tools.count(), fixture.messages_of("talk").await.len()), (1, 0), "it waits");
    let metrics = fixture.fleet.workflows[1].metrics().await.unwrap();
    assert_eq!(metrics.sum("antiphon_workflow_undecided_tool_calls"), 1.0);
    let call = waiting["call"].as_str().unwrap();
    let path = format!("/v1/threads/talk/tool-incidents/{}/{call}/decide", turn.id);
    for (path, body, status, code) in [
        (path.clone(), json!({}), 400, "invalid_decision"),
        (path.clone(), json!({"run_again": true, "result": "x"}), 400, "invalid_decision"),
        (path.replace("talk", "other"), json!({"run_again": true}), 404, "unknown_tool_incident"),
        (path.replace(call, "*"), json!({"run_again": true}), 404, "unknown_tool_incident"),
    ] {
        let refused = api.send("POST", &path, Some(&body), &[]).await.unwrap();
        assert_eq!((refused.status, &refused.json().unwrap()["code"]), (status, &json!(code)), "{body}");
    }
    let decided = api.call("POST", &path, Some(&json!({"run_again": true}))).await.unwrap();
    assert_eq!(decided["decision"], "run_again");
    assert_eq!(result_of(&fixture, &turn, SOON).await, "done, call 2");
    tools.assert_one_key(&turn);
    let again = api.send("POST", &path, Some(&json!({"run_again": true})), &[]).await.unwrap();
    assert_eq!((again.status, &again.json().unwrap()["code"]), (409, &json!("tool_incident_decided")));
    let audit = api.call("GET", "/v1/threads/talk/audit", None).await.unwrap();
    let entry = &audit["entries"][0];
    assert_eq!((&entry["action"], &entry["target"]), (&json!("decide_tool_call"), &json!(turn.id)));
    assert_eq!(entry["detail"], "pay: run_again");

    // The tool is silent, and the person gives its result.
    let turn = api.say("talk", "in a hurry, silent").await.unwrap();
    let waiting = undecided(&fixture).await;
    assert_eq!((&waiting["turn_id"], &waiting["tool"]), (&json!(turn.id), &json!("pay-soon")));
    let env = fixture.command_env();
    let listed = invoke(&["incidents", "tool-calls", "-o", "json"], &env).await.unwrap();
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    assert_eq!(listed["tool_incidents"], json!([waiting]));
    let call = waiting["call"].as_str().unwrap();
    let decide =
        ["incidents", "decide", "talk", &turn.id, call, "--result", "paid by hand", "--actor", "ann"];
    let done = invoke(&decide, &env).await.unwrap();
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert_eq!(result_of(&fixture, &turn, SOON).await, "paid by hand");
    assert_eq!(tools.count(), 1, "it is not called again");
    assert_eq!(invoke(&decide, &env).await.unwrap().code, Some(1), "it is decided once");
    let all = invoke(&["incidents", "tool-calls", "--all"], &env).await.unwrap();
    assert!(all.stdout.contains("ann") && all.stdout.contains("run_again"), "{}", all.stdout);
    assert_eq!(api.call("GET", "/v1/tool-incidents", None).await.unwrap()["tool_incidents"], json!([]));

    // The results of the tools are erased with the thread.
    let kept = async || {
        let stream = fixture.publisher.context().get_stream(TOOL_CALLS_STREAM).await.unwrap();
        stream.cached_info().state.messages
    };
    assert_eq!(kept().await, 4, "two calls, and what was decided about each");
    let erased = invoke(&["threads", "erase", "talk", "--yes"], &env).await.unwrap();
    assert_eq!(erased.code, Some(0), "{} {}", erased.stdout, erased.stderr);
    assert_eq!(kept().await, 0);
}

/// Gives the result of a waiting call.
async fn decide(fixture: &Fixture, thread: &str, turn: &AcceptedTurn, waiting: &Value, result: &str) {
    let call = waiting["call"].as_str().unwrap();
    let path = format!("/v1/threads/{thread}/tool-incidents/{}/{call}/decide", turn.id);
    fixture.api().call("POST", &path, Some(&json!({ "result": result }))).await.unwrap();
}

/// The stream drops its oldest entries when it is full, at any time of a call.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_record_is_lost_is_not_made_again() {
    let tools = Tools::start().await;
    let mut fixture = fixture(&tools).await;
    let stream = fixture.publisher.context().get_stream(TOOL_CALLS_STREAM).await.unwrap();
    // The record is lost while the tool is being called, while the turn waits, and in between.
    let turn = fixture.api().say("talk", "in a hurry, silent").await.unwrap();
    until_called(&fixture, &tools, 1).await;
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(4) {
        stream.purge().await.unwrap();
        sleep(Duration::from_millis(50)).await;
    }
    let waiting = undecided(&fixture).await;
    assert_eq!((&waiting["turn_id"], tools.count()), (&json!(turn.id), 1));
    stream.purge().await.unwrap();
    sleep(Duration::from_secs(3)).await;
    let waiting_again = undecided(&fixture).await;
    assert_eq!((&waiting_again["call"], tools.count()), (&waiting["call"], 1), "it is shown again");
    // The next attempt finds only the incident, which is younger than the record.
    fixture.fleet.workflows[1].restart().await.unwrap();
    stream.purge().filter(ALL_TOOL_CALLS).await.unwrap();
    fixture
        .until("the turn waits again", REDELIVERY, async || {
            let metrics = fixture.fleet.workflows[1].metrics().await;
            metrics.is_ok_and(|metrics| metrics.sum("antiphon_workflow_undecided_tool_calls") == 1.0)
        })
        .await;
    decide(&fixture, "talk", &turn, &waiting_again, "paid by hand").await;
    assert_eq!(result_of(&fixture, &turn, SOON).await, "paid by hand");
    assert_eq!(tools.count(), 1);
}

/// The next attempt finds the result of a tool whose record was lost while it ran.
#[tokio::test(flavor = "multi_thread")]
async fn a_result_is_kept_when_the_record_of_its_call_was_lost() {
    let tools = Tools::start().await;
    let mut fixture = fixture(&tools).await;
    let stream = fixture.publisher.context().get_stream(TOOL_CALLS_STREAM).await.unwrap();
    let turn = fixture.api().say("talk", "patiently, slow").await.unwrap();
    until_called(&fixture, &tools, 1).await;
    stream.purge().await.unwrap();
    // The tool has answered, and the model has begun to use the result in its answer.
    sleep(SLOW + Duration::from_millis(700)).await;
    fixture.fleet.workflows[1].restart().await.unwrap();
    assert_eq!(result_of(&fixture, &turn, REDELIVERY).await, "done, call 1");
    assert_eq!(tools.count(), 1);
    tools.assert_one_key(&turn);
}

/// A waiting turn leaves its slot to others, continues once it is decided, and a stop ends it.
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_waits_holds_up_no_other_and_can_be_ended() {
    let tools = Tools::start().await;
    let with = |options: FleetOptions| {
        let options = options.with_role_env("workflow", "ANTIPHON_WORKFLOW_CONCURRENCY", 1);
        tools.services().into_iter().fold(alone(options), FleetOptions::with_workflow)
    };
    let fixture = Fixture::with(with).await;
    let api = fixture.api();
    let turn = api.say("other", "in a hurry, silent").await.unwrap();
    let waiting = undecided(&fixture).await;
    let next = api.say("talk", "look").await.unwrap();
    assert_eq!(result_of(&fixture, &next, SOON).await, "done, call 2");
    // No other request arrives: the service keeps its only slot for the next one.
    decide(&fixture, "other", &turn, &waiting, "paid by hand").await;
    assert_eq!(result_in(&fixture, "other", &turn, SOON).await, "paid by hand");
    tools.calls.lock().unwrap().clear();
    let turn = api.say("other", "in a hurry, silent").await.unwrap();
    undecided(&fixture).await;
    api.stop(&turn.id).await.unwrap();
    fixture
        .until("nothing waits any more", SOON, async || {
            let metrics = fixture.fleet.workflows[1].metrics().await.unwrap();
            metrics.sum("antiphon_workflow_undecided_tool_calls") == 0.0
        })
        .await;
}
