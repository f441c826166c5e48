//! Sessions that apply to a thread: contexts of the thread have a summary in place of compressed
//! messages, until the compression is undone.

use batches::EstimatingCounter;
use batches::context::{Builder, ContextRules, LastMessages};
use model::{ReasoningSessionId, Timestamp};
use store::{ContextWanted, CreatedReasoning, Gate, Store};

use crate::fixture::{Database, thread};
use crate::reasoning_sessions::{compressed, range, seen, session, source, with_threads};
use crate::values::agent;

/// A session over the thread `t`, whose batches 10, 20 and 30 have four messages each.
async fn over_thread() -> (Database, Store, ReasoningSessionId) {
    let (database, store) = with_threads().await;
    let id = session("s");
    let made =
        store.create_reasoning(&id, &agent("ann"), &[source("t", None, None)], None, "x").await.unwrap();
    assert_eq!(made, CreatedReasoning::Made(12));
    store.set_reasoning_thread(&id, &thread("t")).await.unwrap();
    (database, store, id)
}

/// Compresses messages and applies the session; returns the number of replaced batches.
async fn compress(store: &Store, id: &ReasoningSessionId, from: i64, to: i64, summary: &str) -> u64 {
    let shown = seen(store, id).await;
    assert_eq!(shown.session.applies_to, Some(thread("t")));
    compressed(store, &shown, &range(from, to, summary)).await.unwrap();
    store.apply_reasoning(id, &thread("t"), "x").await.unwrap()
}

async fn undo(store: &Store, id: &ReasoningSessionId) -> u64 {
    let newest = store.restorable_reasoning(id).await.unwrap().unwrap();
    assert!(store.undo_reasoning(id, &newest, None, "x").await.unwrap());
    store.apply_reasoning(id, &thread("t"), "x").await.unwrap()
}

/// The batches of the next turn's context, and the summary before them.
async fn context(store: &Store) -> (Vec<i64>, Option<String>) {
    let wanted = ContextWanted {
        thread: thread("t"),
        agent: agent("any"),
        gate: Gate::Background,
        source_thread: None,
        known: None,
    };
    let found = store.contexts(&[wanted]).await.unwrap().remove(0);
    let rules = ContextRules { tokens: 1_000_000, ..ContextRules::default() };
    let mut builder = Builder::new(rules.request(None, found.compaction, Timestamp(0)), &EstimatingCounter);
    store.fill(&thread("t"), &LastMessages::default(), &mut builder).await.unwrap();
    let built = builder.build();
    (built.batches.iter().map(|batch| batch.id().get()).collect(), built.summary)
}

fn with(batches: &[i64], summary: &str) -> (Vec<i64>, Option<String>) {
    (batches.to_vec(), Some(summary.to_owned()))
}

#[tokio::test]
async fn whole_batches_leave_contexts_until_they_come_back() {
    let (database, store, id) = over_thread().await;
    let before = context(&store).await;
    assert_eq!(before, (vec![10, 20, 30], None));
    let history = database.rows("SELECT * FROM messages ORDER BY thread_id, position").await;
    assert_eq!(compress(&store, &id, 5, 8, "second").await, 1);
    assert_eq!(context(&store).await, with(&[10, 30], "second"));
    // Compressing part of a batch affects only the session.
    assert_eq!(compress(&store, &id, 1, 3, "a part").await, 1);
    assert_eq!(context(&store).await, with(&[10, 30], "second"));
    // Message [1] is the summary of the part, [2] the rest of the batch, and [3] the second batch's
    // summary.
    assert_eq!(compress(&store, &id, 1, 3, "both").await, 2);
    assert_eq!(context(&store).await, with(&[30], "both"));
    assert_eq!(undo(&store, &id).await, 1);
    assert_eq!(context(&store).await, with(&[10, 30], "second"));
    assert_eq!((undo(&store, &id).await, undo(&store, &id).await), (1, 0));
    assert_eq!(context(&store).await, before);
    assert_eq!(database.rows("SELECT * FROM messages ORDER BY thread_id, position").await, history);
}

#[tokio::test]
async fn a_batch_that_has_grown_since_its_copy_stays() {
    let (database, store, id) = over_thread().await;
    // The new messages of batch 30 directly follow it; those of batch 10 follow other batches.
    for (position, batch, beside) in [(34, 30, false), (35, 10, true)] {
        let sql = format!(
            "INSERT INTO messages (bucket, thread_id, position, message_id, batch_id, number, sequence_num, batch_type, role, content,
                                   metadata, parent_id, out_of_range)
             SELECT bucket, thread_id, {position}, 'later-{position}', {batch}, {position}, 4, batch_type, 'assistant', 'more', '{{}}', {position} - 1, {beside}
             FROM messages WHERE thread_id = 't' AND position = 33"
        );
        database.execute(&sql).await;
    }
    database
        .execute(
            "UPDATE threads SET head_position = 35, message_count = message_count + 2 WHERE thread_id = 't'",
        )
        .await;
    assert_eq!(context(&store).await, (vec![10, 20, 30], None));
    assert_eq!(compress(&store, &id, 1, 12, "all").await, 1);
    let (batches, summary) = context(&store).await;
    assert_eq!(
        (batches, summary.as_deref()),
        (vec![10, 30], Some("all")),
        "only what was seen whole has left"
    );
}

