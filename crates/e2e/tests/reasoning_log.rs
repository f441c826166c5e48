//! What agents rely on when they reason: helpful refusals, requests that count once, readable logs
//! and messages, and whole messages.

use std::sync::Arc;

use serde_json::{Value, json};
use testkit::http;

use crate::reasoning::{Server, text};

use crate::fixture::LoneGateway;

#[tokio::test(flavor = "multi_thread")]
async fn a_session_is_made_once_by_its_request() {
    let server = Server::start(&[]).await;
    let create = json!({ "agent_id": "ann", "request_id": "r" });
    let first = server.call("frs_create_session", create.clone()).await;
    let again = server.call("frs_create_session", create).await;
    let session = |result: &Value| result["structuredContent"]["session_id"].as_str().unwrap().to_owned();
    assert_eq!(session(&first), session(&again));
    let repeated = |result: &Value| result["structuredContent"]["repeated"].clone();
    assert_eq!((repeated(&first), repeated(&again)), (json!(false), json!(true)), "{again}");
    let other = server.call("frs_create_session", json!({ "agent_id": "bob", "request_id": "r" })).await;
    assert_ne!(session(&other), session(&first), "the request of another agent");
    let named = json!({ "agent_id": "ann", "session_id": "s", "request_id": "r" });
    server.done("frs_create_session", named.clone()).await;
    assert!(server.done("frs_create_session", named).await.contains("before, with the same request_id"));
    let changed = json!({ "agent_id": "bob", "session_id": "s", "request_id": "r" });
    assert_eq!(server.refused("frs_create_session", changed).await.0, "request_id_reused");
    let without = json!({ "agent_id": "ann", "session_id": "s" });
    assert_eq!(server.refused("frs_create_session", without).await.0, "session_exists");
}

