//! Grants, renewals, shares.

use std::collections::BTreeSet;
use std::time::Duration;

use model::{PartitionCount, PartitionId};
use store::{Applied, Store};

use crate::fixture::{Database, Owner, TTL};

const GONE: Duration = Duration::ZERO;

#[tokio::test]
async fn three_workers_at_once_never_share_a_partition() {
    let (_database, store) = Database::new(64).await;
    let worker = |name: &'static str| {
        let store = store.clone();
        async move {
            let mut mine = Vec::new();
            for _ in 0..30 {
                let granted = store.acquire(name, TTL, 2).await.unwrap();
                assert!(granted.len() <= 2);
                mine.extend(granted.into_iter().map(|grant| (grant.partition, grant.epoch)));
            }
            mine
        }
    };
    let (a, b, c) = tokio::join!(worker("a"), worker("b"), worker("c"));
    let all: Vec<_> = [a, b, c].concat();
    let distinct: BTreeSet<_> = all.iter().map(|(partition, _)| *partition).collect();
    assert_eq!((all.len(), distinct.len()), (64, 64));
}

#[tokio::test]
async fn a_lease_ends_by_time_by_release_and_by_takeover() {
    let (_database, store) = Database::new(2).await;
    assert_eq!(store.unowned_partitions().await.unwrap(), 2);
    let mine = store.acquire("a", TTL, 10).await.unwrap();
    assert_eq!(store.unowned_partitions().await.unwrap(), 0);
    let [first, second] = [Applied::from(&mine[0]), Applied::from(&mine[1])];
    assert_eq!(store.acquire("b", TTL, 10).await.unwrap(), []);

    assert!(store.release("a", first.partition, first.epoch).await.unwrap());
    assert_eq!(store.unowned_partitions().await.unwrap(), 1);
    assert!(!store.release("a", first.partition, first.epoch).await.unwrap());
    let taken = store.acquire("b", TTL, 10).await.unwrap();
    assert_eq!(taken.iter().map(|grant| grant.partition).collect::<Vec<_>>(), [first.partition]);
    assert!(taken[0].epoch > first.epoch);

    assert_eq!(renewed(&store, "a", GONE, &[second, first]).await, [second.partition]);
    assert_eq!(store.unowned_partitions().await.unwrap(), 1);
    let also = store.acquire("b", TTL, 10).await.unwrap().remove(0);
    assert_eq!(also.partition, second.partition);
    assert_eq!(renewed(&store, "a", TTL, &[second]).await, []);
    let all = [Applied::from(&also), Applied::from(&taken[0])];
    assert_eq!(renewed(&store, "b", TTL, &all).await, [first.partition, second.partition]);
    assert_eq!(store.reclaim("a", &second, 0, TTL).await.unwrap(), None);
}

async fn renewed(store: &Store, worker: &str, ttl: Duration, held: &[Applied]) -> Vec<PartitionId> {
    store.renew(worker, ttl, held).await.unwrap().iter().map(|renewed| renewed.partition).collect()
}

#[tokio::test]
async fn expired_lease_is_held_until_another_worker_takes_it() {
    let (_database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    let held = [Applied::from(&owner.grant)];
    renewed(&store, "a", GONE, &held).await;
    assert!(store.partitions_status().await.unwrap()[0].lease_left_ms.unwrap() <= 0);
    assert_eq!(renewed(&store, "a", TTL, &held).await, [owner.grant.partition]);
}

#[tokio::test]
async fn shares_are_fair_and_follow_the_heartbeats() {
    let (_database, store) = Database::new(8).await;
    let count = PartitionCount::new(8).unwrap();
    for name in ["c", "a", "b"] {
        store.heartbeat(name, TTL).await.unwrap();
    }
    let mut shares = Vec::new();
    for name in ["a", "b", "c"] {
        let fleet = store.heartbeat(name, TTL).await.unwrap();
        assert_eq!(fleet.workers, ["a", "b", "c"]);
        shares.push(fleet.share(count));
    }
    assert_eq!(shares, [3, 3, 2]);
    store.deregister("b").await.unwrap();
    store.heartbeat("c", GONE).await.unwrap();
    let alone = store.heartbeat("a", TTL).await.unwrap();
    assert_eq!((alone.workers.len(), alone.rank, alone.share(count)), (1, 0, 8));
}
