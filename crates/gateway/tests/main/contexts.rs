//! Batches, and what a model sees of a thread.

use model::{ThreadId, TurnId};
use serde_json::{Value, json};
use testkit::http;

use crate::sending::bare;
use crate::town::Town;

/// `t1`: three turns, of which the second has a call that was never answered, and the third one that was.
async fn town() -> Town {
    let town = Town::with(gateway::Limits::default(), 1).await;
    let turn = |unique: &str| TurnId::foreground(&ThreadId::parse("t1").unwrap(), unique).unwrap();
    town.write_turn(&turn("a"), 0, 10, &["hello"]).await;
    town.write_turn(&turn("b"), 0, 20, &["half"]).await;
    town.write_turn(&turn("c"), 0, 30, &["", "rain", "It rains."]).await;
    let call = r#"[{"id": "c 1", "name": "weather", "arguments": "{}"}]"#;
    town.write(&format!("UPDATE messages SET tool_calls = '{call}' WHERE position IN (21, 31)")).await;
    town.write("UPDATE messages SET role = 'tool', tool_call_id = 'c 1' WHERE position = 32").await;
    town
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_is_whole_or_says_why_not() {
    let town = town().await;
    let gateway = town.gateways[0];
    let page = http::get_json(gateway, "/v1/threads/t1/batches?limit=2").await.unwrap();
    let shown: Vec<_> =
        page["batches"].as_array().unwrap().iter().map(|it| (&it["batch_id"], &it["state"])).collect();
    assert_eq!(shown, [(&json!("30"), &json!("complete")), (&json!("20"), &json!("incomplete"))]);
    assert_eq!(page["batches"][1]["incomplete"], "calls have no results: c 1");
    assert_eq!((&page["batches"][0]["message_count"], &page["has_more"]), (&json!(4), &json!(true)));
    let rest = http::get_json(gateway, "/v1/threads/t1/batches?before=20").await.unwrap();
    assert_eq!((&rest["batches"][0]["batch_id"], &rest["has_more"]), (&json!("10"), &json!(false)));
    let one = http::get_json(gateway, "/v1/threads/t1/batches/30").await.unwrap();
    let call = json!({"tool_call_id": "c 1", "name": "weather", "call_at": "31", "result_at": "32", "is_answered": true});
    assert_eq!(one["calls"], json!([call]));
    assert_eq!(one["messages"][3]["content"], "It rains.");
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
async fn a_context_is_what_a_model_sees_and_says_why() {
    let town = town().await;
    let gateway = town.gateways[0];
    let context = async |query: &str| -> Value {
        http::get_json(gateway, &format!("/v1/threads/t1/context{query}")).await.unwrap()
    };
    let shown = context("").await;
    let decided: Vec<_> =
        shown["batches"].as_array().unwrap().iter().map(|it| (&it["batch_id"], &it["code"])).collect();
    let expected =
        [(&json!("30"), &json!(null)), (&json!("20"), &json!("abandoned")), (&json!("10"), &json!(null))];
    assert!(decided == expected || decided[1].1 == "incomplete", "{decided:?}");
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
