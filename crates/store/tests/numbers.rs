//! The numbers of a thread's messages.

use batches::Item;
use batches::retention::BatchSize;
use model::{CommandId, Position};
use partition::Commit;
use store::{Committed, Range, Store};

use crate::fixture::{Database, Owner, import_batches, message, thread};
use crate::values::{at, finishes, turn};

const NUMBERS: &str = "SELECT number FROM messages WHERE thread_id = 't' ORDER BY position";

/// Adds a turn of four messages to the commit: in this thread, from this position on.
fn turn_at(commit: &mut Commit, of: &str, position: i64) {
    commit.turns.push(finishes(of, &turn(of, &format!("n{position}")), 0, position, None));
}

async fn with_turns(positions: &[i64]) -> (Database, Store, Owner) {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    let mut commit = owner.empty();
    positions.iter().for_each(|position| turn_at(&mut commit, "t", *position));
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
    (database, store, owner)
}

async fn numbers(database: &Database) -> Vec<Option<u64>> {
    let rows = database.rows(NUMBERS).await;
    let number = |row: &String| serde_json::from_str::<serde_json::Value>(row).unwrap()["number"].as_u64();
    rows.iter().map(number).collect()
}

async fn last_number(database: &Database) -> i64 {
    database.number("SELECT last_number FROM threads WHERE thread_id = 't'").await
}

fn from_to(first: u64, last: u64) -> Vec<Option<u64>> {
    (first..=last).map(Some).collect()
}

async fn items(store: &Store) -> Vec<Item> {
    let range = Range { with_synthetic: true, ..Range::default() };
    store.history(&thread("t"), range, 1_000).await.unwrap().unwrap().into_iter().map(Item::from).collect()
}

