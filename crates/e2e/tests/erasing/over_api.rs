//! Erasures that clients request over the API, and that workers do.

use tokio::time::Instant;

use super::*;

/// Limit for an erasure on a busy machine.
const ENDED: Duration = Duration::from_secs(90);
/// Messages that take a worker some seconds to delete.
const MANY: i64 = 150_000;

impl Fixture {
    /// Requests an erasure, and returns it.
    async fn request_erasure(&self, path: &str) -> Value {
        let answer = self.api().send("DELETE", path, None, &[]).await.unwrap();
        assert_eq!(answer.status, 202, "{path}: {}", answer.text);
        let erasure = answer.json().unwrap();
        let place = format!("/v1/erasures/{}", erasure["erasure_id"].as_str().unwrap());
        assert_eq!(answer.header("location"), Some(place.as_str()));
        erasure
    }

    async fn erasure(&self, id: &Value) -> Value {
        let path = format!("/v1/erasures/{}", id.as_str().unwrap());
        self.api().call("GET", &path, None).await.unwrap()
    }

    /// The erasure, once it has ended.
    async fn ended_erasure(&self, requested: &Value) -> Value {
        let id = &requested["erasure_id"];
        let ended = async |erasure: &Value| !erasure["ended_at"].is_null();
        self.until("the erasure has ended", ENDED, async || ended(&self.erasure(id).await).await).await;
        self.erasure(id).await
    }

    async fn count(&self, sql: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(&self.pool).await.unwrap()
    }

    async fn execute(&self, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&self.pool).await.unwrap();
    }
}

