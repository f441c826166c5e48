//! A NATS server that is isolated from the other two of its cluster, while clients still reach it;
//! and a stalled consumer.

use std::time::Duration;

use async_nats::jetstream::{
    self,
    consumer::{PullConsumer, pull},
};
use bus::{Bus, BusConfig, ExpectedStream, PartitionReader, ReaderEvent, StreamOptions, WorkOptions};
use futures_util::StreamExt;
use model::{PartitionCount, PartitionId, Seq, WorkflowName};
use serde_json::json;
use testkit::{
    WAIT_TIMEOUT,
    api::Api,
    fleet::{Fleet, FleetOptions},
    nats_cluster::NatsCluster,
    publisher::{Addressing, Publisher},
    services::TestDatabase,
    sse::{FollowOptions, Follower},
};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use wire::subject;

use crate::api_client::{scripted, until_ended};

/// Enough partitions that each server has some of their consumers.
const PARTITIONS: u64 = 8;
/// Longer than the other servers need to elect leaders, and longer than the isolated server
/// believes that it leads.
const CUT_OFF: Duration = Duration::from_secs(25);
/// The longest time until a message sent during the isolation is answered: the election, ten
/// seconds in which no server is changed, and the client's repetitions.
const ANSWERED: Duration = Duration::from_secs(60);

/// What a reader has found while it runs.
#[derive(Debug, Default, Clone, Copy)]
struct Found {
    entries: usize,
    is_caught_up: bool,
    is_in_trouble: bool,
}