#[tokio::test]
async fn numbers_are_dense_in_the_order_of_commits() {
    let (database, _store, owner) = with_turns(&[10, 20]).await;
    let mut next = owner.empty();
    turn_at(&mut next, "u", 30);
    turn_at(&mut next, "t", 40);
    next.messages = vec![message("t", "bare", 50), message("v", "bare", 51), message("t", "other", 52)];
    // Stored messages keep their numbers.
    turn_at(&mut next, "t", 20);
    assert_eq!(owner.commit(&next).await.unwrap(), Committed::Applied);
    assert_eq!(numbers(&database).await, from_to(1, 14));
    assert_eq!(last_number(&database).await, 14);
    assert_eq!(
        database.rows("SELECT thread_id, array_agg(number ORDER BY position) AS n FROM messages WHERE thread_id <> 't' GROUP BY 1 ORDER BY 1").await,
        [r#"{"thread_id":"u","n":[1,2,3,4]}"#, r#"{"thread_id":"v","n":[1]}"#]
    );
}

#[tokio::test]
async fn numbers_that_retention_deletes_are_not_given_again() {
    let (database, store, owner) = with_turns(&[10, 20]).await;
    let batch = |id: i64| BatchSize {
        id: at(id),
        last: at(id + 3),
        messages: 4,
        bytes: 1,
        last_at: model::Timestamp(0),
    };
    let deleted = store.delete_batches(&thread("t"), Some(at(23)), &[batch(20), batch(10)]).await.unwrap();
    assert_eq!((deleted, numbers(&database).await), (Some(8), Vec::new()));
    let mut next = owner.empty();
    turn_at(&mut next, "t", 30);
    owner.commit(&next).await.unwrap();
    assert_eq!((numbers(&database).await, last_number(&database).await), (from_to(9, 12), 12));
}

#[tokio::test]
async fn numbers_taken_by_another_writer_meanwhile_stay_its_own() {
    let (database, _store, owner) = with_turns(&[10]).await;
    let mut other = database.session().await;
    let take = "BEGIN; UPDATE threads SET last_number = last_number + 5 WHERE thread_id = 't'";
    sqlx::raw_sql(take).execute(&mut other).await.unwrap();
    let mut next = owner.empty();
    turn_at(&mut next, "t", 20);
    let commit = tokio::spawn(async move { owner.commit(&next).await });
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    while database.number(waiting).await == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    sqlx::raw_sql("COMMIT").execute(&mut other).await.unwrap();
    assert_eq!(commit.await.unwrap().unwrap(), Committed::Applied);
    assert_eq!(numbers(&database).await, [from_to(1, 4), from_to(10, 13)].concat());
}

#[tokio::test]
async fn migrating_numbers_what_has_none_and_twice_is_once() {
    let (database, store, owner) = with_turns(&[10]).await;
    database
        .execute(
            "INSERT INTO threads (bucket, thread_id) VALUES (1, 'many');
             INSERT INTO messages (bucket, thread_id, position, message_id, batch_id, sequence_num, batch_type, role, content)
             SELECT 1, 'many', n, 'm' || n, n, 0, 'user_request', 'user', 'text' FROM generate_series(1, 2500) AS n;
             UPDATE messages SET number = NULL WHERE thread_id = 't';
             UPDATE threads SET last_number = 0 WHERE thread_id = 't'",
        )
        .await;
    for _ in 0..2 {
        store::migrate(&database.url, model::PartitionCount::new(1).unwrap()).await.unwrap();
        assert_eq!((numbers(&database).await, last_number(&database).await), (from_to(1, 4), 4));
        let wrong =
            "SELECT count(*) FROM messages WHERE thread_id = 'many' AND number IS DISTINCT FROM position";
        assert_eq!(database.number(wrong).await, 0);
        assert_eq!(database.number("SELECT last_number FROM threads WHERE thread_id = 'many'").await, 2_500);
    }
    let mut next = owner.empty();
    turn_at(&mut next, "t", 20);
    owner.commit(&next).await.unwrap();
    assert_eq!(numbers(&database).await, from_to(1, 8));
    assert_eq!(store.number_faults(&thread("t"), 8, 10).await.unwrap(), []);
}

#[tokio::test]
async fn a_fork_has_the_numbers_of_its_original() {
    let (database, store, _owner) = with_turns(&[10, 20]).await;
    assert_eq!(
        store.fork(&thread("t"), &thread("f"), at(10), &CommandId::parse("c").unwrap(), "ann").await.unwrap(),
        Some(4)
    );
    let of_fork = "SELECT count(*) FROM messages WHERE thread_id = 'f' AND number BETWEEN 1 AND 4";
    assert_eq!(database.number(of_fork).await, 4);
    assert_eq!(database.number("SELECT last_number FROM threads WHERE thread_id = 'f'").await, 4);
}

#[tokio::test]
async fn imported_numbers_stay_where_they_fit() {
    let (_from, source, _) = with_turns(&[10, 20, 30]).await;
    let mut items = items(&source).await;
    assert_eq!(items.iter().map(|item| item.number).collect::<Vec<_>>(), from_to(1, 12));
    items.iter_mut().for_each(|item| item.number = item.number.map(|number| number + 100));
    let (database, store) = Database::new(1).await;
    assert_eq!(import_batches(&store, &thread("t"), &items[..4], &[]).await, 4);
    let mut tangled = items[4..].to_vec();
    tangled[3].position = Position::from_stored(40);
    tangled[3].batch_id = at(20);
    assert_eq!(import_batches(&store, &thread("t"), &tangled[..4], &[]).await, 4);
    tangled.iter_mut().skip(4).zip(0..).for_each(|(item, more)| item.number = Some(107 + more));
    assert_eq!(numbers(&database).await, from_to(101, 108));
    assert_eq!(last_number(&database).await, 108);
    // The repeated import changes nothing.
    assert_eq!(import_batches(&store, &thread("t"), &items[..4], &[]).await, 0);
    // This import uses the general statement: the batch lies between messages of another batch, and
    // its numbers are taken.
    let outcome = import_batches(&store, &thread("t"), &tangled[4..], &[at(20)]).await;
    assert_eq!(outcome, 4);
    let of_last = "SELECT (min(number) + max(number))::bigint FROM messages WHERE batch_id = 30";
    assert_eq!(database.number(of_last).await, 109 + 112);
    assert_eq!(database.number("SELECT count(DISTINCT number) FROM messages").await, 12);
    store.raise_last_number(&thread("t"), 7).await.unwrap();
    assert_eq!(last_number(&database).await, 112);
    store.raise_last_number(&thread("t"), 500).await.unwrap();
    assert_eq!(last_number(&database).await, 500);
}

#[tokio::test]
async fn imported_numbers_between_others_stay() {
    let (_from, source, _) = with_turns(&[10, 20]).await;
    let mut items = items(&source).await;
    items[3].position = Position::from_stored(40);
    items[3].number = Some(8);
    items[4..].iter_mut().zip(4..).for_each(|(item, number)| item.number = Some(number));
    let (database, store) = Database::new(1).await;
    for (batch, beside) in [(&items[..4], vec![]), (&items[4..], vec![at(10)])] {
        let outcome = import_batches(&store, &thread("t"), batch, &beside).await;
        assert_eq!(outcome, 4);
    }
    assert_eq!((numbers(&database).await, last_number(&database).await), (from_to(1, 8), 8));
}

#[tokio::test]
async fn numbers_that_cannot_be_are_found() {
    let (database, store, _owner) = with_turns(&[10, 20]).await;
    assert_eq!(store.number_faults(&thread("t"), 8, 10).await.unwrap(), []);
    database
        .execute(
            "UPDATE messages SET number = NULL WHERE position = 11;
             UPDATE messages SET number = 3 WHERE position = 20;
             UPDATE messages SET number = 99 WHERE position = 23",
        )
        .await;
    let faults = store.number_faults(&thread("t"), 8, 10).await.unwrap();
    let found: Vec<_> =
        faults.iter().map(|fault| (fault.position.get(), fault.number, fault.is_twice)).collect();
    assert_eq!(found, [(11, None, false), (12, Some(3), true), (20, Some(3), true), (23, Some(99), false)]);
    assert_eq!(store.number_messages(&thread("t")).await.unwrap(), 1);
    assert_eq!(store.number_faults(&thread("t"), 99, 10).await.unwrap().len(), 2);
}
