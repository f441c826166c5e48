//! Feedback of users on messages.

use serde_json::{Value, json};
use testkit::{api::Api, http};

use crate::{
    api_client::{SOON, alone, asked_for, scripted},
    fixture::Fixture,
};

async fn give(api: Api, path: &str, body: Value) -> (u16, Value) {
    let answer = api.send("PUT", path, Some(&body), &[]).await.unwrap();
    (answer.status, answer.json().unwrap())
}

async fn listed(api: Api, query: &str) -> Vec<Value> {
    let page = http::get_json(api.0, &format!("/v1/feedback{query}")).await.unwrap();
    page["feedback"].as_array().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn feedback_is_shown_with_its_message_and_replaced() {
    let fixture = Fixture::with(scripted).await;
    let api = fixture.api();
    let turn = api.say("chat", "hello").await.unwrap();
    fixture.until_messages("chat", 2).await;
    let path = format!("/v1/threads/chat/messages/{}/feedback", turn.answer);
    let (status, given) = give(api, &path, json!({"score": 1, "user_id": "ann"})).await;
    assert_eq!(
        (status, &given["agent_id"], &given["score"]),
        (201, &json!("default"), &json!(1.0)),
        "{given}"
    );
    let (status, given) = give(
        api,
        &path,
        json!({"score": -0.5, "label": "wrong", "comment": "It is late.", "user_id": "ann"}),
    )
    .await;
    assert_eq!((status, &given["label"]), (200, &json!("wrong")), "{given}");
    assert_eq!(give(api, &path, json!({"label": "helpful"})).await.0, 201, "of no user");
    // A question can have feedback, too.
    let question = format!("/v1/threads/chat/messages/{}/feedback", turn.input);
    assert_eq!(give(api, &question, json!({"comment": "unclear", "user_id": "bob"})).await.0, 201);

    let history = api.history("chat").await.unwrap();
    let said = |message: &Value| {
        let all = message["feedback"].as_array().cloned().unwrap_or_default();
        all.iter().map(|one| (one["user_id"].clone(), one["label"].clone())).collect::<Vec<_>>()
    };
    assert_eq!(said(&history[0]), [(json!("bob"), Value::Null)]);
    assert_eq!(said(&history[1]), [(json!("ann"), json!("wrong")), (Value::Null, json!("helpful"))]);
    let batch = history[1]["batch_id"].as_str().unwrap();
    let batch = http::get_json(api.0, &format!("/v1/threads/chat/batches/{batch}")).await.unwrap();
    assert_eq!(said(&batch["messages"][1]).len(), 2, "{batch}");
    let counted = |score: &str| {
        let score = score.to_owned();
        let fixture = &fixture;
        async move {
            let metrics = fixture.fleet.gateways[0].metrics().await.unwrap();
            metrics.sum_where("antiphon_gateway_feedback_total", "score", &score)
        }
    };
    assert_eq!(
        (counted("positive").await, counted("negative").await, counted("none").await),
        (1.0, 1.0, 2.0)
    );

    // The list has the newest first, in pages of any size.
    let labels = |rows: &[Value]| rows.iter().map(|row| row["label"].clone()).collect::<Vec<_>>();
    let all = [Value::Null, json!("helpful"), json!("wrong")];
    assert_eq!(labels(&listed(api, "").await), all);
    let (mut paged, mut next) = (Vec::new(), String::new());
    loop {
        let page = http::get_json(api.0, &format!("/v1/feedback?limit=1{next}")).await.unwrap();
        paged.extend(page["feedback"].as_array().unwrap().clone());
        match page["next"].as_str() {
            Some(cursor) => next = format!("&next={cursor}"),
            None => break,
        }
    }
    assert_eq!(labels(&paged), all);
    assert_eq!(labels(&listed(api, "?max_score=-0.1").await), [json!("wrong")]);
    assert_eq!(labels(&listed(api, "?label=helpful&agent_id=default").await), [json!("helpful")]);
    assert_eq!(listed(api, "?agent_id=other").await, [Value::Null; 0]);

    let gone = |query: &'static str| {
        let path = format!("{path}{query}");
        async move { api.send("DELETE", &path, None, &[]).await.unwrap().status }
    };
    assert_eq!([gone("?user_id=ann").await, gone("?user_id=ann").await], [204, 404]);
    assert_eq!(said(&api.history("chat").await.unwrap()[1]), [(Value::Null, json!("helpful"))]);
}

