//! The reasoning tools over MCP: real clients, bad arguments, and processes that die.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use devservices::{npm, pip, services::Port, workspace};
use model::{MEMORY_TOOLS, PartitionCount, REASONING_TOOLS as TOOLS};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde_json::{Value, json};
use testkit::{
    fleet::{binary, invoke},
    http::{self, HttpRequest, TextResponse},
    services::TestDatabase,
};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::fixture::LoneGateway;

/// Limit for a client of another language, including its start.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);

/// A database, and a server of the tools.
pub(crate) struct Server {
    pub(crate) database: TestDatabase,
    env: Vec<(String, String)>,
    mcp: Port,
    metrics: Port,
    child: Child,
}

impl Server {
    pub(crate) async fn start(env: &[(&str, &str)]) -> Self {
        Self::on(migrated().await, env).await
    }

    /// Settings in `env` override those of the test.
    pub(crate) async fn on(database: TestDatabase, env: &[(&str, &str)]) -> Self {
        let (mcp, metrics) = (Port::reserve().unwrap(), Port::reserve().unwrap());
        let mut all = vec![
            ("DATABASE_URL".to_owned(), database.url().to_owned()),
            ("ANTIPHON_MCP_ADDR".to_owned(), local(&mcp).to_string()),
            ("ANTIPHON_METRICS_ADDR".to_owned(), local(&metrics).to_string()),
        ];
        let env = if env.is_empty() { &[("ANTIPHON_INSECURE", "true")] } else { env };
        all.extend(env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let child = spawn(&all);
        let server = Self { database, env: all, mcp, metrics, child };
        server.ready().await;
        server
    }

    /// Sends SIGKILL, and starts another process at the same address.
    async fn restart(&mut self) {
        self.child.kill().await.unwrap();
        self.child = spawn(&self.env);
        self.ready().await;
    }

    async fn ready(&self) {
        let wait = async {
            while !http::get(local(&self.metrics), "/readyz").await.is_ok_and(|answer| answer.status == 200) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        timeout(Duration::from_secs(30), wait).await.expect("antiphon mcp is not ready");
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        local(&self.mcp)
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/mcp", self.addr())
    }

    pub(crate) async fn post(&self, body: &Value, headers: &[(&str, &str)]) -> TextResponse {
        let mut all =
            vec![("accept", "application/json, text/event-stream"), ("content-type", "application/json")];
        all.extend(headers);
        let body = body.to_string();
        let request = HttpRequest { method: "POST", path: "/mcp", headers: &all, body: body.as_bytes() };
        http::exchange(self.addr(), request).await.unwrap()
    }

    /// The result of a tool; there must be no protocol error.
    pub(crate) async fn call(&self, tool: &str, arguments: Value) -> Value {
        let response = self.post(&request(tool, &arguments), &[]).await;
        assert_eq!(response.status, 200, "{tool} {arguments}: {}", response.text);
        let answer: Value = serde_json::from_str(&response.text).unwrap();
        assert!(answer.get("error").is_none(), "{tool} {arguments}: {answer}");
        answer["result"].clone()
    }

    /// The text of a call that must succeed.
    pub(crate) async fn done(&self, tool: &str, arguments: Value) -> String {
        let result = self.call(tool, arguments.clone()).await;
        assert_eq!(result["isError"], false, "{tool} {arguments}: {result}");
        text(&result)
    }

    /// The code and the text of a refusal.
    pub(crate) async fn refused(&self, tool: &str, arguments: Value) -> (String, String) {
        let result = self.call(tool, arguments.clone()).await;
        assert_eq!(result["isError"], true, "{tool} {arguments}: {result}");
        (result["structuredContent"]["error"]["code"].as_str().unwrap().to_owned(), text(&result))
    }

    pub(crate) async fn eight_messages(&self, session: &str) {
        self.done("frs_create_session", json!({ "agent_id": "ann", "session_id": session })).await;
        let messages: Vec<Value> =
            (1..=8).map(|number| json!({ "role": "user", "content": format!("message {number}") })).collect();
        self.done("frs_append", json!({ "session_id": session, "messages": messages })).await;
    }
}

fn spawn(env: &[(String, String)]) -> Child {
    let mut command = Command::new(binary().unwrap());
    command.arg("mcp").env("ANTIPHON_LOG", "warn").envs(env.iter().cloned()).stdin(Stdio::null());
    command.kill_on_drop(true).spawn().unwrap()
}

fn local(port: &Port) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port.number()))
}

