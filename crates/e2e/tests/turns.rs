//! Turns with people: complete or not at all, failed ones kept, one at a time in a thread.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use serde_json::{Value, json};
use testkit::{
    api::{AcceptedTurn, Api},
    db_snapshot::turns,
    http::{self, HttpRequest},
    sse::{Parser, SseItem, StreamEvent},
    turn_events,
};
use tokio::time::sleep;

use crate::{
    api_client::{
        A_WHILE, SOON, alone, asked_for, events, events_until, said, scripted, text_seen, until_ended,
    },
    fixture::Fixture,
};

/// Reads the history continually; panics on an incomplete batch.
async fn watch_for_halves(
    api: Api,
    thread: String,
    size: usize,
    stop: Arc<AtomicBool>,
    looks: Arc<AtomicUsize>,
) {
    while !stop.load(Ordering::Relaxed) {
        let Ok(messages) = api.history(&thread).await else { continue };
        assert_eq!(messages.len() % size, 0, "half a turn is shown: {messages:?}");
        for turn in messages.chunks(size) {
            let batch = &turn[0]["batch_id"];
            assert_eq!((&turn[0]["role"], &turn[0]["position"]), (&json!("user"), batch));
            assert!(turn.iter().all(|message| message["batch_id"] == *batch), "{turn:?}");
            assert_eq!(turn[size - 1]["role"], "assistant");
        }
        looks.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_with_tools_appears_whole_in_one_transaction() {
    /// The messages of these turns fit on a page of the history, which is read concurrently.
    const TURNS: usize = 40;
    /// Messages of a turn: input, calls, two results, answer.
    const SIZE: usize = 5;
    let fixture = Fixture::with(scripted).await;
    let follower = fixture.following("talk").await;
    let (stop, looks) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let watching = watch_for_halves(fixture.api(), "talk".into(), SIZE, stop.clone(), looks.clone());
    let watching = tokio::spawn(watching);
    let mut asked = Vec::new();
    for number in 0..TURNS {
        asked.push(fixture.api().say("talk", &format!("tools {number}")).await.unwrap());
    }
    let messages = fixture.until_messages("talk", TURNS * SIZE).await;
    follower.wait(SOON, |progress| progress.terminals == TURNS).await.unwrap();
    stop.store(true, Ordering::Relaxed);
    watching.await.unwrap();
    assert!(looks.load(Ordering::Relaxed) > 20, "the history was read too seldom to say anything");
    assert_eq!(messages.len(), TURNS * SIZE);
    let mut parent = None;
    for (number, (turn, rows)) in asked.iter().zip(messages.chunks(SIZE)).enumerate() {
        let (id, answer) = (&turn.id, &turn.answer);
        let ids: Vec<_> = rows.iter().map(|row| row.message_id.as_str()).collect();
        let wanted = [
            format!("{id}-q"),
            format!("{answer}-s0"),
            format!("{answer}-s0-r1"),
            format!("{answer}-s0-r2"),
            answer.clone(),
        ];
        assert_eq!(ids, wanted);
        let input = format!("tools {number}");
        let (said_before, heard) = ("Let me look.", format!("You said: {input}"));
        let texts = [
            ("user", &*input),
            ("assistant", said_before),
            ("tool", "noon"),
            ("tool", "blue"),
            ("assistant", &heard),
        ];
        assert_eq!(said(rows), texts);
        let calls = rows[1].tool_calls.as_ref().unwrap();
        let results = [rows[2].tool_call_id.as_deref(), rows[3].tool_call_id.as_deref()];
        assert_eq!([calls[0]["id"].as_str(), calls[1]["id"].as_str()], results);
        for (sequence_num, row) in rows.iter().enumerate() {
            assert_eq!(row.batch_id, rows[0].position);
            assert_eq!(usize::try_from(row.sequence_num).unwrap(), sequence_num);
            assert_eq!(row.batch_type, "user_request");
            assert_eq!(row.transaction, rows[0].transaction, "one transaction");
            assert_eq!(row.parent_id, parent);
            parent = Some(row.position);
        }
        assert_eq!(text_seen(&follower, answer), format!("Let me look.{heard}"));
    }
    // The order of reads does not matter: the thread's answers came one after another.
    let ends: Vec<_> =
        events(&follower).iter().filter_map(|event| event.terminal().map(str::to_owned)).collect();
    assert_eq!(ends, asked.iter().map(|turn| turn.answer.clone()).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn lines_of_the_log_about_a_turn_bear_its_correlation_id() {
    let fixture = Fixture::with(scripted).await;
    let body = json!({"content": "fails-once please"});
    fixture.api().say_with("talk", &body, &[("x-correlation-id", "trace-7f3a")]).await.unwrap();
    fixture.until_failed("talk", 1).await;
    let has = |log: &std::path::Path, line: &str| {
        let text = std::fs::read_to_string(log).unwrap();
        text.lines().any(|of| of.contains(line) && of.contains("trace-7f3a"))
    };
    assert!(has(fixture.fleet.workers[0].log(), "a run of a turn failed"), "{}", fixture.fleet.log_tails());
    assert!(has(fixture.fleet.workflows[0].log(), "turn failed"), "{}", fixture.fleet.log_tails());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_brings_the_history_and_nothing_of_a_failed_turn() {
    let fixture = Fixture::with(alone).await;
    let manual_workflow = fixture.manual_workflow().await;
    fixture.settle("talk", json!({"system": "Be brief.", "temperature": 0.5})).await;
    let first = fixture.api().say("talk", "one").await.unwrap();
    asked_for(&manual_workflow, &first).await.answer("1").await.unwrap();
    fixture.until_messages("talk", 2).await;
    let lost = fixture.api().say("talk", "lost").await.unwrap();
    asked_for(&manual_workflow, &lost).await.fail("no", json!({"retryable": false})).await.unwrap();
    fixture.until_failed("talk", 1).await;
    let body = json!({"content": "two", "metadata": {"from": "a test"}});
    let answer = fixture.api().say_with("talk", &body, &[("x-correlation-id", "c-1")]).await.unwrap();
    let second = AcceptedTurn::read(&answer.json().unwrap()).unwrap();
    let asked = asked_for(&manual_workflow, &second).await;
    let request = &asked.request;
    let context: Vec<_> =
        request.context.iter().map(|message| (message.role.as_str(), message.content.as_str())).collect();
    assert_eq!(context, [("user", "one"), ("assistant", "1"), ("user", "two")]);
    assert_eq!(request.context[2].message_id, second.input);
    assert_eq!(Value::Object(request.context[2].metadata.clone()), json!({"from": "a test"}));
    assert_eq!((request.run, request.attempt, asked.attempt), (0, 0, 0));
    assert_eq!((request.agent_id.as_str(), request.thread_id.as_str()), ("talk", "talk"));
    assert_eq!((request.deadline_ms, request.task.as_ref()), (120_000, None));
    assert_eq!(request.settings["system"], "Be brief.");
    assert_eq!(request.settings["temperature"], 0.5);
    assert_eq!(request.correlation_id.as_deref(), Some("c-1"));
    assert!(request.turn_token.len() >= 32);
    asked.answer("2").await.unwrap();
    let messages = fixture.until_messages("talk", 4).await;
    assert_eq!(said(&messages), [("user", "one"), ("assistant", "1"), ("user", "two"), ("assistant", "2")]);
    assert_eq!(messages[2].metadata, json!({"from": "a test", "correlation_id": "c-1"}));
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_turn_leaves_its_input_and_can_be_retried() {
    let fixture = Fixture::with(scripted).await;
    let follower = fixture.following("talk").await;
    let turn = fixture.api().say("talk", "fails-once please").await.unwrap();
    until_ended(&follower, &turn.answer).await;
    let end = events(&follower).into_iter().find(|event| event.terminal().is_some()).unwrap();
    let StreamEvent::Failed { code, text, .. } = end else { panic!("{end:?}") };
    assert_eq!((code.as_str(), text.contains("a transient failure by script")), ("scripted", true), "{text}");
    assert_eq!(fixture.messages_of("talk").await.len(), 0, "nothing is in the history");
    let failed = turns::failed_turns(&fixture.pool).await.unwrap();
    assert_eq!(failed.len(), 1);
    let kept = &failed[0];
    assert_eq!((kept.turn_id.as_str(), kept.content.as_str()), (turn.id.as_str(), "fails-once please"));
    assert_eq!((kept.run, kept.is_retryable, kept.agent_id.as_str()), (0, true, "default"));
    let shown = fixture.api().failed_turns("talk").await.unwrap();
    assert_eq!((&shown[0]["turn_id"], &shown[0]["content"]), (&json!(turn.id), &json!("fails-once please")));
    let path = format!("/v1/turns/{}", turn.id);
    assert_eq!(fixture.api().call("GET", &path, None).await.unwrap()["state"], "failed");
    let again = fixture.api().retry_turn("talk", &turn.id).await.unwrap();
    assert_eq!(
        (again.id.as_str(), again.run, again.answer),
        (turn.id.as_str(), 1, format!("{}-a1", turn.id))
    );
    let messages = fixture.until_messages("talk", 2).await;
    assert_eq!(
        said(&messages),
        [("user", "fails-once please"), ("assistant", "I try. You said: fails-once please")]
    );
    assert_eq!(messages[1].message_id, format!("{}-a1", turn.id));
    assert_eq!(messages[0].transaction, messages[1].transaction);
    assert_eq!(turns::failed_turns(&fixture.pool).await.unwrap().len(), 0);
    let acts = turns::acts(&fixture.pool, "talk").await.unwrap();
    let retries: Vec<_> = acts.iter().filter(|act| act.action == "retry_turn").collect();
    assert_eq!(retries.len(), 1);
    assert_eq!((retries[0].actor.as_str(), retries[0].target.as_deref()), ("api", Some(turn.id.as_str())));
    let answer = format!("{}-a1", turn.id);
    until_ended(&follower, &answer).await;
    assert_eq!(text_seen(&follower, &answer), "I try. You said: fails-once please");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_turn_can_be_dropped_once() {
    let fixture = Fixture::with(scripted).await;
    let turn = fixture.api().say("talk", "fails-for-good").await.unwrap();
    assert_eq!(fixture.until_failed("talk", 1).await, [("scripted".to_owned(), 0)]);
    assert!(!turns::failed_turns(&fixture.pool).await.unwrap()[0].is_retryable);
    let path = format!("/v1/threads/talk/failed-turns/{}", turn.id);
    let dropped = fixture.api().send("DELETE", &path, None, &[("x-antiphon-actor", "ada")]).await.unwrap();
    assert_eq!((dropped.status, &dropped.json().unwrap()["status"]), (200, &json!("done")));
    assert_eq!(turns::failed_turns(&fixture.pool).await.unwrap().len(), 0);
    let again = fixture.api().send("DELETE", &path, None, &[]).await.unwrap();
    assert_eq!((again.status, again.json().unwrap()["code"].clone()), (404, json!("unknown_failed_turn")));
    let retry = fixture.api().send("POST", &format!("{path}/retry"), None, &[]).await.unwrap();
    assert_eq!(retry.status, 404);
    let acts = turns::acts(&fixture.pool, "talk").await.unwrap();
    let drops: Vec<_> = acts.iter().filter(|act| act.action == "drop_failed_turn").collect();
    assert_eq!(drops.len(), 1);
    assert_eq!((drops[0].actor.as_str(), drops[0].target.as_deref()), ("ada", Some(turn.id.as_str())));
    assert!(drops[0].age_ms < 30_000.0 && drops[0].error.is_none());
    assert_eq!(fixture.messages_of("talk").await.len(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn background_tasks_run_once_and_name_the_answer() {
    let mut fixture = Fixture::with(scripted).await;
    fixture.settle("ann", json!({"work_request": true, "memory": true})).await;
    fixture.api().create_thread(&json!({"thread_id": "talk", "agent_id": "ann"})).await.unwrap();
    let turn = fixture.api().say("talk", "hello").await.unwrap();
    let talk = fixture.until_messages("talk", 2).await;
    let queues = ["ann+work_request", "ann+memory"];
    for queue in queues {
        fixture.until_tasks(queue, &["completed"]).await;
    }
    // An owner that dies before it has recorded that the outbox is published publishes it again.
    fixture.fleet.workers[0].kill().await.unwrap();
    fixture.fleet.workers[0].restart().await.unwrap();
    fixture.until_settled().await;
    sleep(A_WHILE).await;
    let mut tasks = fixture.tasks_of(queues[0]).await;
    tasks.extend(fixture.tasks_of(queues[1]).await);
    let ids: Vec<_> = tasks.iter().map(|task| (task.task_id.clone(), task.kind.as_str())).collect();
    assert_eq!(
        ids,
        [(format!("{}-work", turn.id), "work_request"), (format!("{}-memory", turn.id), "memory")]
    );
    for task in &tasks {
        assert_eq!(task.status, "completed");
        assert_eq!(task.metadata["assistant_message_id"], json!(talk[1].message_id));
        assert_eq!(task.metadata["thread_id"], "talk");
        assert_eq!(task.metadata["turn_id"], json!(turn.id));
        assert_eq!(task.metadata["batch_id"], json!(talk[0].batch_id.to_string()));
        let said = format!("user: hello\nassistant: {}\n", talk[1].content);
        assert!(task.content.ends_with(&said), "it carries the turn: {}", task.content);
    }
    for (queue, kind) in queues.into_iter().zip(["work_request", "memory"]) {
        let own = fixture.messages_of(queue).await;
        assert_eq!(own.len(), 2, "each ran once, in a thread of its own");
        assert_eq!(own[0].metadata["assistant_message_id"], json!(turn.answer));
        assert_eq!(own[0].metadata["trigger_type"], kind);
        assert_eq!(own[0].batch_type, "system_trigger");
    }
    assert!(fixture.messages_of("ann").await.is_empty(), "nothing of it is in the agent's thread");
    assert_eq!(fixture.messages_of("talk").await.len(), 2, "nor in the one that it comes from");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_thread_queues_rejects_is_interrupted_or_taken_back() {
    let fixture = Fixture::with(alone).await;
    let manual_workflow = fixture.manual_workflow().await;
    let api = fixture.api();
    api.create_thread(&json!({"thread_id": "talk"})).await.unwrap();
    let say = async |content: &str, policy: &str| {
        let body = json!({"content": content, "busy_policy": policy});
        api.say_with("talk", &body, &[]).await.unwrap()
    };
    let read = |answer: testkit::http::TextResponse| AcceptedTurn::read(&answer.json().unwrap()).unwrap();
    // Enqueue: the second waits for the first.
    let first = read(say("first", "enqueue").await);
    let asked = asked_for(&manual_workflow, &first).await;
    let second = read(say("second", "enqueue").await);
    fixture.no_request_comes(&manual_workflow).await;
    let thread = api.thread("talk").await.unwrap();
    assert_eq!(
        (&thread["active_turn"]["turn_id"], &thread["waiting_turns"][0]["turn_id"]),
        (&json!(first.id), &json!(second.id))
    );
    // Reject: refused with a reason, and nothing of it is kept.
    let refused = say("refused", "reject").await;
    assert_eq!((refused.status, refused.json().unwrap()["code"].clone()), (409, json!("thread_busy")));
    assert_eq!(
        (refused.json().unwrap()["retryable"].clone(), refused.header("retry-after")),
        (json!(true), Some("1"))
    );
    asked.answer("1").await.unwrap();
    let mut asked = asked_for(&manual_workflow, &second).await;
    // Interrupt: the received part of the second is kept, and the third comes before a fourth that
    // waited.
    asked.say("half of ").await.unwrap();
    asked.say("2").await.unwrap();
    let mut stops = manual_workflow.stops(&asked).await.unwrap();
    let fourth = read(say("fourth", "enqueue").await);
    let third = read(say("third", "interrupt").await);
    let stop = tokio::time::timeout(SOON, futures_util::StreamExt::next(&mut stops)).await;
    assert!(stop.is_ok_and(|stop| stop.is_some()), "the workflow gets a cancel notice");
    let mut third_asked = asked_for(&manual_workflow, &third).await;
    asked.finish(" and too late").await.unwrap();
    // Rollback: only the input of the third stays, as a failed turn.
    third_asked.say("not for long").await.unwrap();
    let fifth = read(say("fifth", "rollback").await);
    asked_for(&manual_workflow, &fifth).await.answer("5").await.unwrap();
    asked_for(&manual_workflow, &fourth).await.answer("4").await.unwrap();
    let messages = fixture.until_messages("talk", 8).await;
    let expected = [
        ("user", "first"),
        ("assistant", "1"),
        ("user", "second"),
        ("assistant", "half of 2"),
        ("user", "fifth"),
        ("assistant", "5"),
        ("user", "fourth"),
        ("assistant", "4"),
    ];
    assert_eq!(said(&messages), expected);
    assert_eq!(messages[3].metadata["stopped"], json!(true));
    assert_eq!(fixture.until_failed("talk", 1).await, [("rolled_back".to_owned(), 0)]);
    let kept = &turns::failed_turns(&fixture.pool).await.unwrap()[0];
    assert_eq!(
        (kept.turn_id.as_str(), kept.content.as_str(), kept.is_retryable),
        (third.id.as_str(), "third", true)
    );
}

/// If the owner does not answer, the gateway sends a message that should be rejected, and the owner
/// rejects it.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_owner_rejects_becomes_a_failed_turn() {
    let fixture = Fixture::with(alone).await;
    let manual_workflow = fixture.manual_workflow().await;
    let first = fixture.api().say("talk", "first").await.unwrap();
    let asked = asked_for(&manual_workflow, &first).await;
    fixture.fleet.workers[0].pause();
    let body = json!({"content": "second", "busy_policy": "reject"});
    let second = fixture.api().say_with("talk", &body, &[]).await.unwrap();
    fixture.fleet.workers[0].resume();
    assert_eq!(second.status, 202);
    assert_eq!(fixture.until_failed("talk", 1).await, [("busy".to_owned(), 0)]);
    asked.answer("1").await.unwrap();
    assert_eq!(said(&fixture.until_messages("talk", 2).await), [("user", "first"), ("assistant", "1")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn idempotency_key_is_one_turn_for_one_input() {
    let fixture = Fixture::with(alone).await;
    let manual_workflow = fixture.manual_workflow().await;
    let api = fixture.api();
    let say = async |thread: &str, content: &str, key: &str| {
        api.say_with(thread, &json!({"content": content}), &[("idempotency-key", key)]).await.unwrap()
    };
    let at_once = futures_util::future::join_all((0..8).map(|_| say("talk", "hello", "k-1"))).await;
    let turns_made: Vec<_> =
        at_once.iter().map(|answer| AcceptedTurn::read(&answer.json().unwrap()).unwrap()).collect();
    assert!(turns_made.iter().all(|turn| *turn == turns_made[0]), "{turns_made:?}");
    let asked = asked_for(&manual_workflow, &turns_made[0]).await;
    let other = say("talk", "hello!", "k-1").await;
    assert_eq!((other.status, other.json().unwrap()["code"].clone()), (422, json!("idempotency_key_reused")));
    asked.answer("hi").await.unwrap();
    fixture.until_messages("talk", 2).await;
    let late = say("talk", "hello", "k-1").await;
    assert_eq!(
        (late.status, AcceptedTurn::read(&late.json().unwrap()).unwrap()),
        (202, turns_made[0].clone())
    );
    fixture.no_request_comes(&manual_workflow).await;
    let elsewhere = AcceptedTurn::read(&say("other", "hello", "k-1").await.json().unwrap()).unwrap();
    assert_ne!(elsewhere.id, turns_made[0].id);
    asked_for(&manual_workflow, &elsewhere).await.answer("hi").await.unwrap();
    fixture.until_messages("other", 2).await;
    assert_eq!(fixture.messages_of("talk").await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_turn_keeps_its_text_and_frees_the_thread() {
    let fixture = Fixture::with(alone).await;
    let manual_workflow = fixture.manual_workflow().await;
    let follower = fixture.following("talk").await;
    let turn = fixture.api().say("talk", "tell me").await.unwrap();
    let mut asked = asked_for(&manual_workflow, &turn).await;
    let mut stops = manual_workflow.stops(&asked).await.unwrap();
    asked.say("Once upon").await.unwrap();
    let call = json!({"chunk_type": "tool_call", "metadata": {"tool_call_id": "c1", "tool_name": "clock"}});
    asked.say_with("{}", call).await.unwrap();
    follower.wait(SOON, |progress| progress.events >= 2).await.unwrap();
    let waiting = fixture.api().say("talk", "and then").await.unwrap();
    let stopped = fixture.api().stop(&turn.id).await.unwrap();
    assert_eq!((&stopped["status"], &stopped["error"]), (&json!("done"), &Value::Null));
    let cancel = tokio::time::timeout(SOON, futures_util::StreamExt::next(&mut stops)).await;
    assert!(cancel.is_ok_and(|cancel| cancel.is_some()), "the workflow gets a cancel notice");
    let next = asked_for(&manual_workflow, &waiting).await;
    // Later chunks of the first workflow are ignored.
    asked.finish(" a time").await.unwrap();
    next.answer("the end").await.unwrap();
    let messages = fixture.until_messages("talk", 6).await;
    let expected = [
        ("user", "tell me"),
        ("assistant", "Once upon"),
        ("tool", ""),
        ("assistant", ""),
        ("user", "and then"),
        ("assistant", "the end"),
    ];
    assert_eq!(said(&messages), expected);
    assert_eq!(
        (messages[2].tool_call_id.as_deref(), &messages[2].metadata["stopped"]),
        (Some("c1"), &json!(true))
    );
    assert_eq!(messages[3].metadata["stopped"], json!(true));
    assert_eq!(messages[3].message_id, turn.answer);
    assert!(messages[..4].iter().all(|message| message.transaction == messages[0].transaction));
    until_ended(&follower, &waiting.answer).await;
    assert_eq!(text_seen(&follower, &turn.answer), "Once upon");
    // The end of the answer says that it was stopped, both live and for a client that resumes from
    // an earlier event.
    let path = "/v1/threads/talk/events?after=0";
    for seen in [events(&follower), events_until(fixture.api(), path, &waiting.answer).await] {
        let ends: Vec<_> = seen.iter().filter(|event| event.terminal().is_some()).collect();
        let is_stopped = |event: &StreamEvent| match event {
            StreamEvent::Complete { is_stopped, .. } => Some(*is_stopped),
            _ => None,
        };
        let ends: Vec<_> = ends.iter().map(|end| (end.terminal(), is_stopped(end))).collect();
        let expected = [(Some(&*turn.answer), Some(true)), (Some(&*waiting.answer), Some(false))];
        assert_eq!(ends, expected, "{seen:?}");
    }
    fixture
        .until("the late chunk is counted", SOON, async || {
            fixture.metric("antiphon_worker_fenced_chunks_total").await == 1.0
        })
        .await;
    let again = fixture.api().send("POST", &format!("/v1/turns/{}/stop", turn.id), None, &[]).await.unwrap();
    assert_eq!((again.status, again.json().unwrap()["code"].clone()), (409, json!("turn_ended")));
    let acts = turns::acts(&fixture.pool, "talk").await.unwrap();
    let stops: Vec<_> = acts.iter().filter(|act| act.action == "stop_turn").collect();
    assert_eq!((stops.len(), stops[0].target.as_deref()), (1, Some(turn.id.as_str())));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_waits_can_be_stopped_and_is_kept_as_failed() {
    let fixture = Fixture::with(alone).await;
    let manual_workflow = fixture.manual_workflow().await;
    let first = fixture.api().say("talk", "first").await.unwrap();
    let asked = asked_for(&manual_workflow, &first).await;
    let second = fixture.api().say("talk", "second").await.unwrap();
    assert_eq!(fixture.api().stop(&second.id).await.unwrap()["status"], json!("done"));
    assert_eq!(fixture.until_failed("talk", 1).await, [("stopped".to_owned(), 0)]);
    asked.answer("1").await.unwrap();
    fixture.until_messages("talk", 2).await;
    fixture.no_request_comes(&manual_workflow).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_may_be_answered_in_line() {
    let fixture = Fixture::with(scripted).await;
    fixture.api().say("talk", "before").await.unwrap();
    let headers =
        [("accept", "text/event-stream"), ("content-type", "application/json"), ("idempotency-key", "k")];
    let (path, body) = ("/v1/threads/talk/messages", json!({"content": "tools"}).to_string());
    let request = HttpRequest { method: "POST", path, headers: &headers, body: body.as_bytes() };
    let mut response = http::begin(fixture.api().0, request).await.unwrap();
    let turn = response.header("x-antiphon-turn").unwrap().to_owned();
    assert_eq!(
        (response.status, response.header("content-type")),
        (200, Some("text/event-stream; charset=utf-8"))
    );
    let mut bytes = Vec::new();
    // The end of the message ends the body in order, without a cut.
    while response.body.read(&mut bytes).await.unwrap() > 0 {}
    let items = Parser::default().feed(&bytes);
    let events: Vec<_> = items
        .into_iter()
        .filter_map(|item| match item {
            SseItem::Event { name, data, .. } => Some(StreamEvent::read(name.as_deref(), &data)),
            SseItem::Comment(_) => None,
        })
        .collect();
    let of_turn = |event: &&StreamEvent| match event {
        StreamEvent::Chunk(chunk) => chunk.message.starts_with(&turn) && chunk.kind == "content",
        _ => false,
    };
    let text: String = events
        .iter()
        .filter(of_turn)
        .map(|event| match event {
            StreamEvent::Chunk(chunk) => chunk.text.as_str(),
            _ => "",
        })
        .collect();
    assert_eq!(text, "Let me look.You said: tools");
    let last = events.last().unwrap();
    assert!(
        matches!(last, StreamEvent::Complete { message, .. } if *message == format!("{turn}-a")),
        "{last:?}"
    );
    assert_eq!(fixture.messages_of("talk").await.len(), 7, "the end comes after the commit");
}

#[tokio::test(flavor = "multi_thread")]
async fn continued_batch_keeps_numbering_under_any_owner() {
    let mut fixture = Fixture::with(scripted).await;
    fixture.api().say("talk", "hello").await.unwrap();
    let first = fixture.until_messages("talk", 2).await;
    let batch = first[0].batch_id;
    fixture.api().say("talk", "in between").await.unwrap();
    fixture.until_messages("talk", 4).await;
    fixture.fleet.workers[0].restart().await.unwrap();
    let body = json!({"content": "tools and on", "metadata": {"continues": batch.to_string()}});
    let answer = fixture.api().say_with("talk", &body, &[]).await.unwrap();
    let turn = AcceptedTurn::read(&answer.json().unwrap()).unwrap();
    let messages = fixture.until_messages("talk", 9).await;
    let placed: Vec<_> =
        messages.iter().map(|message| (message.batch_id == batch, message.sequence_num)).collect();
    let wanted =
        [(true, 0), (true, 1), (false, 0), (false, 1), (true, 2), (true, 3), (true, 4), (true, 5), (true, 6)];
    assert_eq!(placed, wanted);
    assert!(messages[4..].iter().all(|message| message.batch_type == "continuation"));
    assert!(messages[4..].iter().all(|message| message.transaction == messages[4].transaction));
    fixture.until_settled().await;
    let ends = turn_events::all(fixture.publisher.context()).await.unwrap();
    let end = ends.iter().find(|end| end.said.turn_id == turn.id).unwrap();
    assert_eq!(end.said.batch_id, Some(batch.to_string()), "the event for integrators names that batch");
    // An unknown batch cannot be continued.
    let body = json!({"content": "hello", "metadata": {"continues": "1"}});
    fixture.api().say_with("talk", &body, &[]).await.unwrap();
    let messages = fixture.until_messages("talk", 11).await;
    assert_eq!((messages[9].batch_id, messages[9].sequence_num), (messages[9].position, 0));
    assert_eq!((messages[10].batch_id, messages[10].sequence_num), (messages[9].position, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_first_turn_is_listed_while_running_and_after() {
    let fixture = Fixture::with(alone).await;
    let (api, manual_workflow) = (fixture.api(), fixture.manual_workflow().await);
    let get = async |path: &str| api.call("GET", path, None).await.unwrap();
    let turn = api.say("talk", "hello").await.unwrap();
    let path = format!("/v1/turns/{}", turn.id);
    let mut asked = asked_for(&manual_workflow, &turn).await;
    for (list, name) in [("history", "messages"), ("audit", "entries"), ("failed-turns", "failed_turns")] {
        assert_eq!(get(&format!("/v1/threads/talk/{list}")).await[name], json!([]), "{list}");
    }
    let open = get("/v1/threads/talk/batches").await["batches"].clone();
    assert_eq!((open.as_array().unwrap().len(), &open[0]["state"]), (1, &json!("open")), "{open}");
    assert_eq!(get("/v1/threads/talk/context?format=openai").await["messages"], json!([]));
    let unknown = api.call("GET", "/v1/threads/missing/history", None).await.unwrap_err();
    assert!(unknown.to_string().contains("404"), "{unknown}");
    let second = api.say("talk", "and").await.unwrap();
    let waits = get(&format!("/v1/turns/{}", second.id)).await;
    assert_eq!((&waits["state"], &waits["waiting"]["reason"]), (&json!("waiting"), &json!("head_of_line")));
    asked.say("Half an ans").await.unwrap();
    fixture.until("the turn runs", SOON, async || get(&path).await["waiting"].is_null()).await;
    assert_eq!(get(&path).await["state"], "running");
    asked.fail("broken", json!({"retryable": false})).await.unwrap();
    asked.ack().await.unwrap();
    asked_for(&manual_workflow, &second).await.answer("fine").await.unwrap();
    fixture.until_messages("talk", 2).await;
    let failed = api.failed_turns("talk").await.unwrap();
    assert_eq!(failed[0]["partial"], "Half an ans");
    assert_eq!(get(&path).await["state"], "failed");
    let stored = get("/v1/threads/talk/batches").await["batches"].clone();
    assert_eq!((stored.as_array().unwrap().len(), &stored[0]["state"]), (1, &json!("complete")), "{stored}");
    let second = format!("/v1/turns/{}", second.id);
    assert_eq!(get(&second).await["state"], "completed");
    let late = api.call("POST", &format!("{second}/stop"), None).await.unwrap_err();
    assert!(late.to_string().contains("turn_ended"), "{late}");
}
