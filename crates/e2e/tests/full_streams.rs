//! A stream that holds as many bytes as it may: publishers get an error, nothing that was acknowledged is lost, and what makes room is the
//! fleet's own purge.

use std::time::Duration;

use model::{PartitionCount, ThreadId};
use serde_json::json;
use testkit::db_snapshot;
use wire::subject;

use crate::fixture::{Fixture, PARTITIONS};

/// The least that the stream of a partition may be given.
const STREAM_BYTES: usize = 1 << 20;
const CHUNK_BYTES: usize = 16 << 10;
const LIMIT: Duration = Duration::from_secs(40);

#[tokio::test(flavor = "multi_thread")]
async fn a_full_stream_refuses_publishers_and_loses_nothing() {
    let fixture = Fixture::with(|options| {
        let options = options.with_env("ANTIPHON_STREAM_MAX_BYTES", STREAM_BYTES);
        options.with_env("ANTIPHON_STREAM_RETAIN_SECONDS", 3)
    })
    .await;
    let mut acknowledged = 0;
    let refused = loop {
        assert!(acknowledged * CHUNK_BYTES <= STREAM_BYTES, "the stream takes more than it may hold");
        match publish(&fixture, acknowledged).await {
            Ok(()) => acknowledged += 1,
            Err(refused) => break refused,
        }
    };
    assert!(acknowledged * CHUNK_BYTES > STREAM_BYTES / 2, "{acknowledged} were taken before: {refused}");
    assert!(refused.contains("maximum bytes exceeded"), "{refused}");
    // An input is refused with a code that says to come again; the other partitions go on.
    let input = json!({"content": "x".repeat(CHUNK_BYTES)});
    let answer = fixture.api().say_with("full", &input, &[]).await.unwrap();
    assert_eq!((answer.status, answer.json().unwrap()["code"].as_str()), (503, Some("stream_full")));
    assert_eq!(answer.header("retry-after"), Some("5"));
    let other =
        (0..).map(|n| format!("other-{n}")).find(|name| partition(name) != partition("full")).unwrap();
    assert_eq!(fixture.api().say_with(&other, &input, &[]).await.unwrap().status, 202);
    // What was acknowledged is stored, and what is stored makes room.
    let stored = async || db_snapshot::ended(&fixture.pool).await.unwrap_or_default();
    let wanted = i64::try_from(acknowledged).unwrap();
    fixture.until("what was acknowledged is stored", LIMIT, async || stored().await.0 >= wanted).await;
    fixture.until("there is room", LIMIT, async || publish(&fixture, acknowledged).await.is_ok()).await;
    fixture.until("what came then is stored", LIMIT, async || stored().await.0 > wanted).await;
    assert_eq!(stored().await, (wanted + 1, 0), "each once");
    assert_eq!(fixture.api().say_with("full", &input, &[]).await.unwrap().status, 202);
}

/// Publishes a message of one chunk, as a publisher without a retry does.
async fn publish(fixture: &Fixture, number: usize) -> Result<(), String> {
    let count = PartitionCount::new(PARTITIONS.into()).unwrap();
    let subject = subject::partition_chunks(count, &ThreadId::parse("full").unwrap());
    let chunk = json!({
        "session_id": "full", "message_id": format!("m{number}"), "chunk_id": 0, "is_final": true,
        "chunk": "x".repeat(CHUNK_BYTES),
    });
    let context = fixture.publisher.context();
    let sent = context.publish(subject, chunk.to_string().into()).await.map_err(|error| error.to_string())?;
    sent.await.map(|_| ()).map_err(|error| format!("{error:?}"))
}

fn partition(thread: &str) -> u16 {
    model::Bucket::of_key(thread).get() % PARTITIONS
}
