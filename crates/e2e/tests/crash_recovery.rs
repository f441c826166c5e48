//! Processes and servers that die during turns: every input ends, nothing happens twice, and
//! clients see only a pause.

use std::{collections::BTreeMap, time::Duration};

use serde_json::json;
use testkit::{
    api::{AcceptedTurn, Api},
    db_snapshot::turns,
    fleet::{Fleet, WorkflowOptions},
    services::{NatsServer, PostgresServer},
    sse::StreamEvent,
    turn_events::{self, StoredTurnEvent},
};
use tokio::time::sleep;

use crate::{
    api_client::{SOON, alone, asked_for, events, said, script, scripted, text_seen, until_ended},
    fixture::{Fixture, LEASE, options, pool},
};

#[tokio::test(flavor = "multi_thread")]
async fn killed_workflow_is_followed_by_another_attempt() {
    let service = || WorkflowOptions::script(script());
    let mut fixture = Fixture::with(|options| alone(options).with_workflow(service())).await;
    // An existing consumer is changed: unacknowledged requests are redelivered soon.
    let _consumer = fixture.manual_workflow_of("default", Duration::from_secs(2)).await;
    let follower = fixture.following("talk").await;
    let turn = fixture.api().say("talk", "slowly").await.unwrap();
    follower.wait(SOON, |progress| progress.events >= 3).await.unwrap();
    fixture.fleet.workflows[0].kill().await.unwrap();
    let another = fixture.fleet.add_workflow(&service()).unwrap();
    fixture.fleet.workflows[another].spawn().unwrap();
    until_ended(&follower, &turn.answer).await;
    let seen = events(&follower);
    let resets = seen.iter().filter(|event| matches!(event, StreamEvent::Reset { attempt: 1, .. })).count();
    assert_eq!(resets, 1, "{seen:?}");
    let text = "Slowly slowly and slowly and slowly";
    assert_eq!(text_seen(&follower, &turn.answer), text);
    let messages = fixture.messages_of("talk").await;
    assert_eq!(said(&messages), [("user", "slowly"), ("assistant", text)]);
    assert_eq!(messages[1].attempt, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn answer_survives_its_owner_without_a_second_request() {
    let mut fixture = Fixture::new().await;
    let manual_workflow = fixture.manual_workflow().await;
    // One turn has begun to be answered, another one not, and both owners die: one after the other.
    let follower = fixture.following("spoken").await;
    let spoken = fixture.api().say("spoken", "hello").await.unwrap();
    let mut answering = asked_for(&manual_workflow, &spoken).await;
    for text in ["one ", "two "] {
        answering.say(text).await.unwrap();
    }
    follower.wait(SOON, |progress| progress.events >= 2).await.unwrap();
    let silent = fixture.api().say("silent", "hello").await.unwrap();
    let thinking = asked_for(&manual_workflow, &silent).await;
    for thread in ["spoken", "silent"] {
        let owner = fixture.worker_of(thread).await;
        fixture.fleet.workers[owner].kill().await.unwrap();
        answering.say(&format!("without {thread} ")).await.unwrap();
        fixture
            .until("another worker owns it", LEASE * 2 + SOON, async || {
                fixture.worker_of(thread).await != owner
            })
            .await;
        fixture.fleet.workers[owner].spawn().unwrap();
    }
    let outputs = [answering.answer("three"), thinking.answer("at last")];
    for output in futures_util::future::join_all(outputs).await {
        output.unwrap();
    }
    until_ended(&follower, &spoken.answer).await;
    let text = "one two without spoken without silent three";
    assert_eq!(text_seen(&follower, &spoken.answer), text);
    assert!(
        !events(&follower).iter().any(|event| matches!(event, StreamEvent::Reset { .. })),
        "no second attempt"
    );
    assert_eq!(said(&fixture.until_messages("spoken", 2).await), [("user", "hello"), ("assistant", text)]);
    assert_eq!(
        said(&fixture.until_messages("silent", 2).await),
        [("user", "hello"), ("assistant", "at last")]
    );
    fixture.no_request_comes(&manual_workflow).await;
    assert_eq!(manual_workflow.standing().await.unwrap(), (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn model_request_survives_takeover_and_failure() {
    let mut fixture = Fixture::new().await;
    let manual_workflow = fixture.manual_workflow().await;
    let first = fixture.api().say("talk", "first").await.unwrap();
    let answering = asked_for(&manual_workflow, &first).await;
    let parameters = json!({"temperature": 0.5, "max_tokens": 7, "of_ours": {"a": [1]}});
    let body = json!({"content": "second", "parameters": parameters});
    let said = fixture.api().say_with("talk", &body, &[]).await.unwrap();
    let second = AcceptedTurn::read(&said.json().unwrap()).unwrap();
    let owner = fixture.worker_of("talk").await;
    fixture.fleet.workers[owner].kill().await.unwrap();
    fixture
        .until("another worker owns it", LEASE * 2 + SOON, async || fixture.worker_of("talk").await != owner)
        .await;
    fixture.fleet.workers[owner].spawn().unwrap();
    // The new owner sends the request again, with a higher attempt.
    answering.answer("one").await.unwrap();
    fixture.until_messages("talk", 2).await;
    let mut asked = asked_for(&manual_workflow, &second).await;
    assert_eq!(serde_json::Value::Object(asked.request.parameters.clone()), parameters);
    asked.fail("no", json!({})).await.unwrap();
    fixture.until_failed("talk", 1).await;
    let again = fixture.api().retry_turn("talk", &second.id).await.unwrap();
    let asked = asked_for(&manual_workflow, &again).await;
    assert_eq!(
        (asked.request.run, &serde_json::Value::Object(asked.request.parameters.clone())),
        (1, &parameters)
    );
    asked.answer("two").await.unwrap();
    let messages = fixture.until_messages("talk", 4).await;
    assert_eq!(messages[2].metadata, json!({}), "it is in no history");
}

/// The events in `TURNS`, by turn.
fn by_turn(ends: &[StoredTurnEvent]) -> BTreeMap<&str, Vec<&StoredTurnEvent>> {
    let mut all: BTreeMap<&str, Vec<&StoredTurnEvent>> = BTreeMap::new();
    for end in ends {
        all.entry(&end.said.turn_id).or_default().push(end);
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn integrators_hear_of_each_end_exactly_once() {
    let mut fixture = Fixture::with(scripted).await;
    fixture.settle("talk", json!({"backoff_base_ms": 1})).await;
    let api = fixture.api();
    let completed = api.say("talk", "hello").await.unwrap();
    let failed = api.say("talk", "fails-once").await.unwrap();
    fixture.until_failed("talk", 1).await;
    api.retry_turn("talk", &failed.id).await.unwrap();
    fixture.until_messages("talk", 4).await;
    let follower = fixture.following("talk").await;
    let stopped = api.say("talk", "slowly").await.unwrap();
    follower.wait(SOON, |progress| progress.events >= 1).await.unwrap();
    api.stop(&stopped.id).await.unwrap();
    fixture
        .send_tasks(
            "talk",
            [("done", "fails-twice"), ("lost", "fails-for-good")].map(|(id, text)| (id.into(), text.into())),
        )
        .await;
    fixture.until_tasks("talk", &["completed", "failed"]).await;
    fixture.until_settled().await;
    // The next owner publishes again, with the same ids, what may have been published already.
    fixture.fleet.workers[0].kill().await.unwrap();
    fixture.fleet.workers[0].restart().await.unwrap();
    fixture.until_settled().await;
    let ends = turn_events::all(fixture.publisher.context()).await.unwrap();
    let messages = fixture.messages_of("talk").await;
    let batch = |answer: &str| {
        let message = messages.iter().find(|message| message.message_id == answer);
        message.map(|message| message.batch_id.to_string())
    };
    let published: Vec<_> = by_turn(&ends)
        .into_iter()
        .map(|(turn, ends)| {
            (turn.to_owned(), ends.iter().map(|end| end.said.status.clone()).collect::<Vec<_>>())
        })
        .collect();
    let tasks = fixture.tasks_of("talk").await;
    let task_turn = |position: i64| format!("t{:04x}-{position}", model::Bucket::of_key("talk").get());
    let mut wanted = vec![
        (completed.id.clone(), vec!["completed".to_owned()]),
        (failed.id.clone(), vec!["failed".to_owned(), "completed".to_owned()]),
        (stopped.id.clone(), vec!["stopped".to_owned()]),
        (task_turn(tasks[0].position), vec!["completed".to_owned()]),
        (task_turn(tasks[1].position), vec!["failed".to_owned()]),
    ];
    wanted.sort();
    assert_eq!(published, wanted, "tries that are followed by another one are no ends");
    for end in &ends {
        let said = &end.said;
        assert_eq!(
            (end.subject.as_str(), said.thread_id.as_str(), said.agent_id.as_str()),
            ("turns.talk", "talk", "talk")
        );
        assert_eq!(said.code.is_some(), said.status == "failed");
        assert_eq!(said.message_id.is_some(), said.status != "failed");
        assert_eq!(said.batch_id, said.message_id.as_deref().and_then(batch), "{said:?}");
        let task = tasks.iter().find(|task| task_turn(task.position) == said.turn_id);
        assert_eq!(said.task_id, task.map(|task| task.task_id.clone()));
    }
    let mut ids: Vec<_> = ends.iter().map(|end| end.id.clone()).collect();
    ids.sort();
    ids.dedup();
    assert_eq!((ids.len(), ids.iter().any(String::is_empty)), (ends.len(), false));
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_and_postgres_may_be_killed_in_the_middle_of_fifty_turns() {
    const THREADS: usize = 10;
    const ROUNDS: usize = 5;
    let (nats, postgres) = (NatsServer::start().await.unwrap(), PostgresServer::start().await.unwrap());
    let options = options(&nats, postgres.url()).with_workflow(WorkflowOptions::script(script()));
    let fleet = Fleet::start(options).await.unwrap();
    let mut fixture = Fixture::on(fleet, nats, pool(postgres.url()).await, None).await;
    let mut followers = Vec::new();
    for thread in 0..THREADS {
        let thread = format!("talk-{thread}");
        followers.push(fixture.following(&thread).await);
    }
    let gateways = [fixture.api()];
    let people: Vec<_> = (0..THREADS).map(|thread| tokio::spawn(talk(gateways, thread, ROUNDS))).collect();
    sleep(Duration::from_millis(1_500)).await;
    fixture.nats.kill().await.unwrap();
    sleep(Duration::from_secs(2)).await;
    fixture.nats.restart().await.unwrap();
    sleep(Duration::from_secs(1)).await;
    postgres.kill().await.unwrap();
    sleep(Duration::from_secs(2)).await;
    postgres.restart().await.unwrap();
    fixture.pool = pool(postgres.url()).await;
    let mut asked: Vec<Vec<AcceptedTurn>> = Vec::new();
    for person in people {
        asked.push(person.await.unwrap());
    }
    let limit = Duration::from_secs(90);
    fixture
        .until("all turns have ended", limit, async || {
            let messages = turns::messages(&fixture.pool).await.unwrap_or_default().len();
            let failed = turns::failed_turns(&fixture.pool).await.unwrap_or_default().len();
            messages / 2 + failed == THREADS * ROUNDS
        })
        .await;
    assert_eq!(
        turns::failed_turns(&fixture.pool).await.unwrap().len(),
        0,
        "an outage is no failure of a turn"
    );
    for (thread, (turns, follower)) in asked.iter().zip(&followers).enumerate() {
        let messages = fixture.messages_of(&format!("talk-{thread}")).await;
        let ids: Vec<_> = messages.iter().map(|message| message.message_id.clone()).collect();
        let wanted: Vec<_> =
            turns.iter().flat_map(|turn| [turn.input.clone(), turn.answer.clone()]).collect();
        assert_eq!(ids, wanted, "each once, in the order of the inputs");
        for (turn, pair) in turns.iter().zip(messages.chunks(2)) {
            assert_eq!(pair[0].transaction, pair[1].transaction);
            until_ended(follower, &turn.answer).await;
        }
    }
    fixture.until_settled().await;
    let ends = turn_events::all(fixture.publisher.context()).await.unwrap();
    assert_eq!(
        (ends.len(), by_turn(&ends).len()),
        (THREADS * ROUNDS, THREADS * ROUNDS),
        "each was published once"
    );
}

/// Sends one input after another, each as often as it takes.
async fn talk(gateways: [Api; 1], thread: usize, rounds: usize) -> Vec<AcceptedTurn> {
    let mut turns = Vec::new();
    for round in 0..rounds {
        let (thread, body) = (format!("talk-{thread}"), json!({"content": format!("slowly {round}")}));
        let key = format!("round-{round}");
        let limit = Duration::from_secs(60);
        let turn = Api::say_until_taken(&gateways, &thread, &body, &key, limit).await.unwrap();
        turns.push(turn);
        sleep(Duration::from_millis(400)).await;
    }
    turns
}

/// A task whose failure was written by an owner that died before it could publish it.
#[tokio::test(flavor = "multi_thread")]
async fn backoff_survives_a_kill_before_the_next_try() {
    let mut fixture = Fixture::with(alone).await;
    let manual_workflow = fixture.manual_workflow().await;
    fixture.settle("ann", json!({"backoff_base_ms": 4_000, "backoff_cap_ms": 4_000})).await;
    fixture.send_tasks("ann", [("k".to_owned(), "do it".to_owned())]).await;
    let mut asked = manual_workflow.next(SOON).await.unwrap();
    asked.fail("later", json!({})).await.unwrap();
    asked.ack().await.unwrap();
    fixture
        .until("it is written", SOON, async || {
            turns::agent(&fixture.pool, "ann")
                .await
                .unwrap()
                .is_some_and(|agent| agent.backoff_attempt_count == 1)
        })
        .await;
    fixture.fleet.workers[0].kill().await.unwrap();
    let stored = turns::agent(&fixture.pool, "ann").await.unwrap().unwrap();
    fixture.fleet.workers[0].restart().await.unwrap();
    let again = manual_workflow.next(SOON).await.unwrap();
    let early_ms = turns::agent(&fixture.pool, "ann").await.unwrap().unwrap();
    assert_eq!(early_ms.next_run_ms, stored.next_run_ms, "the time that was stored");
    let left = early_ms.left_ms.unwrap();
    assert!(left <= 0.0, "{left} ms too early by the database's clock");
    assert_eq!(again.request.run, 1);
    again.answer("done").await.unwrap();
    fixture.until_tasks("ann", &["completed"]).await;
}