/// It has the machine alone: see the configuration of nextest.
#[tokio::test(flavor = "multi_thread")]
async fn quiet_fleet_erases_a_thread_within_five_seconds() {
    let fixture = Fixture::with(|options| {
        crate::api_client::scripted(options).with_env("ANTIPHON_LEASE_TTL_SECONDS", 10)
    })
    .await;
    let api = fixture.api();
    api.create_thread(&json!({"thread_id": "secret", "agent_id": "ann"})).await.unwrap();
    api.say("secret", &marked("said")).await.unwrap();
    api.say("kept", KEPT).await.unwrap();
    fixture.until_messages("secret", 2).await;
    fixture.until_messages("kept", 2).await;
    sleep(Duration::from_secs(2)).await;
    let began = Instant::now();
    let requested = fixture.request_erasure("/v1/threads/secret").await;
    assert_eq!((&requested["kind"], &requested["thread_id"]), (&json!("thread"), &json!("secret")));
    let erasure = fixture.ended_erasure(&requested).await;
    let took = began.elapsed();
    assert_eq!((&erasure["state"], &erasure["attempts"]), (&json!("done"), &json!(1)), "{erasure}");
    let receipt = &erasure["receipt"];
    assert_eq!((&receipt["pending"], &receipt["tables"]["messages"]), (&json!({}), &json!(2)), "{receipt}");
    assert_eq!(erasure["counts"]["tables"]["messages"], json!(2), "{erasure}");
    assert_eq!(fixture.tables_with(MARKER).await, BTreeMap::new(), "{receipt}");
    assert_eq!(fixture.streams_with(MARKER).await, BTreeMap::new(), "{receipt}");
    assert_eq!(fixture.messages_of("kept").await.len(), 2);
    // The receipt names what the time was spent on.
    let spent = receipt["spent_ms"].as_object().unwrap();
    let shares: BTreeSet<&str> = spent.keys().map(String::as_str).collect();
    assert_eq!(shares, BTreeSet::from(["caches", "postgres", "queue", "streams"]), "{receipt}");
    let sum: u64 = spent.values().map(|ms| ms.as_u64().unwrap()).sum();
    assert!(u128::from(sum) <= took.as_millis() + 100, "{sum} ms of {took:?}: {receipt}");
    assert!(took < Duration::from_secs(5), "it took {took:?}: {receipt}");
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_killed_in_an_erasure_is_replaced() {
    let mut fixture = Fixture::with(|options| options).await;
    fixture.api().create_thread(&json!({"thread_id": "large"})).await.unwrap();
    let bucket = Bucket::of_key("large").get();
    fixture
        .execute(&format!(
            "INSERT INTO messages (bucket, thread_id, position, message_id, batch_id, sequence_num, number, batch_type, role, content)
             SELECT {bucket}, 'large', n, 'm' || n, n, 0, n, 'user_request', 'user', '{MARKER}' FROM generate_series(1, {MANY}) AS n"
        ))
        .await;
    let requested = fixture.request_erasure("/v1/threads/large").await;
    // The same request again is the same erasure, and a dry run is another one.
    let again = fixture.request_erasure("/v1/threads/large").await;
    assert_eq!(again["erasure_id"], requested["erasure_id"]);
    let left = "SELECT count(*) FROM messages WHERE thread_id = 'large'";
    fixture.until("it has begun to delete", SOON, async || fixture.count(left).await < MANY).await;
    let name: String =
        sqlx::query_scalar("SELECT worker FROM erasures").fetch_one(&fixture.pool).await.unwrap();
    let worker = fixture.fleet.workers.iter_mut().find(|worker| worker.name() == name).unwrap();
    worker.kill().await.unwrap();
    assert!(fixture.count(left).await > 0, "it must be killed before the end");
    let erasure = fixture.ended_erasure(&requested).await;
    assert_eq!((&erasure["state"], &erasure["attempts"]), (&json!("done"), &json!(2)), "{erasure}");
    let by: String =
        sqlx::query_scalar("SELECT worker FROM erasures").fetch_one(&fixture.pool).await.unwrap();
    assert_ne!(by, name);
    let receipt = &erasure["receipt"];
    assert_eq!(
        (&receipt["pending"], &receipt["tables"]["messages"]),
        (&json!({}), &json!(MANY)),
        "{receipt}"
    );
    assert_eq!(fixture.tables_with(MARKER).await, BTreeMap::new(), "{receipt}");
    fixture.api().create_thread(&json!({"thread_id": "large"})).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn erasure_that_cannot_be_done_now_is_tried_again() {
    let fixture = Fixture::with(alone).await;
    fixture.api().create_thread(&json!({"thread_id": "t1"})).await.unwrap();
    fixture
        .execute("INSERT INTO partition_change (from_count, to_count, replicas, max_bytes, max_message_bytes) VALUES (8, 16, 1, 1, 1)")
        .await;
    let requested = fixture.request_erasure("/v1/threads/t1").await;
    let id = &requested["erasure_id"];
    fixture
        .until("it has failed once", SOON, async || fixture.erasure(id).await["next_attempt_at"].is_string())
        .await;
    let erasure = fixture.erasure(id).await;
    assert_eq!(erasure["state"], json!("queued"), "{erasure}");
    assert!(erasure["error"].as_str().unwrap().contains("is being changed from 8 to 16"), "{erasure}");
    fixture.execute("DELETE FROM partition_change").await;
    let erasure = fixture.ended_erasure(&requested).await;
    assert_eq!((&erasure["state"], &erasure["error"]), (&json!("done"), &Value::Null), "{erasure}");
    assert!(erasure["attempts"].as_u64() >= Some(2), "{erasure}");
    let list = fixture.api().call("GET", "/v1/erasures?state=done", None).await.unwrap();
    assert_eq!(list["erasures"][0]["erasure_id"], *id);
    for (path, status, code) in [
        ("/v1/erasures/0198c4d2e5f57a60b1d3c8a94e27f610", 404, "unknown_erasure"),
        ("/v1/erasures/x", 400, "invalid_id"),
        ("/v1/erasures?state=over", 400, "invalid_query"),
    ] {
        let refused = fixture.api().send("GET", path, None, &[]).await.unwrap();
        assert_eq!((refused.status, &refused.json().unwrap()["code"]), (status, &json!(code)), "{path}");
    }
    let unknown = fixture.api().send("DELETE", "/v1/threads/never", None, &[]).await.unwrap();
    assert_eq!((unknown.status, &unknown.json().unwrap()["code"]), (404, &json!("unknown_thread")));
}

#[tokio::test(flavor = "multi_thread")]
async fn command_erases_a_user_over_the_api() {
    let fixture = Fixture::with(crate::api_client::scripted).await;
    let api = fixture.api();
    for (thread, user) in [("first", "bob"), ("second", "ann")] {
        api.create_thread(&json!({"thread_id": thread, "metadata": {"user_id": user}})).await.unwrap();
        api.say(thread, &format!("says {user}")).await.unwrap();
        fixture.until_messages(thread, 2).await;
    }
    let dry = fixture.command("users erase bob").await;
    let (erased, threads) = (&dry["receipt"]["erased"], &dry["receipt"]["threads"]);
    assert_eq!((&dry["dry_run"], erased, threads), (&json!(true), &json!(false), &json!(1)), "{dry}");
    assert_eq!(fixture.messages_of("first").await.len(), 2);
    // The user asks for it: the name is not even in the receipt.
    let done = fixture.command("users erase bob --yes --actor bob").await;
    assert_eq!((&done["state"], &done["actor"]), (&json!("done"), &json!("erased")), "{done}");
    assert!(!done.to_string().contains("bob"), "{done}");
    assert_eq!(done["receipt"]["tables"]["messages"], json!(2), "{done}");
    // The name is erased too, also in the erasures.
    assert_eq!(done["user_id"], Value::Null);
    assert_eq!(fixture.tables_with("bob").await, BTreeMap::new());
    assert_eq!(fixture.messages_of("second").await.len(), 2);
    let listed = fixture.command("erasures list").await;
    assert_eq!(listed["erasures"].as_array().unwrap().len(), 2, "{listed}");
}

/// A dry run counts the same threads, messages, facts and budgets that the erasure then erases.
#[tokio::test(flavor = "multi_thread")]
async fn dry_run_counts_what_is_erased() {
    let fixture = Fixture::with(crate::api_client::scripted).await;
    let api = fixture.api();
    let long = "n".repeat(3_000);
    for (thread, user) in [("t1", "carl"), ("t2", long.as_str()), ("t3", "dora")] {
        let body = json!({"thread_id": thread, "agent_id": "ann", "metadata": {"user_id": user}});
        api.create_thread(&body).await.unwrap();
        api.say(thread, "hello").await.unwrap();
        fixture.until_messages(thread, 2).await;
    }
    let fact = |user: &str, text: &str| json!({"text": text, "kind": "preference", "user_id": user});
    for (user, text) in [("carl", "Carl is short."), ("carl", "Carl is old."), ("dora", "Dora is tall.")] {
        api.call("POST", "/v1/agents/ann/memory", Some(&fact(user, text))).await.unwrap();
    }
    // A fact of the user that was found in a thread of the user is erased with the thread.
    fixture.execute("UPDATE facts SET thread_id = 't1' WHERE text = 'Carl is old.'").await;
    let budget = json!({"tokens": 1_000, "period": "day", "user_id": "carl"});
    api.call("PUT", "/v1/budgets/b1", Some(&budget)).await.unwrap();
    let counts = async |path: &str| {
        let ended = fixture.ended_erasure(&fixture.request_erasure(path).await).await;
        assert_eq!(ended["state"], json!("done"), "{ended}");
        let count = |table: &str| ended["receipt"]["tables"][table].as_u64().unwrap_or(0);
        ["threads", "messages", "facts", "budgets"].map(count)
    };
    let dry = counts("/v1/users/carl?dry_run=true").await;
    assert_eq!(dry, [1, 2, 2, 1]);
    assert_eq!(counts("/v1/users/carl").await, dry);
    let path = format!("/v1/users/{long}");
    assert_eq!(counts(&format!("{path}?dry_run=true")).await, counts(&path).await);
    assert_eq!(fixture.count("SELECT count(*) FROM threads WHERE thread_id LIKE 't_'").await, 1);
    assert_eq!(fixture.count("SELECT count(*) FROM facts").await, 1, "another user's is kept");
}
