//! Stores that went back in time, and losses of streams. Both must be detected before anything is
//! written, and recorded as rows.

use std::collections::BTreeSet;
use std::time::Duration;

use model::{Mark, PartitionId, Seq, Timestamp};
use partition::{Commit, Incident, IncidentKind, Save, StreamPlace};
use store::{Applied, Committed, Store, StoreError, StreamGap, Submission};

use crate::fixture::{Database, INCARNATION, Owner, TTL, dead_entry, message, submission};

/// SQL that copies the tables. Together with `PUT_BACK` it has the effect of restoring an older
/// copy of the whole database.
const SAVE: &str =
    "CREATE TABLE kept AS SELECT * FROM partitions; CREATE TABLE kept_messages AS SELECT * FROM messages;
     CREATE TABLE kept_saves AS SELECT * FROM partition_saves;";
const PUT_BACK: &str =
    "TRUNCATE partitions, messages, threads, incidents, partition_saves; INSERT INTO partitions SELECT * FROM kept;
                        INSERT INTO partition_saves SELECT * FROM kept_saves;
                        INSERT INTO messages SELECT * FROM kept_messages;";

async fn commit(owner: &Owner, number: i64) {
    let mut commit = owner.empty();
    commit.messages = vec![message("t", &format!("m{number}"), number)];
    (commit.checkpoint, commit.position_high_water) = (Seq(number as u64), Timestamp(i64::MAX / 2));
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
}

/// An owner that has committed, and the next owner, whose grant the copy does not have.
async fn saved_before_takeover(database: &Database, store: &Store) -> (Owner, Owner) {
    let first = Owner::new(store, "a").await;
    commit(&first, 1).await;
    database.execute(SAVE).await;
    store.release("a", PartitionId(0), first.grant.epoch).await.unwrap();
    (first, Owner::new(store, "b").await)
}

async fn count(database: &Database, of: &str) -> i64 {
    database.number(&format!("SELECT count(*) FROM {of}")).await
}

/// Partition, kind and range of each incident, and whether it is unacknowledged.
async fn incidents(store: &Store) -> Vec<String> {
    let mut all = store.incidents(true, 100).await.unwrap();
    all.sort_by_key(|incident| (incident.partition, incident.first));
    let lines = all.iter().map(|it| {
        let last = it.last.map(|last| last.to_string()).unwrap_or_default();
        let open = if it.acknowledged.is_some() { "" } else { " open" };
        format!("{} {} {} {}..{last}{open}", it.partition, it.kind, it.incarnation, it.first)
    });
    lines.collect()
}

#[tokio::test]
async fn a_store_that_went_back_is_not_written_to_by_who_knows_more() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    commit(&owner, 1).await;
    database.execute(SAVE).await;
    commit(&owner, 2).await;
    commit(&owner, 3).await;
    let mut known = Applied { checkpoint: Seq(3), ..owner.applied().await };
    database.execute(PUT_BACK).await;

    let mut next = owner.empty();
    (next.messages, next.checkpoint) = (vec![message("t", "m4", 4)], Seq(4));
    let fenced = owner.writer.commit(&[submission(&next, known.commits)]).await.unwrap();
    assert_eq!((fenced, count(&database, "messages").await), (vec![Committed::Fenced], 1));
    assert_eq!(store.renew("a", TTL, &[known]).await.unwrap(), []);

    known.position_high_water = Timestamp(i64::MAX / 2 + 7);
    let back = store.reclaim("a", &known, 0, TTL).await.unwrap().unwrap();
    assert!(back.stepped_back && back.grant.epoch > known.epoch, "{back:?}");
    assert_eq!((back.grant.commits, back.grant.checkpoint), (1, Seq(1)));
    assert_eq!(
        back.grant.position_high_water, known.position_high_water,
        "positions shown are not given again"
    );
    assert_eq!(incidents(&store).await, ["0 store_stepped_back  2..3"]);
    assert_eq!(store.renew("a", TTL, &[Applied::from(&back.grant)]).await.unwrap()[0].incidents, 0);
    // The entries are read again and committed with the new epoch.
    let owner = Owner { grant: back.grant, ..owner };
    commit(&owner, 2).await;
    commit(&owner, 3).await;
}

