//! Operators' actions on agents and tasks, and their view of waiting turns and tasks.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::db_snapshot::turns;
use testkit::fleet::invoke;

use crate::{
    api_client::{SOON, alone, asked_for, said, scripted},
    fixture::{Fixture, api_url},
};

/// Checks that the action was executed, and its id is in the answer.
fn done(answer: &Value) {
    assert_eq!((&answer["status"], &answer["error"]), (&json!("done"), &Value::Null), "{answer}");
    assert!(answer["command_id"].is_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_agent_queues_tasks_and_answers_messages() {
    let fixture = Fixture::with(scripted).await;
    let api = fixture.api();
    fixture.settle("ann", json!({})).await;
    let path = "/v1/agents/ann/pause";
    let paused = api.send("POST", path, None, &[("x-antiphon-actor", "ada@example.org")]).await.unwrap();
    done(&paused.json().unwrap());
    api.send_task("ann", "k", "hello").await.unwrap();
    fixture.until_tasks("ann", &["pending"]).await;
    fixture
        .until("it says why", SOON, async || {
            let shown = api.agent("ann").await.unwrap();
            (shown["waiting"]["reason"].clone(), shown["head_task_id"].clone())
                == (json!("paused"), json!("k"))
        })
        .await;
    api.say("ann", "are you there?").await.unwrap();
    fixture.until_messages("ann", 2).await;
    fixture.until_tasks("ann", &["pending"]).await;
    let listed = api.call("GET", "/v1/agents?waiting=paused", None).await.unwrap();
    assert_eq!(
        (listed["agents"][0]["agent_id"].clone(), listed["agents"].as_array().unwrap().len()),
        (json!("ann"), 1)
    );
    done(&api.act("ann", "resume").await.unwrap());
    fixture.until_tasks("ann", &["completed"]).await;
    let acts = turns::acts(&fixture.pool, "ann").await.unwrap();
    let recorded: Vec<_> = acts.iter().map(|act| (act.action.as_str(), act.actor.as_str())).collect();
    assert_eq!(recorded, [("put_settings", "api"), ("pause", "ada@example.org"), ("resume", "api")]);
    assert!(acts.iter().all(|act| act.error.is_none() && (0.0..60_000.0).contains(&act.age_ms)));
    let shown = api.acts_on_agent("ann").await.unwrap();
    assert_eq!(shown.len(), 3);
    assert!(
        shown.iter().all(|act| act["created_at"].is_string() && act["status"] == json!("done")),
        "{shown:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_task_commands_are_in_the_audit_log() {
    let fixture = Fixture::with(scripted).await;
    let api = fixture.api();
    fixture.settle("ann", json!({})).await;
    for task in ["edited", "dropped", "kept"] {
        api.send_task("ann", task, "fails-for-good").await.unwrap();
    }
    fixture.until_tasks("ann", &["failed", "failed", "failed"]).await;
    // The unchanged task would fail again. With another text it goes to the end of the queue and
    // succeeds.
    done(&api.edit_task("ann", "edited", "hello").await.unwrap());
    done(&api.retry_task("ann", "edited").await.unwrap());
    done(&api.drop_task("ann", "dropped").await.unwrap());
    fixture.until_tasks("ann", &["failed", "completed"]).await;
    let tasks = fixture.tasks_of("ann").await;
    assert_eq!(tasks.iter().map(|task| task.task_id.as_str()).collect::<Vec<_>>(), ["kept", "edited"]);
    assert_eq!(
        said(&fixture.messages_of("ann").await),
        [("user", "hello"), ("assistant", "You said: hello")]
    );
    // An impossible action is refused with the reason, and is in the audit too.
    let refused = api.retry_task("ann", "edited").await.unwrap();
    assert_eq!(
        (&refused["status"], &refused["error"]),
        (&json!("rejected"), &json!("task edited is not failed"))
    );
    let refused = api.drop_task("ann", "edited").await.unwrap();
    assert_eq!(refused["error"], json!("task edited is completed"));
    let unknown = api.send("POST", "/v1/agents/ann/tasks/dropped/retry", None, &[]).await.unwrap();
    assert_eq!((unknown.status, unknown.json().unwrap()["code"].clone()), (404, json!("unknown_task")));
    let acts = turns::acts(&fixture.pool, "ann").await.unwrap();
    let recorded: Vec<_> = acts
        .iter()
        .filter(|act| act.action != "put_settings")
        .map(|act| (act.action.as_str(), act.target.as_deref().unwrap_or_default(), act.error.is_none()))
        .collect();
    let wanted = [
        ("edit_task", "edited", true),
        ("retry_task", "edited", true),
        ("drop_task", "dropped", true),
        ("retry_task", "edited", false),
        ("drop_task", "edited", false),
        ("retry_task", "dropped", false),
    ];
    assert_eq!(recorded, wanted);
}

#[tokio::test(flavor = "multi_thread")]
async fn running_task_is_neither_edited_nor_dropped() {
    let fixture = Fixture::with(alone).await;
    let (api, manual_workflow) = (fixture.api(), fixture.manual_workflow().await);
    fixture.settle("ann", json!({})).await;
    for task in ["first", "second", "third"] {
        api.send_task("ann", task, "do it").await.unwrap();
    }
    let asked = manual_workflow.next(SOON).await.unwrap();
    fixture.until_tasks("ann", &["pending", "pending", "pending"]).await;
    done(&api.edit_task("ann", "second", "do it better").await.unwrap());
    done(&api.drop_task("ann", "third").await.unwrap());
    for refused in
        [api.edit_task("ann", "first", "no").await.unwrap(), api.drop_task("ann", "first").await.unwrap()]
    {
        let why = refused["error"].as_str().unwrap();
        assert_eq!(why, "task first is under way; stop its turn first");
    }
    asked.answer("done").await.unwrap();
    let second = manual_workflow.next(SOON).await.unwrap();
    assert_eq!(second.request.context.last().unwrap().content, "do it better");
    second.answer("done").await.unwrap();
    fixture.until_tasks("ann", &["completed", "completed", "failed"]).await;
    let tasks = fixture.tasks_of("ann").await;
    assert_eq!((tasks[2].task_id.as_str(), tasks[2].failure_code.as_deref()), ("third", Some("dropped")));
    assert_eq!(tasks[1].content, "do it better");
    fixture.no_request_comes(&manual_workflow).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stopped_task_fails_with_its_text_and_the_next_runs() {
    let fixture = Fixture::with(alone).await;
    let (api, manual_workflow) = (fixture.api(), fixture.manual_workflow().await);
    fixture.settle("ann", json!({})).await;
    for task in ["first", "second"] {
        api.send_task("ann", task, "do it").await.unwrap();
    }
    let mut asked = manual_workflow.next(SOON).await.unwrap();
    asked.say("I am at it").await.unwrap();
    let turn = asked.request.turn_id.clone();
    fixture
        .until("it is heard of", SOON, async || {
            let shown = api.agent("ann").await.unwrap();
            shown["active_turn"]["turn_id"] == json!(turn) && shown["active_turn"]["waiting"].is_null()
        })
        .await;
    done(&api.stop(&turn).await.unwrap());
    let second = manual_workflow.next(SOON).await.unwrap();
    assert_eq!(second.request.task.as_ref().unwrap().task_id, "second");
    second.answer("done").await.unwrap();
    fixture.until_tasks("ann", &["failed", "completed"]).await;
    assert_eq!(fixture.tasks_of("ann").await[0].failure_code.as_deref(), Some("stopped"));
    let messages = fixture.messages_of("ann").await;
    let expected = [("user", "do it"), ("assistant", "I am at it"), ("user", "do it"), ("assistant", "done")];
    assert_eq!(said(&messages), expected);
    assert_eq!(messages[1].metadata["stopped"], json!(true));
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_that_waits_says_why() {
    let fixture = Fixture::with(alone).await;
    let (api, manual_workflow) = (fixture.api(), fixture.manual_workflow().await);
    fixture.settle("ann", json!({"backoff_base_ms": 60_000})).await;
    let reason_of_turn = async |wanted: Value| {
        let mut seen = Value::Null;
        fixture
            .until(&format!("the turn waits for {wanted}"), SOON, async || {
                seen = api.agent("ann").await.unwrap();
                seen["active_turn"]["waiting"]["reason"] == wanted
            })
            .await;
        seen
    };
    // No service has taken the request; the task behind the message waits for it.
    let turn = api.say("ann", "hello").await.unwrap();
    api.send_task("ann", "k", "do it").await.unwrap();
    fixture.until_tasks("ann", &["pending"]).await;
    let seen = reason_of_turn(json!("no_workflow")).await;
    assert_eq!(seen["active_turn"]["turn_id"], json!(turn.id));
    fixture
        .until("the task says why", SOON, async || {
            api.agent("ann").await.unwrap()["waiting"]["reason"] == "head_of_line"
        })
        .await;
    api.create_thread(&json!({"thread_id": "ann"})).await.unwrap();
    let second = api.say("ann", "and").await.unwrap();
    fixture
        .until("the second waits", SOON, async || {
            let thread = api.thread("ann").await.unwrap();
            let waiting = thread["waiting_turns"][0].clone();
            waiting["turn_id"] == json!(second.id) && waiting["waiting"]["reason"] == "head_of_line"
        })
        .await;
    // A chunk is missing.
    let mut asked = asked_for(&manual_workflow, &turn).await;
    let missing = asked.chunk("a", json!({}));
    asked.say("b").await.unwrap();
    reason_of_turn(json!("gap")).await;
    asked.publish(missing.to_string().into_bytes()).await.unwrap();
    reason_of_turn(Value::Null).await;
    asked.answer("c").await.unwrap();
    asked_for(&manual_workflow, &second).await.answer("d").await.unwrap();
    // The first task has failed.
    let mut asked = manual_workflow.next(SOON).await.unwrap();
    asked.fail("later", json!({})).await.unwrap();
    fixture
        .until("it backs off", SOON, async || {
            api.agent("ann").await.unwrap()["waiting"]["reason"] == "backoff"
        })
        .await;
    let shown = api.agent("ann").await.unwrap();
    assert_eq!(
        (&shown["waiting"]["until"], &shown["owner_status"]),
        (&shown["backoff_next_run_at"], &json!("available"))
    );
    assert!(shown["backoff_next_run_at"].as_str().unwrap().ends_with('Z'), "{shown}");
    let listed = api.call("GET", "/v1/agents?waiting=backoff", None).await.unwrap();
    assert_eq!(listed["agents"][0]["agent_id"], "ann");
    done(&api.act("ann", "pause").await.unwrap());
    done(&api.act("ann", "clear-backoff").await.unwrap());
    fixture
        .until("it is paused", SOON, async || {
            api.agent("ann").await.unwrap()["waiting"]["reason"] == "paused"
        })
        .await;
    // Without the owner only stored data is known.
    fixture.fleet.workers[0].pause();
    // A reply that the owner was sending when it was paused may still arrive.
    fixture
        .until("its owner is not heard", SOON, async || {
            api.agent("ann").await.unwrap()["owner_status"] == "unavailable"
        })
        .await;
    assert_eq!(api.agent("ann").await.unwrap()["waiting"]["reason"], "paused");
    fixture.fleet.workers[0].resume();
    tokio::time::sleep(Duration::from_millis(100)).await;
    done(&api.act("ann", "resume").await.unwrap());
    manual_workflow.next(SOON).await.unwrap().answer("done").await.unwrap();
    fixture.until_tasks("ann", &["completed"]).await;
    assert_eq!(api.agent("ann").await.unwrap()["waiting"], Value::Null);
}

/// An agent is created only by a PUT or by its use. An action on an unknown agent is refused, and
/// leaves nothing behind.
#[tokio::test(flavor = "multi_thread")]
async fn operations_on_unknown_agents_make_none() {
    let fixture = Fixture::with(scripted).await;
    let api = fixture.api();
    let daily = json!({"cron": "0 9 * * *", "content": "x"});
    let text = json!({"content": "x"});
    let fact = json!({"text": "x"});
    for (method, path, body, code) in [
        ("POST", "pause", None, "unknown_agent"),
        ("POST", "resume", None, "unknown_agent"),
        ("POST", "clear-backoff", None, "unknown_agent"),
        ("GET", "", None, "unknown_agent"),
        ("GET", "tasks", None, "unknown_agent"),
        ("GET", "audit", None, "unknown_agent"),
        ("GET", "schedules", None, "unknown_agent"),
        ("PUT", "schedules/daily", Some(&daily), "unknown_agent"),
        ("DELETE", "schedules/daily", None, "unknown_schedule"),
        ("GET", "delayed-tasks", None, "unknown_agent"),
        ("DELETE", "delayed-tasks/k", None, "unknown_task"),
        ("GET", "memory", None, "unknown_agent"),
        ("POST", "memory", Some(&fact), "unknown_agent"),
        ("PATCH", "memory/x", Some(&fact), "unknown_fact"),
        ("DELETE", "memory/x", None, "unknown_fact"),
        ("PATCH", "tasks/k", Some(&text), "unknown_task"),
        ("DELETE", "tasks/k", None, "unknown_task"),
        ("POST", "tasks/k/retry", None, "unknown_task"),
    ] {
        for agent in ["stranger", "stranger+memory"] {
            let is_queue = agent.contains('+');
            if is_queue
                && !matches!(
                    path,
                    "pause"
                        | "resume"
                        | "clear-backoff"
                        | ""
                        | "tasks"
                        | "audit"
                        | "tasks/k"
                        | "tasks/k/retry"
                )
            {
                continue;
            }
            let path = format!("/v1/agents/{agent}/{path}");
            let refused = api.send(method, path.trim_end_matches('/'), body, &[]).await.unwrap();
            let problem = refused.json().unwrap();
            // An action on a task leaves only an entry in the audit.
            if path.ends_with("audit") && refused.status == 200 {
                continue;
            }
            assert_eq!(
                (refused.status, problem["code"].as_str()),
                (404, Some(code)),
                "{method} {path}: {problem}"
            );
        }
    }
    for table in ["agents", "agent_settings", "tasks", "schedules", "facts", "timers"] {
        let sql = format!("SELECT count(*) FROM {table} WHERE agent_id LIKE 'stranger%'");
        let rows: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(&fixture.pool).await.unwrap();
        assert_eq!(rows, 0, "{table}");
    }
    let listed = api.call("GET", "/v1/agents", None).await.unwrap();
    assert_eq!(listed["agents"], json!([]));
    // A message counts as use: actions on the agent are then possible, although it has neither
    // settings nor tasks.
    api.say("talk", "hello").await.unwrap();
    fixture.until_messages("talk", 2).await;
    assert_eq!(api.call("GET", "/v1/agents/default", None).await.unwrap()["version"], json!(0));
    done(&api.act("default", "pause").await.unwrap());
    assert_eq!(api.agent("default").await.unwrap()["paused"], json!(true));
    // A task also counts as use, even before it is stored.
    api.send_task("worker", "k", "hello").await.unwrap();
    done(&api.act("worker", "pause").await.unwrap());
}

/// Turns of both workers are in progress; then a worker is killed, and another one accepts the
/// tokens of their workflows.
#[tokio::test(flavor = "multi_thread")]
async fn turns_go_on_when_the_key_of_their_tokens_is_rotated() {
    let mut fixture = Fixture::new().await;
    let (api, workflow) = (fixture.api(), fixture.manual_workflow().await);
    let threads: Vec<String> = (0..6).map(|n| format!("rotated-{n}")).collect();
    let mut asked = Vec::new();
    for thread in &threads {
        api.say(thread, "hello").await.unwrap();
        let mut request = workflow.next(SOON).await.unwrap();
        request.say("one ").await.unwrap();
        asked.push(request);
    }
    let env = [api_url(fixture.fleet.gateways[0].http_addr())];
    let rotated = invoke(&["signing-keys", "rotate", "turn-tokens"], &env).await.unwrap();
    assert_eq!(rotated.code, Some(0), "{}", rotated.stderr);
    // Owners read the key with the next renewal of their leases.
    tokio::time::sleep(Duration::from_secs(6)).await;
    for request in &mut asked {
        request.say("two ").await.unwrap();
    }
    api.say("later", "hello").await.unwrap();
    let later = workflow.next(SOON).await.unwrap();
    fixture.fleet.workers[0].kill().await.unwrap();
    later.answer("with the new key").await.unwrap();
    for request in asked {
        request.answer("three").await.unwrap();
    }
    for thread in &threads {
        fixture.until_messages(thread, 2).await;
        let history = api.history(thread).await.unwrap();
        assert_eq!(history.last().unwrap()["content"], json!("one two three"), "{thread}");
    }
    fixture.until_messages("later", 2).await;
}
