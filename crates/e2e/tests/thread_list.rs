//! The list of threads, as a page that shows a person's chats sees it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::{api::Api, http};
use tokio::time::sleep;

use crate::{
    api_client::{SOON, alone, asked_for},
    fixture::Fixture,
};

async fn list(api: Api, query: &str) -> Vec<Value> {
    let page = http::get_json(api.0, &format!("/v1/threads{query}")).await.unwrap();
    page["threads"].as_array().unwrap().clone()
}

/// Polls until the list has this many threads and satisfies the condition.
async fn until(api: Api, query: &str, is_so: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let began = Instant::now();
    loop {
        let threads = list(api, query).await;
        if is_so(&threads) {
            return threads;
        }
        assert!(began.elapsed() < SOON, "{query}: {threads:?}");
        sleep(Duration::from_millis(50)).await;
    }
}

fn ids(threads: &[Value]) -> Vec<&str> {
    threads.iter().map(|thread| thread["thread_id"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_is_listed_from_its_first_message_to_its_erasure() {
    let fixture = Fixture::with(alone).await;
    let (api, workflow) = (fixture.api(), fixture.manual_workflow().await);
    assert_eq!(list(api, "").await, [Value::Null; 0]);
    let first = api.say("lyon", "Plan a trip\nto Lyon").await.unwrap();
    let begun = until(api, "", |threads| !threads.is_empty()).await;
    assert_eq!((&begun[0]["title"], &begun[0]["message_count"]), (&json!("Plan a trip to Lyon"), &json!(0)));
    let running = until(api, "?state=running", |threads| !threads.is_empty()).await;
    assert_eq!((ids(&running), &running[0]["state"]), (vec!["lyon"], &json!("running")));
    assert_eq!(list(api, "?state=idle").await, [Value::Null; 0]);
    // It can be renamed and given to a user while its first turn is in progress.
    let named = api.call("PATCH", "/v1/threads/lyon", Some(&json!({"user_id": "ann"}))).await.unwrap();
    assert_eq!(named["user_id"], "ann");
    let mut asked = asked_for(&workflow, &first).await;
    let end = json!({"is_final": true, "metadata": {"thread_title": "A trip to Lyon"}});
    asked.say_with("Take the train.", end).await.unwrap();
    asked.ack().await.unwrap();
    let idle = until(api, "?state=idle&user_id=ann", |threads| !threads.is_empty()).await;
    assert_eq!(
        (&idle[0]["title"], &idle[0]["message_count"]),
        (&json!("A trip to Lyon"), &json!(2)),
        "{idle:?}"
    );
    assert_eq!(idle[0]["preview"], json!({"role": "assistant", "text": "Take the train."}));

    // The next turn is that of the agent that a client has named in the meantime.
    let body = json!({"agent_id": "guide", "title": "Lyon"});
    api.call("PATCH", "/v1/threads/lyon", Some(&body)).await.unwrap();
    let second = api.say("lyon", "And back?").await.unwrap();
    let asked = asked_for(&workflow, &second).await;
    assert_eq!(asked.request.agent_id, "guide");
    asked.answer("By train as well.").await.unwrap();
    let answered = until(api, "?agent_id=guide", |threads| threads[0]["message_count"] == 4).await;
    assert_eq!((&answered[0]["title"], &answered[0]["workflow"]), (&json!("Lyon"), &json!("default")));
    assert_eq!(list(api, "?user_id=eve").await, [Value::Null; 0]);

    // A thread whose only message failed is there, and the newest activity comes first.
    let lost = api.say("lost", "Where am I?").await.unwrap();
    let mut asked = asked_for(&workflow, &lost).await;
    asked.fail("no idea", json!({"retryable": false})).await.unwrap();
    asked.ack().await.unwrap();
    let failed = until(api, "?state=failed", |threads| !threads.is_empty()).await;
    assert_eq!((ids(&failed), &failed[0]["state"]), (vec!["lost"], &json!("failed")));
    assert_eq!(ids(&list(api, "").await), ["lost", "lyon"]);

    // An erased thread leaves the list with its title.
    let erased = api.call("DELETE", "/v1/threads/lyon", None).await.unwrap();
    let place = format!("/v1/erasures/{}", erased["erasure_id"].as_str().unwrap());
    let began = Instant::now();
    while api.call("GET", &place, None).await.unwrap()["state"] != "done" {
        assert!(began.elapsed() < SOON, "the erasure does not end");
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(ids(&list(api, "").await), ["lost"]);
}
