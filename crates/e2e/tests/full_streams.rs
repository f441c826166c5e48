//! A stream that has reached its byte limit, and a NATS server whose streams together have reached
//! theirs. Publishers get an error, nothing acknowledged is lost, and the fleet's own purge frees
//! space.

use async_nats::jetstream::{
    self,
    stream::{Config, Stream},
};
use model::{PartitionCount, ThreadId};
use serde_json::{Value, json};
use testkit::{
    WAIT_TIMEOUT, db_snapshot,
    fleet::Fleet,
    services::{NatsServer, TestDatabase},
};
use wire::subject;

use crate::{
    api_client::alone,
    fixture::{Fixture, PARTITIONS, options, short},
};

/// The smallest size of a partition's stream.
const STREAM_BYTES: usize = 1 << 20;
/// The bytes that the streams of the partitions, of turn requests, of turn ends and of tool calls
/// reserve; the last one a quarter of the others.
const RESERVED: usize = (PARTITIONS as usize + 2) * STREAM_BYTES + STREAM_BYTES / 4;
const CHUNK_BYTES: usize = 16 << 10;

#[tokio::test(flavor = "multi_thread")]
async fn a_full_stream_refuses_publishers_and_loses_nothing() {
    let fixture = Fixture::with(|options| {
        let options = options.with_env("ANTIPHON_STREAM_MAX_BYTES", STREAM_BYTES);
        options.with_env("ANTIPHON_STREAM_RETAIN_SECONDS", 3)
    })
    .await;
    let (acknowledged, refused) = fill(&fixture).await;
    assert!(acknowledged * CHUNK_BYTES > STREAM_BYTES / 2, "{acknowledged} were taken before: {refused}");
    assert!(refused.contains("maximum bytes exceeded"), "{refused}");
    // An input is refused with a code that allows a retry; the other partitions continue.
    assert_refused(&fixture, "full").await;
    assert_eq!(status_of_input(&fixture, &of_another_partition()).await, 202);
    assert_room_after_purge(&fixture, acknowledged).await;
    assert_eq!(status_of_input(&fixture, "full").await, 202);
}

