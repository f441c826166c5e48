//! A tenant that is erased while its clients write, and the use of its name afterwards.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use model::{PartitionCount, ThreadId};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{Caller, Gate, routes};
use testkit::WAIT_TIMEOUT;

use crate::fixture::PARTITIONS;

fn subject(thread: &str) -> String {
    let partitions = PartitionCount::new(PARTITIONS.into()).unwrap();
    wire::subject::partition_chunks(partitions, &ThreadId::parse(thread).unwrap())
}

/// Creates every kind of data that a tenant may have.
async fn furnish(tenant: &Caller) {
    tenant.talk("t1").await;
    let fact = json!({"text": "Ann lives in Bern.", "user_id": "ann"});
    let schedule = json!({"cron": "0 0 1 1 *", "content": "x"});
    for (method, path, body) in [
        ("PUT", "/v1/agents/a1", json!({"workflow": "default"})),
        ("POST", "/v1/agents/a1/tasks", json!({"content": "x"})),
        ("POST", "/v1/agents/a1/tasks", json!({"content": "x", "not_before": "2027-06-01T00:00:00Z"})),
        ("PUT", "/v1/agents/a1/schedules/s", schedule),
        ("POST", "/v1/agents/a1/memory", fact),
        ("PUT", "/v1/budgets/b", json!({"tokens": 1_000_000, "period": "day", "user_id": "ann"})),
        ("POST", "/v1/keys", json!({"name": "k", "role": "viewer"})),
        ("POST", "/v1/agents/a1/pause", json!({})),
    ] {
        let done = tenant.ask(method, path, Some(&body)).await;
        assert!((200..300).contains(&done.status), "{method} {path}: {}", done.text);
    }
}

/// Posts to new threads until it is stopped; returns the statuses. `taken` counts accepted posts.
async fn post(caller: Caller, name: &'static str, stop: Arc<AtomicBool>, taken: Arc<AtomicU32>) -> Vec<u16> {
    let mut statuses = Vec::new();
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let path = format!("/v1/threads/{name}-{number}/messages");
        let body = json!({"content": "hello", "metadata": {"user_id": "ann"}});
        let status = caller.ask("POST", &path, Some(&body)).await.status;
        taken.fetch_add(u32::from(status == 202), Ordering::Relaxed);
        statuses.push(status);
        sleep(Duration::from_millis(5)).await;
    }
    statuses
}

#[tokio::test(flavor = "multi_thread")]
async fn tenant_erased_under_load_leaves_nothing() {
    let no_limits = [("ANTIPHON_TENANT_MAX_WRITES_PER_SECOND", "100000")];
    let gate = Gate::new(&no_limits).await;
    let (by_key, by_token) = (gate.key(Some("acme"), "admin", None).await, gate.token(json!({})));
    let other = gate.token(json!({"tenant": "acme-2"}));
    other.talk("kept").await;
    furnish(&by_token).await;
    let mut open = by_token.open("/v1/threads/t1/events", &[]).await;
    let (stop, taken) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let writers: Vec<_> = [("k1", &by_key), ("k2", &by_key), ("j1", &by_token), ("j2", &by_token)]
        .map(|(name, caller)| tokio::spawn(post(caller.clone(), name, Arc::clone(&stop), Arc::clone(&taken))))
        .into();
    gate.fixture.until("the clients write", WAIT_TIMEOUT, async || taken.load(Ordering::Relaxed) > 30).await;

    let receipt = gate.fixture.command("erase --tenant acme --yes --actor ada --wait-seconds 60").await;
    assert_eq!((&receipt["erased"], &receipt["pending"]), (&json!(true), &json!({})), "{receipt}");
    assert!(receipt["threads"].as_u64().unwrap() > 30, "{receipt}");
    let nothing = BTreeMap::new();
    assert_eq!(gate.fixture.tables_with("acme~").await, nothing, "{receipt}");
    let left: BTreeSet<String> = gate.fixture.tables_with("acme").await.into_keys().collect();
    let of_other = gate.fixture.tables_with("acme-2").await;
    assert!(
        left.iter().all(|table| table == "erased_tenants" || of_other.contains_key(table)),
        "{left:?} beside {of_other:?}"
    );
    assert_eq!(gate.fixture.streams_with("acme~").await.len(), 0, "{receipt}");

    // The clients continue, and none of their posts is accepted.
    let before = taken.load(Ordering::Relaxed);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(taken.load(Ordering::Relaxed), before);
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        let statuses = writer.await.unwrap();
        let refused = statuses.iter().position(|status| *status != 202).unwrap();
        assert!(
            statuses[refused..].iter().all(|status| matches!(status, 410 | 401)),
            "{:?}",
            &statuses[refused..]
        );
    }
    let text = super::read_all(&mut open, Duration::from_secs(10)).await;
    assert!(text.contains("event: auth_expired") && text.contains("tenant_erased"), "{text}");
    for (method, path, _, body) in routes() {
        let refused = by_token.ask(method, path, body.as_ref()).await;
        assert_eq!(refused.status, 410, "{method} {path}: {}", refused.text);
        // Only the head of an event stream is read; some protocols have no field for a code.
        let says_why = refused.text.contains("the tenant was erased");
        assert!(path.ends_with("/events") || says_why, "{path}: {}", refused.text);
    }
    // Publishers on NATS: a message, a task, and an undecodable payload.
    gate.fixture.bare("acme~late", "m", 0, "late", true).await;
    gate.fixture.send_tasks("acme~bot", [("t".to_owned(), "late".to_owned())]).await;
    gate.fixture.publisher.publish_raw(&subject("acme~late"), None, "{not json".into()).await.unwrap();
    sleep(Duration::from_secs(2)).await;
    assert_eq!(gate.fixture.tables_with("acme~").await, nothing);
    assert_eq!(other.get("/v1/threads/kept/history").await.status, 200);
    other.talk("goes-on").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reopened_tenant_begins_with_nothing_of_before() {
    let gate = Gate::new(&[]).await;
    let acme = gate.token(json!({}));
    acme.talk("t1").await;
    gate.fixture.command("erase --tenant acme --yes --wait-seconds 60").await;
    // Operators are refused as well.
    let words = ["keys", "create-first", "k", "--role", "admin", "--tenant", "acme"];
    let refused = gate.run(&words).await;
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("antiphon tenants reopen"), "{}", refused.stderr);
    let default = gate.key(None, "admin", None).await;
    let marks = default.get("/v1/erased-tenants").await.json().unwrap();
    assert_eq!(
        (&marks["tenants"][0]["tenant"], &marks["tenants"][0]["is_being_erased"]),
        (&json!("acme"), &json!(false))
    );
    let listed = gate.run_as(&default, &["tenants", "erased"]).await;
    assert!(listed.code == Some(0) && listed.stdout.contains("acme"), "{}", listed.stdout);
    let of_tenant = gate.token(json!({"tenant": "other"}));
    assert_eq!(of_tenant.ask("POST", "/v1/tenants/acme/reopen", None).await.status, 403);
    let other = gate.run_as(&default, &["tenants", "reopen", "other"]).await;
    assert_eq!((other.code, other.stderr.contains("unknown_tenant")), (Some(1), true), "{}", other.stderr);
    assert_eq!(gate.run_as(&default, &["tenants", "reopen", "acme"]).await.code, Some(0));
    let marks = default.get("/v1/erased-tenants").await.json().unwrap();
    assert_eq!(marks, json!({"tenants": [], "next": null}));
    let audit = default.get("/v1/tenants/acme/audit").await.json().unwrap();
    assert_eq!(audit["entries"][0]["action"], json!("reopen_tenant"));
    assert_eq!(gate.run(&["tenants", "reopen-default"]).await.code, Some(1), "it is not marked");
    gate.fixture
        .until("gateways know of it", Duration::from_secs(10), async || {
            acme.get("/v1/agents").await.status == 200
        })
        .await;
    acme.talk("t1").await;
    let history: Value = acme.get("/v1/threads/t1/history").await.json().unwrap();
    assert_eq!(history["messages"].as_array().unwrap().len(), 2, "nothing of before is back");
    gate.command(&words).await;
}

