//! Models of the reference workflow with the reasoning tools: over MCP, served by `antiphon all`.

use std::net::SocketAddr;
use std::time::Duration;

use devservices::services::{Port, ScratchDir};
use serde_json::{Value, json};
use testkit::{
    api::Api,
    fleet::{Fleet, FleetOptions, WorkflowOptions, WorkflowProgram, binary, invoke},
    http::{self, HttpRequest},
    services::{NatsServer, TestDatabase},
    sse::{FollowOptions, Follower},
};
use tokio::time::{sleep, timeout};

use crate::fixture::LoneGateway;

const TURN_TIMEOUT: Duration = Duration::from_secs(60);

/// One process with all roles, whose model is a script behind an OpenAI-compatible endpoint.
struct All {
    fleet: Fleet,
    database: TestDatabase,
    _nats: NatsServer,
    scratch: ScratchDir,
    ports: [Port; 2],
}

impl All {
    /// `mcp_url`: the address of another server than its own.
    async fn start(script: &Value, mcp_url: Option<&str>) -> Self {
        let (nats, database) = (NatsServer::start().await.unwrap(), TestDatabase::create().await.unwrap());
        let scratch = ScratchDir::new("reasoning-agents").unwrap();
        let file = scratch.path().join("script.json");
        std::fs::write(&file, script.to_string()).unwrap();
        let ports = [Port::reserve().unwrap(), Port::reserve().unwrap()];
        let [model, mcp] = [0, 1].map(|at: usize| SocketAddr::from(([127, 0, 0, 1], ports[at].number())));
        let own = format!("http://{mcp}/mcp");
        let mut options = FleetOptions::new(nats.url(), database.url());
        (options.workers, options.gateways, options.partitions) = (0, 0, 2);
        let settings = [
            ("--mcp-addr", mcp.to_string()),
            ("--workflow-engine", "openai".to_owned()),
            ("--serve-openai", model.to_string()),
            ("--script-file", file.display().to_string()),
            ("--llm-base-url", format!("http://{model}/v1")),
            ("--llm-model", "scripted".to_owned()),
            ("--mcp-url", mcp_url.unwrap_or(&own).to_owned()),
        ];
        let mut arguments = vec!["all".to_owned()];
        arguments.extend(settings.into_iter().flat_map(|(name, value)| [name.to_owned(), value]));
        let program = WorkflowProgram::Program {
            binary: binary().unwrap(),
            arguments,
            dir: scratch.path().to_path_buf(),
        };
        let fleet =
            Fleet::start(options.with_workflow(WorkflowOptions { workflow: "default".to_owned(), program }));
        let fleet = fleet.await.unwrap();
        Self { fleet, database, _nats: nats, scratch, ports }
    }

    /// Exports the thread of the session's agent and imports it into another database, twice.
    /// Checks the session there.
    async fn comes_back(&self, session: &str) {
        let file = self.scratch.path().join("export.jsonl").display().to_string();
        let other = TestDatabase::create().await.unwrap();
        let [from, to] =
            [&self.database, &other].map(|database| [("DATABASE_URL".to_owned(), database.url().to_owned())]);
        store::migrate(other.url(), model::PartitionCount::new(2).unwrap()).await.unwrap();
        let exported = invoke(&["database", "export", "t", "--output", &file], &from).await.unwrap();
        assert_eq!(exported.code, Some(0), "{}", exported.stderr);
        for new in [1, 0] {
            let imported = invoke(&["database", "import", "--file", &file, "-o", "json"], &to).await.unwrap();
            assert_eq!(imported.code, Some(0), "{}", imported.stderr);
            let counts: Value = serde_json::from_str(&imported.stdout).unwrap();
            assert_eq!(
                (&counts["reasoning_sessions"], &counts["new_reasoning_sessions"]),
                (&json!(1), &json!(new))
            );
        }
        let mut views = Vec::new();
        for database in [&self.database, &other] {
            let gateway = LoneGateway::start(database.url(), 2, &[]).await;
            views.push(invoke(&["reasoning", "view", session], &[gateway.env()]).await.unwrap().stdout);
        }
        assert!(views[0].contains("Reasoning Thread (3 messages):"), "{}", views[0]);
        assert_eq!(views[0], views[1]);
    }

    fn api(&self) -> Api {
        Api(self.fleet.workflows[0].http_addr())
    }

