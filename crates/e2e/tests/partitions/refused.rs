//! What a change refuses, and what is refused while one is in progress.

use std::time::Duration;

use model::ThreadId;
use testkit::{
    fleet,
    publisher::{Addressing, Publisher},
    services::NatsServer,
};
use tokio::time::sleep;

use super::small_streams;
use crate::{
    api_client::{SOON, alone},
    fixture::{self, Fixture, LEASE, PARTITIONS},
};

#[tokio::test(flavor = "multi_thread")]
async fn wrong_numbers_and_running_workers_are_refused() {
    let mut fixture = Fixture::with(|options| small_streams(alone(options))).await;
    for (number, why) in [("3", "power of two"), ("0", "power of two"), ("2048", "power of two")] {
        let refused = fixture.on_partitions(&["change", number]).await;
        assert_eq!(refused.code, Some(2), "{number}: {}", refused.stderr);
        assert!(refused.stderr.contains(why) && refused.stderr.lines().count() == 1, "{}", refused.stderr);
    }
    let refused = fixture.on_partitions(&["change", "16"]).await;
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("worker worker-0 owns partition"), "{}", refused.stderr);
    assert_eq!(fixture.shares().await.into_values().collect::<Vec<_>>(), [8], "it goes on");
    // The change waits for the lease of a dead worker.
    fixture.fleet.workers[0].kill().await.unwrap();
    let began = std::time::Instant::now();
    fixture.change_partitions(16).await;
    assert!(began.elapsed() < LEASE + 2 * SOON);
    fixture.until("each has its share", SOON, async || fixture.shares().await.into_values().eq([8, 8])).await;
    // A job that runs a second time succeeds, even while workers run, and does not contact NATS.
    let env = [("DATABASE_URL", fixture.database_url()), ("NATS_URL", "nats://127.0.0.1:9".to_owned())];
    let env = env.map(|(name, value)| (name.to_owned(), value));
    let again = fleet::invoke(&["partitions", "change", "16", "-o", "json"], &env).await.unwrap();
    assert_eq!(again.code, Some(0), "{}", again.stderr);
    assert!(again.stderr.contains("nothing to do: there are 16 partitions already"), "{}", again.stderr);
    let answer: serde_json::Value = serde_json::from_str(&again.stdout).unwrap();
    assert_eq!(
        (&answer["from"], &answer["to"], &answer["moved_entries"]),
        (&16.into(), &16.into(), &0.into())
    );
    assert_eq!(fixture.shares().await.into_values().collect::<Vec<_>>(), [8, 8], "it goes on");
}

