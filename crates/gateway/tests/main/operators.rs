//! What operators do with dead letters and incidents.

use serde_json::{Value, json};

use crate::fixture::Fixture;
use crate::sending::{Reply, bare, post};

fn refused(reply: &Reply) -> (u16, String) {
    let (status, code, _) = reply.problem();
    (status, code)
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_shown_whole_replayed_once_and_dropped() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let gateway = fixture.gateways[0];
    fixture
        .write(
            "INSERT INTO dead_letters (bucket, kind, key, partition_id, stream_seq, thread_id, message_id, subject, reason, detail, raw) VALUES
             ($bucket(t1), 'message', 't1/m1', 0, 1, 't1', 'm1', NULL, 'gap_timeout', '{}', '[]'),
             (0, 'entry', 's:7', 0, 7, NULL, NULL, 'tasks.0.late', 'unknown_agent', '{}', '\\xff00'),
             (0, 'entry', 's:8', 0, 8, NULL, NULL, NULL, 'malformed', '{}', '')",
        )
        .await;
    let bucket = model::Bucket::of_key("t1").get();
    // The id of a message has a slash.
    let message = format!("/v1/dead-letters/message:{bucket}:t1%2Fm1");
    let shown = bare(gateway, "GET", &message).await.json();
    assert_eq!(
        (&shown["message_id"], &shown["text"], &shown["hex"]),
        (&json!("m1"), &json!("[]"), &json!("5b5d"))
    );
    let entry = "/v1/dead-letters/entry:0:s:7";
    let shown = bare(gateway, "GET", entry).await.json();
    assert_eq!(
        (&shown["text"], &shown["hex"], &shown["thread_id"]),
        (&Value::Null, &json!("ff00"), &json!("late"))
    );

    for (letter, status, code) in [
        (message.as_str(), 409, "dead_letter_not_replayable"),
        ("/v1/dead-letters/entry:0:s:8", 409, "dead_letter_not_replayable"),
        ("/v1/dead-letters/entry:0:s:9", 404, "unknown_dead_letter"),
        ("/v1/dead-letters/nonsense", 400, "invalid_id"),
        ("/v1/dead-letters/entry:0:s%00", 400, "invalid_id"),
    ] {
        let reply = post(gateway, &format!("{letter}/replay"), &json!({})).await;
        assert_eq!(refused(&reply), (status, code.to_owned()), "{letter}");
    }
    // Another request is replaying the letter.
    fixture.write("UPDATE dead_letters SET claimed_at = now() WHERE key = 's:7'").await;
    let busy = post(gateway, &format!("{entry}/replay"), &json!({})).await;
    assert_eq!((busy.problem().1.as_str(), busy.header("retry-after")), ("dead_letter_busy", Some("60")));
    fixture.write("UPDATE dead_letters SET claimed_at = NULL WHERE key = 's:7'").await;
    let replayed = post(gateway, &format!("{entry}/replay"), &json!({})).await;
    assert_eq!((replayed.status, &replayed.json()["replayed"]), (200, &json!(true)), "{}", replayed.text);
    let again = post(gateway, &format!("{entry}/replay"), &json!({})).await;
    assert_eq!(refused(&again), (409, "dead_letter_replayed".to_owned()));
    assert_eq!(bare(gateway, "DELETE", entry).await.json()["dropped"], true);
    assert_eq!(refused(&bare(gateway, "DELETE", entry).await), (404, "unknown_dead_letter".to_owned()));
    let acts = "SELECT action || ' ' || actor || ' ' || target FROM audit_log WHERE subject_id = 'late' ORDER BY created_at";
    assert_eq!(
        fixture.texts(acts).await,
        ["drop_dead_letter api entry:0:s:7", "replay_dead_letter api entry:0:s:7"]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn incidents_are_acknowledged_by_partition_or_all() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let gateway = fixture.gateways[0];
    fixture
        .write(
            "INSERT INTO incidents (partition_id, incarnation, first_seq, kind, last_seq, detail) VALUES
             (3, 's', 41, 'entries_gone', 57, 'gone'), (5, 's', 7, 'stream_parted', NULL, 'parted')",
        )
        .await;
    let path = "/v1/incidents/acknowledge";
    for partition in ["-1", "some", "99999", "1024", "32768", "65535", ""] {
        let reply = post(gateway, path, &json!({ "partition": partition })).await;
        assert_eq!(refused(&reply), (400, "invalid_body".to_owned()), "{partition}");
    }
    assert_eq!(post(gateway, path, &json!({"partition": "3"})).await.json(), json!({"acknowledged": 1}));
    let open = bare(gateway, "GET", "/v1/incidents").await.json();
    assert_eq!((&open["incidents"][0]["partition"], &open["incidents"][1]), (&json!(5), &Value::Null));
    assert_eq!(post(gateway, path, &json!({"partition": "all"})).await.json(), json!({"acknowledged": 1}));
    assert_eq!(post(gateway, path, &json!({"partition": "all"})).await.json(), json!({"acknowledged": 0}));
    let all = bare(gateway, "GET", "/v1/incidents?all=true").await.json();
    assert_eq!((all["incidents"].as_array().unwrap().len(), &all["has_more"]), (2, &json!(false)));
    let newest = bare(gateway, "GET", "/v1/incidents?all=true&limit=1").await.json();
    assert_eq!((newest["incidents"].as_array().unwrap().len(), &newest["has_more"]), (1, &json!(true)));
    let none = bare(gateway, "GET", "/v1/incidents?limit=0").await;
    assert_eq!(refused(&none), (400, "invalid_limit".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_reason_why_a_thread_is_not_forked_has_its_code() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let gateway = fixture.gateways[0];
    fixture
        .write(
            "INSERT INTO threads (bucket, thread_id) VALUES ($bucket(t1), 't1'), ($bucket(taken), 'taken'), ($bucket(gone), 'gone');
             INSERT INTO erased_threads (bucket, thread_id, actor) VALUES ($bucket(gone), 'gone', 'ann'), ($bucket(old), 'old', 'ann')",
        )
        .await;
    for (thread, new, status, code) in [
        ("none", "copy", 404, "unknown_thread"),
        // Its row is still there: a commit in progress may have written it.
        ("gone", "copy", 410, "thread_erased"),
        ("t1", "old", 410, "thread_erased"),
        ("t1", "taken", 409, "thread_exists"),
    ] {
        let reply = post(gateway, &format!("/v1/threads/{thread}/fork"), &json!({ "thread_id": new })).await;
        assert_eq!(refused(&reply), (status, code.to_owned()), "{thread} {new}");
    }
    let forked = post(gateway, "/v1/threads/t1/fork", &json!({ "thread_id": "copy" })).await;
    assert_eq!((forked.status, &forked.json()["forked_from"]), (201, &json!("t1")), "{}", forked.text);
}
