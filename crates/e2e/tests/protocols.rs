//! The protocols of other clients on a real fleet, where it matters which answer a client resumes.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use testkit::{WAIT_TIMEOUT, http, sse::Parser};

use crate::{
    api_client::{SOON, alone, said, scripted},
    fixture::Fixture,
};

/// A stream's events until its clean end, as JSON; the protocol's end marker that is no JSON is
/// left out.
pub(crate) async fn stream(addr: SocketAddr, method: &str, path: &str, body: Option<&Value>) -> Vec<Value> {
    let bytes = body.map(Value::to_string).unwrap_or_default();
    let request = http::HttpRequest {
        method,
        path,
        headers: &[("content-type", "application/json")][..usize::from(body.is_some())],
        body: bytes.as_bytes(),
    };
    let mut response = http::begin(addr, request).await.unwrap();
    assert_eq!(response.status, 200, "{path}");
    let (mut parser, mut bytes, mut events) = (Parser::default(), Vec::new(), Vec::new());
    let read = async {
        // A connection that is cut is an error here.
        while response.body.read(&mut bytes).await.unwrap() > 0 {
            for item in parser.feed(&std::mem::take(&mut bytes)) {
                if let testkit::sse::SseItem::Event { data, .. } = item {
                    events.extend(serde_json::from_str(&data));
                }
            }
        }
    };
    tokio::time::timeout(WAIT_TIMEOUT, read).await.unwrap();
    events
}

/// Events of a native stream, which does not end by itself, up to the end of a message.
pub(crate) async fn until_complete(addr: SocketAddr, path: &str) -> Vec<Value> {
    let request = http::HttpRequest { method: "GET", path, headers: &[], body: &[] };
    let mut response = http::begin(addr, request).await.unwrap();
    assert_eq!(response.status, 200, "{path}");
    let (mut parser, mut bytes, mut events) = (Parser::default(), Vec::new(), Vec::<Value>::new());
    let read = async {
        while events.iter().all(|event| event["chunk"] != "message_complete") {
            assert!(response.body.read(&mut bytes).await.unwrap() > 0, "{path} has ended: {events:?}");
            for item in parser.feed(&std::mem::take(&mut bytes)) {
                if let testkit::sse::SseItem::Event { data, .. } = item {
                    events.extend(serde_json::from_str::<Value>(&data));
                }
            }
        }
    };
    tokio::time::timeout(WAIT_TIMEOUT, read).await.unwrap();
    events
}

/// The events of a run; without a text, those of a request to connect to one.
pub(crate) async fn agui(addr: SocketAddr, path: &str, thread: &str, run: &str, text: &str) -> Vec<Value> {
    let messages = json!([{"id": format!("q-{run}"), "role": "user", "content": text}]);
    let body = json!({"threadId": thread, "runId": run, "messages": messages, "tools": [], "context": [], "state": {},
        "forwardedProps": {}});
    stream(addr, "POST", path, Some(&body)).await
}

