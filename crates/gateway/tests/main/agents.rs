//! Agents: settings, state, and the operations on them.

use model::{
    ActiveTurn, AgentId, CommandId, ControlKind, QueryTarget, QueueStatus, RequestInfo, TaskId, TurnId,
    WaitReason, WorkflowName,
};
use serde_json::{Value, json};
use testkit::http;

use crate::command_log::CommandLog;
use crate::fixture::{Fixture, idle};
use crate::sending::{bare, send, send_with};

#[tokio::test(flavor = "multi_thread")]
async fn settings_are_put_checked_and_audited() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let gateway = fixture.gateways[0];
    let body = json!({"workflow": "research", "settings": {"deadline_ms": 5_000, "temperature": 0.5}});
    let put = |actor: &'static str, body: &Value| {
        let body = body.to_string();
        async move {
            let headers = [("content-type", "application/json"), ("x-antiphon-actor", actor)];
            send_with(gateway, "PUT", "/v1/agents/a1", &headers, body.as_bytes()).await
        }
    };
    let created = put("mia", &body).await;
    assert_eq!(created.status, 201);
    let expected = json!({"agent_id": "a1", "workflow": "research", "version": 1,
        "settings": {"deadline_ms": 5_000, "temperature": 0.5}});
    assert_eq!(created.json(), expected);
    let changed = put("tom", &json!({"workflow": "other"})).await;
    assert_eq!((changed.status, &changed.json()["version"]), (200, &json!(2)));
    let shown = http::get_json(gateway, "/v1/agents/a1").await.unwrap();
    assert_eq!(
        (&shown["workflow"], &shown["settings"], &shown["version"]),
        (&json!("other"), &json!({}), &json!(2))
    );
    let audit = http::get_json(gateway, "/v1/agents/a1/audit").await.unwrap();
    let acts: Vec<_> =
        audit["entries"].as_array().unwrap().iter().map(|act| (&act["actor"], &act["action"])).collect();
    assert_eq!(acts, [(&json!("tom"), &json!("put_settings")), (&json!("mia"), &json!("put_settings"))]);
    let bad = [
        (json!({}), "invalid_body"),
        (json!({"workflow": "a", "setting": {}}), "invalid_body"),
        (json!({"workflow": "a.b"}), "invalid_id"),
        (json!({"workflow": ""}), "invalid_id"),
        (json!({"workflow": "a", "settings": []}), "invalid_body"),
        (json!({"workflow": "a", "settings": {"deadline_ms": "1"}}), "invalid_settings"),
        (json!({"workflow": "a", "settings": {"x": "\0"}}), "invalid_settings"),
    ];
    for (body, code) in bad {
        assert_eq!(put("mia", &body).await.problem(), (400, code.to_owned(), false), "{body}");
    }
    for unknown in ["klingon", "German", ""] {
        let body = json!({"workflow": "a", "settings": {"memory": true, "memory_language": unknown}});
        let refused = put("mia", &body).await;
        assert_eq!(refused.problem(), (400, "invalid_settings".to_owned(), false), "{body}");
        let detail = refused.json()["detail"].as_str().unwrap().to_owned();
        assert!(
            detail.contains("memory_language must be one of simple, ") && detail.contains("japanese"),
            "{detail}"
        );
    }
    let large = put("mia", &json!({"workflow": "a", "settings": {"x": "y".repeat(600_000)}})).await;
    assert_eq!(large.problem(), (413, "body_too_large".to_owned(), false));
    let shown = http::get_json(gateway, "/v1/agents/a1").await.unwrap();
    assert_eq!(shown["version"], 2, "what was refused changed nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_not_asked_is_of_the_default_tenant() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    for agent in ["mine", "acme~a1"] {
        let put = store::PutAgent {
            agent: AgentId::parse(agent).unwrap(),
            workflow: WorkflowName::parse("default").unwrap(),
            settings: serde_json::Map::new(),
            act: CommandId::parse(&format!("act-{}", agent.len())).unwrap(),
            actor: "mia".to_owned(),
        };
        fixture.store.put_agent(&put).await.unwrap();
    }
    let listed = http::get_json(fixture.gateways[0], "/v1/agents").await.unwrap();
    let agents = listed["agents"].as_array().unwrap().iter();
    assert_eq!(agents.map(|agent| &agent["agent_id"]).collect::<Vec<_>>(), ["mine"]);
}