    /// The messages of a thread as models see them. Its history must show people nothing of its
    /// reasoning tools.
    async fn seen_by_models(&self, thread: &str, history: &[Value]) -> Vec<Value> {
        for message in history {
            let is_withheld = |text: &str| text == "(not shown: the agent's reasoning thread)";
            let is_result = message["role"] == "tool";
            assert!(!is_result || is_withheld(message["content"].as_str().unwrap()), "{message}");
            let calls = message["tool_calls"].as_array().into_iter().flatten();
            assert!(calls.clone().all(|call| call["arguments"] == "{}"), "{message}");
        }
        let path = format!("/v1/threads/{thread}/history?limit=200&synthetic=true");
        let page = self.api().call("GET", &path, None).await.unwrap();
        page["messages"].as_array().unwrap().clone()
    }

    /// Checks that no protocol shows the arguments and results of a thread's reasoning tools.
    async fn is_withheld(&self, thread: &str, history: &[Value], follower: Follower) {
        let api = self.api();
        follower.wait(TURN_TIMEOUT, |progress| progress.terminals > 0).await.unwrap();
        let mut shown = vec![format!("{:?}", follower.stop())];
        let batch = history[0]["batch_id"].as_str().unwrap();
        for path in [format!("/api/chat/{thread}"), format!("/v1/threads/{thread}/batches/{batch}")] {
            shown.push(api.call("GET", &path, None).await.unwrap().to_string());
        }
        let again = Follower::start(
            &[api.0],
            thread,
            FollowOptions { last_event_id: Some("0".to_owned()), ..FollowOptions::default() },
        );
        again.wait(TURN_TIMEOUT, |progress| progress.terminals > 0).await.unwrap();
        shown.push(format!("{:?}", again.stop()));
        for text in shown {
            assert!(text.contains("(not shown: the agent") && text.contains("All done"), "{text}");
            for secret in ["Reasoning Thread (", "Snapshot token", "Searched: nothing", "valid: "] {
                assert!(!text.contains(secret), "{secret}: {text}");
            }
        }
    }

    /// The messages of the first turn of a thread.
    async fn turn(&self, thread: &str, input: &str) -> Vec<Value> {
        let api = self.api();
        let played = async {
            while api.say(thread, input).await.is_err() {
                sleep(Duration::from_millis(200)).await;
            }
            loop {
                let history = api.history(thread).await.unwrap_or_default();
                if history.last().is_some_and(|last| {
                    last["role"] == "assistant"
                        && last["content"].as_str().is_some_and(|text| text.contains("done"))
                }) {
                    return history;
                }
                sleep(Duration::from_millis(200)).await;
            }
        };
        timeout(TURN_TIMEOUT, played)
            .await
            .unwrap_or_else(|_| panic!("no answer:\n{}", self.fleet.log_tails()))
    }
}

fn tool(name: &str, arguments: Value) -> Value {
    json!({ "tools": [{ "name": name, "arguments": arguments }] })
}

/// The results of the tools, in the order of the calls, from messages as models see them.
fn results(messages: &[Value]) -> Vec<&str> {
    messages
        .iter()
        .filter(|message| message["role"] == "tool")
        .filter_map(|message| message["content"].as_str())
        .collect()
}

