//! Settings of the workflow service for a model's endpoint. The endpoint is in this process and
//! behaves as the name of the model says.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Json, Router,
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode, Uri},
    response::{IntoResponse, Response},
    routing::post,
};
use devservices::services::ScratchDir;
use serde_json::{Value, json};
use testkit::{
    fleet::{FleetOptions, WorkflowOptions, WorkflowProgram, binary},
    locked,
};
use tokio::time::sleep;

use crate::{
    api_client::{A_WHILE, SOON, alone},
    fixture::Fixture,
};

/// Duration of a call of the model `slow`.
const CALL: Duration = Duration::from_millis(600);

/// The workflows, by the name of their agent, workflow and model, with the settings of each.
const WORKFLOWS: [(&str, &[&str]); 9] = [
    ("hangs", &["--llm-timeout-seconds", "0.5", "--llm-retry-seconds", "0"]),
    ("fails", &["--llm-retry-seconds", "0"]),
    ("slow", &["--llm-calls-at-once", "1"]),
    ("minute", &["--llm-calls-per-minute", "1"]),
    ("tokens", &["--llm-tokens-per-minute", "1000"]),
    ("steps", &["--max-steps", "2"]),
    ("begins", &["--workflow-drain-seconds", "1"]),
    ("keyed", &["--llm-interface", "anthropic", "--llm-api-key", "key-of-the-model"]),
    ("tools", &["--mcp-url", MCP_URL, "--mcp-api-key", "key-of-the-tools"]),
];
/// Replaced by the URL of the endpoint.
const MCP_URL: &str = "{endpoint}/mcp";

/// The requests of one model.
#[derive(Debug, Default, Clone)]
struct Calls {
    count: usize,
    at_once: usize,
    most_at_once: usize,
    /// Path and headers of the last request.
    last: Option<(String, HeaderMap)>,
}

#[derive(Clone, Default)]
struct Endpoint(Arc<Mutex<BTreeMap<String, Calls>>>);

impl Endpoint {
    async fn start() -> (Self, String) {
        let endpoint = Self::default();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().fallback(post(answer)).with_state(endpoint.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        (endpoint, url)
    }

    fn of(&self, model: &str) -> Calls {
        locked(&self.0).get(model).cloned().unwrap_or_default()
    }

    fn change(&self, model: &str, change: impl FnOnce(&mut Calls)) {
        change(locked(&self.0).entry(model.to_owned()).or_default());
    }
}

async fn answer(
    State(endpoint): State<Endpoint>,
    uri: Uri,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> Response {
    let model = body["model"].as_str().unwrap_or("tools").to_owned();
    endpoint.change(&model, |calls| {
        calls.count += 1;
        calls.at_once += 1;
        calls.most_at_once = calls.most_at_once.max(calls.at_once);
        calls.last = Some((uri.path().to_owned(), headers));
    });
    let answer = match model.as_str() {
        "hangs" => std::future::pending().await,
        "begins" => {
            let first = futures_util::stream::iter([Ok::<_, std::io::Error>(event(&delta("I begin")))]);
            let rest = futures_util::stream::pending();
            Body::from_stream(futures_util::StreamExt::chain(first, rest)).into_response()
        }
        "steps" => {
            let call = json!({"index": 0, "id": "c", "function": {"name": "none", "arguments": "{}"}});
            said(&json!({"tool_calls": [call]}), "tool_calls").into_response()
        }
        "slow" => {
            sleep(CALL).await;
            said(&json!({"content": "well"}), "stop").into_response()
        }
        "minute" | "tokens" => said(&json!({"content": "well"}), "stop").into_response(),
        _ => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    };
    endpoint.change(&model, |calls| calls.at_once -= 1);
    answer
}

fn event(data: &Value) -> String {
    format!("data: {data}\n\n")
}

fn delta(text: &str) -> Value {
    json!({"choices": [{"index": 0, "delta": {"content": text}}]})
}

/// A whole answer that has used 5,000 tokens.
fn said(delta: &Value, finish: &str) -> String {
    let usage = json!({"prompt_tokens": 4_000, "completion_tokens": 1_000, "total_tokens": 5_000});
    [
        event(&json!({"choices": [{"index": 0, "delta": delta}]})),
        event(&json!({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}], "usage": usage})),
        "data: [DONE]\n\n".to_owned(),
    ]
    .concat()
}

