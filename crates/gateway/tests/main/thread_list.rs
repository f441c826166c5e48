//! Lists of threads, and changes of threads by clients.

use model::{BusyThread, BusyThreads, QueryTarget, QueueStatus, ThreadId, WaitReason};
use serde_json::{Value, json};
use testkit::http;

use crate::fixture::{Fixture, idle};
use crate::sending::{Reply, bare, post, send, send_with};

async fn fixture() -> Fixture {
    Fixture::with(gateway::GatewayLimits::default(), 1).await
}

/// The threads of a list, and their states.
fn states(list: &Value) -> Vec<(&str, Option<&str>)> {
    let threads = list["threads"].as_array().unwrap();
    threads.iter().map(|one| (one["thread_id"].as_str().unwrap(), one["state"].as_str())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_shows_what_the_owners_say() {
    let fixture = fixture().await;
    let gateway = fixture.gateways[0];
    post(gateway, "/v1/threads", &json!({"thread_id": "t1", "metadata": {"user_id": "bob", "k": [1]}})).await;
    let away = http::get_json(gateway, "/v1/threads").await.unwrap();
    assert_eq!(states(&away), [("t1", None)], "its owner does not answer");
    assert_eq!(away["threads"][0]["user_id"], "bob");
    let owner = fixture.owner(1, vec![]).await;
    let says = |threads: Vec<BusyThread>, is_cut: bool, reason: Option<WaitReason>| {
        let busy = Some(BusyThreads { threads, is_cut });
        *owner.explanation.lock().unwrap() = QueueStatus { busy, reason, ..idle() };
    };
    let busy = |is_running| vec![BusyThread { thread: ThreadId::parse("t1").unwrap(), is_running }];
    for (threads, is_cut, reason, state) in [
        (vec![], false, None, Some("idle")),
        (vec![], true, None, None),
        (vec![], false, Some(WaitReason::CatchingUp), None),
        (busy(true), true, Some(WaitReason::CatchingUp), Some("running")),
        (busy(false), false, None, Some("waiting")),
    ] {
        says(threads, is_cut, reason);
        let list = http::get_json(gateway, "/v1/threads").await.unwrap();
        assert_eq!(states(&list), [("t1", state)], "{is_cut} {reason:?}");
    }
    let asked = owner.questions.lock().unwrap().clone();
    assert!(asked.iter().all(|about| *about == QueryTarget::BusyThreads(None)), "{asked:?}");
    let waiting = http::get_json(gateway, "/v1/threads?state=waiting").await.unwrap();
    assert_eq!(states(&waiting), [("t1", Some("waiting"))]);
    says(vec![], false, Some(WaitReason::CatchingUp));
    let unknown = bare(gateway, "GET", "/v1/threads?state=running").await;
    assert_eq!(unknown.problem(), (503, "partition_unavailable".to_owned(), true));
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_are_filtered_and_their_pages_follow_each_other() {
    let fixture = fixture().await;
    let gateway = fixture.gateways[0];
    for (id, user) in [("a", "bob"), ("b", "eve"), ("c", "bob")] {
        let body = json!({"thread_id": id, "agent_id": "otto", "metadata": {"user_id": user, "n": id}});
        assert_eq!(post(gateway, "/v1/threads", &body).await.status, 201);
    }
    let list = async |query: &str| -> (Vec<String>, Option<String>) {
        let list = http::get_json(gateway, &format!("/v1/threads{query}")).await.unwrap();
        let ids = states(&list).into_iter().map(|(id, _)| id.to_owned()).collect();
        (ids, list["next"].as_str().map(str::to_owned))
    };
    let (first, next) = list("?limit=2").await;
    let (second, end) = list(&format!("?limit=2&next={}", next.unwrap())).await;
    assert_eq!((first.concat() + &second.concat(), end), ("cba".to_owned(), None));
    assert_eq!(list("?user_id=bob").await.0, ["c", "a"]);
    assert_eq!(list("?agent_id=otto&user_id=eve").await.0, ["b"]);
    assert_eq!(list("?metadata=%7B%22n%22%3A%22b%22%7D").await.0, ["b"]);
    assert_eq!(list("?agent_id=none").await.0, [""; 0]);
    assert_eq!(list("?state=failed").await.0, [""; 0]);
    let change =
        send(gateway, "PATCH", "/v1/threads/a", &json!({"title": "Trip to Lyon", "archived": true})).await;
    assert_eq!(change.status, 200);
    assert_eq!(
        (list("").await.0.concat(), list("?archived=true").await.0.concat()),
        ("cb".into(), "a".into())
    );
    assert_eq!(list("?archived=true&q=lyon%20trip").await.0, ["a"]);
    assert_eq!(list("?archived=true&q=paris").await.0, [""; 0]);
    for query in [
        "?limit=0",
        "?state=x",
        "?archived=1",
        "?metadata=3",
        "?metadata=%7B",
        "?user_id=",
        "?user_id=a%00",
        "?q=%20",
        "?next=x",
        "?next=1.a~b",
        "?next=-1.a",
        "?none=1",
    ] {
        let (status, code, _) = bare(gateway, "GET", &format!("/v1/threads{query}")).await.problem();
        assert!(status == 400 && matches!(&*code, "invalid_query" | "invalid_limit"), "{query}: {code}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thread_is_changed_once_for_each_version() {
    let fixture = fixture().await;
    let gateway = fixture.gateways[0];
    let created =
        post(gateway, "/v1/threads", &json!({"thread_id": "t1", "metadata": {"a": 1, "b": 2}})).await;
    assert_eq!(created.header("etag"), Some("\"0\""));
    let path = "/v1/threads/t1";
    let change = async |tag: &str, body: Value| -> Reply {
        let headers = [("content-type", "application/json"), ("if-match", tag)];
        send_with(gateway, "PATCH", path, &headers, body.to_string().as_bytes()).await
    };
    let body =
        json!({"title": " A trip ", "metadata": {"a": null, "c": 3}, "user_id": "bob", "agent_id": "otto"});
    let changed = change("\"0\"", body.clone()).await;
    let shown = changed.json();
    assert_eq!((changed.status, changed.header("etag")), (200, Some("\"1\"")), "{shown}");
    assert_eq!(shown["metadata"], json!({"b": 2, "c": 3, "user_id": "bob"}));
    assert_eq!(
        (&shown["title"], &shown["agent_id"], &shown["version"]),
        (&json!("A trip"), &json!("otto"), &json!(1))
    );
    assert_eq!(change("\"0\"", body.clone()).await.problem(), (412, "thread_changed".to_owned(), false));
    assert_eq!(change("*", json!({"user_id": null, "agent_id": null, "title": null})).await.status, 200);
    let shown = http::get_json(gateway, path).await.unwrap();
    let left = json!([null, "default", null, {"b": 2, "c": 3}]);
    assert_eq!(json!([shown["user_id"], shown["agent_id"], shown["title"], shown["metadata"]]), left);
    let archived = send(gateway, "PATCH", path, &json!({"archived": true})).await.json();
    assert_eq!((&archived["archived"], &archived["metadata"]), (&json!(true), &json!({"b": 2, "c": 3})));
    assert_eq!(send(gateway, "PATCH", path, &json!({})).await.status, 200, "nothing to change");
    for (tag, body, status, code) in [
        ("3", json!({}), 400, "invalid_if_match"),
        ("W/\"3\"", json!({}), 400, "invalid_if_match"),
        ("*", json!({"title": " "}), 400, "invalid_title"),
        ("*", json!({"title": "a\nb"}), 400, "invalid_title"),
        ("*", json!({"title": "x".repeat(257)}), 400, "invalid_title"),
        ("*", json!({"metadata": {"a\0": 1}}), 400, "invalid_metadata"),
        ("*", json!({"name": "x"}), 400, "invalid_body"),
        ("*", json!({"agent_id": "a b"}), 400, "invalid_id"),
    ] {
        assert_eq!(
            change(tag, body.clone()).await.problem(),
            (status, code.to_owned(), false),
            "{tag} {body}"
        );
    }
    let gone = send(gateway, "PATCH", "/v1/threads/none", &json!({"archived": true})).await;
    assert_eq!(gone.status, 503, "its owner alone can report that it does not exist");
}

/// Lists show a thread before its first turn has ended, and a change creates its row.
#[tokio::test(flavor = "multi_thread")]
async fn a_begun_thread_is_listed_and_can_be_changed() {
    let fixture = fixture().await;
    let gateway = fixture.gateways[0];
    let owner = fixture.owner(1, vec![]).await;
    *owner.explanation.lock().unwrap() = idle();
    let sent = post(gateway, "/v1/threads/t1/messages", &json!({"content": "Where\nis Lyon?"})).await;
    assert_eq!(sent.status, 202);
    let mut listed = Value::Null;
    for _ in 0..100 {
        listed = http::get_json(gateway, "/v1/threads").await.unwrap();
        if listed["threads"][0].is_object() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    let shown = &listed["threads"][0];
    assert_eq!((&shown["thread_id"], &shown["title"]), (&json!("t1"), &json!("Where is Lyon?")));
    assert_eq!((&shown["message_count"], &shown["created_at"]), (&json!(0), &Value::Null));
    let waiting = vec![crate::fixture::behind(
        model::TurnId::foreground(&ThreadId::parse("t1").unwrap(), "x").unwrap(),
    )];
    *owner.explanation.lock().unwrap() = QueueStatus { waiting, ..idle() };
    let changed = send(gateway, "PATCH", "/v1/threads/t1", &json!({"title": "Lyon"})).await;
    assert_eq!((changed.status, &changed.json()["title"]), (200, &json!("Lyon")));
}