/// A tenant is erased over the API by the default tenant, and by no other one.
#[tokio::test(flavor = "multi_thread")]
async fn default_tenant_erases_a_tenant_over_the_api() {
    let gate = Gate::new(&[]).await;
    let (acme, other) = (gate.key(Some("acme"), "admin", None).await, gate.token(json!({"tenant": "other"})));
    let default = gate.key(None, "admin", None).await;
    acme.talk("t1").await;
    acme.talk("t2").await;
    let erase = async |caller: &Caller, path: &str| {
        let answer = caller.ask("DELETE", path, None).await;
        (answer.status, answer.json().unwrap())
    };
    // One thread, by its own tenant. Its erasure does not exist for others.
    let (status, own) = erase(&acme, "/v1/threads/t1").await;
    assert_eq!((status, &own["thread_id"]), (202, &json!("t1")), "{own}");
    let path = format!("/v1/erasures/{}", own["erasure_id"].as_str().unwrap());
    gate.fixture
        .until("the thread is erased", WAIT_TIMEOUT, async || {
            acme.get(&path).await.json().unwrap()["state"] == json!("done")
        })
        .await;
    for foreign in [&other, &default] {
        let (seen, unknown) =
            (foreign.get(&path).await, foreign.get("/v1/erasures/0198c4d2e5f57a60b1d3c8a94e27f610").await);
        assert_eq!((seen.status, &seen.text), (404, &unknown.text));
        assert_eq!(foreign.get("/v1/erasures").await.json().unwrap()["erasures"], json!([]));
        assert_eq!(erase(foreign, "/v1/threads/t2").await.0, 404);
    }
    for caller in [&acme, &other] {
        let (status, refused) = erase(caller, "/v1/tenants/acme").await;
        assert_eq!((status, &refused["code"]), (403, &json!("default_tenant_only")));
    }
    assert_eq!(erase(&default, "/v1/tenants/-").await.0, 400);
    let done = gate.run_as(&default, &["tenants", "erase", "acme", "--yes", "-o", "json"]).await;
    assert_eq!(done.code, Some(0), "{} {}", done.stdout, done.stderr);
    let done: Value = serde_json::from_str(&done.stdout).unwrap();
    let (tenant, keys) = (&done["tenant"], &done["receipt"]["tables"]["api_keys"]);
    assert_eq!((tenant, keys), (&json!("acme"), &json!(1)), "{done}");
    assert!(done["receipt"]["spent_ms"]["caches"].as_u64() > Some(0), "{done}");
    assert_eq!(gate.fixture.tables_with("acme~").await, BTreeMap::new(), "{done}");
    let left: Vec<String> = gate.fixture.tables_with("acme").await.into_keys().collect();
    assert_eq!(left, ["erased_tenants", "erasures"], "its own erasures are gone");
    assert!(matches!(acme.get("/v1/agents").await.status, 401 | 410));
}
