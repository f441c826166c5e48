//! Settings of workers and of `antiphon migrate`.

use serde_json::{Value, json};
use sqlx::AssertSqlSafe;
use testkit::{db_snapshot, fleet::FleetOptions};

use crate::{
    api_client::{SOON, alone, asked_for, scripted},
    fixture::{Fixture, PARTITIONS},
};

/// The tables of operational records with an age limit: name, column of the age, column of an id.
const RECORDS: [(&str, &str, &str); 7] = [
    ("tasks", "created_at", "agent_id"),
    ("failed_tasks", "failed_at", "agent_id"),
    ("failed_turns", "failed_at", "thread_id"),
    ("dead_letters", "created_at", "subject"),
    ("audit_log", "created_at", "subject_id"),
    ("erased_threads", "erased_at", "thread_id"),
    ("erased_tenants", "erased_at", "tenant"),
];

fn chunk(thread: &str, message: &str, id: u32, bytes: usize) -> Vec<u8> {
    let text = "x".repeat(bytes);
    json!({"session_id": thread, "message_id": message, "chunk_id": id, "chunk": text})
        .to_string()
        .into_bytes()
}

impl Fixture {
    async fn send_chunk(&self, thread: &str, message: &str, id: u32, bytes: usize) {
        let subject = self.publisher.subject(&model::ThreadId::parse(thread).unwrap());
        self.publisher.publish_raw(&subject, None, chunk(thread, message, id, bytes).into()).await.unwrap();
    }

