//! The input of a follow-up is shown to no person, whatever the outcome of its turn; its answer is
//! shown.

use serde_json::{Value, json};
use testkit::{
    http::{self, HttpRequest},
    sse::{FollowOptions, Follower},
    turn_events,
};

use super::{alone, armed, with_hint};
use crate::{
    api_client::{A_WHILE, SOON, until_ended},
    fixture::Fixture,
};

/// The beginning of the input of a check-in follow-up.
const MARKER: &str = "Continue our conversation naturally";
const ANSWER: &str = "Are you there?";
/// The reason in the workflow's hint.
const REASON: &str = "it went quiet";

impl Fixture {
    async fn text(&self, path: &str) -> String {
        let addr = self.fleet.gateway_addrs()[0];
        let shown = http::get(addr, path).await.unwrap();
        assert!(shown.status < 300, "{path}: {} {}", shown.status, shown.text);
        shown.text
    }

    async fn posted(&self, path: &str, body: &Value) -> String {
        let addr = self.fleet.gateway_addrs()[0];
        let (headers, body) = ([("content-type", "application/json")], body.to_string());
        let request = HttpRequest { method: "POST", path, headers: &headers, body: body.as_bytes() };
        let shown = http::exchange(addr, request).await.unwrap();
        assert!(shown.status < 300, "{path}: {} {}", shown.status, shown.text);
        shown.text
    }

    /// Every event for a client that has seen the thread up to this event, or nothing of it.
    async fn events_after(&self, cursor: Option<String>) -> String {
        let options = FollowOptions { last_event_id: cursor, ..FollowOptions::default() };
        let follower = Follower::start(&self.fleet.gateway_addrs(), "talk", options);
        follower.opened().await.unwrap();
        tokio::time::sleep(A_WHILE).await;
        format!("{:?}", follower.stop())
    }

    /// The output of a command.
    async fn printed(&self, words: &str) -> String {
        let env = self.command_env();
        let words: Vec<&str> = words.split_whitespace().collect();
        let done = testkit::fleet::invoke(&words, &env).await.unwrap();
        assert_eq!(done.code, Some(0), "{words:?}: {}", done.stderr);
        done.stdout
    }

    /// Everything that shows parts of the thread to people, by its name.
    async fn shown_to_people(&self, turn: &str, seen: &str) -> Vec<(String, String)> {
        let mut shown = Vec::new();
        let mut paths: Vec<String> = [
            "/v1/threads/talk",
            "/v1/threads/talk/history",
            "/v1/threads/talk/history?before=9223372036854775807",
            "/v1/threads/talk/batches",
            "/v1/threads/talk/failed-turns",
            "/v1/threads/talk/follow-ups",
            "/v1/threads/talk/audit",
            "/v1/threads/talk/compactions",
            "/v1/agents",
            "/v1/agents/talk",
            "/v1/agents/talk/batches",
            "/v1/agents/talk/tasks",
            "/v1/agents/talk/audit",
            "/api/chat/talk",
        ]
        .map(str::to_owned)
        .into();
        let batches: Value = serde_json::from_str(&self.text("/v1/threads/talk/batches").await).unwrap();
        let of_batch =
            |batch: &Value| format!("/v1/threads/talk/batches/{}", batch["batch_id"].as_str().unwrap());
        paths.extend(batches["batches"].as_array().unwrap().iter().map(of_batch));
        paths.push(format!("/v1/turns/{turn}"));
        for path in paths {
            let text = self.text(&path).await;
            shown.push((path, text));
        }
        let connect = json!({"threadId": "talk", "runId": "r", "messages": [], "tools": [], "context": [],
            "state": {}, "forwardedProps": {}});
        shown.push(("/agui/connect".to_owned(), self.posted("/agui/connect", &connect).await));
        shown.push(("a new viewer's stream".to_owned(), self.events_after(None).await));
        shown.push(("a stream that goes on".to_owned(), self.events_after(Some(seen.to_owned())).await));
        let ends = turn_events::all(self.publisher.context()).await.unwrap();
        shown.push(("the ends of turns".to_owned(), format!("{ends:?}")));
        for words in ["threads show talk", "batches list talk", "follow-ups list talk"] {
            shown.push((words.to_owned(), self.printed(words).await));
        }
        shown
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_shows_the_input_of_a_follow_up_to_people() {
    let mut fixture = Fixture::with(alone).await;
    let workflow = fixture.manual_workflow().await;
    let follower = armed(&fixture, &workflow, json!({"enabled": true, "max_in_a_row": 3})).await;
    let last_id =
        || follower.inspect(|all| all.last()?.events.iter().rev().find_map(|event| event.id.clone()));
    fixture.until("the first answer is seen", SOON, async || last_id().is_some()).await;
    let seen = last_id().unwrap();

    // One follow-up is answered, and one fails.
    fixture.restart_with_due("talk").await;
    let mut asked = workflow.next(SOON).await.unwrap();
    let turn = asked.request.turn_id.clone();
    assert!(asked.request.context.last().unwrap().content.starts_with(MARKER), "it is what is looked for");
    let thread = fixture.api().thread("talk").await.unwrap();
    assert_eq!((&thread["waiting_turns"], &thread["active_turn"]["turn_id"]), (&json!([]), &json!(turn)));
    let answer = asked.request.message_id.as_str().to_owned();
    asked.say_with(ANSWER, with_hint()).await.unwrap();
    asked.ack().await.unwrap();
    until_ended(&follower, &answer).await;
    fixture.until_timer("talk", "pending").await;
    fixture.restart_with_due("talk").await;
    let mut asked = workflow.next(SOON).await.unwrap();
    asked.fail("it cannot go on", json!({})).await.unwrap();
    asked.ack().await.unwrap();
    fixture.until_timer("talk", "withdrawn").await;

    for (place, text) in fixture.shown_to_people(&turn, &seen).await {
        assert!(!text.contains(MARKER), "{place}: {text}");
        // The reason for a follow-up is shown where people look for the cause, and nowhere else.
        assert!(
            !text.contains(REASON) || place.contains("follow-ups") || place.contains("/v1/turns/"),
            "{place}: {text}"
        );
    }
    assert_eq!(fixture.api().failed_turns("talk").await.unwrap(), [] as [Value; 0], "it counts as withdrawn");
    let live = format!("{:?}", follower.stop());
    assert!(!live.contains(MARKER) && !live.contains(REASON) && live.contains(ANSWER), "{live}");
    assert!(fixture.events_after(Some(seen)).await.contains(ANSWER));

    // The counts cover only what is shown. On request everything is shown.
    let history = fixture.api().history("talk").await.unwrap();
    let thread = fixture.api().thread("talk").await.unwrap();
    assert_eq!((history.len(), &thread["message_count"]), (3, &json!(3)));
    assert_eq!(fixture.messages_of("talk").await.len(), 4);
    assert!(fixture.text("/v1/threads/talk/history?synthetic=true").await.contains(MARKER));
    fixture.no_request_comes(&workflow).await;
}
