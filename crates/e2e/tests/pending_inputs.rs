//! A question is visible from its acceptance on: in the history, in the thread, in streams, and in
//! the chat of the AI SDK.

use serde_json::{Value, json};
use testkit::{api::Api, http, sse::StreamEvent};

use crate::{
    api_client::{SOON, all_events, alone, asked_for, until_ended},
    fixture::Fixture,
};

async fn get(api: Api, path: &str) -> Value {
    http::get_json(api.0, path).await.unwrap()
}

fn contents(messages: &Value) -> Vec<&str> {
    messages.as_array().unwrap().iter().map(|message| message["content"].as_str().unwrap()).collect()
}

/// Ids of inputs that a client was shown, and with a minus sign those that were withdrawn.
fn inputs(seen: &[StreamEvent]) -> Vec<String> {
    let id =
        |data: &str| serde_json::from_str::<Value>(data).unwrap()["message_id"].as_str().unwrap().to_owned();
    let input = |event: &StreamEvent| match event {
        StreamEvent::Other { name: Some(name), data } if name == "input" => Some(id(data)),
        StreamEvent::Other { name: Some(name), data } if name == "input_withdrawn" => {
            Some(format!("-{}", id(data)))
        }
        _ => None,
    };
    seen.iter().filter_map(input).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_are_visible_from_their_acceptance_on() {
    let fixture = Fixture::with(alone).await;
    let (api, workflow) = (fixture.api(), fixture.manual_workflow().await);
    let early = fixture.following("talk").await;
    let first = api.say("talk", "How are you?").await.unwrap();
    let second = api.say("talk", "And tomorrow?").await.unwrap();
    // Everything that a reload reads shows both, at once.
    let page = get(api, "/v1/threads/talk/history?pending=true").await;
    assert_eq!(contents(&page["pending"]), ["How are you?", "And tomorrow?"], "{page}");
    assert_eq!((&page["messages"], &page["owner_status"]), (&json!([]), &json!("available")));
    let [shown, _] = &page["pending"].as_array().unwrap()[..] else { panic!("{page}") };
    assert_eq!(shown["turn_id"], first.id.as_str());
    assert_eq!(shown["message_id"], format!("{}-q", first.id));
    let thread = get(api, "/v1/threads/talk").await;
    assert_eq!(contents(&thread["pending"]), ["How are you?", "And tomorrow?"], "{thread}");
    // A page without the newest messages, or without the wish, has none.
    assert!(get(api, "/v1/threads/talk/history").await.get("pending").is_none());
    asked_for(&workflow, &first).await.answer("Fine.").await.unwrap();
    until_ended(&early, &format!("{}-a", first.id)).await;
    let page = get(api, "/v1/threads/talk/history?pending=true").await;
    assert_eq!(contents(&page["messages"]), ["How are you?", "Fine."], "{page}");
    assert_eq!(contents(&page["pending"]), ["And tomorrow?"], "{page}");
    // A viewer who comes now sees the open question; a viewer who was there saw both, once.
    let late = fixture.following("talk").await;
    asked_for(&workflow, &second).await.answer("Rain.").await.unwrap();
    let answer = format!("{}-a", second.id);
    until_ended(&early, &answer).await;
    until_ended(&late, &answer).await;
    let ids = [&first, &second].map(|turn| format!("{}-q", turn.id));
    assert_eq!(
        (inputs(&all_events(&early)), inputs(&all_events(&late))),
        (ids.to_vec(), vec![ids[1].clone()])
    );
    let page = get(api, "/v1/threads/talk/history?pending=true&limit=2").await;
    assert_eq!(
        (contents(&page["messages"]).len(), page.get("pending")),
        (2, None),
        "it is not the last page"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_question_of_a_failed_turn_is_withdrawn_until_its_retry() {
    let fixture = Fixture::with(alone).await;
    let (api, workflow) = (fixture.api(), fixture.manual_workflow().await);
    let viewer = fixture.following("talk").await;
    let turn = api.say("talk", "How are you?").await.unwrap();
    let mut asked = asked_for(&workflow, &turn).await;
    asked.fail("broken", json!({"class": "permanent"})).await.unwrap();
    asked.ack().await.unwrap();
    until_ended(&viewer, &format!("{}-a", turn.id)).await;
    let question = format!("{}-q", turn.id);
    assert_eq!(inputs(&all_events(&viewer)), [question.clone(), format!("-{question}")]);
    let page = get(api, "/v1/threads/talk/history?pending=true").await;
    assert_eq!((&page["messages"], &page["pending"]), (&json!([]), &json!([])));
    api.retry_turn("talk", &turn.id).await.unwrap();
    let page = get(api, "/v1/threads/talk/history?pending=true").await;
    assert_eq!(contents(&page["pending"]), ["How are you?"], "{page}");
    workflow.next(SOON).await.unwrap().answer("Fine.").await.unwrap();
    until_ended(&viewer, &format!("{}-a1", turn.id)).await;
    assert_eq!(inputs(&all_events(&viewer)), [question.clone(), format!("-{question}"), question]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reloaded_chat_shows_its_question_under_its_own_id() {
    let fixture = Fixture::with(alone).await;
    let (api, workflow) = (fixture.api(), fixture.manual_workflow().await);
    let message =
        json!({"id": "mine-1", "role": "user", "parts": [{"type": "text", "text": "How are you?"}]});
    let body = json!({"id": "chat", "messages": [message], "trigger": "submit-message"});
    let posted = tokio::spawn(async move { api.send("POST", "/api/chat", Some(&body), &[]).await.unwrap() });
    let asked = workflow.next(SOON).await.unwrap();
    let page = get(api, "/api/chat/chat").await;
    let expected = json!({"id": "mine-1", "role": "user", "parts": [{"type": "text", "text": "How are you?", "state": "done"}]});
    assert_eq!(page["messages"], json!([expected]), "while it is answered");
    asked.answer("Fine.").await.unwrap();
    assert_eq!(posted.await.unwrap().status, 200);
    let page = get(api, "/api/chat/chat").await;
    assert_eq!(page["messages"][0], expected, "afterwards");
    assert_eq!((page["messages"].as_array().unwrap().len(), &page["owner_status"]), (2, &json!("available")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copied_thread_is_whole_with_its_pending_inputs() {
    let fixture = Fixture::with(alone).await;
    let (api, workflow) = (fixture.api(), fixture.manual_workflow().await);
    let turn = api.say("talk", "How are you?").await.unwrap();
    asked_for(&workflow, &turn).await.answer("Fine.").await.unwrap();
    fixture.until("the turn is stored", SOON, async || fixture.messages_of("talk").await.len() == 2).await;
    // Copies keep their positions, which may be above those that the owner of another partition has
    // given.
    for copy in ["copy-1", "copy-2", "copy-3", "copy-4"] {
        let body = json!({"thread_id": copy});
        let forked = api.send("POST", "/v1/threads/talk/fork", Some(&body), &[]).await.unwrap();
        assert_eq!(forked.status, 201, "{forked:?}");
        let page = get(api, &format!("/v1/threads/{copy}/history?pending=true")).await;
        assert_eq!(
            (contents(&page["messages"]), &page["pending"]),
            (vec!["How are you?", "Fine."], &json!([]))
        );
        let chat = get(api, &format!("/api/chat/{copy}")).await;
        assert_eq!(chat["messages"].as_array().unwrap().len(), 2, "{chat}");
    }
}
