//! Tasks: sent, listed, changed.

use model::{Control, ControlKind, Metadata, TaskEdit, TaskId, TaskKind};
use serde_json::{Value, json};
use testkit::http;

use crate::command_log::CommandLog;
use crate::fixture::Fixture;
use crate::sending::{bare, post, send};

const TASKS: &str = "/v1/agents/a1/tasks";

fn nothing(_: &Control) -> Option<&'static str> {
    None
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_in_the_stream_when_it_is_accepted() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let gateway = fixture.gateways[0];
    let orders = CommandLog::read(&fixture, nothing).await;
    let body =
        json!({"task_id": "x-1", "content": "do it", "metadata": {"n": 2.0, "deep": {"a": [1, null]}}});
    let reply = post(gateway, TASKS, &body).await;
    let place = "/v1/agents/a1/tasks/x-1";
    assert_eq!((reply.status, reply.header("location")), (202, Some(place)));
    assert_eq!(reply.json(), json!({"task_id": "x-1", "agent_id": "a1", "task_url": place}));
    let task = orders.task(0).await;
    assert_eq!((task.agent.as_str(), task.id.as_str(), task.kind), ("a1", "x-1", TaskKind::Task));
    assert_eq!(
        (task.content.as_str(), task.metadata.to_value()),
        ("do it", json!({"n": 2, "deep": {"a": [1, null]}}))
    );
    let unnamed = post(gateway, TASKS, &json!({"content": "x"})).await;
    assert_eq!(unnamed.json()["task_id"], orders.task(1).await.id.as_str());
    // A task that the owner has stored is recognised, whatever the form of the numbers in the
    // request.
    let digest = i64::from_ne_bytes(task.digest().to_ne_bytes());
    fixture
        .write(&format!(
            "INSERT INTO task_ids (bucket, agent_id, task_id, position, digest)
         VALUES ($bucket(a1), 'a1', 'x-1', 10, {digest})"
        ))
        .await;
    assert_eq!(post(gateway, TASKS, &body).await.status, 202, "the same again is the same");
    let other = post(gateway, TASKS, &json!({"task_id": "x-1", "content": "do it"})).await;
    assert_eq!(other.problem(), (409, "task_conflict".to_owned(), false));
    let elsewhere =
        post(gateway, "/v1/agents/a2/tasks", &json!({"task_id": "x-1", "content": "do it"})).await;
    assert_eq!(elsewhere.status, 202, "ids are the agent's own");
    let bad = [
        (json!({}), 400, "invalid_body"),
        (json!({"content": ""}), 400, "empty_input"),
        (json!({"content": "x", "task_id": "a.b"}), 400, "invalid_id"),
        (json!({"content": "x", "kind": "memory"}), 400, "invalid_body"),
        (json!({"content": "x", "metadata": {"a": "\0"}}), 400, "invalid_metadata"),
        (json!({"content": "\0"}), 400, "invalid_content"),
        (json!({"content": "x".repeat(262_145)}), 413, "input_too_large"),
    ];
    let before = orders.count().await;
    for (body, status, code) in bad {
        assert_eq!(post(gateway, TASKS, &body).await.problem(), (status, code.to_owned(), false));
    }
    assert_eq!(orders.count().await, before);
}