#[tokio::test(flavor = "multi_thread")]
async fn disjoint_numbers_are_compressed_at_once() {
    let server = Arc::new(Server::start(&[]).await);
    server.done("frs_create_session", json!({ "agent_id": "ann", "session_id": "s" })).await;
    let messages: Vec<Value> =
        (1..=40).map(|number| json!({ "role": "user", "content": format!("message {number}") })).collect();
    server.done("frs_append", json!({ "session_id": "s", "messages": messages })).await;
    let compress = |pair: u64| {
        let server = Arc::clone(&server);
        tokio::spawn(async move {
            let numbers = [2 * pair - 1, 2 * pair];
            let arguments =
                json!({ "session_id": "s", "numbers": numbers, "summary": format!("pair {pair}") });
            server.done("frs_compress_range", arguments).await
        })
    };
    for done in (1..=20).map(compress).collect::<Vec<_>>() {
        done.await.unwrap();
    }
    let view = server.done("frs_view_thread", json!({ "session_id": "s" })).await;
    for pair in 1..=20 {
        assert!(view.contains(&format!("[{pair}] Summary: pair {pair}\n")), "{view}");
    }
    // Numbers that another compression has hidden are refused with a specific code.
    let taken = json!({ "session_id": "s", "numbers": [1, 2], "summary": "x" });
    assert_eq!(server.refused("frs_compress_range", taken).await.0, "hidden_number");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_log_and_a_long_message_are_read_in_parts() {
    let server = Server::start(&[]).await;
    server.done("frs_create_session", json!({ "agent_id": "ann", "session_id": "s" })).await;
    let long = "\u{e9}".repeat(50_000);
    let messages: Vec<Value> = (0..10)
        .flat_map(|call| {
            let id = format!("c{call}");
            [
                json!({ "role": "assistant", "tool_calls": [{ "id": id, "name": "search" }] }),
                json!({ "role": "tool", "tool_call_id": id, "content": long }),
            ]
        })
        .collect();
    for _ in 0..12 {
        server.done("frs_append", json!({ "session_id": "s", "messages": messages })).await;
    }
    let all = json!({ "session_id": "s", "from": 1, "to": 240, "summary": "Searched." });
    server.done("frs_compress_range", all).await;
    let (mut pages, mut seen, mut cursor) = (0, Vec::new(), Value::Null);
    loop {
        let result = server.call("frs_discarded", json!({ "session_id": "s", "cursor": cursor })).await;
        assert!(result.to_string().len() < 200_000, "{}", result.to_string().len());
        let page = &result["structuredContent"];
        let originals = page["compressions"][0]["originals"].as_array().unwrap();
        seen.extend(originals.iter().map(|original| original["number"].as_u64().unwrap()));
        (pages, cursor) = (pages + 1, page["next"].clone());
        assert_eq!(text(&result).contains("call frs_discarded with the cursor"), !cursor.is_null());
        if cursor.is_null() {
            break;
        }
    }
    assert_eq!((pages, seen), (3, (1..=240).collect::<Vec<u64>>()));
    let (mut offset, mut read) = (json!(0), String::new());
    while !offset.is_null() {
        let result = server
            .call("frs_read_message", json!({ "session_id": "s", "number": 2, "offset": offset }))
            .await;
        let said = text(&result);
        let (_, part) = said.split_once("):\n").unwrap();
        read.push_str(part.split("\n[There is more").next().unwrap());
        offset = result["structuredContent"]["next_offset"].clone();
    }
    assert_eq!(read, long);
    // The gateway shows the same message over HTTP, and the command line reads it, too.
    let gateway = LoneGateway::start(server.database.url(), 1, &[]).await;
    let env = [gateway.env()];
    let run = testkit::fleet::invoke(&["reasoning", "message", "s", "2", "-o", "json"], &env).await.unwrap();
    let message: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(message["content"], long.as_str(), "{}", run.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_kept_as_they_came() {
    let server = Server::start(&[]).await;
    server.done("frs_create_session", json!({ "agent_id": "ann", "session_id": "s" })).await;
    let messages = json!([
        { "role": "user", "content": "Look." },
        { "role": "assistant", "thinking": "First the logs.", "thinking_signature": "sig-1" },
        { "role": "assistant", "content": "I look.", "tool_calls": [
            { "id": "c1", "name": "search", "arguments": "{\"q\": 1}", "signature": "sig-2" },
            { "id": "c2", "name": "search", "arguments": { "q": 2 } },
        ] },
        { "role": "tool", "tool_call_id": "c1", "content": "one" },
        { "role": "tool", "tool_call_id": "c2", "content": "two" },
    ]);
    let appended = server.done("frs_append", json!({ "session_id": "s", "messages": messages })).await;
    assert_eq!(appended, "Appended 4 messages: rm-1, rm-2, rm-3, rm-4.");
    let view = server.done("frs_view_thread", json!({ "session_id": "s" })).await;
    assert!(
        view.contains("(4 messages):\n[1] User: Look.\n[2] Assistant: I look.\n[3] Tool: one\n"),
        "{view}"
    );
    let read = server.call("frs_read_message", json!({ "session_id": "s", "number": 2 })).await;
    let said = text(&read);
    assert!(said.ends_with(
        "I look.\n\nThinking: First the logs.\n\nCalls search (c1), arguments: {\"q\": 1}\n\nCalls search (c2), arguments: {\"q\":2}"
    ), "{said}");
    let json = &read["structuredContent"];
    assert_eq!(json["thinking_signature"], "sig-1");
    assert_eq!(
        json["tool_calls"][0],
        json!({ "id": "c1", "name": "search", "arguments": "{\"q\": 1}", "signature": "sig-2" })
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_name_what_is_accepted() {
    let server = Server::start(&[]).await;
    server.done("frs_create_session", json!({ "agent_id": "ann", "session_id": "s" })).await;
    let messages = json!([
        { "role": "user", "content": "One" }, { "role": "user", "content": "Two" },
        { "role": "assistant", "tool_calls": [{ "id": "lost", "name": "search" }] },
        { "role": "user", "content": "Four" }, { "role": "user", "content": "Five" },
    ]);
    server.done("frs_append", json!({ "session_id": "s", "messages": messages })).await;
    let result =
        server.call("frs_compress_last", json!({ "session_id": "s", "count": 3, "summary": "x" })).await;
    assert!(text(&result).ends_with("valid: 1 to 2"), "{result}");
    let range = json!({ "session_id": "s", "from": 1, "to": 5, "summary": "x" });
    let result = server.call("frs_compress_range", range).await;
    assert!(text(&result).ends_with("valid: [1] to [2] or [4] to [5]"), "{result}");
    let valid = &result["structuredContent"]["error"]["valid"]["ranges"];
    assert_eq!(valid, &json!([{ "from": 1, "to": 2 }, { "from": 4, "to": 5 }]));
    for range in valid.as_array().unwrap().iter().rev() {
        let arguments =
            json!({ "session_id": "s", "from": range["from"], "to": range["to"], "summary": "x" });
        server.done("frs_compress_range", arguments).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_parameters_are_not_an_unknown_method() {
    let server = Server::start(&[]).await;
    for params in [json!({}), json!({ "name": 1 }), json!({ "name": "frs_undo", "arguments": [1] })] {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
        let answer: Value = serde_json::from_str(&server.post(&body, &[]).await.text).unwrap();
        assert_eq!(answer["error"]["code"], -32602, "{params}: {answer}");
    }
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/other", "params": {} });
    let answer: Value = serde_json::from_str(&server.post(&body, &[]).await.text).unwrap();
    assert_eq!(answer["error"]["code"], -32601, "{answer}");
}

/// The metadata of the server, and the challenge of a 401.
async fn discovered(server: &Server, body: &Value) -> (Option<Value>, Option<String>) {
    let found = http::get(server.addr(), "/.well-known/oauth-protected-resource/mcp").await.unwrap();
    let root = http::get(server.addr(), "/.well-known/oauth-protected-resource").await.unwrap();
    assert_eq!((found.status, &found.text), (root.status, &root.text));
    let refused = server.post(body, &[]).await;
    let challenge = refused.header("www-authenticate").map(str::to_owned);
    ((found.status == 200).then(|| found.json().unwrap()), challenge)
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_sign_in_find_the_identity_provider() {
    let body = crate::reasoning::request("frs_view_thread", &json!({ "session_id": "s" }));
    let secret = devservices::services::ScratchDir::new("mcp-jwt").unwrap();
    let file = secret.path().join("secret");
    std::fs::write(&file, "0123456789abcdef0123456789abcdef").unwrap();
    let file = file.display().to_string();
    let tokens = [
        ("ANTIPHON_INSECURE", "false"),
        ("ANTIPHON_JWT_ISSUER", "https://id.example"),
        ("ANTIPHON_JWT_AUDIENCE", "antiphon"),
        ("ANTIPHON_JWT_SECRET_FILE", file.as_str()),
    ];
    let server = Server::start(&tokens).await;
    let (metadata, challenge) = discovered(&server, &body).await;
    let (metadata, base) = (metadata.unwrap(), format!("http://{}", server.addr()));
    assert_eq!(metadata["resource"], format!("{base}/mcp"));
    assert_eq!(metadata["authorization_servers"], json!(["https://id.example"]));
    assert_eq!(metadata["bearer_methods_supported"], json!(["header"]));
    assert_eq!(
        metadata["scopes_supported"],
        json!([
            "reasoning:read",
            "reasoning:write",
            "threads:read",
            "threads:write",
            "memory:read",
            "memory:write"
        ])
    );
    let named = format!("resource_metadata=\"{base}/.well-known/oauth-protected-resource/mcp\"");
    assert!(
        challenge.clone().is_some_and(|text| text.starts_with("Bearer ") && text.contains(&named)),
        "{challenge:?}"
    );

    let public = [&tokens[..], &[("ANTIPHON_MCP_PUBLIC_URL", "https://tools.example/mcp")]].concat();
    let server = Server::start(&public).await;
    let (metadata, challenge) = discovered(&server, &body).await;
    assert_eq!(metadata.unwrap()["resource"], "https://tools.example/mcp");
    assert!(challenge.unwrap().contains("https://tools.example/.well-known/oauth-protected-resource/mcp"));

    // With API keys alone there is no provider to sign in with.
    let server = Server::start(&[("ANTIPHON_INSECURE", "false")]).await;
    let (metadata, challenge) = discovered(&server, &body).await;
    assert!(metadata.unwrap().get("authorization_servers").is_none() && challenge.is_some());
    let server = Server::start(&[]).await;
    assert_eq!(discovered(&server, &body).await, (None, None), "no client is authenticated");
}