fn services(url: &str, scratch: &ScratchDir) -> Vec<WorkflowOptions> {
    let service = |(name, settings): &(&str, &[&str])| {
        let base = format!("{url}/v1");
        let fixed =
            ["workflow", "--workflow-engine", "openai", "--llm-base-url", base.as_str(), "--llm-model", name];
        let settings = settings.iter().map(|word| word.replace("{endpoint}", url));
        let arguments = fixed.map(str::to_owned).into_iter().chain(settings).collect();
        let dir = scratch.path().to_path_buf();
        let program = WorkflowProgram::Program { binary: binary().unwrap(), arguments, dir };
        WorkflowOptions { workflow: (*name).to_owned(), program }
    };
    WORKFLOWS.iter().map(service).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_a_model_keep_to_the_settings_of_their_service() {
    let ((endpoint, url), scratch) = (Endpoint::start().await, ScratchDir::new("models").unwrap());
    let names: Vec<&str> = WORKFLOWS.iter().map(|(name, _)| *name).collect();
    let mut fixture = Fixture::with(|options| {
        let options = alone(options).with_env("ANTIPHON_WORKFLOWS", names.join(","));
        services(&url, &scratch).into_iter().fold(options, FleetOptions::with_workflow)
    })
    .await;
    for (name, _) in WORKFLOWS {
        let api = fixture.api();
        api.put_agent(name, name, json!({})).await.unwrap();
        // Two threads of the agent, so that two turns can be in progress.
        for thread in [name.to_owned(), format!("{name}-2")] {
            let body = json!({"thread_id": thread, "agent_id": name});
            api.create_thread(&body).await.unwrap();
        }
        api.say(name, "hello").await.unwrap();
    }
    // The defaults would wait for two minutes, and retry for twenty seconds.
    for name in ["hangs", "fails"] {
        let failed = fixture.until_failed(name, 1).await;
        assert!(failed[0].0.starts_with("upstream_"), "{name}: {failed:?}");
        assert_eq!(endpoint.of(name).count, 1, "{name} is not called again");
    }
    assert_eq!(fixture.until_failed("steps", 1).await[0].0, "too_many_steps");
    assert_eq!(endpoint.of("steps").count, 2);

    for name in ["slow", "minute", "tokens"] {
        fixture.api().say(&format!("{name}-2"), "hello").await.unwrap();
        fixture.until_messages(name, 2).await;
    }
    fixture.until_messages("slow-2", 2).await;
    assert_eq!((endpoint.of("slow").count, endpoint.of("slow").most_at_once), (2, 1));
    sleep(A_WHILE).await;
    assert_eq!((endpoint.of("minute").count, endpoint.of("tokens").count), (1, 1));

    let of = async |model: &str| {
        fixture.until(&format!("{model} is called"), SOON, async || endpoint.of(model).count > 0).await;
        endpoint.of(model).last.unwrap()
    };
    let (path, headers) = of("keyed").await;
    assert_eq!((path.as_str(), headers["x-api-key"].to_str().unwrap()), ("/v1/messages", "key-of-the-model"));
    let (path, headers) = of("tools").await;
    assert_eq!(
        (path.as_str(), headers["authorization"].to_str().unwrap()),
        ("/mcp", "Bearer key-of-the-tools")
    );

    of("begins").await;
    let begins = names.iter().position(|name| *name == "begins").unwrap();
    fixture.fleet.workflows[begins].terminate();
    // The default would wait for the turn for twenty seconds.
    fixture.fleet.workflows[begins].ended(SOON).await.unwrap();
}