async fn queue(fixture: &Fixture) {
    fixture
        .write(
            r#"INSERT INTO tasks (bucket, agent_id, position, task_id, kind, content, metadata)
           SELECT $bucket(a1), 'a1', n * 10, 'task-' || n, 'task', 'text ' || n, '{"k": 1}'
           FROM generate_series(1, 6) AS n;
           INSERT INTO task_ids (bucket, agent_id, task_id, position, digest)
           SELECT $bucket(a1), 'a1', 'task-' || n, n * 10, 0 FROM generate_series(1, 5) AS n;
           INSERT INTO failed_tasks (bucket, agent_id, position, code, text)
           VALUES ($bucket(a1), 'a1', 10, 'producer_error', 'no'), ($bucket(a1), 'a1', 50, 'dropped', 'x');
           INSERT INTO agents (bucket, agent_id, head_position) VALUES ($bucket(a1), 'a1', 30)"#,
        )
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_are_listed_in_the_order_of_the_queue() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let gateway = fixture.gateways[0];
    assert_eq!(bare(gateway, "GET", TASKS).await.problem(), (404, "unknown_agent".to_owned(), false));
    queue(&fixture).await;
    let list = async |query: &str| {
        let page = http::get_json(gateway, &format!("{TASKS}?{query}")).await.unwrap();
        let tasks = page["tasks"].as_array().unwrap().iter();
        let short = |task: &Value| {
            format!("{}{}", &task["task_id"].as_str().unwrap()[5..], &task["status"].as_str().unwrap()[..1])
        };
        (tasks.map(short).collect::<Vec<_>>().join(" "), page["next"].as_str().unwrap_or("-").to_owned())
    };
    let page = |tasks: &str, next: &str| (tasks.to_owned(), next.to_owned());
    assert_eq!(list("").await, page("1f 2c 3c 4p 5f 6p", "-"));
    assert_eq!(list("limit=4").await, page("1f 2c 3c 4p", "40"));
    assert_eq!(list("next=40&limit=2").await, page("5f 6p", "-"));
    assert_eq!(list("status=pending").await, page("4p 6p", "-"));
    assert_eq!(list("status=pending&next=40").await, page("6p", "-"));
    assert_eq!(list("status=completed&limit=1").await, page("2c", "20"));
    assert_eq!(list("status=failed").await, page("1f 5f", "-"));
    assert_eq!(list("status=failed&next=10").await, page("5f", "-"));
    assert_eq!(list("next=60").await, page("", "-"));
    let mut task = http::get_json(gateway, &format!("{TASKS}/task-1")).await.unwrap();
    for at in [&mut task["failure"], &mut Value::Null] {
        at.as_object_mut().map(|failure| failure.remove("at"));
    }
    task.as_object_mut().unwrap().remove("created_at");
    let expected = json!({"task_id": "task-1", "position": "10", "kind": "task", "status": "failed",
        "content": "text 1", "metadata": {"k": 1}, "failure": {"code": "producer_error", "message": "no"}, "place": null});
    assert_eq!(task, expected);
    let old = http::get_json(gateway, &format!("{TASKS}/task-6")).await.unwrap();
    assert_eq!(old["status"], "pending", "found after its id is forgotten");
    let unknown = bare(gateway, "GET", &format!("{TASKS}/task-7")).await;
    assert_eq!(unknown.problem(), (404, "unknown_task".to_owned(), false));
    for (query, code) in [
        ("status=running", "invalid_query"),
        ("next=-1", "invalid_position"),
        ("limit=x", "invalid_limit"),
        ("state=failed", "invalid_query"),
    ] {
        let refused = bare(gateway, "GET", &format!("{TASKS}?{query}")).await;
        assert_eq!(refused.problem(), (400, code.to_owned(), false), "{query}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_are_retried_edited_and_dropped_through_the_stream() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let gateway = fixture.gateways[0];
    queue(&fixture).await;
    let orders = CommandLog::read(&fixture, |act| {
        act.kind.target().filter(|target| ["task-2", "nope"].contains(target)).map(|_| "it cannot be done")
    })
    .await;
    let id = |text: &str| TaskId::parse(text).unwrap();
    let metadata = |value: Value| Metadata::new(value.as_object().unwrap().clone()).unwrap();
    let one = async |method: &str, path: &str, body: Value| {
        let reply = match body {
            Value::Null => bare(gateway, method, &format!("{TASKS}/{path}")).await,
            body => send(gateway, method, &format!("{TASKS}/{path}"), &body).await,
        };
        (reply.status, reply.json()["status"].clone())
    };
    let done = (200, json!("done"));
    assert_eq!(one("POST", "task-1/retry", Value::Null).await, done);
    assert_eq!(orders.act(0).await.kind, ControlKind::RetryTask(id("task-1")));
    assert_eq!(one("DELETE", "task-4", Value::Null).await, done);
    assert_eq!(orders.act(1).await.kind, ControlKind::DropTask(id("task-4")));
    let edits = [
        (json!({"content": "new", "metadata": {}}), Some("new"), Some(json!({}))),
        (json!({"content": "new"}), Some("new"), None),
        (json!({"metadata": {"k": 2}}), None, Some(json!({"k": 2}))),
    ];
    for (n, (body, content, new)) in edits.into_iter().enumerate() {
        assert_eq!(one("PATCH", "task-6", body).await, done);
        let edit = ControlKind::EditTask {
            task: id("task-6"),
            edit: TaskEdit { content: content.map(str::to_owned), metadata: new.map(metadata) },
        };
        assert_eq!(orders.act(2 + n).await.kind, edit);
    }
    assert_eq!(one("DELETE", "task-2", Value::Null).await, (200, json!("rejected")), "its owner refuses");
    let problem = async |method: &str, path: &str, body: Value| {
        let reply = send(gateway, method, &format!("{TASKS}/{path}"), &body).await;
        let (status, code, _) = reply.problem();
        (status, code)
    };
    let unknown = (404, "unknown_task".to_owned());
    assert_eq!(problem("DELETE", "nope", json!({})).await, unknown);
    assert_eq!(problem("POST", "nope/retry", json!({})).await, unknown);
    assert_eq!(problem("PATCH", "nope", json!({"content": "x"})).await, unknown);
    assert_eq!(problem("PATCH", "nope", json!({"content": "x", "metadata": {}})).await, unknown);
    assert_eq!(problem("PATCH", "task-6", json!({})).await, (400, "invalid_body".to_owned()));
    assert_eq!(problem("PATCH", "task-6", json!({"content": ""})).await, (400, "empty_input".to_owned()));
    assert_eq!(problem("PATCH", "task-6", json!({"status": "done"})).await, (400, "invalid_body".to_owned()));
    assert_eq!(problem("PATCH", "a.b", json!({"content": "x"})).await, (400, "invalid_id".to_owned()));
}
