//! Partitions move on join, leave and death, and work in progress moves with them.

use std::time::{Duration, Instant};

use testkit::{WAIT_TIMEOUT, db_snapshot};
use tokio::time::sleep;

use crate::fixture::{Fixture, LEASE, PARTITIONS, long, short};

#[tokio::test(flavor = "multi_thread")]
async fn two_workers_share_evenly_and_a_third_gets_its_part() {
    let mut fixture = Fixture::new().await;
    assert!(fixture.is_shared_evenly().await);
    let third = fixture.fleet.add_worker().unwrap();
    fixture.fleet.workers[third].spawn().unwrap();
    fixture.fleet.workers[third].ready(WAIT_TIMEOUT).await.unwrap();
    fixture
        .until("three workers have 2 or 3 each", WAIT_TIMEOUT, async || {
            let shares = fixture.shares().await;
            shares.len() == 3 && shares.values().all(|share| (2..=3).contains(share))
        })
        .await;
    fixture.send_many("shared", 40).await;
    fixture.until_ended(WAIT_TIMEOUT).await;
    fixture.audit(vec![]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_death_moves_partitions_within_lease_plus_two() {
    let mut fixture = Fixture::new().await;
    fixture.send_many("before", 20).await;
    fixture.fleet.workers[0].kill().await.unwrap();
    fixture.send_many("after", 20).await;
    let limit = LEASE + Duration::from_secs(2);
    let took = fixture
        .until("one worker has all", limit, async || {
            fixture.shares().await.values().copied().collect::<Vec<_>>() == [usize::from(PARTITIONS)]
        })
        .await;
    println!("moved after {:?}", took);
    fixture.until_ended(WAIT_TIMEOUT).await;
    fixture.audit(vec![]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn drain_under_load_hands_over_within_a_second() {
    let mut fixture = Fixture::new().await;
    let follower = fixture.following("drained").await;
    let message = long("drained", "m");
    fixture.send_part(&message, 0..100).await;
    fixture.send_many("load", 50).await;
    let owner = fixture.worker_of("drained").await;
    fixture.fleet.workers[owner].terminate();
    let took = fixture
        .until("the other worker has all", WAIT_TIMEOUT, async || {
            fixture.shares().await.values().copied().collect::<Vec<_>>() == [usize::from(PARTITIONS)]
        })
        .await;
    let status = fixture.fleet.workers[owner].ended(WAIT_TIMEOUT).await.unwrap();
    assert!(status.success(), "{status}");
    fixture.send_part(&message, 100..message.chunks.len()).await;
    fixture.until_ended(WAIT_TIMEOUT).await;
    follower.wait(WAIT_TIMEOUT, |progress| progress.terminals == 1).await.unwrap();
    fixture.audit(vec![follower]).await;
    assert!(took < Duration::from_secs(1), "handed over after {took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_worker_wakes_as_a_zombie_and_commits_nothing() {
    let mut fixture = Fixture::new().await;
    let follower = fixture.following("frozen").await;
    let message = long("frozen", "m");
    fixture.send_part(&message, 0..100).await;
    follower.wait(WAIT_TIMEOUT, |progress| progress.events >= 100).await.unwrap();
    let owner = fixture.worker_of("frozen").await;
    fixture.fleet.workers[owner].pause();
    // These entries reach the sockets of the frozen worker and wait there until it resumes.
    fixture.send_part(&message, 100..message.chunks.len()).await;
    fixture.send_many("meanwhile", 30).await;
    fixture.until_ended(WAIT_TIMEOUT).await;
    let before = db_snapshot::messages(&fixture.pool).await.unwrap();
    fixture.fleet.workers[owner].resume();
    sleep(LEASE).await;
    let after = db_snapshot::messages(&fixture.pool).await.unwrap();
    let places = |rows: &[db_snapshot::MessageRow]| rows.iter().map(|row| row.position).collect::<Vec<_>>();
    assert_eq!(places(&before), places(&after));
    fixture.send_many("after", 20).await;
    fixture.until_ended(WAIT_TIMEOUT).await;
    follower.wait(WAIT_TIMEOUT, |progress| progress.terminals == 1).await.unwrap();
    fixture.audit(vec![follower]).await;
    assert!(fixture.fleet.workers[owner].has_ended().is_none(), "a zombie goes on as a worker");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_straggler_survives_a_kill() {
    let mut fixture = Fixture::with(|options| options.with_env("ANTIPHON_REPLAY_ENTRIES", 40)).await;
    let follower = fixture.following("straggler").await;
    let message = long("straggler", "m");
    let half = message.chunks.len() / 2;
    fixture.send_part(&message, 0..half).await;
    let began = Instant::now();
    let mut salt = 0;
    // The message is saved when a replay from its first chunk would be too long.
    while sqlx::query_scalar::<_, i64>("SELECT count(*) FROM spilled_messages")
        .fetch_one(&fixture.pool)
        .await
        .unwrap()
        == 0
    {
        assert!(began.elapsed() < Duration::from_secs(60), "never saved");
        let message = short("straggler", &format!("other-{salt}"), salt);
        fixture.send(&message).await;
        salt += 1;
        sleep(Duration::from_millis(500)).await;
    }
    println!("saved after {:?}", began.elapsed());
    let owner = fixture.worker_of("straggler").await;
    fixture.fleet.workers[owner].kill().await.unwrap();
    fixture.send_part(&message, half..message.chunks.len()).await;
    fixture.until_ended(WAIT_TIMEOUT).await;
    follower.wait(WAIT_TIMEOUT, |progress| progress.terminals == salt + 1).await.unwrap();
    fixture.audit(vec![follower]).await;
    let left = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM spilled_messages")
        .fetch_one(&fixture.pool)
        .await
        .unwrap();
    assert_eq!(left, 0, "ended stragglers are removed");
}