/// A change that was killed before it began has created streams that belong to no partition.
#[tokio::test(flavor = "multi_thread")]
async fn doctor_names_streams_that_a_failed_change_has_left_behind() {
    let fixture = Fixture::with(|options| small_streams(alone(options))).await;
    let context = fixture.publisher.context();
    let like = context.get_stream("PARTITION_7").await.unwrap().cached_info().config.clone();
    for partition in [8, 9] {
        let (name, subjects) = (format!("PARTITION_{partition}"), vec![format!("left.over.{partition}")]);
        let config = async_nats::jetstream::stream::Config { name, subjects, ..like.clone() };
        context.create_stream(config).await.unwrap();
    }
    let (code, findings) = fixture.diagnosed(&[]).await;
    let left = "warning stream PARTITION_8, PARTITION_9 belong to no partition, and reserve room";
    assert!(findings.iter().any(|finding| finding == left), "{code:?} {findings:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn change_under_way_is_named_and_nothing_starts() {
    let mut fixture = Fixture::with(|options| small_streams(alone(options))).await;
    fixture.stop_fleet().await;
    let begun = async {
        let sql = "SELECT count(*) FROM partition_change";
        while sqlx::query_scalar::<_, i64>(sql).fetch_one(&fixture.pool).await.unwrap() == 0 {
            sleep(Duration::from_millis(2)).await;
        }
    };
    let killed =
        fleet::invoke_until(&["partitions", "change", "16"], &fixture.command_env(), begun).await.unwrap();
    assert!(killed.is_none(), "it has ended too early: {killed:?}");
    let why = "is being changed from 8 to 16: run `antiphon partitions change 16` to its end";
    let mut env = fixture.command_env().to_vec();
    env.extend(
        [
            ("ANTIPHON_INSECURE", "true"),
            ("ANTIPHON_HTTP_ADDR", "127.0.0.1:0"),
            ("ANTIPHON_METRICS_ADDR", "127.0.0.1:0"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned())),
    );
    for words in [
        &["worker"][..],
        &["gateway"],
        &["migrate"],
        &["partitions", "change", "32"],
        &["erase", "--user", "u"],
    ] {
        let refused = fleet::invoke(words, &env).await.unwrap();
        assert!(refused.code.is_some_and(|code| code > 0), "{words:?}: {}", refused.stderr);
        let says: Vec<&str> = refused.stderr.lines().filter(|line| line.starts_with("antiphon: ")).collect();
        assert!(says.len() == 1 && says[0].contains(why), "{words:?}: {}", refused.stderr);
    }
    let listed = fixture.on_partitions(&["list", "-o", "json"]).await;
    assert!(listed.code == Some(0) && listed.stdout.contains("\"to\": 16"), "{}", listed.stdout);
    assert!(listed.stderr.contains(why), "{}", listed.stderr);
    fixture.change_partitions(16).await;
    let listed = fixture.on_partitions(&["list", "-o", "json"]).await;
    assert!(listed.stdout.contains("\"change\": null"), "{}", listed.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn account_mapping_of_another_number_keeps_streams_closed() {
    let nats = NatsServer::start_mapped(PARTITIONS).await.unwrap();
    let database = testkit::services::TestDatabase::create().await.unwrap();
    let options = small_streams(fixture::options(&nats, database.url()));
    let fleet = fleet::Fleet::start(options).await.unwrap();
    let pool = database.pool().await.unwrap();
    let mut fixture = Fixture::on(fleet, nats, pool, Some(database)).await;
    fixture.stop_fleet().await;
    let refused = fixture.on_partitions(&["change", "16"]).await;
    assert_eq!(refused.code, Some(1));
    let why = "the NATS account maps `chunks.*` to 8 partitions: put 16 into all `mappings`";
    assert!(refused.stderr.contains(why), "{}", refused.stderr);
    let mapped = Publisher::connect(fixture.nats.url(), Addressing::Mapped).await.unwrap();
    let subject = mapped.subject(&ThreadId::parse("a").unwrap());
    assert!(mapped.publish_raw(&subject, None, "{}".into()).await.is_err(), "nothing is taken and lost");
    // The mappings are those of the new number from now on.
    fixture.nats.map_to(16).await.unwrap();
    fixture.change_partitions(16).await;
    fixture.publisher = Publisher::connect(fixture.nats.url(), Addressing::Mapped).await.unwrap();
    fixture.send_many("mapped", 40).await;
    fixture.until_ended(SOON).await;
    let letters: i64 =
        sqlx::query_scalar("SELECT count(*) FROM dead_letters").fetch_one(&fixture.pool).await.unwrap();
    assert_eq!(letters, 0);
}

/// Streams that were created before the server ran out of space would keep their space reserved.
#[tokio::test(flavor = "multi_thread")]
async fn change_without_room_leaves_no_streams_behind() {
    // Space for the ten present streams, for the stream of tool calls, which has a quarter of their
    // size, and for three more. A change to 16 creates eight streams.
    let storage = 13 * super::STREAM_BYTES as u64 + super::STREAM_BYTES as u64 / 4 + (1 << 20);
    let nats = NatsServer::start_with_storage(storage).await.unwrap();
    let database = testkit::services::TestDatabase::create().await.unwrap();
    let options = small_streams(alone(fixture::options(&nats, database.url())));
    let fleet = fleet::Fleet::start(options).await.unwrap();
    let pool = database.pool().await.unwrap();
    let mut fixture = Fixture::on(fleet, nats, pool, Some(database)).await;
    fixture.stop_fleet().await;
    let refused = fixture.on_partitions(&["change", "16"]).await;
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("raise max_file_store"), "{}", refused.stderr);
    for partition in 8..16 {
        let stream = fixture.publisher.context().get_stream(format!("PARTITION_{partition}")).await;
        assert!(stream.is_err(), "PARTITION_{partition} was left behind");
    }
    assert!(fixture.publisher.context().get_stream("PARTITION_7").await.is_ok());
}
