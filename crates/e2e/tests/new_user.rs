//! The first steps of a new user: README's commands and no configuration.

use std::fs;

use futures_util::{StreamExt, TryStreamExt, stream};
use serde_json::{Value, json};
use testkit::{
    WAIT_TIMEOUT,
    api::Api,
    db_snapshot::turns,
    fleet::{FleetOptions, WorkflowOptions},
    http::{self, HttpRequest},
};
use tokio::time::sleep;
use wire::subject;

use crate::{
    api_client::{A_WHILE, SOON, alone, events, said, until_ended},
    fixture::Fixture,
};

/// Number of chats in the second test.
const CHATS: usize = 1_000;
/// Number of concurrent chats.
const AT_ONCE: usize = 16;

/// For README's own question the script calls a tool, which adds two messages; this input is
/// answered at once.
const SAID: &str = "Good morning";

/// One worker, and the service of the README's first chat.
fn as_in_readme(options: FleetOptions) -> FleetOptions {
    let path = devservices::workspace::root().join("deploy/workflow/script.json");
    let script = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    alone(options).with_workflow(WorkflowOptions::script(script))
}

/// Number of turn requests ever made: each is one or more model calls.
async fn requests(fixture: &Fixture) -> u64 {
    let stream = fixture.publisher.context().get_stream(subject::WORK_STREAM).await.unwrap();
    stream.cached_info().state.last_sequence
}

#[tokio::test(flavor = "multi_thread")]
async fn first_turn_is_one_request_and_two_messages() {
    let fixture = Fixture::with(as_in_readme).await;
    let (api, follower) = (fixture.api(), fixture.following("hello").await);
    let headers = [("content-type", "application/json"), ("accept", "text/event-stream")];
    let body = format!(r#"{{"content": "{SAID}"}}"#);
    let request = HttpRequest {
        method: "POST",
        path: "/v1/threads/hello/messages",
        headers: &headers,
        body: body.as_bytes(),
    };
    let mut response = http::begin(api.0, request).await.unwrap();
    assert_eq!(response.status, 200, "{response:?}");
    let turn = response.header("x-antiphon-turn").unwrap().to_owned();
    let mut stream = Vec::new();
    while response.body.read(&mut stream).await.unwrap() > 0 {}
    until_ended(&follower, &format!("{turn}-a")).await;
    fixture.until_settled().await;
    sleep(A_WHILE).await;

    assert_eq!(requests(&fixture).await, 1);
    let stored = turns::messages(&fixture.pool).await.unwrap();
    let answer = stored.last().unwrap().content.as_str();
    assert_eq!(said(&stored), [("user", SAID), ("assistant", answer)]);
    assert!(stored.iter().all(|message| message.thread_id == "hello"));
    assert!(turns::tasks(&fixture.pool).await.unwrap().is_empty());
    for history in ["history", "history?synthetic=true"] {
        let shown = api.call("GET", &format!("/v1/threads/hello/{history}"), None).await.unwrap();
        let shown: Vec<_> = shown["messages"].as_array().unwrap().iter().map(text).collect();
        assert_eq!(shown, [SAID, answer], "{history}");
    }
    let context = api.call("GET", "/v1/threads/hello/context?format=openai", None).await.unwrap();
    let context: Vec<_> = context["messages"].as_array().unwrap().iter().map(text).collect();
    assert_eq!(context, [SAID, answer]);
    let thread = api.thread("hello").await.unwrap();
    assert_eq!(thread["message_count"], 2, "{thread}");
    assert!(thread["active_turn"].is_null(), "{thread}");
    let batches = api.call("GET", "/v1/threads/hello/batches", None).await.unwrap();
    assert_eq!(batches["batches"].as_array().unwrap().len(), 1, "{batches}");
    for shown in
        [messages_of(&format!("{:?}", events(&follower))), messages_of(&String::from_utf8_lossy(&stream))]
    {
        assert!(shown.iter().all(|id| *id == format!("{turn}-q") || *id == format!("{turn}-a")), "{shown:?}");
    }
}

fn text(message: &Value) -> &str {
    message["content"].as_str().unwrap_or_default()
}

/// The ids of turns' messages in a text.
fn messages_of(text: &str) -> Vec<String> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '-');
    let id = |word: &&str| word.starts_with('u') && (word.ends_with("-a") || word.ends_with("-q"));
    let ids: Vec<_> = words.filter(id).map(str::to_owned).collect();
    assert!(!ids.is_empty(), "{text}");
    ids
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_chats_to_one_model_leave_no_task() {
    let fixture = Fixture::with(as_in_readme).await;
    let api = fixture.api();
    let chats = stream::iter(0..CHATS).map(|number| chat(api, number)).buffer_unordered(AT_ONCE);
    chats.try_collect::<Vec<_>>().await.unwrap();
    fixture
        .until("nothing is left unsent", WAIT_TIMEOUT, async || {
            turns::unsettled(&fixture.pool).await.is_ok_and(|left| left == (0, 0))
        })
        .await;
    sleep(A_WHILE).await;
    assert!(turns::tasks(&fixture.pool).await.unwrap().is_empty());
    let messages = turns::messages(&fixture.pool).await.unwrap();
    assert_eq!(messages.len(), 2 * CHATS);
    assert!(messages.iter().all(|message| message.thread_id != "support"), "the agent's own thread is empty");
    assert_eq!(requests(&fixture).await, CHATS as u64);
    // With the README's settings, both kinds of follow-on tasks follow the same chat.
    let settings = json!({"workflow": "default", "settings": {"work_request": true, "memory": true}});
    api.call("PUT", "/v1/agents/support", Some(&settings)).await.unwrap();
    chat(api, CHATS).await.unwrap();
    for queue in ["support+work_request", "support+memory"] {
        fixture.until_tasks(queue, &["completed"]).await;
    }
}

/// Sends a chat like any OpenAI client: each in a new thread.
async fn chat(api: Api, number: usize) -> anyhow::Result<()> {
    let body = json!({"model": "support", "messages": [{"role": "user", "content": format!("hi {number}")}]});
    let answer = tokio::time::timeout(SOON, api.call("POST", "/v1/chat/completions", Some(&body))).await??;
    anyhow::ensure!(answer["choices"][0]["message"]["content"].is_string(), "{answer}");
    Ok(())
}
