//! Access to the reasoning tools over MCP: keys, scopes, tenants, hosts, and rates.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::fleet::invoke;
use testkit::http::{self, HttpRequest};
use testkit::services::TestDatabase;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::auth::database_roles::{as_role, make_roles};
use crate::reasoning::{Server, migrated, request, text};

use crate::fixture::LoneGateway;

pub(crate) async fn key(database: &TestDatabase, words: &[&str]) -> String {
    let env = [("DATABASE_URL".to_owned(), database.url().to_owned())];
    let made = invoke(&[&["keys", "create-first", "test"], words].concat(), &env).await.unwrap();
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    made.stdout.trim().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_scopes_and_tenants_are_those_of_the_gateway() {
    let server = Server::start(&[("ANTIPHON_INSECURE", "false")]).await;
    let acme = key(&server.database, &["--role", "operator", "--tenant", "acme"]).await;
    let other = key(&server.database, &["--role", "operator", "--tenant", "other"]).await;
    let viewer = key(&server.database, &["--role", "viewer", "--tenant", "acme"]).await;
    let narrow =
        key(&server.database, &["--role", "operator", "--tenant", "acme", "--scopes", "reasoning:write"])
            .await;
    let call = async |key: &str, tool: &str, arguments: Value| {
        let bearer = format!("Bearer {key}");
        let response = server.post(&request(tool, &arguments), &[("authorization", &bearer)]).await;
        assert_eq!(response.status, 200, "{}", response.text);
        let answer: Value = serde_json::from_str(&response.text).unwrap();
        text(&answer["result"])
    };
    let create = json!({ "agent_id": "ann", "session_id": "s" });
    assert!(
        call(&acme, "frs_create_session", create.clone()).await.starts_with("Created reasoning session s")
    );
    let session = json!({ "session_id": "s" });
    assert!(
        call(&viewer, "frs_view_thread", session.clone()).await.starts_with("Reasoning Thread (0 messages):")
    );
    assert_eq!(call(&other, "frs_view_thread", session.clone()).await, "Session not found");
    assert_eq!(call(&other, "frs_undo", session.clone()).await, "Session not found");
    assert_eq!(call(&viewer, "frs_undo", session.clone()).await, "this needs the scope reasoning:write");
    assert_eq!(call(&narrow, "frs_view_thread", session).await, "this needs the scope reasoning:read");
    let over = json!({ "agent_id": "ann", "sources": [{ "thread_id": "t" }] });
    assert_eq!(call(&narrow, "frs_create_session", over).await, "this needs the scope threads:read");
    // Each tenant has its own names.
    assert!(call(&other, "frs_create_session", create).await.starts_with("Created reasoning session s"));

    // Each caller also has its own request ids: two callers may easily use the same one, such as
    // `r`.
    let colleague = key(&server.database, &["--role", "operator", "--tenant", "acme"]).await;
    let asked = json!({ "agent_id": "ann", "request_id": "r" });
    let made = call(&acme, "frs_create_session", asked.clone()).await;
    let name = |said: &str| said.split(' ').nth(3).unwrap().to_owned();
    assert_ne!(name(&made), name(&call(&colleague, "frs_create_session", asked.clone()).await));
    assert_eq!(name(&made), name(&call(&acme, "frs_create_session", asked).await));

    let body = request("frs_view_thread", &json!({ "session_id": "s" }));
    for wrong in [None, Some("Bearer nonsense"), Some("Basic x")] {
        let headers: Vec<(&str, &str)> = wrong.iter().map(|value| ("authorization", *value)).collect();
        let response = server.post(&body, &headers).await;
        assert_eq!(response.status, 401, "{wrong:?}");
        assert!(response.header("www-authenticate").is_some());
    }
    // A revoked key stops working within seconds.
    let id = viewer.split('_').nth(1).unwrap().to_owned();
    let secured = [("ANTIPHON_INSECURE", "false".to_owned())];
    let gateway = LoneGateway::start(server.database.url(), 1, &secured).await;
    let admin = key(&server.database, &["--role", "admin", "--tenant", "acme"]).await;
    let env = [gateway.env(), ("ANTIPHON_API_KEY".to_owned(), admin)];
    assert_eq!(invoke(&["keys", "revoke", &id], &env).await.unwrap().code, Some(0));
    let bearer = format!("Bearer {viewer}");
    let revoked = async {
        while server.post(&body, &[("authorization", &bearer)]).await.status != 401 {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    timeout(Duration::from_secs(20), revoked).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn changing_contexts_of_a_thread_needs_the_right_to_write_it() {
    let server = Server::start(&[("ANTIPHON_INSECURE", "false")]).await;
    let whole = key(&server.database, &["--role", "operator", "--tenant", "acme"]).await;
    let scopes = ["--role", "operator", "--tenant", "acme", "--scopes", "reasoning:write,reasoning:read"];
    let narrow = key(&server.database, &scopes).await;
    let call = async |key: &str, tool: &str, arguments: Value| {
        let bearer = format!("Bearer {key}");
        let response = server.post(&request(tool, &arguments), &[("authorization", &bearer)]).await;
        let answer: Value = serde_json::from_str(&response.text).unwrap();
        text(&answer["result"])
    };
    for session in ["free", "bound"] {
        call(&whole, "frs_create_session", json!({ "agent_id": "ann", "session_id": session })).await;
        let messages: Vec<Value> =
            (1..=4).map(|number| json!({ "role": "user", "content": format!("message {number}") })).collect();
        call(&whole, "frs_append", json!({ "session_id": session, "messages": messages })).await;
        call(&whole, "frs_checkpoint", json!({ "session_id": session, "name": "c" })).await;
    }
    let pool = server.database.pool().await.unwrap();
    let bound = "UPDATE reasoning_sessions SET applies_to = replace(session_id, 'bound', 't') WHERE session_id LIKE '%bound'";
    assert_eq!(sqlx::query(bound).execute(&pool).await.unwrap().rows_affected(), 1);
    for (tool, more) in [
        ("frs_compress_last", json!({ "count": 2, "summary": "s" })),
        ("frs_compress_range", json!({ "from": 1, "to": 2, "summary": "s" })),
        ("frs_undo", json!({})),
        ("frs_restore", json!({ "name": "c" })),
    ] {
        let with = |session: &str| {
            let mut arguments = more.clone();
            arguments["session_id"] = session.into();
            arguments
        };
        assert_eq!(call(&narrow, tool, with("bound")).await, "this needs the scope threads:write", "{tool}");
        let said = call(&narrow, tool, with("free")).await;
        assert!(!said.contains("this needs the scope"), "{tool}: {said}");
    }
    assert_eq!(
        call(&narrow, "frs_view_thread", json!({ "session_id": "bound" })).await.matches("message ").count(),
        4
    );
    // The same over the API.
    let more = json!({ "session_id": "bound", "count": 2, "summary": "s" });
    call(&whole, "frs_compress_last", more).await;
    let secured = [("ANTIPHON_INSECURE", "false".to_owned())];
    let gateway = LoneGateway::start(server.database.url(), 1, &secured).await;
    let undo = async |key: &str| {
        let env = [gateway.env(), ("ANTIPHON_API_KEY".to_owned(), key.to_owned())];
        invoke(&["reasoning", "undo", "bound"], &env).await.unwrap()
    };
    let refused = undo(&narrow).await;
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains("insufficient_scope"), "{}", refused.stderr);
    let done = undo(&whole).await;
    assert_eq!(done.code, Some(0), "{}", done.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_tool_works_under_the_database_role_of_gateways() {
    make_roles().await;
    let database = migrated().await;
    let url = as_role(database.url(), "gateway");
    let server = Server::on(database, &[("ANTIPHON_INSECURE", "false"), ("DATABASE_URL", &url)]).await;
    let pool = server.database.pool().await.unwrap();
    let users: Vec<String> = sqlx::query_scalar(
        "SELECT DISTINCT usename::text FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'antiphon'",
    )
    .fetch_all(&pool)
    .await
    .unwrap();
    assert_eq!(users, ["antiphon_gateway_login"]);
    let bearer =
        format!("Bearer {}", key(&server.database, &["--role", "operator", "--tenant", "acme"]).await);
    let call = async |tool: &str, arguments: Value| {
        let response = server.post(&request(tool, &arguments), &[("authorization", &bearer)]).await;
        let answer: Value = serde_json::from_str(&response.text).unwrap();
        assert_eq!(answer["result"]["isError"], false, "{tool}: {answer}");
        text(&answer["result"])
    };
    call("frs_create_session", json!({ "agent_id": "ann", "session_id": "s" })).await;
    let messages: Vec<Value> =
        (1..=8).map(|number| json!({ "role": "user", "content": format!("message {number}") })).collect();
    call("frs_append", json!({ "session_id": "s", "messages": messages })).await;
    call("frs_checkpoint", json!({ "session_id": "s", "name": "before" })).await;
    let summary = "What was said.";
    call("frs_compress_last", json!({ "session_id": "s", "count": 2, "summary": summary })).await;
    call("frs_compress_range", json!({ "session_id": "s", "from": 1, "to": 3, "summary": summary })).await;
    call("frs_plan", json!({ "session_id": "s", "items": [{ "text": "Search", "state": "done" }] })).await;
    call("frs_discarded", json!({ "session_id": "s" })).await;
    call("frs_undo", json!({ "session_id": "s" })).await;
    call("frs_restore", json!({ "session_id": "s", "name": "before" })).await;
    let view = call("frs_view_thread", json!({ "session_id": "s" })).await;
    assert!(view.starts_with("Reasoning Thread (8 messages):"), "{view}");
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_hosts_and_origins_are_refused() {
    let server =
        Server::start(&[("ANTIPHON_INSECURE", "false"), ("ANTIPHON_MCP_HOSTS", "mcp.example,127.0.0.1")])
            .await;
    let key = key(&server.database, &["--role", "operator"]).await;
    let bearer = format!("Bearer {key}");
    let body = request("frs_view_thread", &json!({ "session_id": "s" }));
    for (host, origin, status) in [
        ("127.0.0.1", None, 200),
        ("mcp.example", None, 200),
        ("mcp.example:8090", None, 200),
        ("evil.example", None, 403),
        ("localhost", None, 403),
        ("mcp.example", Some("https://evil.example"), 403),
        ("mcp.example", Some("null"), 403),
        ("mcp.example", Some("http://localhost:3000"), 200),
        // No browser sends any of these.
        ("evil@mcp.example", None, 400),
        ("mcp.example:99999", None, 400),
        ("mcp.example:notaport", None, 400),
        ("mcp.example", Some("http://localhost:notaport"), 403),
        ("mcp.example", Some("http://evil@localhost"), 403),
        ("mcp.example", Some("http://localhost/x"), 403),
    ] {
        let origin = origin.map_or(String::new(), |origin| format!("origin: {origin}\r\n"));
        let body = body.to_string();
        let request = format!(
            "POST /mcp HTTP/1.1\r\nhost: {host}\r\n{origin}authorization: {bearer}\r\nconnection: close\r\n\
             accept: application/json, text/event-stream\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = TcpStream::connect(server.addr()).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        timeout(Duration::from_secs(10), stream.read_to_string(&mut answer)).await.unwrap().unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{host} {origin}: {answer}");
    }
    let absolute = format!(
        "POST http://evil.example/mcp HTTP/1.1\r\nhost: mcp.example\r\nauthorization: {bearer}\r\nconnection: close\r\n\
         accept: application/json, text/event-stream\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}"
    );
    let mut stream = TcpStream::connect(server.addr()).await.unwrap();
    stream.write_all(absolute.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(Duration::from_secs(10), stream.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    let get = http::get(server.addr(), "/elsewhere").await.unwrap();
    assert_eq!(get.status, 404);
    // A page that is allowed to make calls is also allowed to read the answers.
    let page = "http://localhost:3000";
    let asked = "authorization, content-type, mcp-protocol-version";
    for (origin, status, allowed) in [(page, 204, Some(page)), ("https://evil.example", 403, None)] {
        let headers = [
            ("origin", origin),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", asked),
        ];
        let preflight = HttpRequest { method: "OPTIONS", path: "/mcp", headers: &headers, body: b"" };
        let answer = http::exchange(server.addr(), preflight).await.unwrap();
        assert_eq!(
            (answer.status, answer.header("access-control-allow-origin")),
            (status, allowed),
            "{origin}"
        );
    }
    let headers = [("origin", page), ("authorization", bearer.as_str())];
    let answer = server.post(&body, &headers).await;
    assert_eq!(answer.header("access-control-allow-origin"), Some(page));
}

#[tokio::test(flavor = "multi_thread")]
async fn stdio_needs_a_key_that_counts() {
    let database = migrated().await;
    let run = async |key: Option<&str>| {
        let mut env = vec![("DATABASE_URL".to_owned(), database.url().to_owned())];
        env.extend(key.map(|key| ("ANTIPHON_API_KEY".to_owned(), key.to_owned())));
        invoke(&["mcp", "--stdio"], &env).await.unwrap()
    };
    let without = run(None).await;
    assert_eq!(without.code, Some(2), "{}", without.stderr);
    assert!(
        without.stderr.contains("--stdio needs a key in ANTIPHON_API_KEY, or --insecure"),
        "{}",
        without.stderr
    );
    let wrong = run(Some("nonsense")).await;
    assert_eq!(wrong.code, Some(2), "{}", wrong.stderr);
    let right = key(&database, &["--role", "operator"]).await;
    // The standard input of the process is closed at once.
    assert_eq!(run(Some(&right)).await.code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_beyond_the_rate_limit_are_refused_until_a_time() {
    let limits = [("ANTIPHON_INSECURE", "false"), ("ANTIPHON_TENANT_MAX_WRITES_PER_SECOND", "2")];
    let server = Server::start(&limits).await;
    let fast = key(&server.database, &["--role", "operator", "--tenant", "fast"]).await;
    let other = key(&server.database, &["--role", "operator", "--tenant", "other"]).await;
    let call = async |key: &str, session: usize| {
        let arguments = json!({ "agent_id": "ann", "session_id": format!("s{session}") });
        let bearer = format!("Bearer {key}");
        let body = request("frs_create_session", &arguments);
        let response = server.post(&body, &[("authorization", &bearer)]).await;
        assert_eq!(response.status, 200, "{}", response.text);
        let answer: Value = serde_json::from_str(&response.text).unwrap();
        answer["result"].clone()
    };
    let mut made = 0;
    let refused = loop {
        let result = call(&fast, made).await;
        if result["isError"] == true {
            break result["structuredContent"]["error"].clone();
        }
        made += 1;
        assert!(made < 1_000, "no call was refused");
    };
    assert_eq!(refused["code"], "rate_limited", "{refused}");
    let retry_after = refused["retry_after_seconds"].as_u64().unwrap();
    assert!((1..=5).contains(&retry_after), "{refused}");
    // Another tenant has its own limit, and refused calls have created nothing.
    assert_eq!(call(&other, 0).await["isError"], false);
    let pool = server.database.pool().await.unwrap();
    let rows: i64 =
        sqlx::query_scalar("SELECT count(*) FROM reasoning_sessions").fetch_one(&pool).await.unwrap();
    assert_eq!(rows, made as i64 + 1);
    tokio::time::sleep(Duration::from_secs(retry_after)).await;
    assert_eq!(call(&fast, made).await["isError"], false);
}
