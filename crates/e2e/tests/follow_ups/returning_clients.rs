//! Clients that reconnect while an agent writes first: a turn that no person has opened is not the
//! one that they want.

use serde_json::json;

use super::{alone, armed};
use crate::{
    api_client::{SOON, until_ended},
    fixture::Fixture,
    protocols::{agui, answer_of, stream, text_of},
};

/// Checks that a client gets the complete last answer to the person; a stream that waits for more
/// would not end.
async fn comes_back_to(fixture: &Fixture, answer: &str) {
    let addr = fixture.fleet.gateway_addrs()[0];
    let page = stream(addr, "GET", "/api/chat/talk/stream", None).await;
    assert_eq!((&page[0]["messageId"], text_of(&page)), (&json!(answer), "hello".to_owned()));
    let run = agui(addr, "/agui/connect", "talk", "of no turn", "").await;
    assert_eq!(answer_of(&run), ("hello".to_owned(), "of no turn".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_client_comes_back_to_a_follow_up() {
    let mut fixture = Fixture::with(alone).await;
    let workflow = fixture.manual_workflow().await;
    let follower = armed(&fixture, &workflow, json!({"enabled": true, "max_in_a_row": 3})).await;
    let answer = fixture.messages_of("talk").await[1].message_id.clone();
    fixture.restart_with_due("talk").await;
    let asked = workflow.next(SOON).await.unwrap();
    comes_back_to(&fixture, &answer).await;
    let follow_up = asked.request.message_id.as_str().to_owned();
    asked.answer("Are you there?").await.unwrap();
    until_ended(&follower, &follow_up).await;
    comes_back_to(&fixture, &answer).await;
    // The client has only the id of its own last response.
    let next = json!({"input": "yes", "previous_response_id": format!("resp_{answer}"), "background": true});
    let response = fixture.api().call("POST", "/v1/responses", Some(&next)).await.unwrap();
    assert_eq!(response["conversation"]["id"], "talk");
    workflow.next(SOON).await.unwrap().answer("Good.").await.unwrap();
}
