//! Chats that name no agent belong to the default agent.

use serde_json::{Value, json};
use testkit::{api::Api, http};

use crate::{
    api_client::{alone, asked_for, scripted},
    fixture::Fixture,
};

async fn agent_of(api: Api, thread: &str) -> Value {
    api.thread(thread).await.unwrap()["agent_id"].clone()
}

async fn models(api: Api) -> Vec<Value> {
    let page = http::get_json(api.0, "/v1/models").await.unwrap();
    page["data"].as_array().unwrap().iter().map(|model| model["id"].clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn chats_without_an_agent_belong_to_the_default_agent() {
    let fixture = Fixture::with(alone).await;
    let (api, workflow) = (fixture.api(), fixture.manual_workflow().await);
    assert_eq!(models(api).await, ["default"], "it answers before it has settings");
    let model = api.call("GET", "/v1/models/default", None).await.unwrap();
    assert_eq!((&model["id"], &model["created"]), (&json!("default"), &json!(0)));

    let first = api.say("chat", "hello").await.unwrap();
    let asked = asked_for(&workflow, &first).await;
    assert_eq!(asked.raw["agent_id"], "default");
    assert_eq!(agent_of(api, "chat").await, "default", "before the first answer has ended");
    asked.answer("hi").await.unwrap();
    fixture.until_messages("chat", 2).await;
    let listed = http::get_json(api.0, "/v1/threads?agent_id=default").await.unwrap();
    assert_eq!(listed["threads"][0]["thread_id"], "chat");
    let unknown = http::get(api.0, "/v1/agents/chat").await.unwrap();
    assert_eq!(unknown.status, 404, "a chat is no agent: {}", unknown.text);

    // The settings of the default agent apply from the next turn on.
    fixture.settle("default", json!({"system": "Be brief."})).await;
    assert_eq!(models(api).await, ["default"]);
    let second = api.say("chat", "again").await.unwrap();
    let asked = asked_for(&workflow, &second).await;
    assert_eq!(asked.raw["settings"]["system"], "Be brief.", "{}", asked.raw);

    // The AI SDK's page names no agent either; a thread is created without one, too.
    let body = json!({"id": "page", "messages": [{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "hello"}]}]});
    let page = tokio::spawn(async move { api.send("POST", "/api/chat", Some(&body), &[]).await });
    let turns = async || api.thread("page").await.is_ok_and(|thread| thread["agent_id"] == "default");
    fixture.until("the page's chat is the default agent's", crate::api_client::SOON, turns).await;
    page.abort();
    let body = json!({"thread_id": "empty"});
    for _ in 0..2 {
        assert_eq!(api.create_thread(&body).await.unwrap()["agent_id"], "default");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thread_keeps_the_agent_of_its_first_message() {
    let with_default =
        |options| scripted(options).with_role_env("gateway", "ANTIPHON_DEFAULT_AGENT", "helpdesk");
    let fixture = Fixture::with(with_default).await;
    let api = fixture.api();
    // A thread that has the name of an agent is the agent's own.
    fixture.settle("ann", json!({})).await;
    api.say("ann", "hello").await.unwrap();
    assert_eq!(agent_of(api, "ann").await, "ann");
    api.send_task("worker", "t1", "hello").await.unwrap();
    fixture.until_tasks("worker", &["completed"]).await;
    api.say("worker", "hello").await.unwrap();
    assert_eq!(agent_of(api, "worker").await, "worker");

    let named = json!({"content": "hello", "agent_id": "ann"});
    api.say_with("of_ann", &named, &[]).await.unwrap();
    fixture.until_messages("of_ann", 2).await;
    assert_eq!(agent_of(api, "of_ann").await, "ann");
    api.say("other", "hello").await.unwrap();
    assert_eq!(agent_of(api, "other").await, "helpdesk");
    // Later settings of an agent with the thread's name do not take the thread away.
    fixture.settle("other", json!({})).await;
    api.say("other", "again").await.unwrap();
    fixture.until_messages("other", 4).await;
    assert_eq!(agent_of(api, "other").await, "helpdesk");
    let moved = api.call("PATCH", "/v1/threads/other", Some(&json!({"agent_id": "ann"}))).await.unwrap();
    assert_eq!(moved["agent_id"], "ann");
}

#[tokio::test(flavor = "multi_thread")]
async fn apps_find_agents_by_their_aliases() {
    let fixture = Fixture::with(scripted).await;
    let api = fixture.api();
    let settings = json!({"aliases": ["gpt-4.1", "openai/gpt-4o"]});
    fixture.settle("support", settings.clone()).await;
    let by_name = ["default", "support", "gpt-4.1", "openai/gpt-4o"];
    assert_eq!(models(api).await, by_name);
    let model = api.call("GET", "/v1/models/openai%2Fgpt-4o", None).await.unwrap();
    assert_eq!(model["id"], "openai/gpt-4o");
    assert!(model["created"].as_i64().unwrap() > 0, "{model}");

    let messages = json!([{"role": "user", "content": "hello"}]);
    let body = json!({"model": "gpt-4.1", "messages": messages});
    let answer = api.send("POST", "/v1/chat/completions", Some(&body), &[]).await.unwrap();
    assert_eq!(answer.json().unwrap()["model"], "gpt-4.1", "{}", answer.text);
    let thread = answer.header("x-antiphon-thread").unwrap().to_owned();
    assert_eq!(agent_of(api, &thread).await, "support");
    let body = json!({"model": "openai/gpt-4o", "input": "hello"});
    let response = api.call("POST", "/v1/responses", Some(&body)).await.unwrap();
    assert_eq!((&response["model"], &response["status"]), (&json!("openai/gpt-4o"), &json!("completed")));
    let again = json!({"input": "again", "previous_response_id": response["id"]});
    let again = api.call("POST", "/v1/responses", Some(&again)).await.unwrap();
    assert_eq!(again["model"], "support", "the agent of the conversation");

    let taken = json!({"workflow": "default", "settings": {"aliases": ["gpt-4.1"]}});
    let refused = api.send("PUT", "/v1/agents/other", Some(&taken), &[]).await.unwrap();
    let problem = refused.json().unwrap();
    assert_eq!((refused.status, &problem["code"]), (409, &json!("alias_taken")));
    assert!(problem["detail"].as_str().unwrap().contains("gpt-4.1 is an alias of the agent support"));
    let unknown = json!({"model": "gpt-5.2", "messages": messages});
    let refused = api.send("POST", "/v1/chat/completions", Some(&unknown), &[]).await.unwrap();
    let error = refused.json().unwrap()["error"].clone();
    assert_eq!((refused.status, &error["param"]), (400, &json!("model")), "{error}");
    assert!(error["message"].as_str().unwrap().contains("PUT /v1/agents/"), "{error}");
    let unknown = http::get(api.0, "/v1/models/gpt-5.2").await.unwrap();
    assert_eq!(unknown.status, 404, "{}", unknown.text);
    // An alias that the settings do not name any more is free.
    fixture.settle("support", json!({})).await;
    api.call("PUT", "/v1/agents/other", Some(&taken)).await.unwrap();
    let mut all = models(api).await;
    all.sort_by_key(Value::to_string);
    assert_eq!(all, ["default", "gpt-4.1", "other", "support"]);
}