/// A database with the schema.
pub(crate) async fn migrated() -> TestDatabase {
    let database = TestDatabase::create().await.unwrap();
    store::migrate(database.url(), PartitionCount::new(1).unwrap()).await.unwrap();
    database
}

pub(crate) fn request(tool: &str, arguments: &Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": { "name": tool, "arguments": arguments } })
}

pub(crate) fn text(result: &Value) -> String {
    result["content"][0]["text"].as_str().unwrap_or_default().to_owned()
}

/// The results of the official Python client for every tool.
async fn python(input: Value) -> Value {
    let programs = workspace::root().join("crates/e2e/tests/mcp_clients");
    let packages =
        pip::install(&programs.join("requirements.txt"), &workspace::target_dir().join("clients/mcp-python"))
            .unwrap();
    let mut command = Command::new("python3");
    command.arg(programs.join("all_tools.py")).arg(input.to_string()).env("PYTHONPATH", packages);
    let run = timeout(CLIENT_TIMEOUT, command.stdin(Stdio::null()).output()).await.unwrap().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    serde_json::from_slice(&run.stdout).unwrap()
}

/// Checks that every call did what the tools promise.
fn check_python(report: &Value) {
    let mut listed: Vec<&str> =
        report["tools"].as_array().unwrap().iter().map(|tool| tool.as_str().unwrap()).collect();
    listed.sort_unstable();
    let mut all = [&TOOLS[..], &MEMORY_TOOLS].concat();
    all.sort_unstable();
    assert_eq!(listed, all);
    let calls = report["calls"].as_array().unwrap();
    let said = |index: usize| calls[index]["text"].as_str().unwrap();
    let first = said(2);
    assert!(
        first.starts_with(
            "Reasoning Thread (6 messages):\n[1] User: Analyze codebase\n[2] Assistant: I'll search...\n\
             [3] Tool: [search results - 2000 chars]\n[4] Assistant: Nothing found.\n"
        ),
        "{first}"
    );
    assert!(said(4).starts_with("Compressed 2 messages, [5] to [6], into [5]. The summary message is rm-7."));
    assert!(said(5).contains("The range [3] to [4] was widened to [2] to [4]"), "{}", said(5));
    assert!(said(7).contains("into [2]. The summary message is rm-9."), "{}", said(7));
    let planned = said(9);
    assert!(planned.contains("[2] Summary: Searched: nothing.\n[3] Summary: It goes on.\n"), "{planned}");
    assert!(
        planned.contains("Plan (1 item):\n1. [x] Search\nAbsolute numbers, in this order: 1, 9, 7\n"),
        "{planned}"
    );
    assert!(said(10).contains("Tool: xxxxxxxx"), "{}", said(10));
    assert_eq!(said(12), first, "the thread is what it was");
    assert_eq!(
        (&calls[13]["is_error"], said(13).ends_with("valid: 1 to 6")),
        (&json!(true), true),
        "{}",
        said(13)
    );
    assert_eq!(said(14), "Session not found");
    assert!(said(15).starts_with("rm-3 Tool (2000 chars):\nxxxx"), "{}", said(15));
    assert!(said(16).starts_with("Remembered: \"The user likes tea.\" (id "), "{}", said(16));
    assert!(said(17).contains("\n- \"The user likes tea.\" (id "), "{}", said(17));
    for (at, tool) in [(18, "memory_correct"), (19, "memory_forget")] {
        assert!(said(at).starts_with("no fact of that id counts in this thread"), "{tool}: {}", said(at));
    }
    assert!(calls[..13].iter().all(|call| call["is_error"] == false), "{calls:#?}");
}

/// The same calls by an agent framework, which gets a result's JSON if there is any.
fn check_agent(report: &Value) {
    assert_eq!(report["tools"].as_array().unwrap().len(), TOOLS.len() + MEMORY_TOOLS.len(), "{report}");
    let calls = report["calls"].as_array().unwrap();
    let errors: Vec<bool> = calls.iter().map(|call| call["is_error"].as_bool().unwrap()).collect();
    assert!(errors[..13].iter().all(|is_error| !is_error) && errors[13] && errors[14], "{report}");
    assert!(calls[2]["said"].to_string().contains("[1] User: Analyze codebase"), "{report}");
    assert_eq!(calls[2]["said"], calls[12]["said"], "the thread is what it was");
    assert!(TOOLS.iter().chain(&MEMORY_TOOLS).all(|tool| calls.iter().any(|call| call["tool"] == *tool)));
}