/// The text of a run, and the run id under which it was streamed.
pub(crate) fn answer_of(events: &[Value]) -> (String, String) {
    let texts = events.iter().filter(|event| event["type"] == "TEXT_MESSAGE_CONTENT");
    let text = texts.map(|event| event["delta"].as_str().unwrap()).collect();
    let end = events.last().unwrap();
    assert_eq!(end["type"], "RUN_FINISHED", "{events:?}");
    (text, end["runId"].as_str().unwrap().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ag_ui_client_that_reconnects_gets_its_run() {
    let fixture = Fixture::with(scripted).await;
    let addr = fixture.fleet.gateway_addrs()[0];
    let texts = ["slowly one", "slowly two"];
    let answer_to = |text: &str| format!("Slowly {text} and {text} and {text}");
    // Two tabs: the second turn waits for the first.
    let first = tokio::spawn(async move { agui(addr, "/agui", "talk", "one", texts[0]).await });
    fixture
        .until("the first turn is under way", SOON, async || {
            !fixture.messages_of("talk").await.is_empty()
                || testkit::db_snapshot::turns::unsettled(&fixture.pool)
                    .await
                    .is_ok_and(|(open, _)| open == 1)
        })
        .await;
    let second = tokio::spawn(async move { agui(addr, "/agui", "talk", "two", texts[1]).await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    let back = |run: &'static str| async move { agui(addr, "/agui/connect", "talk", run, "").await };
    let [waiting, active] = tokio::join!(back("two"), back("one")).into();
    assert_eq!(answer_of(&waiting), (answer_to(texts[1]), "two".to_owned()));
    assert_eq!(answer_of(&active), (answer_to(texts[0]), "one".to_owned()));
    assert_eq!(answer_of(&first.await.unwrap()), (answer_to(texts[0]), "one".to_owned()));
    assert_eq!(answer_of(&second.await.unwrap()), (answer_to(texts[1]), "two".to_owned()));
    // Both runs have ended. An unknown run id means a new connection, which gets the last answer.
    for (run, text) in [("one", texts[0]), ("two", texts[1]), ("three", texts[1])] {
        assert_eq!(answer_of(&back(run).await), (answer_to(text), run.to_owned()));
    }
    let messages = fixture.messages_of("talk").await;
    assert_eq!(said(&messages).len(), 4, "each turn was requested once");
    // The messages before the answer come first, so a page that was reloaded shows the whole chat.
    let snapshot = |events: &[Value]| {
        assert_eq!(
            (&events[0]["type"], &events[1]["type"]),
            (&json!("RUN_STARTED"), &json!("MESSAGES_SNAPSHOT"))
        );
        let message =
            |message: &Value| (message["role"].clone(), message["id"].clone(), message["content"].clone());
        events[1]["messages"].as_array().unwrap().iter().map(message).collect::<Vec<_>>()
    };
    let question = |run: &str, text: &str| (json!("user"), json!(format!("q-{run}")), json!(text));
    let first = (json!("assistant"), json!(messages[1].message_id), json!(answer_to(texts[0])));
    let (one, two) = (question("one", texts[0]), question("two", texts[1]));
    assert_eq!(snapshot(&back("two").await), [one.clone(), first, two.clone()]);
    assert_eq!(snapshot(&back("one").await), [one], "nothing that came later");
    // The first turn may have ended by the time that the waiting run is connected to.
    let waiting = snapshot(&waiting);
    let all = snapshot(&back("two").await);
    assert!(waiting == [two] || waiting == all, "{waiting:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ag_ui_snapshot_has_the_question_of_a_failed_run() {
    let fixture = Fixture::with(scripted).await;
    let addr = fixture.fleet.gateway_addrs()[0];
    for thread in ["new", "old"] {
        if thread == "old" {
            agui(addr, "/agui", thread, "zero", "hello").await;
        }
        agui(addr, "/agui", thread, "one", "fails-for-good").await;
        let events = agui(addr, "/agui/connect", thread, "one", "").await;
        let messages = events[1]["messages"].as_array().unwrap();
        assert_eq!(messages.last().unwrap()["content"], "fails-for-good", "{events:?}");
        assert_eq!(messages.len(), if thread == "old" { 3 } else { 1 });
        assert_eq!(events.last().unwrap()["type"], "RUN_ERROR", "{events:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ag_ui_snapshot_has_calls_and_results() {
    let fixture = Fixture::with(scripted).await;
    let addr = fixture.fleet.gateway_addrs()[0];
    let run = agui(addr, "/agui", "talk", "one", "tools").await;
    let begun = run.iter().find(|event| event["type"] == "TOOL_CALL_START").unwrap();
    agui(addr, "/agui", "talk", "two", "hello").await;
    let events = agui(addr, "/agui/connect", "talk", "two", "").await;
    let messages = events[1]["messages"].as_array().unwrap();
    let roles: Vec<&str> = messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "tool", "tool", "assistant", "user"], "{messages:?}");
    let call = &messages[1]["toolCalls"][0];
    assert_eq!((&call["id"], &call["type"]), (&begun["toolCallId"], &json!("function")));
    assert_eq!((&call["function"]["name"], &messages[2]["toolCallId"]), (&json!("clock"), &call["id"]));
    assert_eq!(messages[2]["content"], "noon");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_ends_whatever_starting_after_a_client_names() {
    let fixture = Fixture::with(scripted).await;
    let addr = fixture.fleet.gateway_addrs()[0];
    let body = json!({"model": "talk", "input": "slowly", "conversation": "talk", "background": true, "temperature": 0.5});
    let response = fixture.api().call("POST", "/v1/responses", Some(&body)).await.unwrap();
    assert_eq!((&response["temperature"], &response["top_p"]), (&json!(0.5), &Value::Null));
    let path = format!("/v1/responses/{}?stream=true&starting_after=", response["id"].as_str().unwrap());
    let after = async |number: u64| stream(addr, "GET", &format!("{path}{number}"), None).await;
    let number = |event: &Value| event["sequence_number"].as_u64().unwrap();
    // While the answer is in progress and after its end, only the end is sent for a number that is
    // ahead, with a higher number.
    for far in [1_000_000_000, 5_000_000_000] {
        let [live, stored] = [after(far).await, after(far).await];
        assert_eq!(live, stored, "{far}");
        assert_eq!((live.len(), number(&live[0])), (1, far + 1));
        assert_eq!(live[0]["type"], "response.completed");
        assert_eq!(live[0]["response"]["temperature"], 0.5);
        assert_eq!(
            live[0]["response"]["output"][0]["content"][0]["text"],
            "Slowly slowly and slowly and slowly"
        );
    }
    for wrong in ["-1", "x", "18446744073709551616", "1.5", ""] {
        let refused = http::get(addr, &format!("{path}{wrong}")).await.unwrap();
        let error = &refused.json().unwrap()["error"];
        assert_eq!(refused.status, 400, "{wrong:?}: {}", refused.text);
        assert_eq!(error["type"], "invalid_request_error", "{wrong:?}: {}", refused.text);
    }
}

/// The input is there while the response is in progress, once it has ended, and if it has failed.
#[tokio::test(flavor = "multi_thread")]
async fn a_response_has_its_input_from_the_beginning() {
    let fixture = Fixture::with(alone).await;
    let (api, workflow) = (fixture.api(), fixture.manual_workflow().await);
    let texts = ["How are you?", "And tomorrow?"];
    for (number, text) in texts.iter().enumerate() {
        let body = json!({"model": "talk", "input": text, "conversation": "talk", "background": true});
        let response = api.call("POST", "/v1/responses", Some(&body)).await.unwrap();
        let path = format!("/v1/responses/{}/input_items", response["id"].as_str().unwrap());
        let pending = http::get_json(api.0, &path).await.unwrap();
        let item = &pending["data"][0];
        assert_eq!(item["content"], json!([{"type": "input_text", "text": text}]), "{pending}");
        assert_eq!((&item["role"], &item["type"]), (&json!("user"), &json!("message")));
        assert_eq!((&pending["first_id"], &pending["has_more"]), (&item["id"], &json!(false)));
        let mut asked = workflow.next(SOON).await.unwrap();
        match number {
            0 => asked.finish("Fine.").await.unwrap(),
            _ => asked.fail("no idea", json!({"retryable": false})).await.unwrap(),
        }
        asked.ack().await.unwrap();
        let began = Instant::now();
        while http::get_json(api.0, path.trim_end_matches("/input_items")).await.unwrap()["status"]
            == "in_progress"
        {
            assert!(began.elapsed() < SOON, "the response does not end");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(http::get_json(api.0, &path).await.unwrap(), pending, "{text}");
        let after = format!("{path}?after={}&order=asc&limit=1", item["id"].as_str().unwrap());
        let none =
            json!({"object": "list", "data": [], "first_id": null, "last_id": null, "has_more": false});
        assert_eq!(http::get_json(api.0, &after).await.unwrap(), none);
        for wrong in ["limit=0", "limit=101", "order=up"] {
            assert_eq!(http::get(api.0, &format!("{path}?{wrong}")).await.unwrap().status, 400, "{wrong}");
        }
    }
    let unknown = http::get(api.0, "/v1/responses/resp_u0000-x-a/input_items").await.unwrap();
    assert_eq!(unknown.status, 404, "{}", unknown.text);
}

/// The text of an answer in a page.
pub(crate) fn text_of(parts: &[Value]) -> String {
    parts
        .iter()
        .filter(|part| part["type"] == "text-delta")
        .map(|part| part["delta"].as_str().unwrap())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn returning_page_gets_the_last_answer_and_retries() {
    let fixture = Fixture::with(scripted).await;
    let addr = fixture.fleet.gateway_addrs()[0];
    let chat = |id: &str, text: &str| {
        let message = json!({"id": id, "role": "user", "parts": [{"type": "text", "text": text}]});
        json!({"id": "talk", "messages": [message]})
    };
    let first = stream(addr, "POST", "/api/chat", Some(&chat("1", "slowly one"))).await;
    let again = stream(addr, "GET", "/api/chat/talk/stream", None).await;
    assert_eq!((text_of(&again), &again[0]["messageId"]), (text_of(&first), &first[0]["messageId"]));
    assert_eq!(text_of(&again), "Slowly slowly one and slowly one and slowly one");
    let mut regenerate = chat("1", "slowly one");
    regenerate["trigger"] = json!("regenerate-message");
    let refused = fixture.api().send("POST", "/api/chat", Some(&regenerate), &[]).await.unwrap();
    assert_eq!(refused.status, 400, "what was answered stays");
    let failed = stream(addr, "POST", "/api/chat", Some(&chat("2", "fails-once please"))).await;
    assert!(failed.iter().any(|part| part["type"] == "error"), "{failed:?}");
    let resumed = stream(addr, "GET", "/api/chat/talk/stream", None).await;
    assert!(resumed.iter().any(|part| part["type"] == "error"), "{resumed:?}");
    let regenerate = |id: &str, text: &str, message: Value| {
        let mut body = chat(id, text);
        body["trigger"] = json!("regenerate-message");
        body["messageId"] = message;
        body
    };
    for other in
        [regenerate("2", "something else", Value::Null), regenerate("2", "fails-once please", json!("other"))]
    {
        let refused = fixture.api().send("POST", "/api/chat", Some(&other), &[]).await.unwrap();
        assert_eq!(refused.status, 400, "{refused:?}");
    }
    let body = regenerate("2", "fails-once please", failed[0]["messageId"].clone());
    let tried = stream(addr, "POST", "/api/chat", Some(&body)).await;
    assert_eq!(text_of(&tried), "I try. You said: fails-once please");
    assert_eq!(tried[0]["messageId"], format!("{}1", failed[0]["messageId"].as_str().unwrap()));
    assert_eq!(fixture.until_messages("talk", 4).await.len(), 4);
    // A page that is reloaded has the same messages.
    let page = fixture.api().call("GET", "/api/chat/talk", None).await.unwrap();
    let shown: Vec<(&str, &Value, String)> = page["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| {
            let texts = message["parts"].as_array().unwrap().iter().filter_map(|part| part["text"].as_str());
            (message["role"].as_str().unwrap(), &message["id"], texts.collect())
        })
        .collect();
    let first_answer = (&first[0]["messageId"], text_of(&first));
    let roles: Vec<&str> = shown.iter().map(|(role, ..)| *role).collect();
    assert_eq!(roles, ["user", "assistant", "user", "assistant"]);
    assert_eq!((shown[0].2.as_str(), shown[2].2.as_str()), ("slowly one", "fails-once please"));
    assert_eq!((shown[1].1, shown[1].2.clone()), first_answer);
    assert_eq!(
        (shown[3].1, shown[3].2.as_str()),
        (&tried[0]["messageId"], "I try. You said: fails-once please")
    );
    let last = fixture.api().call("GET", "/api/chat/talk?limit=2", None).await.unwrap();
    assert_eq!(last["messages"].as_array().unwrap().len(), 2);
    let older = format!("/api/chat/talk?limit=2&next={}", last["next"].as_str().unwrap());
    let older = fixture.api().call("GET", &older, None).await.unwrap();
    assert_eq!((&older["messages"][0]["id"], &older["next"]), (shown[0].1, &Value::Null));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_stop_does_not_stop_the_next_answer() {
    let fixture = Fixture::with(scripted).await;
    let turn = fixture.api().say("talk", "slowly and for long, and longer still, and again").await.unwrap();
    let stop = async |query: &str| {
        let path = format!("/api/chat/talk/stop{query}");
        fixture.api().send("POST", &path, None, &[]).await.unwrap().status
    };
    assert_eq!([stop("").await, stop("?message=u0001-x-a").await], [400, 204]);
    assert_eq!(stop(&format!("?message={}", turn.answer)).await, 200);
    assert_eq!(stop(&format!("?message={}", turn.answer)).await, 204);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_reaches_an_answer_that_waits() {
    let fixture = Fixture::with(scripted).await;
    let first = fixture.api().say("talk", "slowly and for long, and longer still, and again").await.unwrap();
    let second = fixture.api().say("talk", "never").await.unwrap();
    let path = format!("/api/chat/talk/stop?message={}", second.answer);
    let stop = async || fixture.api().send("POST", &path, None, &[]).await.unwrap().status;
    assert_eq!([stop().await, stop().await], [200, 204]);
    assert_eq!(fixture.until_failed("talk", 1).await, [("stopped".to_owned(), 0)]);
    let messages = fixture.until_messages("talk", 2).await;
    assert_eq!(
        (messages.len(), &messages[1].message_id),
        (2, &first.answer),
        "the first one was not stopped"
    );
    assert_eq!(messages[1].metadata["stopped"], Value::Null);
}

#[tokio::test(flavor = "multi_thread")]
async fn responses_are_chained_before_they_are_answered() {
    let fixture = Fixture::with(alone).await;
    let workflow = fixture.manual_workflow().await;
    let after = async |before: Option<&str>| {
        let body =
            json!({"input": "next", "model": "talk", "previous_response_id": before, "background": true});
        fixture.api().send("POST", "/v1/responses", Some(&body), &[]).await.unwrap()
    };
    let begun = async |before: Option<&str>| {
        let response = after(before).await;
        assert_eq!(response.status, 200, "{}", response.text);
        response.json().unwrap()["id"].as_str().unwrap().to_owned()
    };
    let first = begun(None).await;
    let mut asked = workflow.next(SOON).await.unwrap();
    let second = begun(Some(&first)).await;
    let third = begun(Some(&second)).await;
    assert_eq!([after(Some(&first)).await.status, after(Some(&second)).await.status], [409, 409]);
    // An automatic continuation of an answer is no response that its client knows.
    for _ in 0..2 {
        asked.answer("done").await.unwrap();
        asked = workflow.next(SOON).await.unwrap();
    }
    asked.say_with("and", json!({"is_final": true, "metadata": {"continuation": true}})).await.unwrap();
    asked.ack().await.unwrap();
    let asked = workflow.next(SOON).await.unwrap();
    let fourth = begun(Some(&third)).await;
    asked.answer("more").await.unwrap();
    workflow.next(SOON).await.unwrap().answer("done").await.unwrap();
    begun(Some(&fourth)).await;
}
