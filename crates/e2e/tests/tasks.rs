//! Tasks of agents: strictly in order, one at a time, independent per agent, with a backoff that
//! survives its owner.

use std::time::{Duration, Instant};

use serde_json::json;
use testkit::{
    WAIT_TIMEOUT,
    db_snapshot::{self, turns},
    manual_workflow::ManualWorkflow,
};
use tokio::time::sleep;

use crate::{
    api_client::{A_WHILE, SOON, alone, asked_for, said, scripted},
    fixture::Fixture,
};

fn numbered(count: usize) -> Vec<(String, String)> {
    (0..count).map(|number| (format!("k-{number}"), format!("do {number}"))).collect()
}

/// The next request, which must be for this task.
async fn asked_to(
    manual_workflow: &ManualWorkflow,
    task: &str,
) -> testkit::manual_workflow::DeliveredRequest {
    let asked = manual_workflow.next(SOON).await.unwrap();
    let named = asked.request.task.as_ref().map(|task| task.task_id.as_str());
    assert_eq!(named, Some(task));
    asked
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_one_agent_run_in_order_one_at_a_time() {
    const TASKS: usize = 100;
    let mut fixture = Fixture::new().await;
    let manual_workflow = fixture.manual_workflow().await;
    fixture.send_tasks("ann", numbered(TASKS)).await;
    for number in 0..TASKS {
        let asked = asked_to(&manual_workflow, &format!("k-{number}")).await;
        assert_eq!(asked.request.context.len(), 2 * number + 1, "task {number} sees those before it");
        // The owner of the agent may change, but the order must not.
        if number == 40 {
            let owner = fixture.worker_of("ann").await;
            fixture.fleet.workers[owner].terminate();
            fixture.fleet.workers[owner].ended(WAIT_TIMEOUT).await.unwrap();
            fixture.fleet.workers[owner].spawn().unwrap();
        }
        assert_eq!(manual_workflow.standing().await.unwrap(), (0, 1), "only task {number} is under way");
        asked.answer(&format!("did {number}")).await.unwrap();
    }
    fixture.until_tasks("ann", &["completed"; TASKS]).await;
    let (tasks, messages) = (fixture.tasks_of("ann").await, fixture.messages_of("ann").await);
    assert!(tasks.iter().map(|task| task.task_id.clone()).eq((0..TASKS).map(|number| format!("k-{number}"))));
    assert_eq!(messages.len(), 2 * TASKS);
    for (number, turn) in messages.chunks(2).enumerate() {
        assert_eq!(
            said(turn),
            [("user", &*format!("do {number}")), ("assistant", &*format!("did {number}"))]
        );
        assert_eq!((turn[0].batch_id, turn[1].batch_id), (turn[0].position, turn[0].position));
        assert_eq!(turn[0].metadata["task_id"], json!(format!("k-{number}")));
    }
    fixture.no_request_comes(&manual_workflow).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_work_side_by_side() {
    const AGENTS: usize = 12;
    let fixture = Fixture::with(alone).await;
    let manual_workflow = fixture.manual_workflow().await;
    for number in 0..AGENTS {
        fixture.send_tasks(&format!("agent-{number}"), numbered(2)).await;
    }
    let mut all = Vec::new();
    for _ in 0..AGENTS {
        all.push(manual_workflow.next(SOON).await.unwrap());
    }
    let mut agents: Vec<_> = all.iter().map(|asked| asked.request.agent_id.clone()).collect();
    agents.sort();
    agents.dedup();
    assert_eq!(agents.len(), AGENTS, "the first task of each");
    for asked in all {
        assert_eq!(asked.request.task.as_ref().unwrap().task_id, "k-0");
        asked.answer("done").await.unwrap();
    }
    for _ in 0..AGENTS {
        let asked = manual_workflow.next(SOON).await.unwrap();
        assert_eq!(asked.request.task.as_ref().unwrap().task_id, "k-1");
        asked.answer("done").await.unwrap();
    }
    for number in 0..AGENTS {
        fixture.until_tasks(&format!("agent-{number}"), &["completed", "completed"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn task_answer_and_backoff_end_in_one_transaction() {
    let fixture = Fixture::with(scripted).await;
    fixture.settle("ann", json!({"backoff_base_ms": 300, "backoff_cap_ms": 600})).await;
    fixture.send_tasks("ann", [("k".to_owned(), "fails-twice".to_owned())]).await;
    let mut most = 0;
    // One statement sees one snapshot, in which the task is both completed and answered, or
    // neither.
    let sql = "SELECT (SELECT count(*) FROM messages WHERE thread_id = 'ann'), t.status, coalesce(a.backoff_attempt_count, 0)
               FROM agent_tasks AS t JOIN agents AS a USING (bucket, agent_id) WHERE t.agent_id = 'ann'";
    fixture
        .until("the task is completed", SOON, async || {
            let seen: Option<(i64, String, i32)> =
                sqlx::query_as(sql).fetch_optional(&fixture.pool).await.unwrap();
            let Some((messages, status, failures)) = seen else { return false };
            most = most.max(failures);
            match status.as_str() {
                "pending" => assert_eq!(messages, 0),
                status => assert_eq!((status, messages, failures), ("completed", 2, 0)),
            }
            status == "completed"
        })
        .await;
    assert_eq!(most, 2, "both failures were counted");
    let (agent, messages) =
        (turns::agent(&fixture.pool, "ann").await.unwrap().unwrap(), fixture.messages_of("ann").await);
    assert_eq!(said(&messages), [("user", "fails-twice"), ("assistant", "You said: fails-twice")]);
    assert!(messages[1].message_id.ends_with("-a2"), "the third run: {}", messages[1].message_id);
    assert_eq!([messages[0].transaction, messages[1].transaction], [agent.transaction; 2]);
    assert_eq!((agent.backoff_attempt_count, agent.next_run_ms, agent.head_run), (0, None, 0));
    assert_eq!((agent.error_code, agent.paused), (None, false));
    assert_eq!(agent.head_position, fixture.tasks_of("ann").await[0].position);
}

#[tokio::test(flavor = "multi_thread")]
async fn failing_task_blocks_its_agent_alone_over_takeovers() {
    let mut fixture = Fixture::new().await;
    let manual_workflow = fixture.manual_workflow().await;
    for agent in ["ann", "bob"] {
        fixture.settle(agent, json!({"backoff_base_ms": 60_000})).await;
    }
    fixture.send_tasks("ann", numbered(3)).await;
    asked_to(&manual_workflow, "k-0").await.fail("later", json!({"class": "transient"})).await.unwrap();
    let backs_off = async || {
        let agent = turns::agent(&fixture.pool, "ann").await.unwrap();
        agent.is_some_and(|agent| agent.backoff_attempt_count == 1)
    };
    fixture.until("ann backs off", SOON, backs_off).await;
    let before = turns::agent(&fixture.pool, "ann").await.unwrap().unwrap();
    let delay = before.delay_ms.unwrap();
    assert!((59_999.0..=120_001.0).contains(&delay), "{delay} ms by the database's clock");
    assert_eq!((before.head_run, before.error_code.as_deref()), (1, Some("producer_error")));
    // Another agent is not affected.
    fixture.send_tasks("bob", numbered(2)).await;
    for number in 0..2 {
        asked_to(&manual_workflow, &format!("k-{number}")).await.answer("done").await.unwrap();
    }
    fixture.until_tasks("bob", &["completed", "completed"]).await;
    fixture.until_tasks("ann", &["pending", "pending", "pending"]).await;
    let shown = fixture.api().agent("ann").await.unwrap();
    assert_eq!((&shown["waiting"]["reason"], &shown["pending"]), (&json!("backoff"), &json!(3)));
    assert_eq!((&shown["backoff_attempt_count"], &shown["head_task_id"]), (&json!(1), &json!("k-0")));
    // A person is not affected either, unless the settings say so.
    let turn = fixture.api().say("ann", "are you there?").await.unwrap();
    asked_for(&manual_workflow, &turn).await.answer("yes").await.unwrap();
    fixture.until_messages("ann", 2).await;
    fixture.settle("ann", json!({"backoff_base_ms": 60_000, "foreground_during_backoff": "refuse"})).await;
    let refused = fixture.api().say_with("ann", &json!({"content": "still?"}), &[]).await.unwrap();
    assert_eq!((refused.status, refused.json().unwrap()["code"].clone()), (409, json!("agent_backing_off")));
    let wait: f64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1.0..=120.0).contains(&wait), "{wait} s");
    // The owner dies; the next one keeps what is stored.
    let owner = fixture.worker_of("ann").await;
    fixture.fleet.workers[owner].kill().await.unwrap();
    fixture.until("another worker owns ann", SOON, async || fixture.worker_of("ann").await != owner).await;
    sleep(A_WHILE).await;
    fixture
        .until("the new owner knows", SOON, async || {
            let shown = fixture.api().agent("ann").await.unwrap();
            shown["owner_status"] == "available" && shown["waiting"]["reason"] == "backoff"
        })
        .await;
    fixture.no_request_comes(&manual_workflow).await;
    let after = turns::agent(&fixture.pool, "ann").await.unwrap().unwrap();
    assert_eq!((after.next_run_ms, after.backoff_attempt_count), (before.next_run_ms, 1));
    // The agent continues by command, in the order of the queue.
    assert_eq!(fixture.api().act("ann", "clear-backoff").await.unwrap()["status"], json!("done"));
    let asked = asked_to(&manual_workflow, "k-0").await;
    assert_eq!(asked.request.run, 1);
    asked.answer("done").await.unwrap();
    for number in 1..3 {
        asked_to(&manual_workflow, &format!("k-{number}")).await.answer("done").await.unwrap();
    }
    fixture.until_tasks("ann", &["completed"; 3]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn next_try_respects_database_clock_and_retry_after() {
    let fixture = Fixture::with(alone).await;
    let manual_workflow = fixture.manual_workflow().await;
    fixture.settle("ann", json!({"backoff_base_ms": 1, "backoff_cap_ms": 10})).await;
    fixture.send_tasks("ann", numbered(1)).await;
    let mut asked = asked_to(&manual_workflow, "k-0").await;
    let failed_at = Instant::now();
    asked.fail("busy", json!({"class": "transient", "retry_after": 2.5})).await.unwrap();
    asked.ack().await.unwrap();
    fixture
        .until("the failure is stored", SOON, async || {
            turns::agent(&fixture.pool, "ann")
                .await
                .unwrap()
                .is_some_and(|agent| agent.backoff_attempt_count == 1)
        })
        .await;
    let delay = turns::agent(&fixture.pool, "ann").await.unwrap().unwrap().delay_ms.unwrap();
    assert!((2_499.0..2_501.0).contains(&delay), "{delay} ms");
    let again = asked_to(&manual_workflow, "k-0").await;
    let waited = failed_at.elapsed();
    assert!(waited >= Duration::from_millis(2_480) && waited < Duration::from_secs(6), "{waited:?}");
    assert_eq!(again.request.run, 1);
    assert_ne!(again.request.message_id, format!("{}-a", again.request.turn_id));
    again.answer("done").await.unwrap();
    fixture.until_tasks("ann", &["completed"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn backoffs_grow_within_their_bounds_up_to_the_cap() {
    let fixture = Fixture::with(alone).await;
    let manual_workflow = fixture.manual_workflow().await;
    fixture.settle("ann", json!({"backoff_base_ms": 50, "backoff_cap_ms": 400})).await;
    fixture.send_tasks("ann", numbered(1)).await;
    for failures in 1..=6 {
        let mut asked = asked_to(&manual_workflow, "k-0").await;
        assert_eq!(asked.request.run + 1, failures);
        asked.fail("no", json!({})).await.unwrap();
        asked.ack().await.unwrap();
        fixture
            .until("the failure is stored", SOON, async || {
                let agent = turns::agent(&fixture.pool, "ann").await.unwrap();
                agent.is_some_and(|agent| i64::from(agent.backoff_attempt_count) >= i64::from(failures))
            })
            .await;
        let delay = turns::agent(&fixture.pool, "ann").await.unwrap().unwrap().delay_ms.unwrap();
        let ceiling = f64::from(50 * 2_i32.pow(failures)).min(400.0);
        assert!(
            delay > ceiling / 2.0 - 1.0 && delay < ceiling + 1.0,
            "failure {failures}: {delay} ms of {ceiling}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_permanent_failure_fails_its_task_and_the_next_one_runs() {
    let fixture = Fixture::with(scripted).await;
    fixture.settle("ann", json!({"backoff_base_ms": 60_000})).await;
    let tasks =
        [("bad", "fails-for-good"), ("good", "hello")].map(|(id, text)| (id.to_owned(), text.to_owned()));
    fixture.send_tasks("ann", tasks).await;
    fixture.until_tasks("ann", &["failed", "completed"]).await;
    let tasks = fixture.tasks_of("ann").await;
    assert_eq!(tasks[0].failure_code.as_deref(), Some("scripted"));
    let agent = turns::agent(&fixture.pool, "ann").await.unwrap().unwrap();
    assert_eq!(
        (agent.backoff_attempt_count, agent.next_run_ms),
        (0, None),
        "the agent does not back off for it"
    );
    assert_eq!(
        said(&fixture.messages_of("ann").await),
        [("user", "hello"), ("assistant", "You said: hello")]
    );
    let shown = fixture.api().task("ann", "bad").await.unwrap();
    assert_eq!((&shown["status"], &shown["failure"]["code"]), (&json!("failed"), &json!("scripted")));
    assert!(
        shown["failure"]["message"].as_str().unwrap().contains("a permanent failure by script"),
        "{shown}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn auth_failure_pauses_the_agent_until_it_is_resumed() {
    let fixture = Fixture::with(scripted).await;
    fixture.settle("ann", json!({"backoff_base_ms": 1})).await;
    let tasks =
        [("first", "fails-auth"), ("second", "hello")].map(|(id, text)| (id.to_owned(), text.to_owned()));
    fixture.send_tasks("ann", tasks).await;
    fixture
        .until("ann is paused", SOON, async || {
            turns::agent(&fixture.pool, "ann").await.unwrap().is_some_and(|agent| agent.paused)
        })
        .await;
    fixture.until_tasks("ann", &["pending", "pending"]).await;
    let shown = fixture.api().agent("ann").await.unwrap();
    assert_eq!((&shown["paused"], &shown["waiting"]["reason"]), (&json!(true), &json!("paused")));
    assert_eq!(shown["last_error"]["code"], "scripted");
    assert_eq!(fixture.api().act("ann", "resume").await.unwrap()["status"], json!("done"));
    fixture.until_tasks("ann", &["completed", "completed"]).await;
    let agent = turns::agent(&fixture.pool, "ann").await.unwrap().unwrap();
    assert_eq!((agent.paused, agent.backoff_attempt_count), (false, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn auth_failure_of_a_turn_pauses_a_remote_agent() {
    let fixture = Fixture::with(scripted).await;
    let api = fixture.api();
    // One of the two threads has an agent in another partition; the other one is the agent's own
    // thread.
    let partition = |name: &str| model::Bucket::of_key(name).get() % crate::fixture::PARTITIONS;
    assert_ne!(partition("elsewhere"), partition("ann"));
    for (agent, thread) in [("ann", "elsewhere"), ("own", "own")] {
        api.create_thread(&json!({"thread_id": thread, "agent_id": agent})).await.unwrap();
        let turn = api.say(thread, "fails-auth").await.unwrap();
        assert_eq!(fixture.until_failed(thread, 1).await, [("scripted".to_owned(), 0)]);
        fixture
            .until(&format!("{agent} is paused"), SOON, async || {
                turns::agent(&fixture.pool, agent).await.unwrap().is_some_and(|agent| agent.paused)
            })
            .await;
        api.send_task(agent, "k", "hello").await.unwrap();
        fixture.until_tasks(agent, &["pending"]).await;
        let acts = turns::acts(&fixture.pool, agent).await.unwrap();
        let paused: Vec<_> = acts.iter().filter(|act| act.action == "pause").collect();
        assert_eq!((paused.len(), paused[0].actor.as_str()), (1, "antiphon"), "{acts:?}");
        assert_eq!(api.act(agent, "resume").await.unwrap()["status"], json!("done"));
        fixture.until_tasks(agent, &["completed"]).await;
        // Once the credentials are right, the same message is answered.
        api.retry_turn(thread, &turn.id).await.unwrap();
        fixture
            .until(&format!("{thread} is answered"), SOON, async || {
                fixture
                    .messages_of(thread)
                    .await
                    .iter()
                    .any(|message| message.content == "You said: fails-auth")
            })
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn unanswered_request_fails_by_its_deadline() {
    let fixture = Fixture::with(alone).await;
    let manual_workflow = fixture.manual_workflow().await;
    let rules = json!({"deadline_ms": 400, "max_attempts": 3, "backoff_base_ms": 50});
    fixture.settle("ann", rules).await;
    fixture.send_tasks("ann", numbered(2)).await;
    for run in 0..3 {
        let asked = asked_to(&manual_workflow, "k-0").await;
        assert_eq!(asked.request.run, run);
        if run == 2 {
            fixture.settle("ann", json!({"deadline_ms": 60_000})).await;
        }
    }
    asked_to(&manual_workflow, "k-1").await.answer("done").await.unwrap();
    fixture.until_tasks("ann", &["failed", "completed"]).await;
    assert_eq!(fixture.tasks_of("ann").await[0].failure_code.as_deref(), Some("deadline"));
    // Progress reports keep a run alive beyond its deadline.
    fixture.settle("bob", json!({"deadline_ms": 600})).await;
    fixture.send_tasks("bob", numbered(1)).await;
    let mut asked = asked_to(&manual_workflow, "k-0").await;
    for _ in 0..6 {
        sleep(Duration::from_millis(250)).await;
        asked.say_with("", json!({"chunk_type": "metadata"})).await.unwrap();
    }
    asked.answer("at last").await.unwrap();
    fixture.until_tasks("bob", &["completed"]).await;
    assert_eq!(said(&fixture.messages_of("bob").await), [("user", "do 0"), ("assistant", "at last")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn resent_task_runs_once_and_its_id_is_not_reused() {
    let fixture = Fixture::with(scripted).await;
    let send = async |id: &str, content: &str| {
        fixture.send_tasks("ann", [(id.to_owned(), content.to_owned())]).await;
    };
    for _ in 0..5 {
        send("k", "hello").await;
    }
    fixture.until_tasks("ann", &["completed"]).await;
    send("k", "hello").await;
    send("k", "something else").await;
    send("after", "bye").await;
    fixture.until_tasks("ann", &["completed", "completed"]).await;
    assert_eq!(fixture.messages_of("ann").await.len(), 4);
    let letters = db_snapshot::dead_letters(&fixture.pool).await.unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!((letters[0].kind.as_str(), letters[0].reason.as_str()), ("entry", "task_conflict"));
    assert_eq!(letters[0].subject.as_deref(), Some(&*fixture.task_subject("ann")));
    assert!(
        String::from_utf8_lossy(&letters[0].raw).contains("something else"),
        "the payload is kept as it came"
    );
    let body = json!({"task_id": "k", "content": "something else"});
    let refused = fixture.api().send("POST", "/v1/agents/ann/tasks", Some(&body), &[]).await.unwrap();
    assert_eq!((refused.status, refused.json().unwrap()["code"].clone()), (409, json!("task_conflict")));
    let same = json!({"task_id": "k", "content": "hello"});
    assert_eq!(
        fixture.api().send("POST", "/v1/agents/ann/tasks", Some(&same), &[]).await.unwrap().status,
        202
    );
    sleep(A_WHILE).await;
    assert_eq!(fixture.messages_of("ann").await.len(), 4);
}