#[tokio::test]
async fn a_step_of_thinking_alone_keeps_no_batch_in_contexts() {
    let (database, store) = with_threads().await;
    // A step that has only thinking is not copied into sessions.
    let sql = "INSERT INTO messages (bucket, thread_id, position, message_id, batch_id, number, sequence_num, batch_type, role, content,
                                     metadata, parent_id)
               SELECT bucket, thread_id, 24, 'thinks', 20, 24, 4, batch_type, 'assistant', '', '{\"reasoning\": \"hm\"}', 23
               FROM messages WHERE thread_id = 't' AND position = 23";
    database.execute(sql).await;
    let id = session("s");
    let made =
        store.create_reasoning(&id, &agent("ann"), &[source("t", None, None)], None, "x").await.unwrap();
    assert_eq!(made, CreatedReasoning::Made(12));
    store.set_reasoning_thread(&id, &thread("t")).await.unwrap();
    assert_eq!(compress(&store, &id, 5, 8, "second").await, 1);
    assert_eq!(context(&store).await, with(&[10, 30], "second"));
}

#[tokio::test]
async fn undoing_takes_back_what_a_later_compaction_stands_above() {
    let (database, store, id) = over_thread().await;
    assert_eq!(compress(&store, &id, 5, 8, "second").await, 1);
    // A compaction of the worker. Its summary includes the summary of the session.
    let sql = format!(
        "INSERT INTO compactions (bucket, thread_id, compaction_id, through_position, summary, strategy, valid_from_position)
         VALUES ({}, 't', 1000, 20, 'All before.', 'summarise', 1000)",
        thread("t").bucket().get()
    );
    database.execute(&sql).await;
    database.execute("UPDATE threads SET head_position = 1000 WHERE thread_id = 't'").await;
    assert_eq!(context(&store).await, with(&[30], "All before."));
    assert_eq!(undo(&store, &id).await, 0);
    let live = "SELECT compaction_id FROM compactions WHERE undone_at_position IS NULL";
    assert_eq!(
        database.rows(live).await,
        [r#"{"compaction_id":1000}"#],
        "no compaction of the session is left"
    );
    assert_eq!(context(&store).await, with(&[30], "All before."));
}

#[tokio::test]
async fn an_earlier_compaction_counts_beside_it() {
    let (database, store, id) = over_thread().await;
    let sql = format!(
        "INSERT INTO compactions (bucket, thread_id, compaction_id, through_position, summary, strategy, valid_from_position)
         VALUES ({}, 't', 34, 10, 'They talked.', 'summarise', 34)",
        thread("t").bucket().get()
    );
    database.execute(&sql).await;
    assert_eq!(context(&store).await, with(&[20, 30], "They talked."));
    assert_eq!(compress(&store, &id, 5, 8, "second").await, 1);
    assert_eq!(context(&store).await, with(&[30], "They talked.\n\nsecond"));
    assert_eq!(undo(&store, &id).await, 0);
    assert_eq!(context(&store).await, with(&[20, 30], "They talked."));
    let live = "SELECT count(*) FROM compactions WHERE undone_at_position IS NULL";
    assert_eq!(database.number(live).await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn applying_it_again_or_at_once_changes_nothing() {
    let (database, store, id) = over_thread().await;
    let shown = seen(&store, &id).await;
    compressed(&store, &shown, &range(1, 8, "both")).await.unwrap();
    let apply = |_| {
        let (store, id) = (store.clone(), id.clone());
        tokio::spawn(async move { store.apply_reasoning(&id, &thread("t"), "x").await.unwrap() })
    };
    for applied in (0..8).map(apply).collect::<Vec<_>>() {
        assert_eq!(applied.await.unwrap(), 2);
    }
    let live = "SELECT count(*) FROM compactions WHERE undone_at_position IS NULL";
    assert_eq!(database.number(live).await, 1);
    assert_eq!(context(&store).await, with(&[30], "both"));
    // A session that does not apply to the thread does not change it.
    let other = session("other");
    store.create_reasoning(&other, &agent("ann"), &[source("t", None, None)], None, "x").await.unwrap();
    assert_eq!(store.apply_reasoning(&other, &thread("t"), "x").await.unwrap(), 0);
    assert_eq!(context(&store).await, with(&[30], "both"));
}