#[tokio::test(flavor = "multi_thread")]
async fn python_clients_call_every_tool_over_http_and_stdio() {
    let server = Server::start(&[]).await;
    let report = python(json!({ "url": server.url(), "session": "http" })).await;
    check_python(&report);
    check_agent(&report["pydantic_ai"]);
    let env =
        json!({ "DATABASE_URL": server.database.url(), "ANTIPHON_INSECURE": "true", "ANTIPHON_LOG": "warn" });
    let report = python(json!({
        "command": binary().unwrap(), "args": ["mcp", "--stdio"], "env": env, "session": "stdio",
    }))
    .await;
    check_python(&report);
    check_agent(&report["pydantic_ai"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn inspector_lists_and_calls_over_http_and_stdio() {
    let server = Server::start(&[]).await;
    server.eight_messages("s").await;
    let installed = workspace::target_dir().join("clients/mcp-inspector");
    npm::install(&workspace::root().join("crates/e2e/tests/mcp_clients"), &installed).unwrap();
    let program = installed.join("node_modules/.bin/mcp-inspector");
    let binary = binary().unwrap().display().to_string();
    let url = server.url();
    let stdio = [binary.as_str(), "mcp", "--stdio"];
    let targets: [&[&str]; 2] = [&[url.as_str(), "--transport", "http"], &stdio];
    for target in targets {
        for (method, expected) in [
            (&["--method", "tools/list"][..], "frs_compress_range"),
            (
                &["--method", "tools/call", "--tool-name", "frs_view_thread", "--tool-arg", "session_id=s"],
                "Reasoning Thread (8 messages):",
            ),
        ] {
            let mut command = Command::new(&program);
            command.arg("--cli").args(target).args(method).current_dir(&installed).stdin(Stdio::null());
            for (name, value) in [
                ("DATABASE_URL", server.database.url()),
                ("ANTIPHON_INSECURE", "true"),
                ("ANTIPHON_LOG", "warn"),
            ] {
                command.arg("-e").arg(format!("{name}={value}"));
            }
            let run = timeout(CLIENT_TIMEOUT, command.output()).await.unwrap().unwrap();
            let (out, errors) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
            assert!(run.status.success() && out.contains(expected), "{target:?} {method:?}: {out} {errors}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_arguments_are_refused_and_change_nothing() {
    let server = Server::start(&[]).await;
    server.eight_messages("s").await;
    let view = server.done("frs_view_thread", json!({ "session_id": "s" })).await;
    let stale = "0".repeat(32);
    let many: Vec<u32> = (1..=20_000).collect();
    for (tool, arguments, code) in [
        ("frs_compress_last", json!({ "count": 2, "summary": "x".repeat(1 << 20) }), "too_long"),
        ("frs_compress_last", json!({ "count": 2, "summary": "a\u{0}b" }), "nul_character"),
        ("frs_compress_last", json!({ "count": 2, "summary": " " }), "blank_summary"),
        ("frs_compress_last", json!({ "count": 0, "summary": "x" }), "invalid_count"),
        ("frs_compress_last", json!({ "count": -1, "summary": "x" }), "invalid_count"),
        ("frs_compress_last", json!({ "count": 1_u64 << 53, "summary": "x" }), "invalid_count"),
        ("frs_compress_last", json!({ "count": u64::MAX, "summary": "x" }), "invalid_count"),
        ("frs_compress_last", json!({ "count": 1e300, "summary": "x" }), "invalid_count"),
        ("frs_compress_last", json!({ "count": 1.5, "summary": "x" }), "invalid_argument"),
        ("frs_compress_last", json!({ "count": "2", "summary": "x" }), "invalid_argument"),
        ("frs_compress_last", json!({ "summary": "x" }), "invalid_argument"),
        ("frs_compress_last", json!({ "count": 2, "summary": "x", "token": stale }), "thread_changed"),
        ("frs_compress_last", json!({ "count": 2, "summary": "x", "confirm": true }), "invalid_argument"),
        ("frs_compress_range", json!({ "from": 3, "to": 2, "summary": "x" }), "invalid_range"),
        ("frs_compress_range", json!({ "from": 0, "to": 1, "summary": "x" }), "invalid_range"),
        ("frs_compress_range", json!({ "from": 2, "to": 9, "summary": "x" }), "invalid_range"),
        ("frs_compress_range", json!({ "from": 2, "summary": "x" }), "invalid_argument"),
        (
            "frs_compress_range",
            json!({ "from": 2, "to": 3, "numbers": [2], "summary": "x" }),
            "invalid_argument",
        ),
        ("frs_compress_range", json!({ "numbers": many, "summary": "x" }), "too_many"),
        ("frs_compress_range", json!({ "numbers": [1, 9], "summary": "x" }), "unknown_number"),
        ("frs_compress_range", json!({ "numbers": [1, 1], "summary": "x" }), "repeated_number"),
        ("frs_append", json!({ "messages": [] }), "blank"),
        (
            "frs_append",
            json!({ "messages": [{ "role": "user", "content": "x".repeat((1 << 20) + 1) }] }),
            "too_long",
        ),
        ("frs_append", json!({ "messages": [{ "role": "summary", "content": "x" }] }), "summary_role"),
        (
            "frs_append",
            json!({ "messages": [{ "role": "tool", "tool_call_id": "c", "content": "" }] }),
            "no_such_call",
        ),
        ("frs_undo", json!({}), "nothing_to_undo"),
        ("frs_undo", json!({ "summary_id": "rm-1" }), "nothing_to_undo"),
        ("frs_plan", json!({ "items": [{ "text": "x", "state": "later" }] }), "invalid_argument"),
        ("frs_restore", json!({ "name": "nowhere" }), "unknown_checkpoint"),
        ("frs_discarded", json!({ "limit": 0 }), "invalid_argument"),
        ("frs_discarded", json!({ "cursor": "1" }), "invalid_argument"),
        ("frs_read_message", json!({ "number": 9 }), "unknown_number"),
        ("frs_read_message", json!({ "number": 0 }), "unknown_number"),
        ("frs_read_message", json!({ "number": 1, "offset": -1 }), "invalid_argument"),
        ("frs_read_message", json!({ "number": 1, "offset": 1_000 }), "invalid_argument"),
        ("frs_append", json!({ "messages": [{ "role": "assistant", "thinking": "hm" }] }), "thinking_alone"),
        (
            "frs_append",
            json!({ "messages": [{ "role": "assistant", "tool_calls": [{ "id": "c", "name": "n", "arguments": [1] }] }] }),
            "invalid_argument",
        ),
    ] {
        let mut arguments = arguments;
        arguments["session_id"] = "s".into();
        let shown: String = arguments.to_string().chars().take(200).collect();
        let (refused, text) = server.refused(tool, arguments).await;
        assert_eq!(refused, code, "{tool} {shown}: {text}");
        assert_eq!(
            server.done("frs_view_thread", json!({ "session_id": "s" })).await,
            view,
            "{tool} {shown}"
        );
    }
    for session in ["missing", "acme~s", "", "a b", "\u{0}", &"s".repeat(10_000)] {
        let (code, text) = server.refused("frs_view_thread", json!({ "session_id": session })).await;
        assert_eq!((code.as_str(), text.as_str()), ("session_not_found", "Session not found"));
    }
}

/// A value that is mostly not the expected one.
fn noise(random: &mut SmallRng, depth: u32) -> Value {
    let kinds = if depth == 0 { 9 } else { 12 };
    match random.random_range(0..kinds) {
        0 => Value::Null,
        1 => Value::Bool(random.random()),
        2 => json!(random.random_range(-3_i64..12)),
        3 => json!(random.random::<i64>()),
        4 => json!(random.random::<f64>() * 1e300),
        5 => json!("s"),
        6 => json!(
            ["", "\u{0}", "rm-1", "user", "tool", "\u{202e}\u{feff}", "acme~s", "[3] User:"]
                [random.random_range(0..8)]
        ),
        7 => json!("x".repeat(random.random_range(0..3_000))),
        8 => json!(format!("c{}", random.random_range(0..3))),
        9 => (0..random.random_range(0..4)).map(|_| noise(random, depth - 1)).collect(),
        10 => json!((0..random.random_range(0..6)).map(|_| random.random_range(0..12)).collect::<Vec<i64>>()),
        _ => object(
            random,
            depth - 1,
            &["role", "content", "id", "name", "text", "state", "thread_id", "tool_calls", "tool_call_id"],
        ),
    }
}

fn object(random: &mut SmallRng, depth: u32, names: &[&str]) -> Value {
    let mut object = serde_json::Map::new();
    for name in names {
        if random.random_bool(0.5) {
            object.insert((*name).to_owned(), noise(random, depth));
        }
    }
    Value::Object(object)
}

#[tokio::test(flavor = "multi_thread")]
async fn noise_as_arguments_is_never_an_internal_error() {
    let server = Server::start(&[]).await;
    server.eight_messages("s").await;
    let names = [
        "session_id",
        "agent_id",
        "sources",
        "applies_to_thread",
        "showPlan",
        "messages",
        "request_id",
        "count",
        "summary",
        "token",
        "from",
        "to",
        "numbers",
        "summary_id",
        "items",
        "name",
        "limit",
        "cursor",
        "number",
        "offset",
        "thread_id",
        "text",
        "kind",
        "confidence",
        "message_id",
        "query",
        "fact_id",
        "other",
    ];
    let tools = [&TOOLS[..], &MEMORY_TOOLS].concat();
    let calls = std::env::var("ANTIPHON_FUZZ_CALLS").map_or(1_000, |text| text.parse().unwrap());
    let mut random = SmallRng::seed_from_u64(11);
    let (mut done, mut refused) = (0, 0);
    for _ in 0..calls {
        let tool = tools[random.random_range(0..tools.len())];
        // Half of each tool's own arguments, and rarely another tool's.
        let known: Vec<&str> =
            names.iter().copied().filter(|name| is_of(tool, name) || random.random_bool(0.02)).collect();
        let mut arguments = object(&mut random, 3, &known);
        if random.random_bool(0.8) {
            let scope = if MEMORY_TOOLS.contains(&tool) { "thread_id" } else { "session_id" };
            arguments[scope] = "s".into();
        }
        let result = server.call(tool, arguments.clone()).await;
        let code = &result["structuredContent"]["error"]["code"];
        assert!(code != "internal" && code != "unavailable", "{tool} {arguments}: {result}");
        match result["isError"].as_bool().unwrap() {
            true => refused += 1,
            false => done += 1,
        }
    }
    assert!(done > calls / 50 && refused > calls / 10, "{done} done, {refused} refused");
    let view = server.done("frs_view_thread", json!({ "session_id": "s" })).await;
    assert!(view.starts_with("Reasoning Thread ("), "{view}");
}

fn is_of(tool: &str, argument: &str) -> bool {
    let own: &[&str] = match tool {
        "frs_create_session" => &["agent_id", "session_id", "sources", "applies_to_thread", "request_id"],
        "frs_view_thread" => &["session_id", "showPlan"],
        "frs_append" => &["session_id", "messages", "request_id"],
        "frs_compress_last" => &["session_id", "count", "summary", "token", "request_id"],
        "frs_compress_range" => &["session_id", "from", "to", "numbers", "summary", "token", "request_id"],
        "frs_undo" => &["session_id", "summary_id", "request_id"],
        "frs_plan" => &["session_id", "items"],
        "frs_checkpoint" => &["session_id", "name"],
        "frs_restore" => &["session_id", "name", "request_id"],
        "frs_discarded" => &["session_id", "limit", "cursor"],
        "memory_remember" => &["agent_id", "text", "kind", "confidence", "message_id", "request_id"],
        "memory_search" => &["agent_id", "query", "limit"],
        "memory_correct" => &["fact_id", "text", "kind", "confidence", "message_id", "request_id"],
        "memory_forget" => &["fact_id", "request_id"],
        _ => &["session_id", "number", "offset"],
    };
    own.contains(&argument)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_body_of_a_request_is_one_message() {
    let server = Server::start(&[]).await;
    let call = request("frs_view_thread", &json!({ "session_id": "s" }));
    for (body, status) in [(call.clone(), 200), (json!([call]), 415), (json!("text"), 415)] {
        assert_eq!(server.post(&body, &[]).await.status, status, "{body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_outlive_the_process() {
    let mut server = Server::start(&[]).await;
    server.eight_messages("s").await;
    let arguments = json!({ "session_id": "s", "count": 3, "summary": "6 to 8", "request_id": "r" });
    let done = server.done("frs_compress_last", arguments.clone()).await;
    assert!(
        done.starts_with("Compressed 3 messages, [6] to [8], into [6]. The summary message is rm-9."),
        "{done}"
    );
    let view = server.done("frs_view_thread", json!({ "session_id": "s" })).await;
    server.restart().await;
    assert_eq!(server.done("frs_view_thread", json!({ "session_id": "s" })).await, view);
    // A client whose answer was lost repeats the request.
    let again = server.done("frs_compress_last", arguments).await;
    assert_eq!(again, "This request was made before: its summary message is rm-9.");
    let (code, _) = server
        .refused(
            "frs_compress_last",
            json!({ "session_id": "s", "count": 2, "summary": "x", "request_id": "r" }),
        )
        .await;
    assert_eq!(code, "request_id_reused");
    assert_eq!(server.done("frs_view_thread", json!({ "session_id": "s" })).await, view);
    // A repeated undo also undoes only one compression.
    server.done("frs_compress_last", json!({ "session_id": "s", "count": 2, "summary": "5 to 8" })).await;
    let undo = json!({ "session_id": "s", "request_id": "u" });
    let undone = server.done("frs_undo", undo.clone()).await;
    assert!(undone.starts_with("Took the compression into rm-10 back."), "{undone}");
    let again = server.done("frs_undo", undo).await;
    assert_eq!(again, "This request was made before: it has taken the compression into rm-10 back.");
    let (code, _) =
        server.refused("frs_restore", json!({ "session_id": "s", "name": "x", "request_id": "u" })).await;
    assert_eq!(code, "request_id_reused");
    assert_eq!(server.done("frs_view_thread", json!({ "session_id": "s" })).await, view);
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_view_undo_and_list_what_was_discarded() {
    let server = Server::start(&[]).await;
    server.eight_messages("s").await;
    let before = server.done("frs_view_thread", json!({ "session_id": "s" })).await;
    server
        .done("frs_compress_range", json!({ "session_id": "s", "from": 2, "to": 3, "summary": "two" }))
        .await;
    let gateway = LoneGateway::start(server.database.url(), 1, &[]).await;
    let env = [gateway.env()];
    let run = async |words: &[&str]| invoke(&[&["reasoning"], words].concat(), &env).await.unwrap();
    let view = run(&["view", "s"]).await;
    assert!(view.stdout.contains("[2] Summary: two\n"), "{} {}", view.stdout, view.stderr);
    let log = run(&["discarded", "s", "-o", "json"]).await;
    let log: Value = serde_json::from_str(&log.stdout).unwrap();
    let originals = log["layers"][0]["originals"].as_array().unwrap();
    assert_eq!((originals.len(), &originals[0]["content"]), (2, &json!("message 2")));
    // A request that is sent twice undoes one, and none that is not the newest.
    let once = server.done("frs_view_thread", json!({ "session_id": "s" })).await;
    server
        .done("frs_compress_range", json!({ "session_id": "s", "from": 4, "to": 5, "summary": "four" }))
        .await;
    for repeated in [false, true] {
        let undone = run(&["undo", "s", "--summary-id", "rm-10", "--request-id", "u", "-o", "json"]).await;
        let undone: Value = serde_json::from_str(&undone.stdout).unwrap();
        assert_eq!((&undone["undone"], &undone["repeated"]), (&json!("rm-10"), &json!(repeated)));
        assert_eq!(server.done("frs_view_thread", json!({ "session_id": "s" })).await, once);
    }
    for (words, code) in [
        (["undo", "s", "--summary-id", "rm-10"].as_slice(), "session_changed"),
        (["undo", "s", "--summary-id", "rm-9", "--request-id", "u"].as_slice(), "request_id_reused"),
    ] {
        let refused = run(words).await;
        assert!(refused.code == Some(1) && refused.stderr.contains(code), "{}", refused.stderr);
    }
    assert_eq!(run(&["undo", "s"]).await.code, Some(0));
    assert_eq!(server.done("frs_view_thread", json!({ "session_id": "s" })).await, before);
    assert_eq!(run(&["undo", "s"]).await.code, Some(1));
    assert_eq!(run(&["view", "missing"]).await.code, Some(1));
    // The server of the tools counts its requests, as a gateway does.
    let metrics = http::get(local(&server.metrics), "/metrics").await.unwrap().text;
    let is_counted = |line: &&str| {
        line.starts_with("antiphon_gateway_http_requests_total{")
            && line.contains("route=\"POST /mcp\"")
            && line.contains("status=\"2xx\"")
    };
    assert!(metrics.lines().any(|line| is_counted(&line)), "{metrics}");
}
