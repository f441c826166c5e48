//! An agent's facts about a user: noted after a turn, used in later threads of the same user only,
//! erased.

use serde_json::{Value, json};
use testkit::manual_workflow::ManualWorkflow;
use testkit::sse::{Follower, StreamEvent};
use wire::work::TurnRequest;

use crate::{api_client::SOON, fixture::Fixture};

async fn thread_of(fixture: &Fixture, thread: &str, user: &str) {
    let body = json!({"thread_id": thread, "agent_id": "helper", "metadata": {"user_id": user}});
    fixture.api().call("POST", "/v1/threads", Some(&body)).await.unwrap();
}

/// Answers the next two requests, in either order: a person's turn with `answer`, and a memory task
/// that finds `facts`.
async fn answered(workflow: &ManualWorkflow, answer: &str, facts: &Value) -> (TurnRequest, TurnRequest) {
    let turn = workflow.next(SOON).await.unwrap();
    let asked = turn.request.clone();
    assert!(asked.task.is_none(), "{:?}", asked.task);
    turn.answer(answer).await.unwrap();
    let noted = workflow.next(SOON).await.unwrap();
    let task = noted.request.clone();
    assert_eq!(task.task.as_ref().unwrap().kind, "memory");
    noted.answer(&json!({ "facts": facts }).to_string()).await.unwrap();
    (asked, task)
}

