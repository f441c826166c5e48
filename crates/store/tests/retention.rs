//! Sizes and ages that retention reads from threads, and the batches that it deletes.

use std::time::Duration;

use batches::retention::{BatchAssembler, BatchSize};
use batches::{Item, RetentionRules};
use model::{Bucket, CommandId, Position, Timestamp};
use partition::{CommandKey, CommandVerdict};
use serde_json::json;
use store::{CleanupKind, CleanupLimit, Range, Store};

use crate::fixture::{Database, Owner, import_batches, key, metadata, thread};
use crate::values::{agent, at, finishes, turn};

/// Turns of four messages in `t`: batches 10, 20, … The inputs of the first and the third are
/// synthetic.
async fn with_turns(count: i64) -> (Database, Store) {
    let (database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    let mut commit = owner.empty();
    let turn_of = |number: i64| finishes("t", &turn("t", &format!("n{number}")), 0, number * 10, None);
    commit.turns = (1..=count).map(turn_of).collect();
    let said = [json!(true), json!("true"), json!(true), json!(1)];
    for (turn, synthetic) in commit.turns.iter_mut().zip(said) {
        turn.messages[0].metadata = metadata(json!({ "synthetic": synthetic }));
    }
    owner.commit(&commit).await.unwrap();
    (database, store)
}

/// The number of messages of `t` that are hidden from people.
async fn hidden(store: &Store) -> i64 {
    store.thread(&thread("t")).await.unwrap().unwrap().hidden
}

/// All batches of `t`, newest first, read in pages of three.
async fn extents(store: &Store) -> Vec<BatchSize> {
    let (mut assembler, mut whole, mut before) = (BatchAssembler::default(), Vec::new(), Position::MAX);
    loop {
        let page = store.retention_index(&thread("t"), before, 3).await.unwrap();
        let Some(last) = page.last() else { break };
        before = last.position;
        whole.extend(page.into_iter().flat_map(|place| assembler.push(place)));
    }
    whole.extend(assembler.finish());
    whole
}

#[tokio::test]
async fn what_was_imported_is_as_old_as_its_import() {
    let (_from, source) = with_turns(3).await;
    let range = Range { with_synthetic: true, ..Range::default() };
    let rows = source.history(&thread("t"), range, 1_000).await.unwrap().unwrap();
    let mut items: Vec<Item> = rows.into_iter().map(Item::from).collect();
    items.iter_mut().for_each(|item| item.created_at = Timestamp(1_704_067_200_000));
    let (database, store) = Database::new(2).await;
    let t = thread("t");
    let ages = async |name: &str| -> Vec<bool> {
        let now = store.database_time().await.unwrap().0;
        let index = store.retention_index(&thread(name), Position::MAX, 100).await.unwrap();
        index.iter().map(|place| now - place.at.0 < 60_000).collect()
    };
    assert_eq!(import_batches(&store, &t, &items[..4], &[]).await, 4, "by the statement for a thread's end");
    assert_eq!(ages("t").await, [true; 4]);
    assert!(store.oldest_ms(&t).await.unwrap() < Some(60_000));

    // If the same file or a larger one is imported later, the ages of existing messages do not
    // change.
    database.execute("UPDATE messages SET imported_at = imported_at - interval '1 day'").await;
    let mut tangled = items[4..8].to_vec();
    tangled[3].position = Position::from_stored(40);
    assert_eq!(import_batches(&store, &t, &items[..4], &[]).await, 0);
    assert_eq!(import_batches(&store, &t, &tangled, &[]).await, 4);
    let outcome = import_batches(&store, &t, &items[8..], &[at(20)]).await;
    assert_eq!(outcome, 4, "by the general statement");
    let mut young = ages("t").await;
    young.sort_unstable();
    assert_eq!(young, [[false; 4].as_slice(), &[true; 8]].concat());
    assert!(store.oldest_ms(&t).await.unwrap() > Some(80_000_000));
    // A fork keeps the ages.
    store.fork(&t, &thread("f"), at(10), &CommandId::parse("c").unwrap(), "ann").await.unwrap();
    database.execute("UPDATE messages SET imported_at = NULL WHERE thread_id = 't'").await;
    assert_eq!(ages("t").await, [false; 12]);
    assert!(store.oldest_ms(&thread("f")).await.unwrap() < Some(100_000_000));
}

/// Times of messages come from workers. A worker whose clock is years behind must not make a
/// message old.
#[tokio::test]
async fn a_message_is_no_older_than_its_position() {
    let (database, store) = with_turns(1).await;
    database.execute("UPDATE messages SET created_at = '2024-02-01', imported_at = NULL").await;
    let now = store.database_time().await.unwrap().0;
    let age = async || {
        let newest = store.retention_index(&thread("t"), Position::MAX, 1).await.unwrap()[0];
        (now - newest.at.0, store.oldest_ms(&thread("t")).await.unwrap().unwrap())
    };
    const YEAR: i64 = 365 * 86_400_000;
    let (newest, oldest) = age().await;
    assert!(
        newest > 2 * YEAR && oldest > 2 * YEAR,
        "{newest} {oldest}: positions of the first second of 2024"
    );
    // A position contains milliseconds since the beginning of 2024, shifted by 22 bits.
    let moved = (now - 60_000 - 1_704_067_200_000) << 22;
    database
        .execute(&format!("UPDATE messages SET position = position + {moved}, batch_id = batch_id + {moved}"))
        .await;
    let (newest, oldest) = age().await;
    assert!((50_000..70_000).contains(&newest) && (50_000..90_000).contains(&oldest), "{newest} {oldest}");
}

#[tokio::test]
async fn background_threads_have_the_retention_rules_of_their_agent() {
    let (_database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    let queue = agent("ann").queue_of(model::TaskKind::Memory).thread();
    let mut commit = owner.empty();
    commit.turns = vec![finishes(queue.as_str(), &turn(queue.as_str(), "x"), 0, 10, None)];
    owner.commit(&commit).await.unwrap();
    let [kept] = &store.retained_threads(queue.bucket(), "", 10).await.unwrap()[..] else { panic!() };
    assert_eq!((kept.thread.as_str(), kept.agent.as_str()), ("ann+memory", "ann"));
}

#[tokio::test]
async fn batches_are_measured_and_deleted_whole() {
    let (database, store) = with_turns(4).await;
    let all = extents(&store).await;
    let shape: Vec<_> = all.iter().map(|one| (one.id.get(), one.last.get(), one.messages)).collect();
    assert_eq!(shape, [(40, 43, 4), (30, 33, 4), (20, 23, 4), (10, 13, 4)]);
    assert!(all.iter().all(|one| one.bytes > 0));
    assert!(store.oldest_ms(&thread("t")).await.unwrap().is_some_and(|ms| ms >= 0));

    let [kept] = &store.retained_threads(thread("t").bucket(), "", 10).await.unwrap()[..] else { panic!() };
    assert_eq!((kept.agent.as_str(), kept.messages, kept.head), ("t", 16, Some(at(43))));
    assert_eq!(hidden(&store).await, 2, "only the boolean true is hidden");
    assert_eq!(store.retained_threads(thread("t").bucket(), "t", 10).await.unwrap(), []);

    // Nothing is deleted if the thread has new messages.
    assert_eq!(store.delete_batches(&thread("t"), Some(at(33)), &all[2..]).await.unwrap(), None);
    assert_eq!(database.number("SELECT count(*) FROM messages").await, 16);
    assert_eq!(store.delete_batches(&thread("t"), Some(at(43)), &all[2..]).await.unwrap(), Some(8));
    assert_eq!(database.number("SELECT min(position) FROM messages").await, 30);
    assert_eq!(database.number("SELECT message_count FROM threads").await, 8);
    assert_eq!(hidden(&store).await, 1, "that of the third turn");
    // The repeated deletion changes nothing.
    assert_eq!(store.delete_batches(&thread("t"), Some(at(43)), &all[2..]).await.unwrap(), Some(0));
    assert_eq!(database.number("SELECT message_count FROM threads").await, 8);
    assert_eq!(store.delete_batches(&thread("none"), None, &all).await.unwrap(), None);
}

#[tokio::test]
async fn what_was_deleted_is_known_when_it_comes_again() {
    let (database, store) = with_turns(2).await;
    let all = extents(&store).await;
    let (old, new) = (turn("t", "n1"), turn("t", "n3"));
    let ended = async || -> Vec<bool> {
        let keys = [key("t", old.input().as_str()), key("t", new.input().as_str())];
        let known = store.lookup(None, &keys, true).await.unwrap();
        known.iter().map(|(_, known)| *known == partition::Lookup::Ended).collect()
    };
    let is_new = async || -> Vec<bool> {
        let keys = [&old, &new].map(|turn| CommandKey::Turn(thread("t"), turn.clone(), 0));
        let verdicts = store.check(None, &keys, true).await.unwrap();
        verdicts.iter().map(|(_, verdict)| *verdict == CommandVerdict::New).collect()
    };
    assert_eq!((ended().await, is_new().await), (vec![true, false], vec![false, true]));
    assert_eq!(store.delete_batches(&thread("t"), Some(at(23)), &all[1..]).await.unwrap(), Some(4));
    assert_eq!((ended().await, is_new().await), (vec![true, false], vec![false, true]));
    assert!(store.is_expired(&thread("t"), &old.input()).await.unwrap());
    assert!(!store.is_expired(&thread("t"), &new.input()).await.unwrap());

    let day = Duration::from_secs(86_400);
    assert_eq!(store.clean_up(CleanupKind::ExpiredMessages, CleanupLimit::Age(day), 10).await.unwrap(), 0);
    database.execute("UPDATE expired_messages SET expired_at = expired_at - interval '2 days'").await;
    assert_eq!(store.clean_up(CleanupKind::ExpiredMessages, CleanupLimit::Age(day), 3).await.unwrap(), 3);
    assert_eq!(store.clean_up(CleanupKind::ExpiredMessages, CleanupLimit::Age(day), 3).await.unwrap(), 1);
}

#[tokio::test]
async fn rules_that_cannot_be_read_delete_nothing() {
    let (database, store) = Database::new(2).await;
    assert_eq!(store.retention_time().await.unwrap(), None);
    for (agent, settings) in [
        ("a", json!({"retention": {"max_batches": 3}})),
        ("b", json!({"retention": {"max_batch": 3}})),
        ("c", json!({"retention": null})),
        ("d", json!({})),
    ] {
        let bucket = Bucket::of_key(agent).get();
        database
            .execute(&format!(
                "INSERT INTO agent_settings (bucket, agent_id, workflow, settings) VALUES ({bucket}, '{agent}', 'w', '{settings}')"
            ))
            .await;
    }
    let (now, theirs) = (
        store.retention_time().await.unwrap().unwrap(),
        database.number("SELECT (extract(epoch FROM now()) * 1000)::bigint").await,
    );
    assert!((0..60_000).contains(&(theirs - now.0)), "{now:?}, {theirs}");
    let agents = ["a", "b", "c", "d", "e"].map(crate::values::agent);
    let rules = store.retention_rules(&agents).await.unwrap();
    let said = RetentionRules { max_batches: Some(3), ..RetentionRules::default() };
    assert_eq!(rules, [(crate::values::agent("a"), said)]);
}
