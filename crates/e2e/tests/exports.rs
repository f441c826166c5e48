//! Exports over the API.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::fleet::invoke;
use testkit::http;
use tokio::time::timeout;

use crate::api_client::scripted;
use crate::fixture::{Fixture, api_url, resident_bytes};

/// Larger than what is under way between a gateway and a client that does not read.
const MESSAGES: i64 = 4_000;
const MESSAGE_BYTES: i64 = 20_000;

impl Fixture {
    /// A stored thread with many long messages, each a batch.
    async fn put_long_thread(&self, thread: &str) {
        let bucket = model::ThreadId::parse(thread).unwrap().bucket().get();
        let sql = format!(
            "INSERT INTO messages (bucket, thread_id, position, message_id, batch_id, number, sequence_num, batch_type, role, content, parent_id)
             SELECT {bucket}, '{thread}', n, 'm' || n, n, n, 0, 'system_trigger', 'assistant', repeat('x', {MESSAGE_BYTES}), nullif(n - 1, 0)
             FROM generate_series(1, {MESSAGES}) AS n;
             INSERT INTO threads (bucket, thread_id, head_position, message_count, last_number)
             VALUES ({bucket}, '{thread}', {MESSAGES}, {MESSAGES}, {MESSAGES})"
        );
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&self.pool).await.unwrap();
    }

    /// Resident memory of the gateway, bytes.
    async fn gateway_bytes(&self) -> u64 {
        resident_bytes(self.fleet.gateways[0].metrics_addr()).await
    }
}

/// An export over the API is the file that the command on the database writes.
#[tokio::test(flavor = "multi_thread")]
async fn export_over_the_api_is_that_of_the_database() {
    let fixture = Fixture::with(scripted).await;
    let api = fixture.api();
    for thread in ["t1", "t2"] {
        api.create_thread(&json!({"thread_id": thread, "metadata": {"user_id": "ann"}})).await.unwrap();
        api.say(thread, "hello").await.unwrap();
        fixture.until_messages(thread, 2).await;
    }
    let env =
        [api_url(fixture.fleet.gateways[0].http_addr()), ("DATABASE_URL".to_owned(), fixture.database_url())];
    for (over_api, database) in
        [("threads export t1", "database export t1"), ("export", "database export --all")]
    {
        let run = async |words: &str| {
            let words: Vec<_> = words.split(' ').collect();
            let done = invoke(&words, &env).await.unwrap();
            assert_eq!(done.code, Some(0), "{words:?}: {}", done.stderr);
            done.stdout
        };
        let (exported, expected) = (run(over_api).await, run(database).await);
        assert_eq!(exported, expected);
        assert!(exported.lines().last().unwrap().starts_with("{\"trailer\":"), "{exported}");
    }
    let unknown = invoke(&["threads", "export", "unknown"], &env).await.unwrap();
    assert_eq!(
        (unknown.code, unknown.stderr.contains("unknown_thread")),
        (Some(1), true),
        "{}",
        unknown.stderr
    );
    let folder = devservices::services::ScratchDir::new("exported").unwrap();
    let file = folder.path().join("t1.jsonl").display().to_string();
    let counts = invoke(&["threads", "export", "t1", "--file", &file, "--json"], &env).await.unwrap();
    let counts: Value = serde_json::from_str(&counts.stdout).unwrap();
    assert_eq!((&counts["threads"], &counts["messages"]), (&json!(1), &json!(2)));
    let import = invoke(&["database", "import", "--file", &file, "--json"], &env).await.unwrap();
    let import: Value = serde_json::from_str(&import.stdout).unwrap();
    assert_eq!((&import["messages"], &import["new_messages"]), (&json!(2), &json!(0)), "it is all there");
}

/// A gateway reads no faster than its client, and holds little of an export of 80 MB.
#[tokio::test(flavor = "multi_thread")]
async fn slow_client_of_an_export_costs_little_memory() {
    let fixture = Fixture::with(scripted).await;
    fixture.put_long_thread("long").await;
    let addr = fixture.fleet.gateways[0].http_addr();
    // The first export warms up what the gateway keeps.
    let path = "/v1/threads/long/export";
    for _ in 0..2 {
        let before = fixture.gateway_bytes().await;
        let mut response = http::open(addr, path, &[]).await.unwrap();
        assert_eq!(response.status, 200);
        tokio::time::sleep(Duration::from_secs(3)).await;
        let held = fixture.gateway_bytes().await.saturating_sub(before);
        assert!(held < 40 << 20, "{held} bytes for a client that reads nothing");
        let (mut read, mut tail) = (0, Vec::new());
        let reading = async {
            loop {
                let bytes = response.body.read(&mut tail).await.unwrap();
                read += bytes as i64;
                tail.drain(..tail.len().saturating_sub(200));
                if bytes == 0 {
                    return;
                }
            }
        };
        timeout(Duration::from_secs(60), reading).await.unwrap();
        assert!(String::from_utf8_lossy(&tail).contains("\"trailer\""), "it is whole");
        assert!(read > MESSAGES * MESSAGE_BYTES, "{read}");
    }
    // Clients that go away give their places back.
    for _ in 0..8 {
        let response = http::open(addr, path, &[]).await.unwrap();
        assert_eq!(response.status, 200);
    }
}

/// An export that cannot be read to its end has no trailer, and its body has no end.
#[tokio::test(flavor = "multi_thread")]
async fn cut_export_has_no_trailer() {
    let fixture = Fixture::with(scripted).await;
    fixture.put_long_thread("long").await;
    let addr = fixture.fleet.gateways[0].http_addr();
    let mut response = http::open(addr, "/v1/threads/long/export", &[]).await.unwrap();
    let mut bytes = Vec::new();
    response.body.read(&mut bytes).await.unwrap();
    sqlx::raw_sql("ALTER TABLE messages RENAME TO messages_away").execute(&fixture.pool).await.unwrap();
    let reading = async {
        loop {
            match response.body.read(&mut bytes).await {
                Ok(0) => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    };
    let has_end = timeout(Duration::from_secs(60), reading).await.unwrap();
    assert!(!has_end, "the connection ends, and the body does not");
    let text = String::from_utf8_lossy(&bytes);
    assert!(text.starts_with("{\"antiphon_export\"") && !text.contains("\"trailer\""));
    let (path, env) = ("/v1/threads/long/export", [api_url(addr)]);
    sqlx::raw_sql("ALTER TABLE messages_away RENAME TO messages").execute(&fixture.pool).await.unwrap();
    assert_eq!(http::open(addr, path, &[]).await.unwrap().status, 200);
    let whole = invoke(&["threads", "export", "long"], &env).await.unwrap();
    assert_eq!(whole.code, Some(0), "{}", whole.stderr);
}
