//! Traces from a client's request to the commit, over four processes, at an OTLP receiver.

mod receiver;

use std::time::Duration;

use devservices::services::{Port, ScratchDir};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use serde_json::{Value, json};
use testkit::fleet::{FleetOptions, WorkflowOptions, WorkflowProgram, binary};

use crate::{
    api_client::{SOON, alone, scripted},
    fixture::{Fixture, LEASE},
    reasoning::Server,
};
use receiver::{ReceivedSpan, Receiver};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CLIENT_SPAN: &str = "b7ad6b7169203331";
const POSTED: &str = "POST /v1/agents/{agent}/tasks";
const INPUT: &str = "the secret of the client";
const COMPLAINT: &str = "the receiver of traces takes no spans";
const ANSWER: &str = "the secret of the model";

/// A gateway, a worker, a workflow service, and another one that serves a script as the model of
/// the first.
fn with_a_model(options: FleetOptions, model: &Port, scratch: &ScratchDir, tools: &str) -> FleetOptions {
    let file = |name: &str, content: Value| {
        let path = scratch.path().join(name);
        std::fs::write(&path, content.to_string()).unwrap();
        path.display().to_string()
    };
    let steps = json!([
        {"tools": [{"name": "clock", "arguments": {"zone": "secret"}, "result": "noon"}]},
        {"text": {"content": format!("{ANSWER} and more"), "chars": 6, "every_ms": 5}},
    ]);
    let script = file("script.json", json!({"scenarios": [{"name": "any", "steps": steps}]}));
    let clock = json!({"name": "clock", "description": "The time.", "url": format!("{tools}/clock")});
    let tools = file("tools.json", json!({"tools": [clock]}));
    let address = format!("127.0.0.1:{}", model.number());
    let service = |arguments: &[&str]| {
        let arguments = ["workflow"].iter().chain(arguments).map(|argument| (*argument).to_owned()).collect();
        let dir = scratch.path().to_path_buf();
        let program = WorkflowProgram::Program { binary: binary().unwrap(), arguments, dir };
        WorkflowOptions { workflow: "default".to_owned(), program }
    };
    let base = format!("http://{address}/v1");
    alone(options)
        .with_workflow(service(&[
            "--workflow-engine",
            "none",
            "--serve-openai",
            &address,
            "--script-file",
            &script,
        ]))
        .with_workflow(service(&[
            "--workflow-engine",
            "openai",
            "--llm-base-url",
            &base,
            "--llm-model",
            "m-1",
            "--tools-file",
            &tools,
        ]))
}

async fn say(fixture: &Fixture, thread: &str, headers: &[(&str, &str)]) -> Value {
    let answer = fixture.api().say_with(thread, &json!({"content": INPUT}), headers).await.unwrap();
    assert_eq!(answer.status, 202, "{}", answer.text);
    answer.json().unwrap()
}

async fn until_answered(fixture: &Fixture, thread: &str) {
    fixture
        .until("the turn is committed", SOON, async || {
            fixture.api().history(thread).await.is_ok_and(|messages| messages.len() >= 2)
        })
        .await;
}