fn remembered(request: &TurnRequest) -> Vec<&str> {
    request.memory.iter().map(|fact| fact.text.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn facts_of_a_talk_are_used_for_the_same_user_alone() {
    let fixture = Fixture::new().await;
    let (api, workflow) = (fixture.api(), fixture.manual_workflow().await);
    fixture.settle("helper", json!({"memory": true, "memory_language": "english"})).await;
    for (thread, user) in [("first", "ann"), ("later", "ann"), ("other", "bob")] {
        thread_of(&fixture, thread, user).await;
    }
    // A thread of twenty turns, each of which states a fact.
    let mut source = String::new();
    for number in 0..20 {
        let said = api.say("first", &format!("I own boat number {number}")).await.unwrap();
        let fact = json!({"text": format!("The user owns boat number {number}"), "kind": "possession", "confidence": 0.9});
        let facts = if number == 7 {
            json!([fact, {"text": "Boats need paint", "kind": "note", "confidence": 0.2}])
        } else {
            json!([fact])
        };
        let (turn, noted) = answered(&workflow, "How nice", &facts).await;
        assert_eq!(turn.turn_id, said.id);
        // The request contains known facts about boats, because the new fact may make them wrong.
        assert_eq!(noted.memory.is_empty(), number == 0, "{:?}", noted.memory);
        source = turn.message_id;
    }
    let facts = async |query: &str| {
        let page = api.call("GET", &format!("/v1/agents/helper/memory{query}"), None).await.unwrap();
        page["facts"].as_array().unwrap().clone()
    };
    fixture.until("all is noted", SOON, async || facts("?limit=100").await.len() == 21).await;
    let newest = &facts("?user_id=ann&limit=1").await[0];
    assert_eq!(
        [&newest["scope"], &newest["user_id"], &newest["thread_id"], &newest["message_id"]],
        [&json!("user"), &json!("ann"), &json!("first"), &json!(source)]
    );
    assert_eq!(facts("?user_id=bob").await, Vec::<Value>::new());

    // A later thread of the same user gets the matching facts, within the bounds; another user's
    // thread gets none.
    api.say("later", "Which of my boats has the number 19?").await.unwrap();
    let (turn, _) = answered(&workflow, "The newest", &json!([])).await;
    assert_eq!(remembered(&turn)[0], "The user owns boat number 19");
    assert!(remembered(&turn).len() <= 16);
    assert_eq!(turn.memory[0].message_id.as_deref(), Some(source.as_str()));
    api.say("other", "Which of my boats has the number 19?").await.unwrap();
    let (turn, _) = answered(&workflow, "I do not know", &json!("not facts")).await;
    assert!(remembered(&turn).is_empty());
    fixture
        .until("bad output is counted", SOON, async || {
            fixture.metric("antiphon_worker_invalid_facts_total").await == 1.0
        })
        .await;
    fixture.until_tasks("helper+memory", &["completed"; 22]).await;

    let context = api.call("GET", "/v1/threads/later/context", None).await.unwrap();
    assert_eq!(context["memory"]["source"], "last_message");
    assert_eq!(context["memory"]["facts"][0]["message_id"], source);

    // A fact corrected by a person is used in the new form, and a forgotten one is not used.
    let wanted = "?thread_id=later&q=number+19";
    let best = facts(wanted).await[0].clone();
    let path = format!("/v1/agents/helper/memory/{}", best["fact_id"].as_str().unwrap());
    let corrected = api.call("PATCH", &path, Some(&json!({"text": "Boat number 19 is sold"}))).await.unwrap();
    assert_eq!((&corrected["kind"], &corrected["user_id"]), (&json!("possession"), &json!("ann")));
    assert_eq!(facts(wanted).await[0]["text"], "Boat number 19 is sold");
    assert_eq!(facts("?superseded=true&limit=100").await.len(), 22);
    let path = format!("/v1/agents/helper/memory/{}", corrected["fact_id"].as_str().unwrap());
    api.send("DELETE", &path, None, &[]).await.unwrap();
    assert!(facts(wanted).await.iter().all(|fact| fact["text"] != "Boat number 19 is sold"));
    let gone = api.send("DELETE", &path, None, &[]).await.unwrap();
    assert_eq!((gone.status, &gone.json().unwrap()["code"]), (404, &json!("unknown_fact")));
    let given = json!({"text": "Say number 19 out loud", "user_id": "bob"});
    api.call("POST", "/v1/agents/helper/memory", Some(&given)).await.unwrap();
    assert_eq!(facts("?thread_id=other&q=number+19").await.len(), 1);

    // Erasing a thread deletes the facts that were found in it.
    fixture.command("threads erase first --yes --actor ada").await;
    let left: Vec<_> =
        facts("?superseded=true&limit=100").await.iter().map(|fact| fact["text"].clone()).collect();
    assert_eq!(left, ["Say number 19 out loud"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_outdated_is_not_used_any_more() {
    let fixture = Fixture::new().await;
    let (api, workflow) = (fixture.api(), fixture.manual_workflow().await);
    fixture.settle("helper", json!({"memory": true, "memory_language": "english"})).await;
    for thread in ["first", "second", "third"] {
        thread_of(&fixture, thread, "ann").await;
    }
    let lives = |city: &str, supersedes: &[&str]| {
        let text = format!("The user lives in {city}");
        json!([{"text": text, "kind": "place", "confidence": 0.9, "supersedes": supersedes}])
    };
    api.say("first", "I live in Bern").await.unwrap();
    answered(&workflow, "Nice", &lives("Bern", &[])).await;
    fixture.until_tasks("helper+memory", &["completed"]).await;
    api.say("second", "We live in Oslo now").await.unwrap();
    workflow.next(SOON).await.unwrap().answer("Oh").await.unwrap();
    let noting = workflow.next(SOON).await.unwrap();
    let [known] = &noting.request.memory[..] else { panic!("{:?}", noting.request.memory) };
    assert_eq!(known.text, "The user lives in Bern");
    let outdated = known.fact_id.clone();
    noting.answer(&json!({ "facts": lives("Oslo", &[&outdated]) }).to_string()).await.unwrap();
    fixture.until_tasks("helper+memory", &["completed"; 2]).await;

    api.say("third", "Where do I live?").await.unwrap();
    let (turn, _) = answered(&workflow, "In Oslo", &json!([])).await;
    assert_eq!(remembered(&turn), ["The user lives in Oslo"]);
    let path = "/v1/agents/helper/memory?superseded=true";
    let history = api.call("GET", path, None).await.unwrap()["facts"].clone();
    let of =
        |id: &str| history.as_array().unwrap().iter().find(|fact| fact["fact_id"] == id).unwrap().clone();
    assert_eq!(of(&outdated)["superseded_by"], turn.memory[0].fact_id);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_setting_nothing_is_remembered() {
    let fixture = Fixture::new().await;
    let (api, workflow) = (fixture.api(), fixture.manual_workflow().await);
    fixture.settle("helper", json!({})).await;
    thread_of(&fixture, "talk", "ann").await;
    let given = json!({"text": "The user is called Ann", "user_id": "ann"});
    api.call("POST", "/v1/agents/helper/memory", Some(&given)).await.unwrap();
    api.say("talk", "What is the user called?").await.unwrap();
    let asked = workflow.next(SOON).await.unwrap();
    assert!(asked.request.memory.is_empty() && !asked.raw.as_object().unwrap().contains_key("memory"));
    asked.answer("I do not know").await.unwrap();
    fixture.until_messages("talk", 2).await;
    fixture.no_request_comes(&workflow).await;
    let context = api.call("GET", "/v1/threads/talk/context", None).await.unwrap();
    assert_eq!(context["memory"], Value::Null);
    for bad in [
        json!({"text": " "}),
        json!({"text": "x", "kind": "No Kind"}),
        json!({"text": "x", "confidence": 2}),
        json!({"text": "x", "user_id": "a", "thread_id": "t"}),
    ] {
        let refused = api.send("POST", "/v1/agents/helper/memory", Some(&bad), &[]).await.unwrap();
        assert_eq!(
            (refused.status, &refused.json().unwrap()["code"]),
            (400, &json!("invalid_fact")),
            "{bad}"
        );
    }
    let refused = api.send("GET", "/v1/agents/helper/memory?q=x", None, &[]).await.unwrap();
    assert_eq!((refused.status, &refused.json().unwrap()["code"]), (400, &json!("invalid_query")));
}

/// The data of the events that list remembered facts.
fn shown(follower: &Follower) -> Vec<Value> {
    let of = |event: &StreamEvent| match event {
        StreamEvent::Other { name: Some(name), data } if name == "remembered" => {
            serde_json::from_str(data).ok()
        }
        _ => None,
    };
    follower.inspect(|transcripts| {
        transcripts.iter().flat_map(|one| &one.events).filter_map(|received| of(&received.event)).collect()
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn people_see_what_was_remembered_and_take_it_back() {
    let fixture = Fixture::new().await;
    let (api, workflow) = (fixture.api(), fixture.manual_workflow().await);
    fixture.settle("helper", json!({"memory": true})).await;
    thread_of(&fixture, "first", "ann").await;
    let follower = fixture.following("first").await;
    api.say("first", "I live in Bern").await.unwrap();
    let lives = |city: &str| json!({"text": format!("The user lives in {city}"), "kind": "place"});
    let (turn, _) = answered(&workflow, "Nice", &json!([lives("Bern"), {"text": "Bern is near Thun"}])).await;
    fixture.until("the event has come", SOON, async || shown(&follower).len() == 1).await;
    let event = shown(&follower).remove(0);
    let answer = turn.message_id.as_str();
    let question = format!("{}-q", turn.turn_id);
    let fact = |number: usize, text: &str, kind: &str| {
        let id = format!("{answer}-f{number}");
        let undo = json!({"method": "DELETE", "path": format!("/v1/agents/helper/memory/{id}?restore=true")});
        json!({"fact_id": id, "agent_id": "helper", "text": text, "kind": kind, "source_message_id": question, "undo": undo})
    };
    let facts = json!([fact(0, "The user lives in Bern", "place"), fact(1, "Bern is near Thun", "note")]);
    assert_eq!(
        event,
        json!({"thread_id": "first", "message_id": answer, "turn_id": turn.turn_id, "facts": facts})
    );
    // Clients that were disconnected find the same with the answer.
    let history = async || api.history("first").await.unwrap();
    let batch = async || {
        let id = history().await[0]["batch_id"].as_str().unwrap().to_owned();
        let whole = api.call("GET", &format!("/v1/threads/first/batches/{id}"), None).await.unwrap();
        whole["messages"].as_array().unwrap().clone()
    };
    for messages in [history().await, batch().await] {
        assert_eq!((&messages[0]["message_id"], messages[0].get("remembered")), (&json!(question), None));
        assert_eq!((&messages[1]["message_id"], &messages[1]["remembered"]), (&json!(answer), &facts));
    }

    // A later turn corrects the fact. If the correction is undone, the replaced fact counts again.
    api.say("first", "Now I live in Oslo").await.unwrap();
    workflow.next(SOON).await.unwrap().answer("Oh").await.unwrap();
    let noting = workflow.next(SOON).await.unwrap();
    let mut moved = lives("Oslo");
    moved["supersedes"] = json!([format!("{answer}-f0")]);
    noting.answer(&json!({ "facts": [moved] }).to_string()).await.unwrap();
    fixture.until("the second event has come", SOON, async || shown(&follower).len() == 2).await;
    let messages = history().await;
    assert_eq!(messages[1]["remembered"], json!([facts[1]]), "what is replaced does not count");
    assert_eq!(messages[3]["remembered"][0]["text"], "The user lives in Oslo");
    let undo = &messages[3]["remembered"][0]["undo"];
    let (method, path) = (undo["method"].as_str().unwrap(), undo["path"].as_str().unwrap());
    let undone = api.send(method, path, None, &[]).await.unwrap();
    assert_eq!(undone.status, 204, "{}", undone.text);
    let messages = history().await;
    assert_eq!((&messages[1]["remembered"], messages[3].get("remembered")), (&facts, None));
    let wrong = path.replace("restore=true", "restore=maybe");
    assert_eq!(api.send(method, &wrong, None, &[]).await.unwrap().status, 400);
    assert_eq!(api.send(method, path, None, &[]).await.unwrap().status, 404);
}

/// An operator forgets a fact between a turn that was given it and the memory task of that turn.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_turn_was_given_is_not_remembered_again() {
    let fixture = Fixture::new().await;
    let (api, workflow) = (fixture.api(), fixture.manual_workflow().await);
    fixture.settle("helper", json!({"memory": true})).await;
    thread_of(&fixture, "first", "ann").await;
    let mut ids = Vec::new();
    for given in [
        json!({"text": "Ann has a boat", "user_id": "ann"}),
        // A fact for all users does not become the user's.
        json!({"text": "Offer thirty percent"}),
    ] {
        let fact = api.call("POST", "/v1/agents/helper/memory", Some(&given)).await.unwrap();
        ids.push(fact["fact_id"].as_str().unwrap().to_owned());
    }
    api.say("first", "What do I have?").await.unwrap();
    let turn = workflow.next(SOON).await.unwrap();
    let mut given = remembered(&turn.request);
    given.sort_unstable();
    assert_eq!(given, ["Ann has a boat", "Offer thirty percent"]);
    turn.answer("Ann has a boat").await.unwrap();
    let noting = workflow.next(SOON).await.unwrap();
    api.send("DELETE", &format!("/v1/agents/helper/memory/{}", ids[0]), None, &[]).await.unwrap();
    let found = json!({ "facts": [
        {"text": "Ann has a boat."}, {"text": "offer thirty percent"}, {"text": "Ann asks what she has"},
    ] });
    noting.answer(&found.to_string()).await.unwrap();
    fixture.until_tasks("helper+memory", &["completed"]).await;
    let page = api.call("GET", "/v1/agents/helper/memory?superseded=true", None).await.unwrap();
    let texts: Vec<&Value> = page["facts"].as_array().unwrap().iter().map(|fact| &fact["text"]).collect();
    assert_eq!(texts, ["Ann asks what she has", "Offer thirty percent"]);
    fixture
        .until("repeated facts are counted", SOON, async || {
            fixture.metric("antiphon_worker_repeated_facts_total").await == 2.0
        })
        .await;
}
