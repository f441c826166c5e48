//! Long reasoning sessions are read in blocks, and have the same visible state as the stack in
//! memory.

use batches::export_import::ReasoningRow;
use model::ReasoningSessionId;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use reasoning::{NewMessage, ReasoningRole, ReasoningThreadStack, SessionCall};
use store::{Appended, Store};

use crate::fixture::Database;
use crate::reasoning_sessions::{appended, both_append, both_compress, made, range, says, seen};

/// Messages per block.
const BLOCK: i64 = 256;

/// Typical messages: texts with line breaks and tabs, calls with results, short and long.
fn step(random: &mut SmallRng, number: usize) -> Vec<NewMessage> {
    let call = SessionCall::new(format!("c\u{e9}{number}"), "search \"web\"");
    let answers = Some(call.id.clone());
    let long = "x\ty\u{1f600}\n".repeat(random.random_range(0..100));
    vec![
        says(ReasoningRole::User, &format!("\u{e9}\t{number}\n[3] User: no")),
        NewMessage { calls: vec![call], ..says(ReasoningRole::Assistant, "") },
        NewMessage { answers, ..says(ReasoningRole::Tool, &long) },
        says(ReasoningRole::Assistant, &format!("so: {long}")),
    ]
}

/// The number up to which blocks exist, the number of blocks, and the number of messages in them.
async fn blocks(database: &Database, id: &ReasoningSessionId) -> [i64; 3] {
    let count = async |what: &str| {
        let sql = format!("SELECT ({what})::bigint FROM reasoning_sessions AS s WHERE session_id = '{id}'");
        database.number(&sql).await
    };
    [
        count("sealed_number").await,
        count("SELECT count(*) FROM reasoning_blocks AS b WHERE b.session_id = s.session_id").await,
        count("SELECT count(*) FROM reasoning_messages AS m WHERE m.session_id = s.session_id AND m.number <= s.sealed_number").await,
    ]
}

async fn same(store: &Store, id: &ReasoningSessionId, stack: &ReasoningThreadStack) {
    let seen = seen(store, id).await;
    assert_eq!(seen.view(false), stack.view());
    assert_eq!(seen.thread, stack.thread());
}

#[tokio::test]
async fn blocks_show_what_their_messages_are() {
    let (database, store) = Database::new(1).await;
    let mut random = SmallRng::seed_from_u64(7);
    let id = made(&store, "long").await;
    let mut stack = ReasoningThreadStack::new(id.clone(), Vec::new());
    for round in 0..50 {
        let count = random.random_range(1..=20);
        let messages = (0..count).flat_map(|at| step(&mut random, 100 * round + at)).collect();
        both_append(&store, &mut stack, messages).await;
        let shown = stack.thread().len() as i64;
        let from = random.random_range(1..=shown);
        let to = (from + random.random_range(1..40)).min(shown);
        both_compress(&store, &mut stack, &range(from, to, "s\t\n\u{e9}")).await;
        same(&store, &id, &stack).await;
        if random.random_range(0..3) == 0 && stack.undo(None).is_ok() {
            let newest = store.restorable_reasoning(&id).await.unwrap().unwrap();
            assert!(store.undo_reasoning(&id, &newest, None, "x").await.unwrap());
            same(&store, &id, &stack).await;
        }
    }
    let [sealed, count, messages] = blocks(&database, &id).await;
    let all = stack.messages().len() as i64;
    assert!(all >= 4 * BLOCK, "{all}");
    assert_eq!([count * BLOCK, messages], [sealed, sealed]);
    assert!(all - sealed < BLOCK + 50, "{sealed} of {all}");
    came_back(&store, &id, &stack, count).await;
}

/// Imports an export and compares the sessions. An export has no blocks; the import rebuilds them.
async fn came_back(from: &Store, id: &ReasoningSessionId, stack: &ReasoningThreadStack, count: i64) {
    let (other, to) = Database::new(1).await;
    let rows = from.reasoning_rows(id).await.unwrap().unwrap();
    assert!(!rows.session.contains_key("sealed_number"));
    assert!(to.begin_reasoning_import(id, &rows.session).await.unwrap());
    to.import_reasoning_rows(id, ReasoningRow::Layer, rows.layers).await.unwrap();
    let mut after = 0;
    while after < rows.last_number {
        let page = from.reasoning_message_rows(id, after, rows.last_number).await.unwrap();
        after += page.len() as u64;
        to.import_reasoning_rows(id, ReasoningRow::Message, page).await.unwrap();
    }
    to.finish_reasoning_import(id, &rows.session).await.unwrap();
    same(&to, id, stack).await;
    let [_, made, _] = blocks(&other, id).await;
    assert!(made >= count, "{made} of {count}");
}

#[tokio::test(flavor = "multi_thread")]
async fn appends_at_once_leave_no_message_out_of_a_block() {
    let (database, store) = Database::new(1).await;
    let id = made(&store, "s").await;
    let append = |number: usize| {
        let (store, id) = (store.clone(), id.clone());
        let messages = (0..20).map(|at| says(ReasoningRole::User, &format!("{number} {at}"))).collect();
        tokio::spawn(async move { appended(&store, &id, messages).await })
    };
    for appended in (0..100).map(append).collect::<Vec<_>>() {
        assert!(matches!(appended.await.unwrap(), Appended::Done(_)));
    }
    // The last append may not have seen messages that were uncommitted then; the next one writes
    // the block.
    appended(&store, &id, vec![says(ReasoningRole::User, "last")]).await;
    let [sealed, count, messages] = blocks(&database, &id).await;
    assert_eq!([sealed, count, messages], [1_792, 7, 1_792]);
    let thread = seen(&store, &id).await.thread;
    let numbers: Vec<u64> = thread.entries.iter().map(|entry| entry.number).collect();
    assert_eq!(numbers, (1..=2_001).collect::<Vec<_>>());
}
