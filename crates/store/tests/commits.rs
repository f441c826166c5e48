//! The rows that a commit writes.

use model::{IdRange, MessageFailure, Position, Seq, Timestamp};
use store::{Committed, Range};

use crate::fixture::{
    Database, Owner, dead_entry, dead_message, failed, key, message, metadata, submission, thread,
};

async fn chain(store: &store::Store, id: &str) -> Vec<(i64, Option<i64>)> {
    let history = store.history(&thread(id), Range::default(), 100).await.unwrap().unwrap();
    history.iter().map(|m| (m.position.get(), m.parent.map(Position::get))).collect()
}

#[tokio::test]
async fn the_same_commit_twice_is_once() {
    let (database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    let mut commit = owner.empty();
    commit.messages = vec![message("t", "m1", 10), message("u", "m1", 11), message("t", "m2", 12)];
    commit.dead_letters =
        vec![dead_entry(4, b"\xff\0"), dead_message(key("t", "m3"), 5, MessageFailure::Stalled)];
    commit.failed_messages = vec![failed(key("t", "m3"), 13, MessageFailure::Stalled)];
    commit.checkpoint = Seq(9);
    let tables = ["threads", "messages", "failed_messages", "dead_letters"];
    let mut seen = Vec::new();
    for _ in 0..2 {
        assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
        let mut now = Vec::new();
        for table in tables {
            now.extend(database.rows(&format!("SELECT * FROM {table} ORDER BY 1, 2, 3")).await);
        }
        seen.push(now);
    }
    assert_eq!(seen[0].len(), 2 + 3 + 1 + 2);
    assert_eq!(seen[0], seen[1]);
}

#[tokio::test]
async fn every_message_names_its_predecessor() {
    let (_database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    let mut commit = owner.empty();
    commit.messages = vec![message("t", "m1", 10), message("u", "m1", 11), message("t", "m2", 12)];
    owner.commit(&commit).await.unwrap();
    // Between two new messages, a message that is stored already under another position.
    commit.messages = vec![message("t", "m3", 20), message("t", "m1", 21), message("t", "m4", 22)];
    owner.commit(&commit).await.unwrap();
    commit.messages = vec![message("u", "m2", 30)];
    owner.commit(&commit).await.unwrap();
    assert_eq!(chain(&store, "t").await, [(10, None), (12, Some(10)), (20, Some(12)), (22, Some(20))]);
    assert_eq!(chain(&store, "u").await, [(11, None), (30, Some(11))]);
}

#[tokio::test]
async fn checkpoint_and_position_never_go_back() {
    let (_database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    for (checkpoint, high_water, expected) in [(5, 50, (5, 50)), (7, 60, (7, 60))] {
        let mut commit = owner.empty();
        (commit.checkpoint, commit.position_high_water) = (Seq(checkpoint), Timestamp(high_water));
        assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
        let status = store.partitions_status().await.unwrap().remove(0);
        assert_eq!((status.checkpoint, status.position_high_water), (Seq(expected.0), Timestamp(expected.1)));
    }
}

#[tokio::test]
async fn a_group_is_judged_commit_by_commit() {
    let (database, store) = Database::new(4).await;
    let writer = store.writer("a").unwrap();
    let grants = store.acquire("a", crate::fixture::TTL, 3).await.unwrap();
    let mut commits: Vec<_> = grants.iter().map(|g| crate::fixture::commit(g.partition, g.epoch)).collect();
    commits[1].epoch += 1;
    for (commit, id) in commits.iter_mut().zip(["t0", "t1", "t2"]) {
        commit.messages = vec![message(id, "m", 10)];
        commit.dead_letters = vec![dead_entry(1, b"x")];
        commit.checkpoint = Seq(1);
    }
    // The group is in reverse order of the partitions; the outcomes are in the order of the group.
    commits.reverse();
    commits.push(crate::fixture::commit(model::PartitionId(3), 0));
    let group: Vec<_> = commits.iter().map(|commit| submission(commit, 0)).collect();
    use Committed::{Applied, Fenced};
    assert_eq!(writer.commit(&group).await.unwrap(), [Applied, Fenced, Applied, Fenced]);
    assert_eq!(
        database.rows("SELECT thread_id AS t FROM messages ORDER BY 1").await,
        [r#"{"t":"t0"}"#, r#"{"t":"t2"}"#]
    );
    assert_eq!(database.number("SELECT count(*) FROM dead_letters").await, 2);
    assert_eq!(database.number("SELECT sum(checkpoint)::bigint FROM partitions").await, 2);
    assert!(writer.commit(&[group[0], group[0]]).await.is_err());
    assert_eq!(writer.commit(&[]).await.unwrap(), []);
}

#[tokio::test]
async fn dead_letters_are_kept_once_with_their_reason() {
    let (_database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    let missing = vec![IdRange { first: 1, last: 1 }];
    let mut commit = owner.empty();
    commit.dead_letters = vec![
        dead_entry(7, b"\xff\0raw"),
        dead_message(key("t", "m"), 8, MessageFailure::GapTimeout { missing }),
    ];
    owner.commit(&commit).await.unwrap();
    // The same sequence in a recreated stream belongs to another entry.
    owner.commit_of("stream-2", &commit).await.unwrap();
    let mut letters = store.list_dead_letters(None, None, 10).await.unwrap();
    letters.sort_by(|a, b| a.id.key.cmp(&b.id.key));
    let keys: Vec<_> = letters.iter().map(|letter| letter.id.key.as_str()).collect();
    assert_eq!(keys, ["stream-1:7", "stream-2:7", "t/m"]);
    assert_eq!(letters[0].raw.as_ref(), b"\xff\0raw");
    assert_eq!(
        (letters[0].reason.as_str(), letters[0].subject.as_deref()),
        ("malformed", Some("chunks.0.t"))
    );
    assert_eq!(letters[0].detail["text"], "not\u{fffd}JSON");
    assert_eq!((letters[2].reason.as_str(), letters[2].attempt), ("gap_timeout", Some(3)));
    assert_eq!(letters[2].detail["missing"], serde_json::json!([{"first": 1, "last": 1}]));
    let chunks: serde_json::Value = serde_json::from_slice(&letters[2].raw).unwrap();
    assert_eq!((&chunks[0]["chunk"], &chunks[1]["chunk_id"]), (&"a".into(), &2.into()));
}

/// For an entry, the bucket of the dead letter is the partition number, which differs from the
/// thread's bucket.
#[tokio::test]
async fn nothing_is_kept_of_an_entry_of_an_erased_thread() {
    let (_database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    let thread = key("t", "m").thread;
    assert_ne!(thread.bucket().get(), 0, "the partition's number is not the thread's bucket");
    store.mark_erased(&[thread], "op", "run", None).await.unwrap();
    let mut commit = owner.empty();
    commit.dead_letters = vec![dead_entry(7, b"raw")];
    owner.commit(&commit).await.unwrap();
    assert_eq!(store.list_dead_letters(None, None, 10).await.unwrap().len(), 0);
}

#[tokio::test]
async fn large_texts_come_back_whole() {
    let (_database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    let mut commit = owner.empty();
    let text: String = (0..20_000).map(|n| format!("word{n} ")).collect();
    commit.messages = vec![message("t", "m", 1)];
    commit.messages[0].content = text.clone();
    commit.messages[0].tool_calls = Some(serde_json::json!([{"id": "c1", "name": "search"}]));
    owner.commit(&commit).await.unwrap();
    let stored = store.history(&thread("t"), Range::default(), 1).await.unwrap().unwrap().remove(0);
    assert_eq!(stored.content, text);
    assert_eq!(stored.tool_calls, commit.messages[0].tool_calls);
    assert_eq!((stored.token_count, stored.metadata.get("tokens_used")), (Some(15), Some(&15.into())));
    assert!(stored.created_at.0 > 1_700_000_000_000);
}

#[tokio::test]
async fn messages_keep_when_they_came() {
    let (_database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    let mut commit = owner.empty();
    const LONG: i64 = 25 * 86_400_000;
    let (past, future) = (1_750_000_000_000, 4_000_000_000_000);
    let times = [
        (Some(past), Some(past + 70)),
        (Some(past), Some(past - 70)),
        (Some(past), None),
        // The difference does not fit into four bytes.
        (Some(past), Some(past + LONG)),
        (None, None),
        (Some(future), None),
    ];
    for (number, (created_at, started_at)) in (1..).zip(times) {
        let mut message = message("t", &format!("m{number}"), number);
        message.times.created_at = created_at.map(Timestamp);
        message.times.started_at = started_at.map(Timestamp);
        commit.messages.push(message);
    }
    owner.commit(&commit).await.unwrap();
    let stored = store.history(&thread("t"), Range::default(), 9).await.unwrap().unwrap();
    let seen: Vec<_> = stored.iter().map(|it| (it.created_at.0, it.started_at.map(|at| at.0))).collect();
    assert_eq!(seen[..4], [(past, Some(past + 70)), (past, Some(past - 70)), (past, None), (past, None)]);
    // Without a creation time, or with a future one, the current time is stored.
    assert!(
        seen[4..].iter().all(|(at, started)| (past + 1..future).contains(at) && started.is_none()),
        "{seen:?}"
    );
}

#[tokio::test]
async fn batches_within_a_batch_are_found_by_what_names_it() {
    let (_database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    let mut commit = owner.empty();
    let wrong = ["7", "\"x\"", "\"-7\"", "\"07\"", "null", "\"9223372036854775808\"", "[\"7\"]"];
    for (number, parent) in (10..).zip(["\"7\"", "\"9223372036854775807\"", "\"7\""].into_iter().chain(wrong))
    {
        let mut message = message("t", &format!("m{number}"), number);
        let parent: serde_json::Value = serde_json::from_str(parent).unwrap();
        message.metadata = metadata(serde_json::json!({ "parent_batch": parent }));
        commit.messages.push(message);
    }
    owner.commit(&commit).await.unwrap();
    let within = async |parent: i64, before: Option<i64>, most| {
        let (parent, before) = (Position::from_stored(parent), before.map(Position::from_stored));
        let found = store.batches_within(&thread("t"), parent, before, most).await.unwrap();
        found.unwrap().into_iter().map(Position::get).collect::<Vec<_>>()
    };
    assert_eq!(within(7, None, 9).await, [12, 10]);
    assert_eq!(within(7, None, 1).await, [12]);
    assert_eq!(within(7, Some(12), 9).await, [10]);
    assert_eq!(within(i64::MAX, None, 9).await, [11]);
    assert_eq!(within(8, None, 9).await, [] as [i64; 0]);
    let unknown = store.batches_within(&thread("u"), Position::from_stored(7), None, 9).await.unwrap();
    assert_eq!(unknown, None);
}
