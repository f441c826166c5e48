//! Grants, renewals, shares.

use std::collections::BTreeSet;
use std::time::Duration;

use model::{PartitionCount, PartitionId, Seq, Timestamp};

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
    assert!(all.iter().all(|(_, epoch)| *epoch == 1));
}

#[tokio::test]
async fn a_lease_ends_by_time_by_release_and_by_takeover() {
    let (_database, store) = Database::new(2).await;
    assert_eq!(store.acquire("a", TTL, 10).await.unwrap().len(), 2);
    assert_eq!(store.acquire("b", TTL, 10).await.unwrap(), []);
    let (first, second) = (PartitionId(0), PartitionId(1));

    assert!(store.release("a", first, 1).await.unwrap());
    assert!(!store.release("a", first, 1).await.unwrap());
    let taken = store.acquire("b", TTL, 10).await.unwrap();
    assert_eq!(taken.iter().map(|grant| (grant.partition, grant.epoch)).collect::<Vec<_>>(), [(first, 2)]);

    assert_eq!(store.renew("a", GONE, &[(second, 1), (first, 1)]).await.unwrap(), [second]);
    assert_eq!(store.acquire("b", TTL, 10).await.unwrap()[0].partition, second);
    assert_eq!(store.renew("a", TTL, &[(second, 1)]).await.unwrap(), []);
    assert_eq!(store.renew("b", TTL, &[(second, 2), (first, 2)]).await.unwrap(), [first, second]);
    assert_eq!(store.reclaim("a", second, 1, TTL).await.unwrap(), None);
}

#[tokio::test]
async fn a_lease_that_ran_out_and_that_nobody_took_is_still_held() {
    let (_database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    store.renew("a", GONE, &[(owner.grant.partition, 1)]).await.unwrap();
    assert!(store.partitions_status().await.unwrap()[0].lease_left_ms.unwrap() <= 0);
    assert_eq!(store.renew("a", TTL, &[(owner.grant.partition, 1)]).await.unwrap(), [owner.grant.partition]);
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
    store.retire("b").await.unwrap();
    store.heartbeat("c", GONE).await.unwrap();
    let alone = store.heartbeat("a", TTL).await.unwrap();
    assert_eq!((alone.workers.len(), alone.rank, alone.share(count)), (1, 0, 8));
}

#[tokio::test]
async fn a_rebase_moves_the_checkpoint_back_only_for_the_owner() {
    let (_database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    let partition = owner.grant.partition;
    let mut commit = owner.empty();
    (commit.checkpoint, commit.position_high_water) = (Seq(500), Timestamp(7));
    owner.commit(&commit).await.unwrap();
    assert!(!store.rebase("a", partition, 2, Seq(3), "new").await.unwrap());
    assert!(store.rebase("a", partition, 1, Seq(3), "new").await.unwrap());
    let grant = store.reclaim("a", partition, 1, TTL).await.unwrap().unwrap();
    assert_eq!((grant.epoch, grant.checkpoint, grant.incarnation.as_deref()), (2, Seq(3), Some("new")));
    assert_eq!(grant.position_high_water, Timestamp(7));
}