/// A model that adds its steps to a session, and compresses its search results.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_compresses_its_own_steps_over_mcp() {
    let session = json!({ "session_id": "research" });
    let steps = json!({ "session_id": "research", "messages": [
        { "role": "user", "content": "Analyze codebase" },
        { "role": "assistant", "content": "I'll search...", "tool_calls": [{ "id": "s1", "name": "search" }] },
        { "role": "tool", "tool_call_id": "s1", "content": "x".repeat(2_000) },
        { "role": "assistant", "content": "Nothing found." },
    ] });
    let script = json!({ "scenarios": [{ "steps": [
        tool("frs_create_session", json!({ "agent_id": "t", "session_id": "research" })),
        tool("frs_append", steps),
        tool("frs_view_thread", session.clone()),
        tool("frs_compress_range", json!({ "session_id": "research", "from": 2, "to": 3, "summary": "Searched: nothing." })),
        tool("frs_compress_range", json!({ "session_id": "research", "from": 2, "to": 9, "summary": "x" })),
        tool("frs_view_thread", session),
        { "text": { "content": "All done." } },
    ] }] });
    let all = All::start(&script, None).await;
    let follower = Follower::start(&[all.api().0], "t", FollowOptions::default());
    let history = all.turn("t", "search").await;
    let is_numbered = |message: &Value| message["content"].as_str().is_some_and(|text| text.starts_with('['));
    assert!(!history.iter().any(is_numbered), "people see no numbers of reasoning messages");
    all.is_withheld("t", &history, follower).await;
    let seen = all.seen_by_models("t", &history).await;
    let results = results(&seen);
    assert_eq!(results.len(), 6, "{history:?}");
    assert!(results[1].starts_with("Appended 4 messages"), "{}", results[1]);
    let before = "Reasoning Thread (4 messages):\n[1] User: Analyze codebase\n[2] Assistant: I'll search...\n\
                  [3] Tool: [search results - 2000 chars]\n[4] Assistant: Nothing found.\n";
    assert!(results[2].starts_with(before), "{}", results[2]);
    assert!(results[3].starts_with("Compressed 2 messages, [2] to [3], into [2]."), "{}", results[3]);
    assert!(results[4].ends_with("valid: [1] to [3]"), "{}", results[4]);
    let after = "Reasoning Thread (3 messages):\n[1] User: Analyze codebase\n[2] Summary: Searched: nothing.\n\
                 [3] Assistant: Nothing found.\n";
    assert!(results[5].starts_with(after), "{}", results[5]);
    // Another run of the turn would make the same requests, which count once.
    let sql = "SELECT count(*) FROM reasoning_layers WHERE request_id IS NOT NULL";
    let pool = all.database.pool().await.unwrap();
    assert_eq!(sqlx::query_scalar::<_, i64>(sql).fetch_one(&pool).await.unwrap(), 1);
    all.comes_back("research").await;
}