#[tokio::test(flavor = "multi_thread")]
async fn exports_contain_feedback_and_imports_restore_it() {
    let fixture = Fixture::with(scripted).await;
    let api = fixture.api();
    let turn = api.say("chat", "hello").await.unwrap();
    fixture.until_messages("chat", 2).await;
    let path = format!("/v1/threads/chat/messages/{}/feedback", turn.answer);
    give(api, &path, json!({"score": 0.5, "label": "fine", "comment": "So so.", "user_id": "ann"})).await;
    give(api, &path, json!({"score": -1})).await;
    let before = listed(api, "").await;
    let export = http::get(api.0, "/v1/threads/chat/export").await.unwrap().text;
    assert_eq!(export.matches("{\"feedback\":{").count(), 2, "{export}");

    for query in ["?user_id=ann", ""] {
        assert_eq!(api.send("DELETE", &format!("{path}{query}"), None, &[]).await.unwrap().status, 204);
    }
    // A user's feedback that is there stays.
    give(api, &path, json!({"label": "later", "user_id": "ann"})).await;
    for _ in 0..2 {
        let headers = [("content-type", "application/x-ndjson")];
        let request = http::HttpRequest {
            method: "POST",
            path: "/v1/import",
            headers: &headers,
            body: export.as_bytes(),
        };
        let answer = http::exchange(api.0, request).await.unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text);
        let now = listed(api, "").await;
        assert_eq!(now.len(), 2, "{now:?}");
        assert_eq!(now[0]["label"], "later");
        let times = |row: &Value| row["created_at"].clone();
        let anonymous = before.iter().find(|row| row["user_id"].is_null()).unwrap();
        assert_eq!((&now[1]["score"], times(&now[1])), (&json!(-1.0), times(anonymous)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn feedback_needs_a_stored_message_and_valid_values() {
    let fixture = Fixture::with(alone).await;
    let (api, workflow) = (fixture.api(), fixture.manual_workflow().await);
    let turn = api.say("chat", "hello").await.unwrap();
    let asked = asked_for(&workflow, &turn).await;
    let path = format!("/v1/threads/chat/messages/{}/feedback", turn.answer);
    let refused = async |path: &str, body: Value| {
        let (status, problem) = give(api, path, body).await;
        (status, problem["code"].as_str().unwrap_or_default().to_owned())
    };
    let good = json!({"score": 1});
    assert_eq!(refused(&path, good.clone()).await, (404, "unknown_message".to_owned()), "it is in progress");
    asked.answer("hi").await.unwrap();
    fixture.until_messages("chat", 2).await;
    for body in [
        json!({}),
        json!({"score": 1.5}),
        json!({"score": 1, "label": ""}),
        json!({"comment": "x".repeat(4_097)}),
        json!({"score": 1, "user_id": "a\0b"}),
        json!({"score": null}),
    ] {
        assert_eq!(refused(&path, body.clone()).await, (400, "invalid_feedback".to_owned()), "{body}");
    }
    let other = path.replace("/chat/", "/other/");
    assert_eq!(refused(&other, good.clone()).await.0, 404);
    for number in 0..100 {
        assert_eq!(give(api, &path, json!({"score": 0, "user_id": format!("u{number}")})).await.0, 201);
    }
    assert_eq!(refused(&path, good).await, (409, "too_much_feedback".to_owned()));
    assert_eq!(give(api, &path, json!({"score": 1, "user_id": "u7"})).await.0, 200, "a change");
}

#[tokio::test(flavor = "multi_thread")]
async fn feedback_is_erased_with_its_user_and_its_thread() {
    let fixture = Fixture::with(scripted).await;
    let api = fixture.api();
    for thread in ["one", "two"] {
        let turn = api.say(thread, "hello").await.unwrap();
        fixture.until_messages(thread, 2).await;
        let path = format!("/v1/threads/{thread}/messages/{}/feedback", turn.answer);
        for user in ["ann", "bob"] {
            assert_eq!(give(api, &path, json!({"score": 1, "user_id": user})).await.0, 201);
        }
    }
    let users = async || {
        let rows = listed(api, "").await;
        rows.iter().map(|row| (row["thread_id"].clone(), row["user_id"].clone())).collect::<Vec<_>>()
    };
    let preview = api.call("DELETE", "/v1/users/ann?dry_run=true", None).await.unwrap();
    let counted = async |erasure: &Value| {
        let path = format!("/v1/erasures/{}", erasure["erasure_id"].as_str().unwrap());
        let done = async || http::get_json(api.0, &path).await.is_ok_and(|job| job["state"] == "done");
        fixture.until("the erasure is done", SOON, done).await;
        http::get_json(api.0, &path).await.unwrap()["receipt"].clone()
    };
    let receipt = counted(&preview).await;
    assert!(receipt.to_string().contains("\"feedback\":2"), "{receipt}");
    let erasure = api.call("DELETE", "/v1/users/ann", None).await.unwrap();
    counted(&erasure).await;
    assert_eq!(users().await, [(json!("two"), json!("bob")), (json!("one"), json!("bob"))]);
    let erasure = api.call("DELETE", "/v1/threads/two", None).await.unwrap();
    let receipt = counted(&erasure).await;
    assert!(receipt.to_string().contains("\"feedback\":1"), "{receipt}");
    assert_eq!(users().await, [(json!("one"), json!("bob"))]);
}