#[tokio::test]
async fn a_store_that_lost_saves_alone_is_not_written_to_either() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    commit(&owner, 1).await;
    let mut known = owner.applied().await;
    for saves in 1..=2 {
        known.saves = store.save(known, "s", &Save::default()).await.unwrap();
        assert_eq!(known.saves, saves);
        if saves == 1 {
            database.execute(SAVE).await;
        }
    }
    let next = Commit { messages: vec![message("t", "m2", 2)], ..owner.empty() };
    let decided = Submission { saves: known.saves, ..submission(&next, known.commits) };
    database.execute(PUT_BACK).await;

    assert_eq!(owner.writer.commit(&[decided]).await.unwrap(), [Committed::Fenced]);
    assert_eq!(store.renew("a", TTL, &[known]).await.unwrap(), []);
    let saved = store.save(known, "s", &Save::default()).await;
    assert!(matches!(saved, Err(StoreError::NotOwner)), "{saved:?}");
    assert_eq!(store.saves(known.partition).await.unwrap(), 1, "it would stand for the one that was lost");
    let back = store.reclaim("a", &known, 0, TTL).await.unwrap().unwrap();
    assert!(back.stepped_back, "{back:?}");
    assert_eq!(incidents(&store).await, ["0 store_stepped_back  2..1"]);
    // An owner that does not know of the newest save yet can still commit.
    let owner = Owner { grant: back.grant, ..owner };
    let (known, next) = (owner.applied().await, Commit { epoch: owner.grant.epoch, ..next });
    assert_eq!(known.saves, 0);
    assert_eq!(owner.writer.commit(&[submission(&next, known.commits)]).await.unwrap(), [Committed::Applied]);
}

#[tokio::test]
async fn restored_store_behind_the_grant_goes_to_the_last_owner() {
    let (database, store) = Database::new(1).await;
    let (first, second) = saved_before_takeover(&database, &store).await;
    commit(&second, 2).await;
    let known = second.applied().await;
    database.execute(PUT_BACK).await;
    assert_eq!(store.renew("b", TTL, &[known]).await.unwrap(), []);
    let back = store.reclaim("b", &known, 0, TTL).await.unwrap().unwrap();
    assert!(back.stepped_back && back.grant.epoch > known.epoch, "{back:?}");
    // The owner that the copy names is fenced.
    let mut late = first.empty();
    late.messages = vec![message("t", "late", 9)];
    assert_eq!(first.commit(&late).await.unwrap(), Committed::Fenced);
    // A worker that was granted the partition after the restore keeps it.
    database.execute(PUT_BACK).await;
    database.execute("UPDATE partitions SET lease_until = clock_timestamp()").await;
    let third = Owner::new(&store, "c").await;
    assert!(third.grant.epoch > back.grant.epoch, "an epoch is given once: {:?}", third.grant);
    assert_eq!(store.reclaim("b", &Applied::from(&back.grant), 0, TTL).await.unwrap(), None);
    commit(&third, 2).await;
}

#[tokio::test]
async fn owner_from_before_a_forgotten_takeover_rises_above_it() {
    let (database, store) = Database::new(1).await;
    let (first, second) = saved_before_takeover(&database, &store).await;
    // An epoch from a database whose clock was ahead of this one.
    let seen = second.grant.epoch + 1_000_000_000;
    let known = first.applied().await;
    assert_eq!(store.reclaim("a", &known, seen, TTL).await.unwrap(), None, "it is another worker's");
    database.execute(PUT_BACK).await;
    // The store has everything that the first owner knows of.
    assert_eq!(store.renew("a", TTL, &[known]).await.unwrap().len(), 1);
    let back = store.reclaim("a", &known, seen, TTL).await.unwrap().unwrap();
    assert!(back.stepped_back && back.grant.epoch > seen, "{back:?}");
    assert_eq!((back.grant.commits, back.grant.checkpoint), (1, Seq(1)));
    assert_eq!(incidents(&store).await, ["0 store_stepped_back  2.."]);
    commit(&Owner { grant: back.grant, ..first }, 2).await;
}

#[tokio::test]
async fn an_epoch_is_never_given_again() {
    let (database, store) = Database::new(1).await;
    let mut epochs = BTreeSet::new();
    database.execute(SAVE).await;
    for _ in 0..20 {
        database.execute(PUT_BACK).await;
        assert!(epochs.insert(Owner::new(&store, "a").await.grant.epoch));
    }
    // Epochs do not repeat even on a server whose clock is behind.
    database.execute("UPDATE kept SET epoch = 8000000000000000").await;
    for _ in 0..5 {
        database.execute(PUT_BACK).await;
        epochs.insert(Owner::new(&store, "a").await.grant.epoch);
    }
    assert!(epochs.len() >= 23, "{epochs:?}");
}