/// A model that requests several steps of a session at once: each step needs the one before it.
#[tokio::test(flavor = "multi_thread")]
async fn calls_of_one_step_reach_the_server_in_order() {
    let append = |message: Value| {
        let arguments = json!({ "session_id": "steps", "messages": [message] });
        json!({ "name": "frs_append", "arguments": arguments })
    };
    let pair = |number: u32| {
        let id = format!("c{number}");
        [
            append(json!({ "role": "assistant", "tool_calls": [{ "id": id, "name": "search" }] })),
            append(json!({ "role": "tool", "tool_call_id": id, "content": "found" })),
        ]
    };
    let calls: Vec<Value> = (0..8).flat_map(pair).collect();
    let script = json!({ "scenarios": [{ "steps": [
        tool("frs_create_session", json!({ "agent_id": "t", "session_id": "steps" })),
        { "tools": calls },
        { "text": { "content": "All done." } },
    ] }] });
    let all = All::start(&script, None).await;
    let history = all.turn("t", "search").await;
    let seen = all.seen_by_models("t", &history).await;
    let results = results(&seen);
    assert_eq!(results.len(), 17, "{history:?}");
    for (number, result) in (1..).zip(&results[1..]) {
        assert_eq!(*result, format!("Appended 1 message: rm-{number}."));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_mcp_server_that_is_away_fails_the_tool_alone() {
    let script = json!({ "scenarios": [{ "steps": [
        tool("frs_view_thread", json!({ "session_id": "s" })),
        { "text": { "content": "Well, done without." } },
    ] }] });
    let unused = Port::reserve().unwrap();
    let all = All::start(&script, Some(&format!("http://127.0.0.1:{}/mcp", unused.number()))).await;
    let history = all.turn("t", "look").await;
    let seen = all.seen_by_models("t", &history).await;
    let results = results(&seen);
    assert_eq!(results.len(), 1, "{history:?}");
    assert!(results[0].starts_with("error: "), "{}", results[0]);
}

/// A session over the thread itself: what its agent compresses leaves the context of the next turn,
/// but people still see it.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_compressed_leaves_the_context_of_the_thread() {
    let script = json!({ "scenarios": [{ "steps": [{ "text": { "content": "All done." } }] }] });
    let all = All::start(&script, None).await;
    let history = all.turn("t", "the first question").await;
    let mcp = SocketAddr::from(([127, 0, 0, 1], all.ports[1].number()));
    let call = async |tool: &str, arguments: Value| {
        let body = crate::reasoning::request(tool, &arguments).to_string();
        let headers =
            [("accept", "application/json, text/event-stream"), ("content-type", "application/json")];
        let request = HttpRequest { method: "POST", path: "/mcp", headers: &headers, body: body.as_bytes() };
        let answer: Value = http::exchange(mcp, request).await.unwrap().json().unwrap();
        assert_eq!(answer["result"]["isError"], false, "{tool}: {answer}");
        crate::reasoning::text(&answer["result"])
    };
    let context = async || all.api().call("GET", "/v1/threads/t/context", None).await.unwrap().to_string();
    let before = context().await;
    assert!(before.contains("the first question"), "{before}");
    let session = json!({ "session_id": "s" });
    let create = json!({ "agent_id": "t", "session_id": "s", "sources": [{ "thread_id": "t" }], "applies_to_thread": true });
    assert!(call("frs_create_session", create).await.contains("2 base messages"));
    let arguments = json!({ "session_id": "s", "from": 1, "to": 2, "summary": "A question was answered." });
    let said = call("frs_compress_range", arguments).await;
    assert!(said.ends_with("contexts of the thread t have the summary instead of 1 batch."), "{said}");
    let after = context().await;
    assert!(!after.contains("the first question") && after.contains("A question was answered."), "{after}");
    assert_eq!(all.api().history("t").await.unwrap(), history, "people see what they saw");
    call("frs_undo", session).await;
    assert_eq!(context().await, before);
}

/// A model that asks for the memory of another thread gets that of its own turn, and people are
/// shown what it remembers.
#[tokio::test(flavor = "multi_thread")]
async fn a_model_remembers_for_the_user_of_its_thread_alone() {
    let of_bob = |mut arguments: Value| {
        (arguments["thread_id"], arguments["agent_id"]) = (json!("of-bob"), json!("other"));
        arguments
    };
    let boat = "The user has a boat";
    let script = json!({ "scenarios": [{ "steps": [
        tool("memory_search", of_bob(json!({ "query": "Which secret?" }))),
        tool("memory_remember", of_bob(json!({ "text": boat, "kind": "possession" }))),
        { "text": { "content": "All done." } },
    ] }] });
    let all = All::start(&script, None).await;
    let api = all.api();
    for (thread, user) in [("t", "ann"), ("of-bob", "bob")] {
        let body = json!({ "thread_id": thread, "metadata": { "user_id": user } });
        let made = async {
            while api.call("POST", "/v1/threads", Some(&body)).await.is_err() {
                sleep(Duration::from_millis(200)).await;
            }
        };
        timeout(TURN_TIMEOUT, made).await.unwrap();
    }
    api.call("PUT", "/v1/agents/t", Some(&json!({ "workflow": "default" }))).await.unwrap();
    for given in [
        json!({ "text": "The secret of Ann is blue", "user_id": "ann" }),
        json!({ "text": "The secret of Bob is red", "user_id": "bob" }),
    ] {
        api.call("POST", "/v1/agents/t/memory", Some(&given)).await.unwrap();
    }
    let history = all.turn("t", "I have a boat").await;
    let results = results(&history);
    assert_eq!(results[0], "(not shown: what the agent remembers)", "{history:?}");
    assert!(results[1].starts_with(&format!("Remembered: \"{boat}\" (id ")), "{}", results[1]);
    let of_models = api.call("GET", "/v1/threads/t/history?synthetic=true", None).await.unwrap().to_string();
    assert!(of_models.contains("Ann is blue") && !of_models.contains("Bob is red"), "{of_models}");
    let facts = async |query: &str| {
        let page = api.call("GET", &format!("/v1/agents/t/memory?{query}"), None).await.unwrap();
        page["facts"].as_array().unwrap().iter().map(|fact| fact["text"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(facts("user_id=ann").await, [json!(boat), json!("The secret of Ann is blue")]);
    assert_eq!(facts("user_id=bob").await, ["The secret of Bob is red"]);
    // The fact is shown with the answer of the turn in which it was remembered.
    let shown = &history.last().unwrap()["remembered"];
    assert_eq!((&shown[0]["text"], shown.as_array().unwrap().len()), (&json!(boat), 1), "{history:?}");
    assert_eq!(shown[0]["source_message_id"], history[0]["message_id"]);
}
