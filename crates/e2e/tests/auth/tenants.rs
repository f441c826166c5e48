//! Tenants neither see nor change each other's data.

use std::time::Duration;

use devservices::services::ScratchDir;
use model::Bucket;
use serde_json::{Value, json};
use testkit::http;
use tokio::time::{Instant, sleep, timeout};

use super::{Caller, Gate};
use crate::api_client::{A_WHILE, SOON};
use crate::commands::imports_over_api::resealed;

#[tokio::test(flavor = "multi_thread")]
async fn tenants_do_not_know_of_each_other() {
    let gate = Gate::new(&[]).await;
    let acme = gate.key(Some("acme"), "admin", None).await;
    let other = gate.token(json!({"tenant": "other"}));
    let default = gate.key(None, "admin", None).await;
    let turn = acme.talk("t1").await;
    acme.ask("PUT", "/v1/agents/a1", Some(&json!({"workflow": "default"}))).await;
    acme.ask("POST", "/v1/agents/a1/tasks", Some(&json!({"content": "x", "task_id": "x"}))).await;
    let batch = acme.get("/v1/threads/t1/history").await.json().unwrap()["messages"][0]["batch_id"].clone();
    let key = acme.get("/v1/keys").await.json().unwrap()["keys"][0]["key_id"].as_str().unwrap().to_owned();
    let stranger_of = |path: &str| path.replace("t1", "t9").replace("a1", "a9").replace("u0", "u1");
    let reads = [
        "/v1/threads/t1".to_owned(),
        "/v1/threads/t1/history".to_owned(),
        "/v1/threads/t1/context".to_owned(),
        "/v1/threads/t1/compactions".to_owned(),
        "/v1/threads/t1/batches".to_owned(),
        format!("/v1/threads/t1/batches/{}", batch.as_str().unwrap()),
        "/v1/threads/t1/failed-turns".to_owned(),
        "/v1/threads/t1/audit".to_owned(),
        "/v1/agents/a1".to_owned(),
        "/v1/agents/a1/tasks".to_owned(),
        "/v1/agents/a1/tasks/x".to_owned(),
        "/v1/agents/a1/audit".to_owned(),
    ];
    for path in &reads {
        assert_eq!(acme.get(path).await.status, 200, "{path}");
        for foreign in [&other, &default] {
            let (seen, unknown) = (foreign.get(path).await, foreign.get(&stranger_of(path)).await);
            assert_eq!((seen.status, &seen.text), (unknown.status, &unknown.text), "{path}");
            assert!(seen.status == 404, "{path}: {} {}", seen.status, seen.text);
        }
        assert!(!acme.get(path).await.text.contains("acme~"), "{path} shows whose it is");
    }
    // Objects that are found by the id of a turn alone.
    let response = format!("resp_{}", turn["message_id"].as_str().unwrap());
    let found = acme.get(&format!("/v1/responses/{response}")).await;
    assert_eq!(found.status, 200, "{}", found.text);
    assert!(!found.text.contains("acme~"), "{}", found.text);
    for foreign in [&other, &default] {
        assert_eq!(foreign.get(&format!("/v1/responses/{response}")).await.status, 404);
        let input = foreign.get(&format!("/v1/responses/{response}/input_items")).await;
        assert_eq!(input.status, 404);
        let cancel = foreign.ask("POST", &format!("/v1/responses/{response}/cancel"), None).await;
        assert_eq!(cancel.status, 404, "{}", cancel.text);
        assert_eq!(foreign.ask("DELETE", &format!("/v1/keys/{key}"), None).await.status, 404);
        assert!(foreign.get("/v1/agents").await.json().unwrap()["agents"].as_array().unwrap().is_empty());
    }
    let letter =
        "INSERT INTO dead_letters (bucket, kind, key, partition_id, stream_seq, subject, reason, detail, raw)
                  VALUES (0, 'entry', 's:1', 0, 1, 'tasks.0.acme~late', 'unknown_agent', '{}', 'secret')";
    sqlx::raw_sql(letter).execute(&gate.fixture.pool).await.unwrap();
    let letter = "/v1/dead-letters/entry:0:s:1";
    for foreign in [&other, &default] {
        assert_eq!(foreign.get(letter).await.status, 404);
        assert_eq!(foreign.ask("POST", &format!("{letter}/replay"), None).await.status, 404);
        assert_eq!(foreign.ask("DELETE", letter, None).await.status, 404);
    }
    let own = acme.get(letter).await.json().unwrap();
    assert_eq!((&own["text"], &own["thread_id"]), (&json!("secret"), &json!("late")));
    assert_eq!(acme.ask("DELETE", letter, None).await.status, 200);
    let audit = acme.get("/v1/threads/late/audit").await.json().unwrap();
    assert_eq!(audit["entries"][0]["action"], json!("drop_dead_letter"), "{audit}");
    // Another tenant's request looks for the turn for a while; the turn must not have ended by
    // then.
    let stop = json!({"content": "slowly please, and wait for it. ".repeat(20)});
    let running = acme.ask("POST", "/v1/threads/t2/messages", Some(&stop)).await.json().unwrap();
    let turn = format!("/v1/turns/{}", running["turn_id"].as_str().unwrap());
    let path = format!("{turn}/stop");
    assert_eq!(other.ask("POST", &path, Some(&json!({}))).await.status, 404);
    let stopped = acme.ask("POST", &path, Some(&json!({}))).await;
    assert_eq!(stopped.status, 200, "{}", stopped.text);
    assert_eq!((other.get(&turn).await.status, acme.get(&turn).await.status), (404, 200));
    // In another tenant the same name is another thread.
    other.talk("t1").await;
    default.talk("t1").await;
    for caller in [&acme, &other, &default] {
        let history = caller.get("/v1/threads/t1/history").await.json().unwrap();
        let messages = history["messages"].as_array().unwrap().iter();
        assert_eq!(messages.filter(|message| message["batch_type"] == "user_request").count(), 2);
    }
    // A tenant's name in the id gives no access to the data of that tenant.
    for path in ["/v1/threads/acme~t1", "/v1/threads/acme%7Et1/history", "/v1/agents/acme~a1"] {
        assert_eq!(default.get(path).await.status, 400, "{path}");
    }
    let named =
        json!({"id": "acme~t1", "messages": [{"role": "user", "parts": [{"type": "text", "text": "x"}]}]});
    assert_eq!(default.ask("POST", "/api/chat", Some(&named)).await.status, 400);
    let keys = acme.get("/v1/keys").await.json().unwrap()["keys"].as_array().unwrap().clone();
    assert!(keys.iter().all(|key| key["tenant"] == "acme"), "{keys:?}");
}