    /// The numbers of records whose id begins with `old` and with `new`.
    async fn records(&self, table: &str, id: &str) -> [i64; 2] {
        let sql = format!(
            "SELECT count(*) FILTER (WHERE {id} LIKE '%old%'), count(*) FILTER (WHERE {id} LIKE '%new%') FROM {table}"
        );
        let (old, new) = sqlx::query_as(AssertSqlSafe(sql)).fetch_one(&self.pool).await.unwrap();
        [old, new]
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn records_go_at_the_age_that_is_set() {
    let fixture = Fixture::with(|options| {
        scripted(options)
            .with_env("ANTIPHON_CLEANUP_INTERVAL_SECONDS", "0.1")
            .with_env("ANTIPHON_COMPLETED_TASKS_MAX_DAYS", 2)
            .with_env("ANTIPHON_FAILURES_MAX_DAYS", 2)
            .with_env("ANTIPHON_DEAD_LETTERS_MAX_DAYS", 2)
            .with_env("ANTIPHON_AUDIT_LOG_MAX_DAYS", 2)
            .with_env("ANTIPHON_ERASED_THREADS_MAX_DAYS", 2)
    })
    .await;
    for age in ["old", "new"] {
        let [done, failing, broken, talk] =
            ["done", "bad", "broken", "talk"].map(|name| format!("{name}-{age}"));
        fixture.send_tasks(&done, [("k".to_owned(), "a task".to_owned())]).await;
        fixture.send_tasks(&failing, [("k".to_owned(), "fails-for-good".to_owned())]).await;
        fixture.until_tasks(&done, &["completed"]).await;
        fixture.until_tasks(&failing, &["failed"]).await;
        fixture.api().act(&done, "pause").await.unwrap();
        fixture.api().say(&talk, "fails-for-good").await.unwrap();
        fixture.until_failed(&talk, 1).await;
        fixture.send_entry(&broken, b"{not json".to_vec()).await;
        for erased in [
            "erased_threads (bucket, thread_id, actor) VALUES (0, ",
            "erased_tenants (tenant, actor) VALUES (",
        ] {
            let sql = format!("INSERT INTO {erased}'erased-{age}', 'ada')");
            sqlx::query(AssertSqlSafe(sql)).execute(&fixture.pool).await.unwrap();
        }
    }
    for (table, at, id) in RECORDS {
        fixture
            .until(&format!("there are records in {table}"), SOON, async || {
                fixture.records(table, id).await.iter().all(|count| *count > 0)
            })
            .await;
        for (age, days) in [("new", 1), ("old", 3)] {
            let sql = format!(
                "UPDATE {table} SET {at} = clock_timestamp() - interval '{days} days' WHERE {id} LIKE '%{age}%'"
            );
            sqlx::query(AssertSqlSafe(sql)).execute(&fixture.pool).await.unwrap();
        }
    }
    for (table, _, id) in RECORDS {
        fixture
            .until(&format!("the old records of {table} are deleted"), SOON, async || {
                fixture.records(table, id).await[0] == 0
            })
            .await;
        assert!(fixture.records(table, id).await[1] > 0, "{table} has no new records any more");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bare_messages_beyond_what_is_set_become_dead_letters() {
    let fixture = Fixture::with(|options| {
        alone(options)
            .with_env("ANTIPHON_AUTO_CREATE_THREADS", "false")
            .with_env("ANTIPHON_MAX_CHUNK_BYTES", 600)
            .with_env("ANTIPHON_MAX_MESSAGE_BYTES", 1_024)
            .with_env("ANTIPHON_MAX_CHUNKS_PER_MESSAGE", 3)
            .with_env("ANTIPHON_STALL_TIMEOUT_SECONDS", "0.5")
    })
    .await;
    fixture.api().create_thread(&json!({"thread_id": "talk"})).await.unwrap();
    for (thread, message, chunks, bytes, reason) in [
        ("unknown", "m-0", 1, 5, "unknown_thread"),
        ("talk", "m-1", 1, 700, "chunk_too_large"),
        ("talk", "m-2", 2, 550, "message_too_large"),
        ("talk", "m-3", 4, 5, "too_many_chunks"),
        ("talk", "m-4", 3, 5, "stalled"),
    ] {
        for id in 0..chunks {
            fixture.send_chunk(thread, message, id, bytes).await;
        }
        fixture
            .until(&format!("{message} is a dead letter: {reason}"), SOON, async || {
                let letters = db_snapshot::dead_letters(&fixture.pool).await.unwrap();
                letters.iter().any(|letter| {
                    let payload = String::from_utf8_lossy(&letter.raw);
                    let is_it = letter.message_id.as_deref() == Some(message) || payload.contains(message);
                    is_it && letter.reason == reason
                })
            })
            .await;
    }
    let letters = db_snapshot::dead_letters(&fixture.pool).await.unwrap();
    assert_eq!(letters.len(), 5, "{letters:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_wait_while_open_ones_fill_the_buffer() {
    let fixture =
        Fixture::with(|options| alone(options).with_env("ANTIPHON_MAX_BUFFER_BYTES", 1 << 20)).await;
    let buffered = async || fixture.metric("antiphon_worker_buffered_bytes").await;
    let is_deferred = async || fixture.metric("antiphon_worker_deferred_chunks_total").await > 0.0;
    // One after the other: partitions that read at the same time may each see the same room.
    for number in 0..30 {
        fixture.send_chunk(&format!("t-{number}"), "m", 0, 60_000).await;
        let sent = 60_000.0 * f64::from(number + 1);
        fixture
            .until("the chunk is buffered, or waits in the stream", SOON, async || {
                buffered().await >= sent || is_deferred().await
            })
            .await;
    }
    // By default all 1.8 MB would be buffered.
    assert!(is_deferred().await, "no chunk waits");
    let buffered = buffered().await;
    assert!(buffered < 1_200_000.0, "{buffered} bytes are buffered");
}

/// Two threads of one partition.
fn neighbours() -> [String; 2] {
    let mut names = (0..).map(|number| format!("t-{number}"));
    let mut of_first =
        names.by_ref().filter(|name| model::Bucket::of_key(name).get().is_multiple_of(PARTITIONS));
    [of_first.next().unwrap(), of_first.next().unwrap()]
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_of_agents_without_settings_follow_those_of_the_worker() {
    let with = |options: FleetOptions| {
        alone(options)
            .with_env("ANTIPHON_WORKFLOWS", "default,other")
            .with_env("ANTIPHON_INTEGRATORS", "default,crm")
            .with_env("ANTIPHON_DEFAULT_WORKFLOW", "other")
            .with_env("ANTIPHON_MAX_ACTIVE_TURNS_PER_PARTITION", 1)
            .with_env("ANTIPHON_TURN_DEADLINE_SECONDS", 6)
            .with_env("ANTIPHON_BACKOFF_BASE_SECONDS", 10)
            .with_env("ANTIPHON_BACKOFF_CAP_SECONDS", 20)
    };
    let fixture = Fixture::with(with).await;
    let stream = fixture.publisher.context().get_stream("TURNS").await.unwrap();
    for integrator in ["default", "crm"] {
        let consumer = stream.consumer_info(format!("INTEGRATOR_{integrator}")).await;
        assert!(consumer.is_ok(), "{integrator}: {consumer:?}");
    }
    let workflow = fixture.manual_workflow_of("other", std::time::Duration::from_secs(30)).await;
    // One turn of a partition is in progress, the other waits.
    let [first, second] = neighbours();
    let first = fixture.api().say(&first, "one").await.unwrap();
    let asked = asked_for(&workflow, &first).await;
    let second_turn = fixture.api().say(&second, "two").await.unwrap();
    fixture.no_request_comes(&workflow).await;
    asked.answer("done").await.unwrap();
    // Without any chunk the turn fails at its deadline.
    let _unanswered = asked_for(&workflow, &second_turn).await;
    let failed = fixture.until_failed(&second, 1).await;
    assert_eq!(failed, [("deadline".to_owned(), 0)]);
    // The default would be at least 60 s for the first, and with the second's own base up to 40 s.
    let settings = [("ann", json!({})), ("ben", json!({"backoff_base_ms": 19_900}))];
    for (agent, settings) in settings {
        fixture.api().put_agent(agent, "other", settings).await.unwrap();
        fixture.send_tasks(agent, [("k".to_owned(), "work".to_owned())]).await;
        let mut asked = workflow.next(SOON).await.unwrap();
        asked.fail("no", json!({"class": "transient"})).await.unwrap();
        let left = until_backoff(&fixture, agent).await;
        assert!((1..=20_000).contains(&left), "{agent} waits for {left} ms");
    }
}

/// Remaining backoff of an agent, ms.
async fn until_backoff(fixture: &Fixture, agent: &str) -> i64 {
    let mut waits = Value::Null;
    fixture
        .until(&format!("{agent} waits after a failure"), SOON, async || {
            waits = fixture.api().agent(agent).await.unwrap()["waiting"].clone();
            waits["reason"] == "backoff" && waits["until"].is_string()
        })
        .await;
    let until = waits["until"].as_str().unwrap().to_owned();
    let sql = "SELECT (extract(epoch FROM $1::text::timestamptz - clock_timestamp()) * 1000)::bigint";
    sqlx::query_scalar(sql).bind(until).fetch_one(&fixture.pool).await.unwrap()
}