/// The first span of this name.
fn first<'a>(spans: &'a [ReceivedSpan], name: &str) -> &'a ReceivedSpan {
    let named = spans.iter().filter(|span| span.name == name);
    named.min_by_key(|span| span.start_ns).unwrap_or_else(|| panic!("{name} in {spans:#?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_is_one_trace_over_all_processes() {
    let (receiver, url) = Receiver::start().await;
    let (model, scratch) = (Port::reserve().unwrap(), ScratchDir::new("traces").unwrap());
    let fixture = Fixture::with(|options| {
        with_a_model(options, &model, &scratch, &url)
            .with_env("OTEL_EXPORTER_OTLP_ENDPOINT", &url)
            .with_env("OTEL_EXPORTER_OTLP_HEADERS", "x-key=for%20traces")
            .with_env("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    })
    .await;
    let parent = format!("00-{TRACE}-{CLIENT_SPAN}-01");
    fixture.settle("talk", json!({})).await;
    let accepted = say(&fixture, "talk", &[("traceparent", &parent)]).await;
    until_answered(&fixture, "talk").await;
    let not_recorded = format!("00-{}-{CLIENT_SPAN}-00", TRACE.replace("0af7", "1af7"));
    say(&fixture, "hush", &[("traceparent", &not_recorded)]).await;
    until_answered(&fixture, "hush").await;
    let complete = async || receiver.spans().iter().filter(|span| span.trace == TRACE).count() >= 9;
    fixture.until("the receiver has the trace", SOON, complete).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;

    let all = receiver.spans();
    let spans: Vec<ReceivedSpan> = all.iter().filter(|span| span.trace == TRACE).cloned().collect();
    assert_eq!(spans.len(), 9, "{spans:#?}");
    let chain = [
        ("POST /v1/threads/{thread}/messages", "antiphon-gateway", SpanKind::Server),
        ("turn", "antiphon-worker", SpanKind::Consumer),
        ("request", "antiphon-worker", SpanKind::Producer),
        ("invoke_agent talk", "antiphon-workflow", SpanKind::Consumer),
        ("chat m-1", "antiphon-workflow", SpanKind::Client),
        ("first chunk", "antiphon-worker", SpanKind::Consumer),
    ];
    let mut parent = CLIENT_SPAN;
    let mut began = 0;
    for (name, service, kind) in chain {
        let span = first(&spans, name);
        assert_eq!(
            (span.parent.as_str(), span.service.as_str(), span.kind),
            (parent, service, kind),
            "{name}"
        );
        assert!(!span.is_error && span.end_ns >= span.start_ns, "{name}");
        // Timestamps of the stream's server come from the same machine here.
        assert!(span.start_ns >= began, "{name} begins before its parent");
        (parent, began) = (&span.id, span.start_ns);
    }
    let (turn, commit) = (first(&spans, "turn"), first(&spans, "commit"));
    assert_eq!(commit.parent, turn.id);
    assert!(commit.start_ns >= first(&spans, "first chunk").start_ns && turn.end_ns >= commit.start_ns);
    names_and_numbers(&spans, &accepted);
    let tool = first(&spans, "execute_tool clock");
    assert_eq!(tool.parent, first(&spans, "invoke_agent talk").id);
    assert_eq!(receiver.tool_traces()[0], format!("00-{TRACE}-{}-01", tool.id));
    // The content of messages is in no trace, and neither is a trace that its client does not
    // record.
    for text in [INPUT, ANSWER, "secret"] {
        assert!(!receiver.mentions(text), "{text}");
    }
    assert!(!all.iter().any(|span| span.trace.starts_with("1af7")), "{all:#?}");
    // Health and metrics are requested all the time.
    assert!(
        !all.iter().any(|span| span.name.contains("readyz") || span.name.contains("metrics")),
        "{all:#?}"
    );
    assert!(receiver.header("x-key").iter().all(|key| key == "for traces"));
}

fn names_and_numbers(spans: &[ReceivedSpan], accepted: &Value) {
    let turn = accepted["turn_id"].as_str().unwrap();
    let expected = [
        ("POST /v1/threads/{thread}/messages", "http.request.method", "POST"),
        ("POST /v1/threads/{thread}/messages", "http.route", "/v1/threads/{thread}/messages"),
        ("POST /v1/threads/{thread}/messages", "http.response.status_code", "202"),
        ("turn", "antiphon.turn.id", turn),
        ("turn", "gen_ai.conversation.id", "talk"),
        ("turn", "antiphon.turn.kind", "message"),
        ("turn", "antiphon.turn.outcome", "complete"),
        ("invoke_agent talk", "gen_ai.operation.name", "invoke_agent"),
        ("chat m-1", "gen_ai.operation.name", "chat"),
        ("chat m-1", "gen_ai.request.model", "m-1"),
        ("chat m-1", "server.address", "127.0.0.1"),
        ("chat m-1", "gen_ai.response.finish_reasons", "tool_calls"),
        ("execute_tool clock", "gen_ai.tool.name", "clock"),
    ];
    for (span, key, value) in expected {
        assert_eq!(first(spans, span).attributes.get(key).map(String::as_str), Some(value), "{span} {key}");
    }
    for key in ["gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"] {
        let calls = spans.iter().filter(|span| span.name == "chat m-1");
        let counts: Vec<u64> = calls.map(|span| span.attributes[key].parse().unwrap()).collect();
        assert!(counts.len() == 2 && counts[1] > 0, "{key} {counts:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_run_of_a_task_is_a_turn_of_its_trace() {
    let (receiver, url) = Receiver::start().await;
    let fixture =
        Fixture::with(|options| scripted(options).with_env("OTEL_EXPORTER_OTLP_ENDPOINT", &url)).await;
    let (path, body) = ("/v1/agents/ann/tasks", json!({"task_id": "k", "content": "fails-once in secret"}));
    let parent = format!("00-{TRACE}-{CLIENT_SPAN}-01");
    let sent = fixture.api().send("POST", path, Some(&body), &[("traceparent", &parent)]).await.unwrap();
    assert_eq!(sent.status, 202, "{}", sent.text);
    let failed = async || receiver.spans().iter().any(|span| span.name == "turn");
    fixture.until("a run has failed", SOON, failed).await;
    fixture.api().act("ann", "clear-backoff").await.unwrap();
    let of_trace = || receiver.spans().into_iter().filter(|span| span.trace == TRACE).collect::<Vec<_>>();
    let turns = || of_trace().into_iter().filter(|span| span.name == "turn").collect::<Vec<_>>();
    // Three processes send their spans at different times.
    let named = |name: &str| of_trace().into_iter().filter(|span| span.name == name).count();
    let of_each_run = ["turn", "invoke_agent ann", "request", "commit"];
    let all = async || of_each_run.iter().all(|name| named(name) >= 2) && named(POSTED) == 1;
    fixture.until("all spans of both runs have come", SOON, all).await;
    let mut turns = turns();
    turns.sort_by_key(|turn| turn.start_ns);
    let expected = [("0", "failed", true, Some("scripted")), ("1", "complete", false, None)];
    for (turn, (run, outcome, is_error, code)) in turns.iter().zip(expected) {
        let attribute = |key: &str| turn.attributes.get(key).map(String::as_str);
        assert_eq!(attribute("antiphon.turn.run"), Some(run));
        assert_eq!((attribute("antiphon.turn.outcome"), turn.is_error), (Some(outcome), is_error));
        assert_eq!((attribute("error.type"), attribute("antiphon.turn.kind")), (code, Some("task")));
        let agents = of_trace().into_iter().filter(|span| span.name == "invoke_agent ann");
        let agent = agents.into_iter().find(|span| span.attributes["antiphon.turn.run"] == run).unwrap();
        assert_eq!(
            (agent.is_error, agent.attributes.get("error.type").map(String::as_str)),
            (is_error, code)
        );
        // The gateway's span is the parent of both runs.
        assert_eq!(turn.parent, first(&of_trace(), POSTED).id);
        for child in ["request", "commit"] {
            let below = |span: &&ReceivedSpan| span.name == child && span.parent == turn.id;
            assert_eq!(of_trace().iter().filter(below).count(), 1, "{child} of run {run}");
        }
    }
    // The log lines about the failure name the trace.
    let log = std::fs::read_to_string(fixture.fleet.workflows[0].log()).unwrap();
    let line = log.lines().find(|line| line.contains("turn failed")).unwrap();
    assert!(line.contains(&format!("trace_id=\"{TRACE}\"")), "{line}");
    // The error text of a script is content like any other.
    for text in ["secret", "a transient failure by script"] {
        assert!(!receiver.mentions(text), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_is_taken_over_stays_in_its_trace() {
    let (receiver, url) = Receiver::start().await;
    let mut fixture = Fixture::with(|options| options.with_env("OTEL_EXPORTER_OTLP_ENDPOINT", &url)).await;
    let manual_workflow = fixture.manual_workflow().await;
    let parent = format!("00-{TRACE}-{CLIENT_SPAN}-01");
    say(&fixture, "talk", &[("traceparent", &parent)]).await;
    let asked = manual_workflow.next(SOON).await.unwrap();
    let owner = fixture.worker_of("talk").await;
    fixture.fleet.workers[owner].kill().await.unwrap();
    let is_elsewhere = async || fixture.worker_of("talk").await != owner;
    fixture.until("another worker owns it", LEASE * 2 + SOON, is_elsewhere).await;
    asked.answer("at last").await.unwrap();
    until_answered(&fixture, "talk").await;
    let of_trace = || receiver.spans().into_iter().filter(|span| span.trace == TRACE).collect::<Vec<_>>();
    let ended = async || of_trace().iter().any(|span| span.name == "turn");
    fixture.until("the turn has ended", SOON, ended).await;
    let spans = of_trace();
    let (turn, input) = (first(&spans, "turn"), first(&spans, "POST /v1/threads/{thread}/messages"));
    assert_eq!((&turn.parent, turn.attributes["antiphon.turn.outcome"].as_str()), (&input.id, "complete"));
    // The workflow named no trace on its frames.
    for child in ["first chunk", "commit"] {
        assert_eq!(first(&spans, child).parent, turn.id, "{child}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sampler_decides_about_traces_without_a_parent() {
    let (receiver, url) = Receiver::start().await;
    let fixture = Fixture::with(|options| {
        scripted(options)
            .with_env("OTEL_EXPORTER_OTLP_ENDPOINT", &url)
            .with_env("OTEL_SERVICE_NAME", "shop")
            .with_env("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
            .with_env("OTEL_TRACES_SAMPLER_ARG", "0")
    })
    .await;
    say(&fixture, "unsampled", &[]).await;
    until_answered(&fixture, "unsampled").await;
    let parent = format!("00-{TRACE}-{CLIENT_SPAN}-01");
    say(&fixture, "sampled", &[("traceparent", &parent)]).await;
    until_answered(&fixture, "sampled").await;
    fixture
        .until("the spans have arrived", SOON, async || {
            receiver.spans().iter().any(|span| span.name == "commit")
        })
        .await;
    let spans = receiver.spans();
    let is_expected = |span: &ReceivedSpan| span.trace == TRACE && span.service == "shop";
    assert!(spans.iter().all(is_expected), "{spans:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_is_away_costs_nothing_but_its_spans() {
    let (port, model, scratch) =
        (Port::reserve().unwrap(), Port::reserve().unwrap(), ScratchDir::new("traces").unwrap());
    let fixture = Fixture::with(|options| {
        with_a_model(options, &model, &scratch, "http://127.0.0.1:9")
            .with_env("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://127.0.0.1:{}", port.number()))
            .with_env("OTEL_BSP_MAX_QUEUE_SIZE", 2)
    })
    .await;
    let worker = &fixture.fleet.workers[0];
    let log = || std::fs::read_to_string(worker.log()).unwrap();
    for number in 0..8 {
        let thread = format!("t-{number}");
        say(&fixture, &thread, &[]).await;
        until_answered(&fixture, &thread).await;
        // From then on, only the queue has room for spans.
        fixture.until("the log says so", SOON, async || log().contains(COMPLAINT)).await;
    }
    fixture
        .until("spans are dropped", SOON, async || {
            let metrics = worker.metrics().await.unwrap();
            metrics.sum_where("antiphon_traces_spans_dropped_total", "reason", "queue_full") >= 4.0
        })
        .await;
    assert_eq!(log().matches(COMPLAINT).count(), 1, "{}", log());
    let metrics = worker.metrics().await.unwrap();
    assert_eq!(metrics.sum("antiphon_traces_spans_exported_total"), 0.0);
    // A stop does not wait for the receiver.
    let began = std::time::Instant::now();
    worker.terminate();
    let mut fleet = fixture.fleet;
    fleet.workers[0].ended(SOON).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_reasoning_tools_are_spans_of_the_callers_trace() {
    let (receiver, url) = Receiver::start().await;
    let env = [("ANTIPHON_INSECURE", "true"), ("OTEL_EXPORTER_OTLP_ENDPOINT", url.as_str())];
    let server = Server::start(&env).await;
    let parent = format!("00-{TRACE}-{CLIENT_SPAN}-01");
    let call = |tool: &str, arguments: Value| json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}});
    let session = json!({"agent_id": "ann", "session_id": "s"});
    server.post(&call("frs_create_session", session), &[("traceparent", &parent)]).await;
    server
        .post(&call("frs_view_thread", json!({"session_id": "unknown"})), &[("traceparent", &parent)])
        .await;
    let deadline = tokio::time::Instant::now() + SOON;
    let of_trace = || receiver.spans().into_iter().filter(|span| span.trace == TRACE).collect::<Vec<_>>();
    while of_trace().len() < 4 {
        assert!(tokio::time::Instant::now() < deadline, "{:#?}", receiver.spans());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let spans = of_trace();
    assert_eq!(spans.len(), 4, "{spans:#?}");
    for (tool, is_error) in [("frs_create_session", false), ("frs_view_thread", true)] {
        let span = first(&spans, &format!("execute_tool {tool}"));
        let request = spans.iter().find(|other| other.id == span.parent).unwrap();
        assert_eq!(
            (request.name.as_str(), request.parent.as_str(), request.kind),
            ("POST /mcp", CLIENT_SPAN, SpanKind::Server)
        );
        assert_eq!((span.service.as_str(), span.is_error), ("antiphon-mcp", is_error));
        assert_eq!(span.attributes["gen_ai.tool.name"], tool);
    }
}