/// Polls until the answer satisfies the condition.
async fn until(caller: &Caller, path: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let began = Instant::now();
    loop {
        let answer = caller.get(path).await;
        let body = answer.json().unwrap_or_default();
        if is_so(&body) {
            return body;
        }
        assert!(began.elapsed() < SOON, "{path}: {}", answer.text);
        sleep(Duration::from_millis(50)).await;
    }
}

fn has_any(list: &'static str) -> impl Fn(&Value) -> bool {
    move |body| body[list].as_array().is_some_and(|list| !list.is_empty())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_acts_on_nothing_of_another() {
    let gate = Gate::new(&[]).await;
    let acme = gate.key(Some("acme"), "admin", None).await;
    acme.talk("t1").await;
    acme.ask("POST", "/v1/threads/t1/messages", Some(&json!({"content": "fails-for-good"}))).await;
    let failed = until(&acme, "/v1/threads/t1/failed-turns", has_any("failed_turns")).await;
    let turn = failed["failed_turns"][0]["turn_id"].as_str().unwrap().to_owned();
    acme.ask("PUT", "/v1/agents/a1", Some(&json!({"workflow": "default"}))).await;
    assert_eq!(acme.ask("POST", "/v1/agents/a1/pause", None).await.status, 200);
    acme.ask("POST", "/v1/agents/a1/tasks", Some(&json!({"content": "mine", "task_id": "x"}))).await;
    let compaction = format!(
        "INSERT INTO compactions (bucket, thread_id, compaction_id, through_position, strategy, valid_from_position)
         VALUES ({}, 'acme~t1', 1, 1, 'age', 1)",
        Bucket::of_key("acme~t1").get()
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(compaction)).execute(&gate.fixture.pool).await.unwrap();
    let acts = [
        ("PATCH", "/v1/agents/a1/tasks/x".to_owned(), Some(json!({"content": "theirs"}))),
        ("DELETE", "/v1/agents/a1/tasks/x".to_owned(), None),
        ("POST", "/v1/agents/a1/tasks/x/retry".to_owned(), None),
        ("POST", format!("/v1/threads/t1/failed-turns/{turn}/retry"), None),
        ("DELETE", format!("/v1/threads/t1/failed-turns/{turn}"), None),
        ("POST", "/v1/threads/t1/compactions/undo".to_owned(), None),
        ("PATCH", "/v1/threads/t1".to_owned(), Some(json!({"title": "theirs", "archived": true}))),
        ("PUT", "/v1/threads/t1/messages/m1/feedback".to_owned(), Some(json!({"score": 1}))),
        ("DELETE", "/v1/threads/t1/messages/m1/feedback".to_owned(), None),
    ];
    for foreign in [gate.token(json!({"tenant": "other"})), gate.key(None, "admin", None).await] {
        for (method, path, body) in &acts {
            let reply = foreign.ask(method, path, body.as_ref()).await;
            let unknown = path.replace("t1", "t9").replace("a1", "a9");
            let unknown = foreign.ask(method, &unknown, body.as_ref()).await;
            assert_eq!((reply.status, &reply.text), (unknown.status, &unknown.text), "{method} {path}");
            assert_eq!(reply.status, 404, "{method} {path}: {}", reply.text);
        }
        let threads = foreign.get("/v1/threads?q=fails").await.json().unwrap();
        assert_eq!(threads["threads"], json!([]));
        // The other tenant may have its own agent of that name.
        foreign.ask("POST", "/v1/agents/a1/resume", None).await;
        foreign.ask("POST", "/v1/agents/a1/clear-backoff", None).await;
    }
    let agent = acme.get("/v1/agents/a1").await.json().unwrap();
    assert_eq!(agent["paused"], true, "{agent}");
    let task = until(&acme, "/v1/agents/a1/tasks/x", |task| task["content"] == "mine").await;
    assert_eq!(task["status"], "pending", "{task}");
    until(&acme, "/v1/threads/t1/failed-turns", has_any("failed_turns")).await;
    let threads = acme.get("/v1/threads").await.json().unwrap();
    assert_eq!(threads["threads"][0]["thread_id"], "t1", "{threads}");
    let compactions = acme.get("/v1/threads/t1/compactions").await.json().unwrap();
    assert_eq!(compactions["compactions"][0]["undone_at"], Value::Null, "{compactions}");
    // For its own tenant each action is done, unless an earlier one has removed its object.
    for (method, path, body) in [&acts[5], &acts[4], &acts[0], &acts[1]] {
        let done = acme.ask(method, path, body.as_ref()).await;
        assert!(done.status != 404, "{method} {path}: {} {}", done.status, done.text);
    }
}

/// The content of a stream up to `wanted`.
async fn read_until(stream: &mut http::Response, wanted: &str) -> String {
    let mut received = Vec::new();
    let reading = async {
        while !String::from_utf8_lossy(&received).contains(wanted) {
            assert!(stream.body.read(&mut received).await.unwrap() > 0, "the stream has ended");
        }
    };
    let came = timeout(SOON, reading).await.is_ok();
    let text = String::from_utf8_lossy(&received).into_owned();
    assert!(came, "{wanted:?} has not come: {text}");
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thread_of_the_same_name_is_another_in_every_protocol() {
    let gate = Gate::new(&[]).await;
    let (acme, other) = (gate.key(Some("acme"), "admin", None).await, gate.token(json!({"tenant": "other"})));
    let ticket = other.ask("POST", "/v1/threads/t1/tickets", Some(&json!({}))).await.json().unwrap();
    let mut by_token = other.open("/v1/threads/t1/events", &[]).await;
    let mut by_ticket = http::open(other.api.0, ticket["events_url"].as_str().unwrap(), &[]).await.unwrap();
    let turn = acme.talk("t1").await;
    let history = acme.get("/v1/threads/t1/history").await.json().unwrap();
    let (position, message) = (&history["messages"][1]["position"], turn["message_id"].as_str().unwrap());
    let cursor = [("last-event-id", position.as_str().unwrap())];
    assert_eq!(acme.open("/v1/threads/t1/events", &cursor).await.status, 200);
    assert_eq!(other.open("/v1/threads/t1/events", &cursor).await.status, 404);
    let mut by_message = other.open(&format!("/v1/threads/t1/events?message={message}"), &[]).await;
    // An answer in progress.
    let slow = json!({"content": "slowly, and then all of it"});
    acme.ask("POST", "/v1/threads/c1/messages", Some(&slow)).await;
    let connect = json!({"threadId": "c1", "runId": "r1", "messages": [], "tools": [], "context": [], "state": {},
        "forwardedProps": {}});
    let running = acme.open("/api/chat/c1/stream", &[]).await;
    assert_eq!(running.status, 200);
    assert_eq!(other.get("/api/chat/c1/stream").await.status, 204);
    assert_eq!(other.ask("POST", "/agui/connect", Some(&connect)).await.status, 204);
    assert_eq!(other.ask("POST", "/api/chat/c1/stop?message=x", None).await.status, 204);
    let whole = |body: &Value| {
        let messages = body["messages"].as_array().into_iter().flatten();
        messages
            .filter(|said| said["content"].as_str().is_some_and(|it| it.matches("all of it").count() == 3))
            .count()
            == 1
    };
    until(&acme, "/v1/threads/c1/history", whole).await;
    // Continuations of a response, and of a conversation.
    let first = acme.ask("POST", "/v1/responses", Some(&json!({"input": "first", "model": "default"}))).await;
    let first = first.json().unwrap();
    let after = |id: &str| json!({"input": "next", "previous_response_id": id});
    let reply = other.ask("POST", "/v1/responses", Some(&after(first["id"].as_str().unwrap()))).await;
    assert_eq!(reply.status, 404, "{}", reply.text);
    let named = json!({"input": "theirs", "conversation": "acme~t1"});
    assert_eq!(other.ask("POST", "/v1/responses", Some(&named)).await.status, 400);
    let own = json!({"input": "theirs", "conversation": "t1"});
    assert_eq!(other.ask("POST", "/v1/responses", Some(&own)).await.status, 200);
    sleep(A_WHILE).await;
    let after = acme.get("/v1/threads/t1/history").await.json().unwrap();
    // Messages of the tenant's own turn may have arrived since.
    let theirs = |message: &Value| message["content"] == "theirs";
    assert!(!after["messages"].as_array().unwrap().iter().any(theirs), "{after}");
    for stream in [&mut by_token, &mut by_ticket, &mut by_message] {
        assert_eq!(stream.status, 200);
        let text = read_until(stream, "message_complete").await;
        let chunks = text.split("\"chunk\":\"").skip(1).filter_map(|rest| rest.split('"').next());
        assert_eq!(chunks.collect::<String>(), "You said: theirsmessage_complete", "{text}");
        assert!(!text.contains(message), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_imports_only_into_itself() {
    let gate = Gate::new(&[]).await;
    let (acme, beta) =
        (gate.key(Some("acme"), "admin", None).await, gate.key(Some("beta"), "admin", None).await);
    acme.talk("t1").await;
    let folder = ScratchDir::new("imported").unwrap();
    let file = folder.path().join("acme.jsonl").display().to_string();
    assert_eq!(gate.run_as(&acme, &["export", "--file", &file]).await.code, Some(0));
    let foreign = gate.run_as(&beta, &["import", "--file", &file]).await;
    assert_eq!(foreign.code, Some(1), "{}", foreign.stderr);
    let why =
        "line 2, thread acme~t1: it belongs to the tenant acme, and this import goes into the tenant beta";
    assert!(foreign.stderr.contains(why), "{}", foreign.stderr);
    let own = gate.run_as(&acme, &["import", "--file", &file, "--json"]).await;
    let own: Value = serde_json::from_str(&own.stdout).unwrap();
    assert_eq!((&own["threads"], &own["new_messages"], &own["refused"]), (&json!(1), &json!(0), &json!(0)));

    // Lines of the own tenant that name another one.
    let header = r#"{"antiphon_export":2}"#;
    let session = json!({"reasoning_session": {
        "session_id": "acme~s", "agent_id": "acme~a", "source_threads": ["acme~t1", "beta~t1"], "created_by": "ann",
    }})
    .to_string();
    let follow_up = json!({"follow_up": {
        "follow_up_id": format!("f{:04x}-5", Bucket::of_key("acme~t8").get()), "agent_id": "beta~a", "status": "fired",
        "body": {}, "armed_ms": 1, "due_ms": 2, "ended_ms": 2, "decided_by": null, "turn_id": null,
    }})
    .to_string();
    let cases: [(&[&str], u64, u64); 3] = [
        (&[r#"{"thread":{"thread_id":"acme~t9","agent_id":"beta~a"}}"#], 1, 0),
        (&[r#"{"thread":{"thread_id":"acme~t8"}}"#, &follow_up], 1, 0),
        (&[&session], 0, 1),
    ];
    for (lines, threads, sessions) in cases {
        let mut trailer =
            json!({"threads": threads, "batches": 0, "messages": 0, "compactions": 0, "sha256": ""});
        if sessions > 0 {
            trailer["reasoning_sessions"] = json!(sessions);
        }
        let trailer = json!({ "trailer": trailer }).to_string();
        let lines = [&[header], lines, &[trailer.as_str()]].concat();
        let lines: Vec<String> = lines.into_iter().map(str::to_owned).collect();
        std::fs::write(&file, resealed(&lines)).unwrap();
        let done = gate.run_as(&acme, &["import", "--file", &file]).await;
        assert_eq!(done.code, Some(1), "{lines:?}: {}", done.stderr);
        assert!(done.stderr.contains("it belongs to the tenant beta"), "{lines:?}: {}", done.stderr);
    }
    let count = async |sql: &'static str| -> i64 {
        sqlx::query_scalar(sql).fetch_one(&gate.fixture.pool).await.unwrap()
    };
    assert_eq!(count("SELECT count(*) FROM threads").await, 1);
    assert_eq!(count("SELECT count(*) FROM reasoning_sessions").await, 0);
}