async fn read_until(mut reader: PartitionReader, mut found: Found, end: Instant) -> (PartitionReader, Found) {
    while let Ok(event) = timeout_at(end, reader.next_batch(100)).await {
        match event {
            ReaderEvent::Entries(entries) => found.entries += entries.len(),
            ReaderEvent::CaughtUp(is_caught_up) => found.is_caught_up = is_caught_up,
            ReaderEvent::Trouble(trouble) => found.is_in_trouble = trouble.is_some(),
            ReaderEvent::StreamChanged => panic!("the stream is the same"),
        }
    }
    (reader, found)
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_of_a_server_that_is_cut_off_are_not_caught_up() {
    let nats = NatsCluster::start(3).await.unwrap();
    let count = PartitionCount::new(PARTITIONS).unwrap();
    let bus = Bus::connect(&BusConfig::new(nats.servers()[0].url(), "test")).await.unwrap();
    let replicated = StreamOptions { replicas: 3, max_bytes: 1 << 24, ..StreamOptions::default() };
    bus.ensure_streams(count, &replicated).await.unwrap();
    nats.in_sync(WAIT_TIMEOUT).await.unwrap();
    let mut readers = Vec::new();
    for partition in count.all() {
        let reader =
            PartitionReader::open(&bus, partition, 1, Seq(1), ExpectedStream::default()).await.unwrap();
        let reading = read_until(reader, Found::default(), Instant::now() + Duration::from_secs(3));
        readers.push(tokio::spawn(reading));
    }
    let mut standing = Vec::new();
    for reader in readers {
        let (reader, found) = reader.await.unwrap();
        assert!(found.is_caught_up, "nothing is there: {found:?}");
        standing.push((reader, found));
    }
    nats.set_isolated(0, true);
    let end = Instant::now() + CUT_OFF;
    let reading: Vec<_> =
        standing.into_iter().map(|(reader, found)| tokio::spawn(read_until(reader, found, end))).collect();
    let publisher = Publisher::connect(nats.servers()[1].url(), Addressing::Exact(count)).await.unwrap();
    for partition in count.all() {
        store(&publisher, partition, end).await;
    }
    let mut after = Vec::new();
    for reader in reading {
        let (reader, found) = reader.await.unwrap();
        assert_eq!(found.entries, 0, "it is cut off");
        assert!(!found.is_caught_up, "an entry that is stored was not read: {found:?}");
        assert!(found.is_in_trouble, "that is worth a word");
        after.push((reader, found));
    }
    nats.set_isolated(0, false);
    let end = Instant::now() + Duration::from_secs(15);
    let reading = after.into_iter().map(|(reader, found)| tokio::spawn(read_until(reader, found, end)));
    for reader in reading.collect::<Vec<_>>() {
        let (_, found) = reader.await.unwrap();
        assert_eq!((found.entries, found.is_caught_up, found.is_in_trouble), (1, true, false));
    }
}

/// Publishes an entry repeatedly, until a leader with a majority has stored it.
async fn store(publisher: &Publisher, partition: PartitionId, give_up_at: Instant) {
    let subject = format!("chunks.{partition}.thread");
    while let Err(error) = publisher.publish_raw(&subject, None, "x".into()).await {
        assert!(Instant::now() < give_up_at, "{subject}: {error:#}");
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_leaves_a_nats_server_that_is_cut_off() {
    let (nats, database) = (NatsCluster::start(3).await.unwrap(), TestDatabase::create().await.unwrap());
    // The URL names one server, from which the fleet learns of the others.
    let options = FleetOptions::new(nats.servers()[0].url(), database.url());
    let options = scripted(options).with_env("ANTIPHON_STREAM_REPLICAS", 3);
    let fleet = Fleet::start(options).await.unwrap();
    let gateways = fleet.gateway_addrs();
    let talk = Follower::start(&gateways, "talk", FollowOptions::default());
    talk.opened().await.unwrap();
    let api = Api(gateways[0]);
    let said = api.say("talk", "before").await.unwrap();
    until_ended(&talk, &said.answer).await;
    nats.set_isolated(0, true);
    let began = Instant::now();
    let body = json!({"content": "meanwhile"});
    Api::say_until_taken(&[api], "talk", &body, "meanwhile", ANSWERED).await.unwrap();
    println!("taken after {:?}", began.elapsed());
    talk.wait(ANSWERED, |progress| progress.terminals == 2).await.unwrap();
    println!("answered after {:?}", began.elapsed());
    assert!(began.elapsed() < ANSWERED, "{:?}\n{}", began.elapsed(), fleet.log_tails());
    nats.set_isolated(0, false);
    let said = api.say("talk", "after").await.unwrap();
    until_ended(&talk, &said.answer).await;
}

/// Each process has several connections, which may be to different servers.
#[tokio::test(flavor = "multi_thread")]
async fn each_connection_leaves_a_nats_server_that_is_cut_off() {
    let nats = NatsCluster::start(3).await.unwrap();
    let workflow = WorkflowName::parse("w").unwrap();
    let mut buses = Vec::new();
    for _ in 0..10 {
        let bus = Bus::connect(&BusConfig::new(nats.url(), "test")).await.unwrap();
        tokio::spawn(bus.clone().leave_isolated_servers());
        buses.push(bus);
    }
    let replicated = StreamOptions { replicas: 3, max_bytes: 1 << 24, ..StreamOptions::default() };
    buses[0].ensure_streams(PartitionCount::new(1).unwrap(), &replicated).await.unwrap();
    nats.in_sync(WAIT_TIMEOUT).await.unwrap();
    let mut services = Vec::new();
    for bus in buses {
        // Every connection is opened before the server is isolated.
        let mut work = bus.work(&workflow, WorkOptions::default());
        bus.publish_acked("work.w", "x".into(), None, WAIT_TIMEOUT).await.unwrap();
        timeout(WAIT_TIMEOUT, work.next()).await.unwrap().unwrap().ack().await.unwrap();
        services.push((bus, work));
    }
    // Waits until the stream is replicated.
    sleep(Duration::from_secs(3)).await;
    nats.set_isolated(0, true);
    let began = Instant::now();
    let serving = services.into_iter().map(|(bus, mut work)| {
        tokio::spawn(async move {
            bus.publish_acked("work.w", "x".into(), None, ANSWERED).await.unwrap();
            let item = timeout(ANSWERED, work.next()).await.unwrap().unwrap();
            while item.ack().await.is_err() {
                assert!(began.elapsed() < ANSWERED);
                sleep(Duration::from_secs(1)).await;
            }
        })
    });
    for served in serving.collect::<Vec<_>>() {
        served.await.unwrap();
    }
    println!("all served after {:?}", began.elapsed());
    assert!(began.elapsed() < ANSWERED, "{:?}", began.elapsed());
}

/// A request that was delivered too often stays in the stream, while its consumer no longer knows
/// it. That looks like a stalled consumer, which cannot be produced on purpose.
#[tokio::test(flavor = "multi_thread")]
async fn a_stalled_consumer_of_turn_requests_gets_the_stream_leader() {
    let nats = NatsCluster::start(3).await.unwrap();
    let bus = Bus::connect(&BusConfig::new(nats.url(), "test")).await.unwrap();
    let replicated = StreamOptions { replicas: 3, max_bytes: 1 << 24, ..StreamOptions::default() };
    bus.ensure_streams(PartitionCount::new(1).unwrap(), &replicated).await.unwrap();
    nats.in_sync(WAIT_TIMEOUT).await.unwrap();
    let client = async_nats::connect(nats.servers()[0].url()).await.unwrap();
    let context = jetstream::new(client);
    let config = pull::Config {
        durable_name: Some(subject::work_consumer(&WorkflowName::parse("w").unwrap())),
        filter_subject: "work.w".to_owned(),
        ack_wait: Duration::from_millis(100),
        max_deliver: 1,
        ..pull::Config::default()
    };
    let mut consumer = context.create_consumer_on_stream(config, subject::WORK_STREAM).await.unwrap();
    context.publish("work.w", "x".into()).await.unwrap().await.unwrap();
    // The consumer's leader may get the request later than the stream's leader.
    let mut delivered = consumer.batch().max_messages(1).expires(WAIT_TIMEOUT).messages().await.unwrap();
    delivered.next().await.unwrap().unwrap();
    let stream_leader = nats.leader(subject::WORK_STREAM).await.unwrap().unwrap();
    let other = nats.servers()[(stream_leader + 1) % 3].name();
    let step_down = format!("CONSUMER.LEADER.STEPDOWN.WORK.{}", consumer.cached_info().name);
    let placement = json!({"placement": {"preferred": other}});
    let end = Instant::now() + WAIT_TIMEOUT;
    while leader_of(&mut consumer).await != other || consumer.cached_info().num_ack_pending > 0 {
        let _: Result<serde_json::Value, _> = context.request(step_down.clone(), &placement).await;
        assert!(Instant::now() < end, "{:?}", consumer.cached_info());
        sleep(Duration::from_millis(500)).await;
    }
    let recovering = tokio::spawn(bus.recover_stalled_consumers());
    let expected = nats.servers()[stream_leader].name();
    let end = Instant::now() + WAIT_TIMEOUT;
    while leader_of(&mut consumer).await != expected {
        assert!(Instant::now() < end, "{:?}", consumer.cached_info());
        sleep(Duration::from_millis(500)).await;
    }
    recovering.abort();
}

async fn leader_of(consumer: &mut PullConsumer) -> String {
    let info = consumer.info().await.ok();
    info.and_then(|info| info.cluster.as_ref()?.leader.clone()).unwrap_or_default()
}
