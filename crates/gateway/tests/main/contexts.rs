//! Batches, and what a model sees of a thread.

use model::{ThreadId, TurnId};
use serde_json::{Value, json};
use testkit::http;

use crate::fixture::Fixture;
use crate::sending::{bare, send};

/// `t1`: three turns; the second has a call without a result, the third a call with one.
async fn fixture() -> Fixture {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let turn = |unique: &str| TurnId::foreground(&ThreadId::parse("t1").unwrap(), unique).unwrap();
    fixture.write_turn(&turn("a"), 0, 10, &["hello"]).await;
    fixture.write_turn(&turn("b"), 0, 20, &["half"]).await;
    fixture.write_turn(&turn("c"), 0, 30, &["", "rain", "It rains."]).await;
    let call = r#"[{"id": "c 1", "name": "weather", "arguments": "{}"}]"#;
    fixture.write(&format!("UPDATE messages SET tool_calls = '{call}' WHERE position IN (21, 31)")).await;
    fixture.write("UPDATE messages SET role = 'tool', tool_call_id = 'c 1' WHERE position = 32").await;
    fixture
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_whole_or_says_why_not() {
    let fixture = fixture().await;
    let gateway = fixture.gateways[0];
    let page = http::get_json(gateway, "/v1/threads/t1/batches?limit=2").await.unwrap();
    let shown: Vec<_> =
        page["batches"].as_array().unwrap().iter().map(|it| (&it["batch_id"], &it["state"])).collect();
    assert_eq!(shown, [(&json!("30"), &json!("complete")), (&json!("20"), &json!("incomplete"))]);
    assert_eq!(page["batches"][1]["incomplete"], "calls have no results: c 1");
    assert_eq!((&page["batches"][0]["message_count"], &page["next"]), (&json!(4), &json!("20")));
    let rest = http::get_json(gateway, "/v1/threads/t1/batches?next=20").await.unwrap();
    assert_eq!((&rest["batches"][0]["batch_id"], &rest["next"]), (&json!("10"), &json!(null)));
    let one = http::get_json(gateway, "/v1/threads/t1/batches/30").await.unwrap();
    let call = json!({"tool_call_id": "c 1", "name": "weather", "call_at": "31", "result_at": "32", "is_answered": true});
    assert_eq!(one["calls"], json!([call]));
    assert_eq!(one["messages"][3]["content"], "It rains.");
    // Only an owner can tell that a thread has no turn yet.
    let _owner = fixture.owner(1, vec![]).await;
    for (path, status, code) in [
        ("/v1/threads/t1/batches/31", 404, "unknown_batch"),
        ("/v1/threads/t2/batches/30", 404, "unknown_batch"),
        ("/v1/threads/t1/batches/x", 400, "invalid_position"),
        ("/v1/threads/t2/batches", 404, "unknown_thread"),
        ("/v1/threads/t1/batches?limit=0", 400, "invalid_limit"),
    ] {
        assert_eq!(bare(gateway, "GET", path).await.problem(), (status, code.to_owned(), false), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn incomplete_batches_are_listed_by_agent_and_time_out() {
    let fixture = fixture().await;
    let gateway = fixture.gateways[0];
    fixture
        .write("UPDATE messages SET created_at = now() - interval '1 hour 1 minute' WHERE batch_id = 20")
        .await;
    let list = async |query: &str| -> Value {
        http::get_json(gateway, &format!("/v1/agents/t1/batches{query}")).await.unwrap()
    };
    let all = list("").await;
    let found = &all["batches"][0];
    assert_eq!((all["batches"].as_array().unwrap().len(), &all["next"]), (1, &json!(null)), "{all}");
    assert_eq!((&found["thread_id"], &found["batch_id"]), (&json!("t1"), &json!("20")));
    assert_eq!(
        (&found["state"], &found["incomplete_code"]),
        (&json!("abandoned"), &json!("unanswered_calls"))
    );
    assert!(found["abandoned_since"].as_str().unwrap() > found["last_at"].as_str().unwrap(), "{found}");
    assert_eq!(list("?state=incomplete").await["batches"], json!([]));
    let first = list("?limit=1").await;
    assert_eq!(first["next"], "t1.20");
    assert_eq!(list("?limit=1&next=t1.20").await["batches"], json!([]));
    let settings = json!({"workflow": "default", "settings": {"batch_timeout_ms": 86_400_000}});
    assert_eq!(send(gateway, "PUT", "/v1/agents/t1", &settings).await.status, 201);
    let waits = list("?state=incomplete").await;
    assert_eq!(
        (&waits["batches"][0]["state"], &waits["batches"][0]["abandoned_since"]),
        (&json!("incomplete"), &json!(null))
    );
    let shown = http::get_json(gateway, "/v1/threads/t1/batches/20").await.unwrap();
    assert_eq!(shown["state"], "incomplete");
    // Threads that name another agent belong to that agent.
    fixture.write("UPDATE threads SET agent_id = 'ann' WHERE thread_id = 't1'").await;
    assert_eq!(list("").await["batches"], json!([]));
    let of_ann = http::get_json(gateway, "/v1/agents/ann/batches?state=abandoned").await.unwrap();
    assert_eq!(of_ann["batches"][0]["thread_id"], "t1");
    for (query, code) in [
        ("state=complete", "invalid_query"),
        ("limit=0", "invalid_limit"),
        ("next=t1", "invalid_id"),
        ("next=t1.x", "invalid_position"),
    ] {
        let refused = bare(gateway, "GET", &format!("/v1/agents/t1/batches?{query}")).await;
        assert_eq!(refused.problem(), (400, code.to_owned(), false), "{query}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn threads_without_batches_end_a_page_too() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let threads: Vec<_> = (0..150).map(|n| format!("($bucket(t{n}), 't{n}', 'ann')")).collect();
    fixture
        .write(&format!("INSERT INTO threads (bucket, thread_id, agent_id) VALUES {}", threads.join(", ")))
        .await;
    let (mut pages, mut next) = (0, String::new());
    loop {
        let path = format!("/v1/agents/ann/batches{next}");
        let page = http::get_json(fixture.gateways[0], &path).await.unwrap();
        assert_eq!(page["batches"], json!([]));
        pages += 1;
        let Some(place) = page["next"].as_str() else { break };
        next = format!("?next={place}");
    }
    assert_eq!(pages, 2);
}

fn numbers(batch: &Value) -> (&Value, &Value) {
    (&batch["first_number"], &batch["last_number"])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_context_is_what_a_model_sees_and_says_why() {
    let fixture = fixture().await;
    let gateway = fixture.gateways[0];
    let context = async |query: &str| -> Value {
        http::get_json(gateway, &format!("/v1/threads/t1/context{query}")).await.unwrap()
    };
    fixture.write("UPDATE messages SET number = position WHERE thread_id = 't1'").await;
    let shown = context("").await;
    let decided: Vec<_> =
        shown["batches"].as_array().unwrap().iter().map(|it| (&it["batch_id"], &it["code"])).collect();
    let expected =
        [(&json!("30"), &json!(null)), (&json!("20"), &json!("abandoned")), (&json!("10"), &json!(null))];
    assert!(decided == expected || decided[1].1 == "incomplete", "{decided:?}");
    let numbers: Vec<_> = shown["batches"].as_array().unwrap().iter().map(numbers).collect();
    assert_eq!(numbers[2], (&json!(10), &json!(11)), "{shown}");
    assert_eq!(numbers[1].0, &json!(20), "{shown}");
    let call = json!({"id": "c 1", "type": "function", "function": {"name": "weather", "arguments": "{}"}});
    assert_eq!(
        shown["messages"],
        json!([
            {"role": "user", "content": "question"},
            {"role": "assistant", "content": "hello"},
            {"role": "user", "content": "question"},
            {"role": "assistant", "content": null, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c 1", "content": "rain"},
            {"role": "assistant", "content": "It rains."},
        ])
    );
    assert_eq!((&shown["budget"], &shown["older"]["code"]), (&json!(32_000), &json!("nothing")));
    let small = context("?tokens=40").await;
    assert_eq!(small["batches"][0]["in"], true, "{small}");
    assert_eq!(small["messages"].as_array().unwrap().len(), 4);
    let then = context("?at=11").await;
    assert_eq!(
        then["messages"],
        json!([{"role": "user", "content": "question"}, {"role": "assistant", "content": "hello"}])
    );
    let anthropic = context("?format=anthropic").await;
    assert_eq!(anthropic["messages"][3]["content"][0]["type"], "tool_use");
    let _owner = fixture.owner(1, vec![]).await;
    for (path, status, code) in [
        ("/v1/threads/t2/context", 404, "unknown_thread"),
        ("/v1/threads/t1/context?format=x", 400, "invalid_format"),
        ("/v1/threads/t1/context?tokens=0", 400, "invalid_tokens"),
        ("/v1/threads/t1/context?at=x", 400, "invalid_position"),
        ("/v1/threads/t1/context?what=x", 400, "invalid_query"),
    ] {
        assert_eq!(bare(gateway, "GET", path).await.problem(), (status, code.to_owned(), false), "{path}");
    }
}