/// Streams without their own limit reserve nothing, so another program's stream on the same server
/// can use what the fleet's streams have reserved.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_nats_server_refuses_publishers_and_loses_nothing() {
    // The storage is exactly what the fleet's streams reserve.
    let storage = RESERVED;
    let nats = NatsServer::start_with_storage(storage as u64).await.unwrap();
    let context = jetstream::new(async_nats::connect(nats.url()).await.unwrap());
    let config =
        Config { name: "OTHER".to_owned(), subjects: vec!["other.*".to_owned()], ..Config::default() };
    let other = context.create_stream(config).await.unwrap().get_info().await.unwrap();
    assert!(other.config.max_bytes <= 0, "it has a bound: {}", other.config.max_bytes);
    let database = TestDatabase::create().await.unwrap();
    // A gateway tries for five seconds to publish an input; until then nothing may free space.
    let options = alone(options(&nats, database.url()))
        .with_env("ANTIPHON_STREAM_MAX_BYTES", STREAM_BYTES)
        .with_env("ANTIPHON_STREAM_RETAIN_SECONDS", 15);
    let fleet = Fleet::start(options).await.unwrap();
    let fixture = Fixture::on(fleet, nats, database.pool().await.unwrap(), Some(database)).await;
    let another = of_another_partition();
    fixture.until_owned("full").await;
    fixture.until_owned(&another).await;
    store_for_another_program(&context, storage - STREAM_BYTES / 2).await;
    let (acknowledged, refused) = fill(&fixture).await;
    assert!(acknowledged > 0, "none was taken before: {refused}");
    let stream = format!("PARTITION_{}", partition("full"));
    let held = bytes_of(&context.get_stream_no_info(stream).await.unwrap()).await;
    assert!(held < STREAM_BYTES * 3 / 4, "the stream has reached its own bound: it holds {held} bytes");
    assert!(refused.contains("insufficient resources"), "{refused}");
    // Inputs are refused in all partitions.
    tokio::join!(assert_refused(&fixture, "full"), assert_refused(&fixture, &another));
    assert_room_after_purge(&fixture, acknowledged).await;
    for thread in ["full", another.as_str()] {
        assert_eq!(status_of_input(&fixture, thread).await, 202, "{thread}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_do_not_fit_the_nats_server_are_refused() {
    // Not even one stream fits. (If several are created at once, the server may accept more than
    // fit.)
    let storage = RESERVED;
    let nats = NatsServer::start_with_storage(storage as u64).await.unwrap();
    let database = TestDatabase::create().await.unwrap();
    let of_fleet = alone(options(&nats, database.url()));
    let with_streams_of =
        |bytes: usize| Fleet::prepare(of_fleet.clone().with_env("ANTIPHON_STREAM_MAX_BYTES", bytes)).unwrap();
    let refused = with_streams_of(storage + 1).migrate().await.unwrap_err().to_string();
    let expected = format!("JetStream cannot reserve {} bytes for the stream", storage + 1);
    assert!(refused.contains(&expected), "{refused}");
    assert!(refused.contains("raise max_file_store"), "{refused}");
    // The advice in the error helps.
    let mut fleet = with_streams_of(STREAM_BYTES);
    fleet.migrate().await.unwrap();
    fleet.spawn().unwrap();
    fleet.ready(WAIT_TIMEOUT).await.unwrap();
    let mut fixture = Fixture::on(fleet, nats, database.pool().await.unwrap(), Some(database)).await;
    let grown = with_streams_of(storage + 1).migrate().await.unwrap_err().to_string();
    assert!(grown.contains(&expected), "streams that are there already: {grown}");
    fixture.send(&short("fits", "m", 0)).await;
    fixture.until_ended(WAIT_TIMEOUT).await;
    fixture.audit(Vec::new()).await;
}

/// Publishes until a message is refused; returns the number of acknowledged ones, and the error.
async fn fill(fixture: &Fixture) -> (usize, String) {
    let mut acknowledged = 0;
    loop {
        assert!(acknowledged * CHUNK_BYTES <= STREAM_BYTES, "the stream takes more than it may hold");
        match publish(fixture, acknowledged).await {
            Ok(()) => acknowledged += 1,
            Err(refused) => return (acknowledged, refused),
        }
    }
}

/// Fills a stream that the fleet does not know.
async fn store_for_another_program(context: &jetstream::Context, bytes: usize) {
    let stream = context.get_stream_no_info("OTHER").await.unwrap();
    while bytes_of(&stream).await < bytes {
        context.publish("other.x", vec![0; 64 << 10].into()).await.unwrap().await.unwrap();
    }
}

async fn bytes_of<Info>(stream: &Stream<Info>) -> usize {
    usize::try_from(stream.get_info().await.unwrap().state.bytes).unwrap()
}

/// Checks that what was acknowledged is stored, and that storing it frees space.
async fn assert_room_after_purge(fixture: &Fixture, acknowledged: usize) {
    let stored = async || db_snapshot::ended(&fixture.pool).await.unwrap_or_default();
    let wanted = i64::try_from(acknowledged).unwrap();
    fixture.until("what was acknowledged is stored", WAIT_TIMEOUT, async || stored().await.0 >= wanted).await;
    fixture.until("there is room", WAIT_TIMEOUT, async || publish(fixture, acknowledged).await.is_ok()).await;
    fixture.until("what came then is stored", WAIT_TIMEOUT, async || stored().await.0 > wanted).await;
    assert_eq!(stored().await, (wanted + 1, 0), "each once");
}

fn input() -> Value {
    json!({"content": "x".repeat(CHUNK_BYTES)})
}

async fn status_of_input(fixture: &Fixture, thread: &str) -> u16 {
    fixture.api().say_with(thread, &input(), &[]).await.unwrap().status
}

/// Checks that an input is refused with a code that allows a retry.
async fn assert_refused(fixture: &Fixture, thread: &str) {
    let answer = fixture.api().say_with(thread, &input(), &[]).await.unwrap();
    assert_eq!((answer.status, answer.json().unwrap()["code"].as_str()), (503, Some("stream_full")));
    assert_eq!(answer.header("retry-after"), Some("5"), "{thread}");
}

fn of_another_partition() -> String {
    (0..).map(|n| format!("other-{n}")).find(|name| partition(name) != partition("full")).unwrap()
}

/// Publishes a message of one chunk, without retries.
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
