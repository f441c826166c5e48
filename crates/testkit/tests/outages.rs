//! Postgres or NATS away: at the start, and in the middle.

use std::time::Duration;

use testkit::{
    fleet::{Fleet, READY_LIMIT},
    services::{NatsServer, PostgresServer},
    tables,
};
use tokio::time::sleep;

use crate::bed::{Bed, long, options, pool};

const LIMIT: Duration = Duration::from_secs(40);

/// A fleet on servers of its own, migrated but not started.
async fn apart() -> (Fleet, NatsServer, PostgresServer) {
    let nats = NatsServer::start().await.unwrap();
    let postgres = PostgresServer::start().await.unwrap();
    let fleet = Fleet::prepare(options(&nats, postgres.url())).unwrap();
    fleet.migrate().await.unwrap();
    (fleet, nats, postgres)
}

async fn works(mut fleet: Fleet, nats: NatsServer, postgres: &PostgresServer) {
    fleet.ready(READY_LIMIT).await.unwrap();
    let mut bed = Bed::on(fleet, nats, pool(postgres.url()).await, None).await;
    bed.send_many("works", 20).await;
    bed.until_ended(LIMIT).await;
    bed.audit(vec![]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_waits_for_postgres_at_the_start() {
    let (mut fleet, nats, postgres) = apart().await;
    postgres.kill().await.unwrap();
    fleet.spawn().unwrap();
    sleep(Duration::from_secs(3)).await;
    for process in fleet.workers.iter_mut().chain(&mut fleet.gateways) {
        assert!(process.has_ended().is_none(), "{} gave up: {}", process.name(), process.log_tail());
    }
    postgres.restart().await.unwrap();
    works(fleet, nats, &postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_waits_for_nats_at_the_start() {
    let (mut fleet, nats, postgres) = apart().await;
    nats.kill().await.unwrap();
    fleet.spawn().unwrap();
    sleep(Duration::from_secs(3)).await;
    for process in fleet.workers.iter_mut().chain(&mut fleet.gateways) {
        assert!(process.has_ended().is_none(), "{} gave up: {}", process.name(), process.log_tail());
    }
    nats.restart().await.unwrap();
    works(fleet, nats, &postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_postgres_text_streams_on_and_ends_wait() {
    let (mut fleet, nats, postgres) = apart().await;
    fleet.spawn().unwrap();
    fleet.ready(READY_LIMIT).await.unwrap();
    let mut bed = Bed::on(fleet, nats, pool(postgres.url()).await, None).await;
    let follower = bed.following("outage").await;
    let message = long("outage", "m");
    bed.send_part(&message, 0..100).await;
    follower.wait(LIMIT, |progress| progress.events >= 100).await.unwrap();
    postgres.kill().await.unwrap();
    bed.send_part(&message, 100..message.chunks.len()).await;
    bed.send_many("meanwhile", 30).await;
    sleep(Duration::from_secs(4)).await;
    assert_eq!(follower.progress().terminals, 0, "no end before the commit");
    postgres.restart().await.unwrap();
    bed.pool = pool(postgres.url()).await;
    bed.until_ended(LIMIT).await;
    follower.wait(LIMIT, |progress| progress.terminals == 1).await.unwrap();
    bed.audit(vec![follower]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_may_be_killed_in_the_middle() {
    let mut bed = Bed::new().await;
    let follower = bed.following("killed").await;
    let message = long("killed", "m");
    bed.send_part(&message, 0..100).await;
    bed.nats.kill().await.unwrap();
    sleep(Duration::from_secs(3)).await;
    bed.nats.restart().await.unwrap();
    bed.send_part(&message, 100..message.chunks.len()).await;
    bed.send_many("after", 20).await;
    bed.until_ended(LIMIT).await;
    follower.wait(LIMIT, |progress| progress.terminals == 1).await.unwrap();
    bed.gap_timeout = Duration::ZERO;
    bed.audit(vec![follower]).await;
}

/// With checkpoints of the old stream a new one, which counts from 1, would be skipped over.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_made_anew_is_noticed_and_read_from_its_beginning() {
    let mut bed = Bed::new().await;
    bed.send_many("old", 40).await;
    bed.until_ended(LIMIT).await;
    let jetstream = bed.publisher.context().clone();
    for partition in 0..crate::bed::PARTITIONS {
        jetstream.delete_stream(format!("PARTITION_{partition}")).await.unwrap();
    }
    bed.fleet.migrate().await.unwrap();
    bed.send_many("new", 40).await;
    bed.until_ended(LIMIT).await;
    assert_eq!(tables::ended(&bed.pool).await.unwrap(), (80, 0));
    let mut incidents = 0.0;
    for worker in &bed.fleet.workers {
        incidents += worker.metrics().await.unwrap().sum("antiphon_worker_stream_incidents_total");
    }
    assert!(incidents >= f64::from(crate::bed::PARTITIONS), "{incidents} incidents told");
}
