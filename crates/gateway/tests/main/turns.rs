//! Named threads, stopping turns, and failed turns.

use model::{
    ActiveTurn, BusyPolicy, ControlKind, IdRange, MessageId, OpenMessageStatus, QueryTarget, QueueStatus,
    RequestInfo, Seq, ThreadId, TurnId, WaitReason,
};
use runtime::spawn_named;
use serde_json::json;
use testkit::http;

use crate::command_log::CommandLog;
use crate::fixture::{Fixture, behind, idle};
use crate::inputs::fail;
use crate::sending::{bare, post, send, send_with};

fn thread() -> ThreadId {
    ThreadId::parse("t1").unwrap()
}

fn turn(unique: &str) -> TurnId {
    TurnId::foreground(&thread(), unique).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn threads_are_named_once() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let gateway = fixture.gateways[0];
    let body = json!({"thread_id": "t1", "agent_id": "otto", "busy_policy": "reject", "metadata": {"a": 1}});
    let created = post(gateway, "/v1/threads", &body).await;
    assert_eq!((created.status, created.header("location")), (201, Some("/v1/threads/t1")));
    let mut shown = created.json();
    for time in ["created_at", "last_activity_at"] {
        assert!(shown[time].as_str().unwrap().ends_with('Z'));
        shown.as_object_mut().unwrap().remove(time);
    }
    let expected = json!({"thread_id": "t1", "title": null, "agent_id": "otto", "workflow": "default",
        "busy_policy": "reject", "user_id": null, "metadata": {"a": 1}, "archived": false, "version": 0,
        "message_count": 0, "last_position": null});
    assert_eq!(shown, expected);
    assert_eq!(post(gateway, "/v1/threads", &body).await.status, 200, "the same again");
    let other = post(gateway, "/v1/threads", &json!({"thread_id": "t1"})).await;
    assert_eq!(other.problem(), (409, "thread_exists".to_owned(), false));
    let mark = "INSERT INTO erased_threads (bucket, thread_id, actor, erasing) VALUES ($bucket(t9), 't9', 'anna', 'x')";
    fixture.write(mark).await;
    let erased = (410, "thread_erased".to_owned(), false);
    assert_eq!(post(gateway, "/v1/threads", &json!({"thread_id": "t9"})).await.problem(), erased);
    let put = send(gateway, "PUT", "/v1/agents/t9", &json!({"workflow": "default"})).await;
    assert_eq!(put.problem(), erased, "its own thread");
    fixture.write("UPDATE erased_threads SET erasing = NULL").await;
    assert_eq!(post(gateway, "/v1/threads", &json!({"thread_id": "t9"})).await.status, 201);
    let unnamed = post(gateway, "/v1/threads", &json!({})).await;
    let id = unnamed.json()["thread_id"].as_str().unwrap().to_owned();
    assert_eq!((unnamed.status, id.len(), &unnamed.json()["agent_id"]), (201, 32, &json!("default")));
    let bad = [
        (json!({"thread_id": "a b"}), "invalid_id"),
        (json!({"thread_id": ""}), "invalid_id"),
        (json!({"agent_id": "*"}), "invalid_id"),
        (json!({"busy_policy": "Reject"}), "invalid_busy_policy"),
        (json!({"name": "x"}), "invalid_body"),
        (json!({"metadata": {"a\0": 1}}), "invalid_metadata"),
    ];
    for (body, code) in bad {
        assert_eq!(
            post(gateway, "/v1/threads", &body).await.problem(),
            (400, code.to_owned(), false),
            "{body}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thread_is_shown_with_what_its_owner_says() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let gateway = fixture.gateways[0];
    let away = bare(gateway, "GET", "/v1/threads/t1").await;
    assert_eq!(
        away.problem(),
        (503, "partition_unavailable".to_owned(), true),
        "only the owner can report that it does not exist"
    );
    fixture.write_turn(&turn("x"), 0, 10, &["answer"]).await;
    fixture.write("UPDATE threads SET message_count = 2, head_position = 11").await;
    let shown = http::get_json(gateway, "/v1/threads/t1").await.unwrap();
    assert_eq!((&shown["owner_status"], &shown["active_turn"]), (&json!("unavailable"), &json!(null)));
    assert_eq!((&shown["message_count"], &shown["last_position"]), (&json!(2), &json!("11")));
    assert_eq!((&shown["agent_id"], &shown["busy_policy"]), (&json!("default"), &json!("enqueue")));
    let owner = fixture.owner(1, vec![]).await;
    *owner.explanation.lock().unwrap() = under_way(Some(WaitReason::Gap), vec![turn("b"), turn("c")]);
    let shown = http::get_json(gateway, "/v1/threads/t1").await.unwrap();
    assert_eq!(shown["owner_status"], "available");
    let mut shown = shown;
    for time in ["/active_turn/fails_at", "/active_turn/request/again_at"] {
        assert!(shown.pointer_mut(time).unwrap().take().as_str().unwrap().ends_with('Z'), "{time}");
    }
    let request = json!({"deliveries": 2, "handed_back": 1, "again_at": null, "alive_at": null});
    let active = json!({"turn_id": turn("a").as_str(), "thread_id": "t1", "run": 1, "fails_at": null, "request": request,
        "message_id": turn("a").answer(1).as_str(), "waiting": {"reason": "gap", "until": null, "message": WaitReason::Gap.message()}, "idle_ms": 250});
    assert_eq!(shown["active_turn"], active);
    let place = |index: usize| shown["waiting_turns"][index]["place"].clone();
    let places = [place(0), place(1)];
    assert_eq!([&places[0]["ahead"], &places[1]["ahead"]], [&json!(1), &json!(2)]);
    let waits = |name: &str, place: &serde_json::Value| json!({"turn_id": turn(name).as_str(), "waiting": {"reason": "head_of_line", "until": null, "message": WaitReason::HeadOfLine.message()}, "place": place, "age_ms": 5});
    assert_eq!(shown["waiting_turns"], json!([waits("b", &places[0]), waits("c", &places[1])]));
    assert_eq!(*owner.questions.lock().unwrap(), [QueryTarget::Inputs(thread())]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_implicit_thread_is_known_by_its_first_turn() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let gateway = fixture.gateways[0];
    let owner = fixture.owner(1, vec![]).await;
    let unknown = bare(gateway, "GET", "/v1/threads/t1").await;
    assert_eq!(unknown.problem(), (404, "unknown_thread".to_owned(), false));
    *owner.explanation.lock().unwrap() = QueueStatus { reason: Some(WaitReason::CatchingUp), ..idle() };
    let unread = bare(gateway, "GET", "/v1/threads/t1").await;
    assert_eq!(
        unread.problem(),
        (503, "partition_unavailable".to_owned(), true),
        "it may stand unread in the stream"
    );
    *owner.explanation.lock().unwrap() = under_way(Some(WaitReason::NoWorkflow), vec![]);
    let mut begun = http::get_json(gateway, "/v1/threads/t1").await.unwrap();
    assert_eq!(begun["active_turn"]["turn_id"], turn("a").as_str());
    assert!(begun["active_turn"]["waiting"]["until"].is_string(), "its deadline is known");
    begun.as_object_mut().unwrap().remove("active_turn");
    let expected = json!({"thread_id": "t1", "title": null, "agent_id": "default", "workflow": "default",
        "busy_policy": "enqueue", "user_id": null, "metadata": {}, "archived": false, "version": 0,
        "message_count": 0, "last_position": null, "created_at": null, "last_activity_at": null, "owner_status": "available", "waiting_turns": [], "pending": [], "open_messages": []});
    assert_eq!(begun, expected);
    // The thread has only a message without a turn, which waits for a chunk.
    let open = OpenMessageStatus {
        message: MessageId::parse("m-7").unwrap(),
        expected: 1,
        received: 2,
        released: 1,
        missing: vec![IdRange { first: 1, last: 1 }],
        gap_for_ms: Some(5_000),
    };
    *owner.explanation.lock().unwrap() = QueueStatus { open: vec![open], ..idle() };
    let mut waits = http::get_json(gateway, "/v1/threads/t1").await.unwrap();
    assert!(waits["open_messages"][0]["until"].as_str().unwrap().ends_with('Z'));
    waits["open_messages"][0]["until"].take();
    let expected = json!([{"message_id": "m-7", "expected": 1, "received": 2, "released": 1,
        "missing": [{"first": 1, "last": 1}], "until": null}]);
    assert_eq!(waits["open_messages"], expected);
    // The first turn of the thread has failed: such a thread has no row.
    *owner.explanation.lock().unwrap() = idle();
    fail(&fixture, &turn("a"), 0).await;
    assert_eq!(bare(gateway, "GET", "/v1/threads/t1").await.json()["message_count"], 0);
}

fn under_way(waits_for: Option<WaitReason>, waiting: Vec<TurnId>) -> QueueStatus {
    let message = turn("a").answer(1);
    let request = RequestInfo {
        deliveries: 2,
        handed_back: 1,
        again_ms: Some(900),
        alive_ms: None,
        fails_ms: Some(5_000),
    };
    let turn = turn("a");
    let active = ActiveTurn {
        turn,
        thread: thread(),
        run: 1,
        message,
        waits_for,
        idle_ms: 250,
        request,
        accepted_at: model::Timestamp(1_800_000_000_000),
        started_at: Some(model::Timestamp(1_800_000_001_000)),
        batch: None,
    };
    QueueStatus { active: Some(active), waiting: waiting.into_iter().map(behind).collect(), ..idle() }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_waits_for_the_owner_of_its_turn() {
    let limits = gateway::GatewayLimits { owner_timeout_ms: 1_000, ..gateway::GatewayLimits::default() };
    let fixture = Fixture::with(limits, 1).await;
    let gateway = fixture.gateways[0];
    let path = format!("/v1/turns/{}/stop", turn("a"));
    let away = bare(gateway, "POST", &path).await;
    assert_eq!(away.problem(), (503, "partition_unavailable".to_owned(), true));
    let waits = spawn_named("stop", async move { bare(gateway, "POST", &path).await });
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    assert!(!waits.is_finished());
    let owner = fixture.owner(1, vec![]).await;
    *owner.explanation.lock().unwrap() = under_way(None, vec![]);
    let pending = waits.await.unwrap();
    assert_eq!((pending.status, &pending.json()["status"]), (202, &json!("pending")));
    // A new owner that has not read everything may not know of a turn.
    *owner.explanation.lock().unwrap() = QueueStatus { reason: Some(WaitReason::CatchingUp), ..idle() };
    let unread = bare(gateway, "POST", &format!("/v1/turns/{}/stop", turn("b"))).await;
    assert_eq!(unread.problem(), (503, "partition_unavailable".to_owned(), true));
}

/// The situation after a takeover, while the last inputs wait for the store.
#[tokio::test(flavor = "multi_thread")]
async fn owner_that_is_behind_does_not_report_an_idle_thread() {
    let limits = gateway::GatewayLimits { owner_timeout_ms: 1_000, ..gateway::GatewayLimits::default() };
    let fixture = Fixture::with(limits, 1).await;
    let gateway = fixture.gateways[0];
    let taken = post(gateway, "/v1/threads/t1/messages", &json!({"content": "hello"})).await;
    assert_eq!(taken.status, 202);
    let owner = fixture.owner(1, vec![]).await;
    *owner.explanation.lock().unwrap() = QueueStatus { applied_seq: Seq(0), ..idle() };
    let unread = bare(gateway, "GET", "/api/chat/t1/stream").await;
    assert_eq!((unread.status, unread.text.contains("has not read everything")), (503, true));
    *owner.explanation.lock().unwrap() = QueueStatus { applied_seq: Seq(1), ..idle() };
    assert_eq!(bare(gateway, "GET", "/api/chat/t1/stream").await.status, 204);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_is_stopped_by_its_owner() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let gateway = fixture.gateways[0];
    let path = format!("/v1/turns/{}/stop", turn("a"));
    let owner = fixture.owner(1, vec![]).await;
    let unknown = bare(gateway, "POST", &path).await;
    assert_eq!(unknown.problem(), (404, "unknown_turn".to_owned(), false));
    for bad in
        ["/v1/turns/t1/stop", "/v1/turns/u0001-/stop", "/v1/turns/uffff-a/stop", "/v1/turns/u0001-a.b/stop"]
    {
        assert_eq!(
            bare(gateway, "POST", bad).await.problem(),
            (400, "invalid_id".to_owned(), false),
            "{bad}"
        );
    }
    *owner.explanation.lock().unwrap() = under_way(None, vec![]);
    // No owner executes the command yet.
    let pending = bare(gateway, "POST", &path).await;
    assert_eq!((pending.status, &pending.json()["status"]), (202, &json!("pending")));
    let orders = CommandLog::read(&fixture, |act| {
        act.actor.starts_with("late").then_some("the turn has ended already")
    })
    .await;
    let first = orders.act(0).await;
    assert_eq!((first.subject.as_str(), &first.kind), ("t1", &ControlKind::StopTurn(turn("a"))));
    assert_eq!((&*first.actor, pending.json()["command_id"].as_str().unwrap()), ("api", first.id.as_str()));
    let headers = [("x-antiphon-actor", "mia@host-1")];
    let done = send_with(gateway, "POST", &path, &headers, b"{}").await;
    let second = orders.act(1).await;
    assert_eq!(
        (done.status, done.json()),
        (200, json!({"command_id": second.id.as_str(), "status": "done"}))
    );
    assert_eq!(&*second.actor, "mia@host-1");
    assert_ne!(second.id, first.id);
    let late = send_with(gateway, "POST", &path, &[("x-antiphon-actor", "late")], b"").await;
    assert_eq!((late.status, &late.json()["status"]), (200, &json!("rejected")));
    assert_eq!(late.json()["error"], "the turn has ended already");
    for actor in ["", "a b", &"x".repeat(129)] {
        let refused = send_with(gateway, "POST", &path, &[("x-antiphon-actor", actor)], b"").await;
        assert_eq!(refused.problem(), (400, "invalid_actor".to_owned(), false), "{actor}");
    }
    let body = post(gateway, &path, &json!({"why": "x"})).await;
    assert_eq!(body.problem(), (400, "unexpected_body".to_owned(), false));
    let audit = http::get_json(gateway, "/v1/threads/t1/audit?limit=2").await.unwrap();
    assert_eq!(
        (audit["entries"].as_array().unwrap().len(), &audit["next"]),
        (2, &audit["entries"][1]["command_id"])
    );
    assert_eq!(audit["entries"][0]["actor"], "late");
    assert_eq!(audit["entries"][1]["target"], turn("a").as_str());
    let next = audit["next"].as_str().unwrap();
    let rest = http::get_json(gateway, &format!("/v1/threads/t1/audit?next={next}")).await.unwrap();
    assert_eq!((rest["entries"].as_array().unwrap().len(), &rest["next"]), (1, &json!(null)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_is_saved_as_open_is_found_without_its_owner() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let orders = CommandLog::read(&fixture, |_| None).await;
    let columns = fixture.columns_of("spilled_turns").await;
    let incarnation = columns.iter().any(|column| column == "incarnation");
    let (name, value) = if incarnation { (", incarnation", ", 'stream'") } else { ("", "") };
    fixture.write(&format!(
        "INSERT INTO spilled_turns (bucket, thread_id, turn_id, agent_id, run, content, metadata, stream_seq{name})
         VALUES ($bucket(t1), 't1', '{}', 't1', 0, 'x', '{{}}', 1{value})",
        turn("a")
    ))
    .await;
    let done = bare(fixture.gateways[0], "POST", &format!("/v1/turns/{}/stop", turn("a"))).await;
    assert_eq!((done.status, &done.json()["status"]), (200, &json!("done")));
    assert_eq!(orders.act(0).await.kind, ControlKind::StopTurn(turn("a")));
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_turns_are_listed_retried_and_dropped() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let gateway = fixture.gateways[0];
    let list = "/v1/threads/t1/failed-turns";
    let away = bare(gateway, "GET", list).await;
    assert_eq!(
        away.problem(),
        (503, "partition_unavailable".to_owned(), true),
        "its first turn may be under way"
    );
    let _owner = fixture.owner(1, vec![]).await;
    assert_eq!(bare(gateway, "GET", list).await.problem(), (404, "unknown_thread".to_owned(), false));
    let orders = CommandLog::read(&fixture, |_| None).await;
    for unique in ["a", "b", "c"] {
        fail(&fixture, &turn(unique), 2).await;
    }
    let page = http::get_json(gateway, &format!("{list}?limit=2")).await.unwrap();
    let next = json!(turn("b").as_str());
    assert_eq!((page["failed_turns"].as_array().unwrap().len(), &page["next"]), (2, &next));
    let mut first = page["failed_turns"][0].clone();
    assert!(first["failed_at"].as_str().unwrap().ends_with('Z'));
    first.as_object_mut().unwrap().remove("failed_at");
    let expected = json!({"turn_id": turn("a").as_str(), "agent_id": "t1", "run": 2,
        "message_id": turn("a").answer(2).as_str(), "content": "question", "metadata": {"k": 1},
        "code": "deadline", "message": "no progress", "retryable": true, "partial": ""});
    assert_eq!(first, expected);
    let rest = http::get_json(gateway, &format!("{list}?next={}", turn("b"))).await.unwrap();
    assert_eq!(
        (&rest["failed_turns"][0]["turn_id"], &rest["next"]),
        (&json!(turn("c").as_str()), &json!(null))
    );
    let retry = format!("{list}/{}/retry", turn("b"));
    for n in 0..2 {
        let accepted = send_with(gateway, "POST", &retry, &[("x-antiphon-actor", "mia")], b"").await;
        let shown = accepted.json();
        assert_eq!((accepted.status, &shown["run"]), (202, &json!(3)));
        assert_eq!(shown["message_id"], turn("b").answer(3).as_str());
        let opened = orders.turn(n).await;
        assert_eq!(
            (opened.turn, opened.run, opened.options.busy_policy),
            (turn("b"), 3, BusyPolicy::Enqueue)
        );
        assert_eq!((opened.content.as_str(), opened.metadata.to_value()), ("question", json!({"k": 1})));
        assert_eq!(opened.actor.as_deref(), Some("mia"));
    }
    let dropped = bare(gateway, "DELETE", &format!("{list}/{}", turn("c"))).await;
    assert_eq!((dropped.status, &dropped.json()["status"]), (200, &json!("done")));
    assert_eq!(orders.act(2).await.kind, ControlKind::DropFailedTurn(turn("c")));
    for (method, path) in
        [("POST", format!("{list}/{}/retry", turn("z"))), ("DELETE", format!("{list}/{}", turn("z")))]
    {
        let unknown = bare(gateway, method, &path).await;
        assert_eq!(unknown.problem(), (404, "unknown_failed_turn".to_owned(), false), "{path}");
    }
    let bad = [
        ("GET", format!("{list}?limit=0"), "invalid_limit"),
        ("GET", format!("{list}?next=x"), "invalid_id"),
        ("GET", format!("{list}?before=x"), "invalid_query"),
        ("POST", format!("{list}/x/retry"), "invalid_id"),
    ];
    for (method, path, code) in bad {
        assert_eq!(bare(gateway, method, &path).await.problem(), (400, code.to_owned(), false), "{path}");
    }
    let wrong = send(gateway, "PUT", list, &json!({})).await;
    assert_eq!((wrong.problem().0, wrong.header("allow")), (405, Some("GET,HEAD")));
}