async fn queue(fixture: &Fixture) {
    fixture.write(
        "INSERT INTO tasks (bucket, agent_id, position, task_id, kind, content)
         SELECT $bucket(a1), 'a1', n * 10, 'task-' || n, 'task', 'text ' || n FROM generate_series(1, 5) AS n;
         INSERT INTO failed_tasks (bucket, agent_id, position, code, text)
         VALUES ($bucket(a1), 'a1', 10, 'producer_error', 'no'), ($bucket(a1), 'a1', 30, 'dropped', 'x');
         INSERT INTO agents (bucket, agent_id, head_position, head_run, backoff_attempt_count, backoff_next_run_at,
                             error_code, error_text, error_at)
         VALUES ($bucket(a1), 'a1', 20, 1, 1, '2100-01-01T00:00:00Z', 'deadline', 'no progress',
                 '2026-01-01T00:00:00Z')",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_shown_from_the_store_and_from_its_owner() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let gateway = fixture.gateways[0];
    assert_eq!(
        bare(gateway, "GET", "/v1/agents/a1").await.problem(),
        (404, "unknown_agent".to_owned(), false)
    );
    queue(&fixture).await;
    let backoff = json!({"reason": "backoff", "until": "2100-01-01T00:00:00Z",
        "message": WaitReason::Backoff { for_ms: 0 }.message()});
    let expected = json!({
        "agent_id": "a1", "workflow": "default", "settings": {}, "version": 0, "created_at": null, "updated_at": null,
        "pending": 2, "failed": 2, "head_task_id": "task-4", "paused": false, "backoff_attempt_count": 1,
        "backoff_next_run_at": "2100-01-01T00:00:00Z",
        "last_error": {"code": "deadline", "message": "no progress", "at": "2026-01-01T00:00:00Z"},
        "owner_status": "unavailable", "active_turn": null, "waiting": backoff,
    });
    assert_eq!(http::get_json(gateway, "/v1/agents/a1").await.unwrap(), expected);
    let owner = fixture.owner(1, vec![]).await;
    let agent = AgentId::parse("a1").unwrap();
    let turn = TurnId::of_task(&agent, model::Position::from_stored(40));
    let head = Some(TaskId::parse("task-4").unwrap());
    let said = async |reason: Option<WaitReason>, active: Option<ActiveTurn>| {
        let explanation = QueueStatus { reason, active, head: head.clone(), ..idle() };
        *owner.explanation.lock().unwrap() = explanation;
        let shown = http::get_json(gateway, "/v1/agents/a1").await.unwrap();
        assert_eq!(shown["owner_status"], "available");
        (shown["waiting"].clone(), shown["active_turn"].clone())
    };
    assert_eq!(said(Some(WaitReason::Backoff { for_ms: 5 }), None).await, (backoff, Value::Null));
    let reasons = [
        (WaitReason::HeadOfLine, "head_of_line"),
        (WaitReason::Gap, "gap"),
        (WaitReason::Paused, "paused"),
        (WaitReason::NoWorkflow, "no_workflow"),
    ];
    for (reason, name) in reasons {
        assert_eq!(
            said(Some(reason), None).await.0,
            json!({"reason": name, "until": null, "message": reason.message()})
        );
    }
    let active = ActiveTurn {
        turn: turn.clone(),
        thread: agent.thread(),
        run: 1,
        message: turn.answer(1),
        waits_for: Some(WaitReason::NoWorkflow),
        idle_ms: 7,
        request: RequestInfo::default(),
        accepted_at: model::Timestamp(0),
        started_at: None,
        batch: None,
    };
    let (waiting, active) = said(None, Some(active)).await;
    assert_eq!(waiting, Value::Null);
    assert_eq!(
        (&active["turn_id"], &active["waiting"]["reason"]),
        (&json!(turn.as_str()), &json!("no_workflow"))
    );
    assert!(owner.questions.lock().unwrap().iter().all(|about| *about == QueryTarget::Agent(agent.clone())));
    drop(owner);
    fixture.write("UPDATE agents SET paused = true").await;
    let shown = http::get_json(gateway, "/v1/agents/a1").await.unwrap();
    assert_eq!(
        shown["waiting"],
        json!({"reason": "paused", "until": null, "message": WaitReason::Paused.message()})
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_are_listed_by_pages_and_by_what_they_wait_for() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let gateway = fixture.gateways[0];
    queue(&fixture).await;
    for n in 0..5 {
        let reply = send(gateway, "PUT", &format!("/v1/agents/set-{n}"), &json!({"workflow": "w"})).await;
        assert_eq!(reply.status, 201);
    }
    fixture
        .write("INSERT INTO agents (bucket, agent_id, paused) VALUES ($bucket(set-3), 'set-3', true)")
        .await;
    let list = async |query: &str| {
        let page = http::get_json(gateway, &format!("/v1/agents?{query}")).await.unwrap();
        let ids = page["agents"].as_array().unwrap().iter();
        let ids: Vec<_> = ids.map(|agent| agent["agent_id"].as_str().unwrap().to_owned()).collect();
        (ids, page["next"].as_str().map(str::to_owned))
    };
    let (all, next) = list("").await;
    let mut sorted = all.clone();
    sorted.sort();
    assert_eq!((sorted.join(" "), next), ("a1 set-0 set-1 set-2 set-3 set-4".to_owned(), None));
    let (mut paged, mut next) = list("limit=2").await;
    while let Some(from) = next {
        let (ids, after) = list(&format!("limit=2&next={from}")).await;
        paged.extend(ids);
        next = after;
    }
    assert_eq!(paged, all);
    assert_eq!(list("waiting=backoff").await, (vec!["a1".to_owned()], None));
    assert_eq!(list("waiting=paused").await, (vec!["set-3".to_owned()], None));
    for (query, code) in
        [("waiting=x", "invalid_query"), ("next=a.b", "invalid_id"), ("limit=201", "invalid_limit")]
    {
        let refused = bare(gateway, "GET", &format!("/v1/agents?{query}")).await;
        assert_eq!(refused.problem(), (400, code.to_owned(), false), "{query}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_pause_resume_and_clear_backoff() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let gateway = fixture.gateways[0];
    let orders = CommandLog::read(&fixture, |_| None).await;
    let acts = [
        ("pause", ControlKind::Pause),
        ("resume", ControlKind::Resume),
        ("clear-backoff", ControlKind::ClearBackoff),
    ];
    for (n, (path, what)) in acts.into_iter().enumerate() {
        let done = bare(gateway, "POST", &format!("/v1/agents/a1/{path}")).await;
        let act = orders.act(n).await;
        assert_eq!(
            (done.status, done.json()),
            (200, json!({"command_id": act.id.as_str(), "status": "done"}))
        );
        assert_eq!((act.subject.as_str(), act.kind), ("a1", what));
    }
    let bad = bare(gateway, "POST", "/v1/agents/a%20b/pause").await;
    assert_eq!(bad.problem(), (400, "invalid_id".to_owned(), false));
    let get = bare(gateway, "GET", "/v1/agents/a1/pause").await;
    assert_eq!((get.problem().0, get.header("allow")), (405, Some("POST")));
    let unknown = bare(gateway, "GET", "/v1/agents/missing/audit").await;
    assert_eq!(unknown.problem(), (404, "unknown_agent".to_owned(), false));
}

#[tokio::test(flavor = "multi_thread")]
async fn acts_on_unknown_agents_are_not_found() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let gateway = fixture.gateways[0];
    let _orders = CommandLog::read(&fixture, |_| Some("there is no such agent")).await;
    for name in ["missing", "missing+memory"] {
        for act in ["pause", "resume", "clear-backoff"] {
            let refused = bare(gateway, "POST", &format!("/v1/agents/{name}/{act}")).await;
            assert_eq!(refused.problem(), (404, "unknown_agent".to_owned(), false), "{name} {act}");
        }
    }
    // An agent that answers in a thread exists, without settings and tasks.
    fixture
        .write("INSERT INTO threads (bucket, thread_id, agent_id) VALUES ($bucket(chat), 'chat', 'a1')")
        .await;
    fixture.write("INSERT INTO threads (bucket, thread_id) VALUES ($bucket(own), 'own')").await;
    let other = bare(gateway, "POST", "/v1/agents/chat/pause").await;
    assert_eq!(other.problem(), (404, "unknown_agent".to_owned(), false), "a1 answers there");
    for name in ["a1", "own"] {
        let shown = http::get_json(gateway, &format!("/v1/agents/{name}")).await.unwrap();
        assert_eq!((&shown["agent_id"], &shown["version"]), (&json!(name), &json!(0)));
        let rejected = bare(gateway, "POST", &format!("/v1/agents/{name}/pause")).await;
        assert_eq!((rejected.status, &rejected.json()["status"]), (200, &json!("rejected")), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn actor_header_is_validated_and_recorded() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let gateway = fixture.gateways[0];
    let turn = TurnId::foreground(&AgentId::parse("a1").unwrap().thread(), "x").unwrap();
    let acts = [
        ("PUT", "/v1/agents/a1".to_owned(), r#"{"workflow": "w"}"#),
        ("POST", "/v1/agents/a1/pause".to_owned(), ""),
        ("POST", "/v1/agents/a1/resume".to_owned(), ""),
        ("POST", "/v1/agents/a1/clear-backoff".to_owned(), ""),
        ("POST", "/v1/agents/a1/tasks/k/retry".to_owned(), ""),
        ("PATCH", "/v1/agents/a1/tasks/k".to_owned(), r#"{"content": "x"}"#),
        ("DELETE", "/v1/agents/a1/tasks/k".to_owned(), ""),
        ("POST", format!("/v1/turns/{turn}/stop"), ""),
        ("POST", format!("/v1/threads/a1/failed-turns/{turn}/retry"), ""),
        ("DELETE", format!("/v1/threads/a1/failed-turns/{turn}"), ""),
    ];
    let json = ("content-type", "application/json");
    let long = "x".repeat(129);
    for (method, path, body) in acts {
        for actors in [vec![""], vec!["a b"], vec![&long], vec!["m\u{fc}ller"], vec!["mia", "tom"]] {
            let mut headers = vec![json];
            headers.extend(actors.iter().map(|actor| ("x-antiphon-actor", *actor)));
            let refused = send_with(gateway, method, &path, &headers, body.as_bytes()).await;
            let wanted = (400, "invalid_actor".to_owned(), false);
            assert_eq!(refused.problem(), wanted, "{method} {path} by {actors:?}");
        }
    }
    for actor in [vec![], vec![("x-antiphon-actor", &long[1..])]] {
        let headers = [vec![json], actor].concat();
        assert!(
            send_with(gateway, "PUT", "/v1/agents/a1", &headers, br#"{"workflow": "w"}"#).await.status < 300
        );
    }
    let audit = http::get_json(gateway, "/v1/agents/a1/audit").await.unwrap();
    let actors: Vec<_> = audit["entries"].as_array().unwrap().iter().map(|act| &act["actor"]).collect();
    assert_eq!(actors, [&json!(&long[1..]), &json!("api")]);
}