#[tokio::test]
async fn renewal_overtaken_by_a_commit_is_no_restored_store() {
    let (_database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    let asked = owner.applied().await;
    commit(&owner, 1).await;
    assert_eq!(store.renew("a", TTL, &[asked]).await.unwrap().len(), 1);
    let ahead = Applied { commits: 2, ..asked };
    assert_eq!(store.renew("a", Duration::ZERO, &[ahead]).await.unwrap(), []);
}

fn gone_entries(first: u64, last: u64) -> Incident {
    let kind = IncidentKind::EntriesGone;
    Incident { kind, incarnation: "new".to_owned(), first: Seq(first), last: Some(Seq(last)) }
}

#[tokio::test]
async fn a_rebase_is_a_write_of_the_owner_and_records_what_it_passes() {
    let (_database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    commit(&owner, 500).await;
    let read = Mark { seq: Seq(7), stored_at_ns: 77 };
    let place = StreamPlace { checkpoint: Seq(3), read: Some(read), incidents: vec![gone_entries(1, 3)] };
    // A rebase with the grant from before the commit is refused.
    assert_eq!(store.rebase("a", &owner.grant, &place, "new").await.unwrap(), None);
    let grant = store.reclaim("a", &owner.applied().await, 0, TTL).await.unwrap().unwrap().grant;
    let grant = store.rebase("a", &grant, &place, "new").await.unwrap().unwrap();
    assert_eq!((grant.commits, grant.checkpoint), (2, Seq(3)));
    assert_eq!(store.rebase("b", &grant, &place, "new").await.unwrap(), None);
    let again = store.reclaim("a", &Applied::from(&grant), 0, TTL).await.unwrap().unwrap().grant;
    assert_eq!((again.incarnation.as_deref(), again.read), (Some("new"), Some(read)));
    assert_eq!((again.commits, again.position_high_water), (2, Timestamp(i64::MAX / 2)));
    assert_eq!(incidents(&store).await, ["0 entries_gone new 1..3 open"]);
}

#[tokio::test]
async fn lost_entries_are_recorded_with_the_commit_passing_them() {
    let (_database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    let mut passes = owner.empty();
    passes.checkpoint = Seq(20);
    let gone = [StreamGap { first: Seq(4), last: Seq(9) }, StreamGap { first: Seq(12), last: Seq(12) }];
    let read = Some(Mark { seq: Seq(21), stored_at_ns: 210 });
    let of = |commits| Submission { gone: &gone, read, ..submission(&passes, commits) };
    assert_eq!(owner.writer.commit(&[of(1)]).await.unwrap(), [Committed::Fenced]);
    assert_eq!(incidents(&store).await, Vec::<String>::new());
    for commits in [0, 1] {
        assert_eq!(owner.writer.commit(&[of(commits)]).await.unwrap(), [Committed::Applied]);
    }
    let named = ["0 entries_gone stream-1 4..9 open", "0 entries_gone stream-1 12..12 open"];
    assert_eq!(incidents(&store).await, named);
    let newest = store.incidents(false, 1).await.unwrap();
    assert_eq!((newest.len(), newest[0].partition), (1, PartitionId(0)));
    let known = owner.applied().await;
    assert_eq!(store.renew("a", TTL, &[known]).await.unwrap()[0].incidents, 2);
    let grant = store.reclaim("a", &known, 0, TTL).await.unwrap().unwrap().grant;
    assert_eq!(grant.read, read);

    let act = model::CommandId::parse("c").unwrap();
    assert_eq!(store.acknowledge_incidents(Some(PartitionId(1)), &act, "ann").await.unwrap(), 0);
    assert_eq!(store.acknowledge_incidents(None, &act, "ann").await.unwrap(), 2);
    assert_eq!(store.incidents(false, 100).await.unwrap(), []);
    let all = store.incidents(true, 100).await.unwrap();
    assert!(all.iter().all(|it| it.acknowledged.as_ref().is_some_and(|(_, by)| by == "ann")), "{all:?}");
    assert_eq!(store.renew("a", TTL, &[Applied::from(&grant)]).await.unwrap()[0].incidents, 0);
    // The same loss happens again and is not acknowledged yet.
    let place = StreamPlace {
        checkpoint: Seq(9),
        read: None,
        incidents: vec![Incident { incarnation: INCARNATION.to_owned(), ..gone_entries(4, 9) }],
    };
    store.rebase("a", &grant, &place, INCARNATION).await.unwrap().unwrap();
    assert_eq!(incidents(&store).await[0], "0 entries_gone stream-1 4..9 open");
}

#[tokio::test]
async fn another_dead_entry_under_the_same_sequence_is_another_letter() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    for payload in [b"one", b"two", b"one", b"two"] {
        let mut commit = owner.empty();
        commit.dead_letters = vec![dead_entry(7, payload)];
        owner.commit(&commit).await.unwrap();
    }
    let raw = "SELECT convert_from(raw, 'UTF8') AS raw FROM dead_letters ORDER BY key";
    assert_eq!(database.rows(raw).await, [r#"{"raw":"one"}"#, r#"{"raw":"two"}"#]);
    assert_eq!(store.list_dead_letters(None, None, 9).await.unwrap().len(), 2);
}
