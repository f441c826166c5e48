//! Dead letters: listed, replayed once, dropped; and floods of them, which do not fill the log.

use std::{
    env, fs,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use testkit::{fleet, http};

use crate::{
    api_client::{SOON, alone},
    fixture::{Fixture, api_url},
};

/// The most payloads in flight.
const AT_ONCE: usize = 500;

impl Fixture {
    pub(crate) async fn letters(&self, query: &str) -> Value {
        self.api().call("GET", &format!("/v1/dead-letters{query}"), None).await.unwrap()
    }

    async fn on_letter(&self, words: &[&str]) -> fleet::Invocation {
        let words = [&["dead-letters"], words, &["-o", "json"]].concat();
        fleet::invoke(&words, &[api_url(self.fleet.gateways[0].http_addr())]).await.unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_is_found_replayed_once_and_dropped() {
    let fixture =
        Fixture::with(|options| alone(options).with_env("ANTIPHON_AUTO_CREATE_AGENTS", false)).await;
    fixture.send_tasks("late", [("t1".to_owned(), "do it".to_owned())]).await;
    fixture.send_entry("late", b"{not json".to_vec()).await;
    fixture
        .until("there are two letters", SOON, async || {
            fixture.letters("").await["dead_letters"].as_array().unwrap().len() == 2
        })
        .await;
    let first = fixture.letters("?limit=1").await;
    let second = fixture.letters(&format!("?limit=1&next={}", first["next"].as_str().unwrap())).await;
    assert_eq!(second["next"], Value::Null);
    assert_ne!(first["dead_letters"][0]["id"], second["dead_letters"][0]["id"]);
    let unknown = fixture.letters("?reason=unknown_agent").await;
    let letter = &unknown["dead_letters"][0];
    assert_eq!((&letter["thread_id"], &letter["replayed_at"]), (&json!("late"), &Value::Null));
    let id = letter["id"].as_str().unwrap();
    let shown = fixture.on_letter(&["show", id]).await;
    assert!(shown.stdout.contains("do it"), "{} {}", shown.stdout, shown.stderr);

    // The agent exists now.
    let manual_workflow = fixture.manual_workflow().await;
    fixture.settle("late", json!({})).await;
    let replayed = fixture.on_letter(&["replay", id, "--actor", "ada"]).await;
    assert_eq!(replayed.code, Some(0), "{}", replayed.stderr);
    manual_workflow.next(SOON).await.unwrap().answer("done").await.unwrap();
    fixture.until_tasks("late", &["completed"]).await;
    let again = fixture.on_letter(&["replay", id]).await;
    assert_eq!(again.code, Some(1));
    assert!(again.stderr.contains("was replayed already"), "{}", again.stderr);
    fixture.no_request_comes(&manual_workflow).await;
    assert!(fixture.letters("?reason=unknown_agent").await["dead_letters"][0]["replayed_at"].is_string());

    let dropped = fixture.on_letter(&["drop", id, "--actor", "bob"]).await;
    assert_eq!(dropped.code, Some(0), "{}", dropped.stderr);
    assert_eq!(fixture.letters("?reason=unknown_agent").await["dead_letters"], json!([]));
    let acts = fixture.api().acts_on_agent("late").await.unwrap();
    let done = |what: &str, actor: &str| {
        acts.iter().any(|act| {
            (&act["action"], &act["actor"]) == (&json!(what), &json!(actor)) && act["target"] == id
        })
    };
    assert!(done("replay_dead_letter", "ada") && done("drop_dead_letter", "bob"), "{acts:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_payload_flood_is_logged_and_kept_within_bounds() {
    // `ANTIPHON_BAD_PAYLOADS=1000000` is the long form.
    let flood: usize = env::var("ANTIPHON_BAD_PAYLOADS").map_or(5_000, |text| text.parse().unwrap());
    let fixture = Fixture::with(|options| {
        alone(options)
            .with_env("ANTIPHON_CLEANUP_INTERVAL_SECONDS", 1)
            .with_env("ANTIPHON_RECORDS_MAX_BYTES", 200_000)
    })
    .await;
    let resident = || {
        let pid = fixture.fleet.workers[0].pid().unwrap();
        let pages = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
        pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4_096
    };
    let mut after_some = None;
    let subject = fixture.publisher.subject(&model::ThreadId::parse("flooded").unwrap());
    let began = Instant::now();
    for begun in (0..flood).step_by(AT_ONCE) {
        let send = |_: usize| fixture.publisher.publish_raw(&subject, None, "{not json".into());
        let sent = futures_util::future::join_all((begun..flood.min(begun + AT_ONCE)).map(send)).await;
        assert!(sent.iter().all(Result::is_ok), "{sent:?}");
        if after_some.is_none() && begun >= flood / 10 {
            after_some = Some(resident());
        }
    }
    let limit = Duration::from_secs(60) + Duration::from_millis(flood as u64);
    fixture
        .until("all of them were refused", limit, async || {
            fixture.metric("antiphon_worker_dead_letters_total").await >= flood as f64
        })
        .await;
    let flood_seconds = began.elapsed().as_secs() as usize + 1;
    let (before, after) = (after_some.unwrap(), resident());
    println!("{flood} bad payloads: {before} bytes of memory after a tenth, {after} at the end");
    assert!(after < before + (64 << 20), "{before} bytes of memory after a tenth, {after} at the end");
    let count = async || {
        sqlx::query_scalar::<_, i64>("SELECT count(*) FROM dead_letters")
            .fetch_one(&fixture.pool)
            .await
            .unwrap()
    };
    let limit = Duration::from_secs(15) + Duration::from_micros(100 * flood as u64);
    fixture.until("the oldest are gone", limit, async || count().await < 1_000).await;
    let (left, deleted) = (count().await, fixture.metric("antiphon_worker_deleted_rows_total").await);
    assert!(left > 100 && left as f64 + deleted >= flood as f64, "{left} left, {deleted} deleted");
    // Payloads within a second of a log line are counted by the next line.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    fixture.send_entry("flooded", b"{not json".to_vec()).await;
    fixture
        .until("the last line counts the others", SOON, async || {
            let log = fs::read_to_string(fixture.fleet.workers[0].log()).unwrap();
            log.lines().any(|line| line.contains("became dead letters") && !line.contains("count=1 "))
        })
        .await;
    let log = fs::read_to_string(fixture.fleet.workers[0].log()).unwrap();
    let lines = log.lines().filter(|line| line.contains("became dead letters")).count();
    // 50 a second, and a count of the others; then the count of the last ones.
    let most = 51 * (flood_seconds + 1);
    println!("{left} letters left, {deleted} deleted, {lines} lines in the log, at most {most}");
    assert!((1..=most).contains(&lines), "{lines} lines in {flood_seconds} s");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_bears_the_id_of_its_request() {
    let fixture = Fixture::with(alone).await;
    let api = fixture.api();
    let answered = async |path: &str, said: &[(&str, &str)]| {
        let request = http::HttpRequest { method: "GET", path, headers: said, body: b"" };
        let response = http::begin(api.0, request).await.unwrap();
        (response.status, response.header("x-request-id").unwrap_or_default().to_owned())
    };
    let (status, made) = answered("/v1/agents", &[]).await;
    assert_eq!((status, made.len()), (200, 32));
    assert_ne!(answered("/v1/agents", &[]).await.1, made);
    assert_eq!(answered("/nowhere", &[("x-request-id", "of-mine")]).await, (404, "of-mine".to_owned()));
    let long = "x".repeat(129);
    assert_eq!(answered("/v1/agents", &[("x-request-id", &long)]).await.1.len(), 32, "none that is too long");
    let body = br#"{"content": "hello"}"#;
    let headers = [("content-type", "application/json"), ("x-request-id", "in-the-log")];
    let request =
        http::HttpRequest { method: "POST", path: "/v1/agents/a/pause", headers: &headers[1..], body: b"" };
    http::begin(api.0, request).await.unwrap();
    fixture
        .until("its lines have it", SOON, async || {
            let log = fs::read_to_string(fixture.fleet.gateways[0].log()).unwrap();
            log.lines().any(|line| line.contains("an act was sent") && line.contains("in-the-log"))
        })
        .await;
    let request =
        http::HttpRequest { method: "POST", path: "/v1/threads/t/messages", headers: &headers, body };
    assert_eq!(http::begin(api.0, request).await.unwrap().header("x-request-id"), Some("in-the-log"));
}
