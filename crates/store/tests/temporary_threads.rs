//! Threads that no list has, and that are deleted some time after their last message.

use std::time::Duration;

use batches::Item;
use model::{AgentId, ThreadId};
use serde_json::json;
use store::{
    CleanupKind, CleanupLimit, ContextWanted, Gate, ImportOutcome, Range, Store, ThreadFilter, ThreadImport,
};

use crate::fixture::{Database, Owner, metadata, thread};
use crate::values::{agent, finishes, turn};

const DAY: CleanupLimit = CleanupLimit::Age(Duration::from_secs(86_400));

async fn listed(store: &Store) -> Vec<String> {
    let page = store.list_threads(None, &ThreadFilter::default(), 10).await.unwrap();
    page.threads.iter().map(|listed| listed.thread.to_string()).collect()
}

/// Whether a turn that begins in this thread finds that it is temporary.
async fn is_temporary(store: &Store, name: &str) -> bool {
    let wanted = ContextWanted {
        thread: thread(name),
        agent: agent("ann"),
        gate: Gate::Foreground,
        source_thread: None,
        known: None,
    };
    store.contexts(&[wanted]).await.unwrap()[0].is_temporary
}

#[tokio::test]
async fn no_list_has_a_temporary_thread() {
    let (database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    let ann: AgentId = agent("ann");
    for name in ["t", "imported"] {
        store.create_temporary(&thread(name), &ann).await.unwrap();
        assert!(is_temporary(&store, name).await);
    }
    store.create_temporary(&thread("t"), &agent("other")).await.unwrap();
    let row = store.thread(&thread("t")).await.unwrap().unwrap();
    assert_eq!((row.named.agent, row.listing), (Some(ann.clone()), None));
    // What else is written about a thread: a message, an import, a turn, a user, a migration.
    store.note_activity(&thread("t"), &ann, "Hello").await.unwrap();
    let mut commit = owner.empty();
    commit.turns = ["t", "kept"].map(|name| finishes(name, &turn(name, "n1"), 0, 10, None)).into();
    for turn in &mut commit.turns {
        turn.answered_by = Some(ann.clone());
    }
    owner.commit(&commit).await.unwrap();
    let said = store.history(&thread("kept"), Range::default(), 10).await.unwrap().unwrap();
    let items: Vec<Item> = said.into_iter().map(Item::from).collect();
    let import = ThreadImport::new(thread("imported"), None, items);
    let outcome = store.import_thread(&import, None).await.unwrap();
    assert!(matches!(outcome, ImportOutcome::Stored(_)), "{outcome:?}");
    store.name_user(&thread("t"), "kim").await.unwrap();
    assert_eq!(listed(&store).await, ["kept"]);
    let unlisted = include_str!("../src/migrate/list_threads.sql").replace("$1", "10");
    assert_eq!(database.number(&unlisted).await, 0);
    assert!(!is_temporary(&store, "kept").await && !is_temporary(&store, "unknown").await);
}

#[tokio::test]
async fn a_temporary_thread_is_deleted_after_its_last_message() {
    let (database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    let ann: AgentId = agent("ann");
    for name in ["old", "continued", "empty", "young"] {
        store.create_temporary(&thread(name), &ann).await.unwrap();
    }
    let now = store.database_time().await.unwrap().0;
    let position = |ms: i64| (ms - 1_704_067_200_000) << 22;
    let mut commit = owner.empty();
    let hour = 3_600_000;
    commit.turns = [("old", 25 * hour), ("continued", 23 * hour), ("kept", 25 * hour)]
        .map(|(name, age)| finishes(name, &turn(name, "n1"), 0, position(now - age), None))
        .into();
    owner.commit(&commit).await.unwrap();
    database
        .execute(
            "UPDATE threads SET created_at = created_at - interval '25 hours' WHERE thread_id <> 'young';
             INSERT INTO idempotency_keys (bucket, thread_id, key, digest, turn_id)
             SELECT bucket, thread_id, 'k', '', 'x' FROM threads;
             INSERT INTO usage (input_tokens, output_tokens, bucket, call, is_partial, thread_id, message_id, agent_id, kind)
             SELECT 1, 1, bucket, 0, false, thread_id, 'm', 'ann', 'turn' FROM threads",
        )
        .await;
    let clean = async || store.clean_up(CleanupKind::TemporaryThreads, DAY, 1).await.unwrap();
    assert_eq!((clean().await, clean().await, clean().await), (1, 1, 0));
    let exists = async |name: &str| -> bool {
        let id: ThreadId = thread(name);
        store.thread(&id).await.unwrap().is_some()
    };
    for (name, is_left) in
        [("old", false), ("empty", false), ("continued", true), ("young", true), ("kept", true)]
    {
        assert_eq!(exists(name).await, is_left, "{name}");
    }
    let rows = async |table: &str| -> i64 {
        database.number(&format!("SELECT count(*) FROM {table} WHERE thread_id IN ('old', 'empty')")).await
    };
    for table in ["messages", "idempotency_keys", "thread_list"] {
        assert_eq!(rows(table).await, 0, "{table}");
    }
    assert_eq!(rows("usage").await, 2, "what the calls cost is known");
}

#[tokio::test]
async fn a_thread_keeps_its_first_user() {
    let (database, store) = Database::new(2).await;
    let user = async |name: &str| -> (Option<String>, Option<String>) {
        let row = store.thread(&thread(name)).await.unwrap();
        let stored = row
            .and_then(|row| row.named.metadata.get("user_id").map(|user| user.as_str().unwrap().to_owned()));
        let filter = ThreadFilter { user: stored.clone(), ..ThreadFilter::default() };
        let page = store.list_threads(None, &filter, 10).await.unwrap();
        (stored, page.threads.iter().find(|listed| listed.thread == thread(name)).map(|_| name.to_owned()))
    };
    // Before the first message, or in a thread without a user, whose other metadata stay.
    store.name_user(&thread("new"), "kim").await.unwrap();
    store.note_activity(&thread("new"), &agent("ann"), "Hello").await.unwrap();
    let named = store::NewThread {
        thread: thread("named"),
        agent: None,
        policy: None,
        metadata: metadata(json!({"k": 1, "user_id": null})),
    };
    store.upsert_thread(&named).await.unwrap();
    store.name_user(&thread("named"), "kim").await.unwrap();
    for name in ["new", "named"] {
        store.name_user(&thread(name), "lee").await.unwrap();
        assert_eq!(user(name).await, (Some("kim".to_owned()), Some(name.to_owned())));
    }
    let row = store.thread(&thread("named")).await.unwrap().unwrap();
    assert_eq!(row.named.metadata.get("k"), Some(&json!(1)));
    database.execute("DELETE FROM threads").await;
    database
        .execute("INSERT INTO erased_threads (bucket, thread_id, actor) SELECT bucket, thread_id, 'a' FROM thread_list WHERE thread_id = 'new'")
        .await;
    store.name_user(&thread("new"), "kim").await.unwrap();
    assert_eq!(user("new").await.0, None, "an erased thread stays erased");
}
