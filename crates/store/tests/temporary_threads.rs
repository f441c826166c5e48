//! Threads that no list has, and that are emptied some time after their last message.

use std::time::Duration;

use batches::Item;
use model::{AgentId, CommandId, ThreadId};
use serde_json::json;
use store::{
    CleanupKind, CleanupLimit, ContextWanted, Gate, ImportAct, ImportOutcome, NewThread, PatchOutcome, Range,
    Store, ThreadFilter, ThreadImport, ThreadPatch,
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
    let act = ImportAct { command: CommandId::parse("c").unwrap(), actor: "app".to_owned() };
    let outcome = store.import_thread(&import, Some(&act)).await.unwrap();
    assert!(matches!(outcome, ImportOutcome::Stored(_)), "{outcome:?}");
    let audited = "SELECT count(*) FROM audit_log";
    assert_eq!(database.number(audited).await, 0, "it comes with each request");
    let named =
        NewThread { thread: thread("copy"), agent: None, policy: None, metadata: metadata(json!({})) };
    let import = ThreadImport::new(thread("copy"), Some(named), import.items.clone());
    store.import_thread(&import, Some(&act)).await.unwrap();
    assert_eq!(database.number(audited).await, 1);
    store.name_user(&thread("t"), "kim").await.unwrap();
    let mut names = listed(&store).await;
    names.sort();
    assert_eq!(names, ["copy", "kept"]);
    let unlisted = include_str!("../src/migrate/list_threads.sql").replace("$1", "10");
    assert_eq!(database.number(&unlisted).await, 0);
    assert!(!is_temporary(&store, "kept").await && !is_temporary(&store, "unknown").await);
}

/// Every table with rows of threads that must be empty when what was said is deleted.
const TABLES: [&str; 8] = [
    "messages",
    "failed_messages",
    "failed_turns",
    "idempotency_keys",
    "responses",
    "feedback",
    "compactions",
    "facts",
];

#[tokio::test]
async fn a_temporary_thread_is_emptied_after_its_last_message() {
    let (database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    let ann: AgentId = agent("ann");
    for name in ["old", "continued", "empty", "young", "acme~old"] {
        store.create_temporary(&thread(name), &ann).await.unwrap();
    }
    let now = store.database_time().await.unwrap().0;
    let position = |ms: i64| (ms - 1_704_067_200_000) << 22;
    let mut commit = owner.empty();
    let hour = 3_600_000;
    commit.turns =
        [("old", 25 * hour), ("continued", 23 * hour), ("kept", 25 * hour), ("acme~old", 25 * hour)]
            .map(|(name, age)| finishes(name, &turn(name, "n1"), 0, position(now - age), None))
            .into();
    owner.commit(&commit).await.unwrap();
    database
        .execute(
            "UPDATE threads SET created_at = created_at - interval '25 hours' WHERE thread_id <> 'young';
             INSERT INTO idempotency_keys (bucket, thread_id, key, digest, turn_id) SELECT bucket, thread_id, 'k', '', 'x' FROM threads;
             INSERT INTO failed_messages (bucket, thread_id, position, message_id, attempt, role, batch_type, code, text, is_retryable)
             SELECT bucket, thread_id, 1, 'm', 0, 'assistant', 'user_request', 'c', 'x', true FROM threads;
             INSERT INTO failed_turns (bucket, thread_id, turn_id, agent_id, run, content, metadata, code, text, is_retryable)
             SELECT bucket, thread_id, 't-' || thread_id, 'ann', 0, 'x', '{}', 'c', 'x', true FROM threads;
             INSERT INTO responses (bucket, turn_id, thread_id, model, background, metadata)
             SELECT bucket, 't-' || thread_id, thread_id, 'm', false, '{}' FROM threads;
             INSERT INTO compactions (bucket, thread_id, compaction_id, through_position, strategy, valid_from_position)
             SELECT bucket, thread_id, 1, 1, 'age', 1 FROM threads;
             INSERT INTO facts (bucket, agent_id, fact_id, scope, thread_id, text, kind, confidence)
             SELECT bucket, 'ann', thread_id, 'thread:' || thread_id, thread_id, 'x', 'x', 1 FROM threads;
             INSERT INTO feedback (bucket, thread_id, message_id, user_id, tenant, agent_id, score)
             SELECT bucket, thread_id, 'm', '', antiphon_tenant_of(thread_id), 'ann', 1 FROM threads;
             INSERT INTO usage (input_tokens, output_tokens, bucket, call, is_partial, thread_id, message_id, agent_id, kind)
             SELECT 1, 1, bucket, 0, false, thread_id, 'm', 'ann', 'turn' FROM threads",
        )
        .await;
    let clean = async || store.clean_up(CleanupKind::TemporaryThreads, DAY, 1).await.unwrap();
    let mut emptied = Vec::new();
    for _ in 0..4 {
        emptied.push(clean().await);
    }
    assert_eq!(emptied, [1, 1, 1, 0]);
    let count = async |table: &str, name: &str| -> i64 {
        database.number(&format!("SELECT count(*) FROM {table} WHERE thread_id = '{name}'")).await
    };
    for table in TABLES {
        for name in ["old", "empty", "acme~old"] {
            assert_eq!(count(table, name).await, 0, "{table} of {name}");
        }
    }
    for table in TABLES {
        for name in ["continued", "kept"] {
            assert!(count(table, name).await > 0, "{table} of {name}");
        }
    }
    // An entry that is read again is known, and a turn that ends late is in no list.
    assert_eq!(count("expired_messages", "old").await, 4);
    let row = store.thread(&thread("old")).await.unwrap().unwrap();
    assert_eq!((row.messages, row.head.is_some()), (0, true));
    let mut late = owner.empty();
    late.turns = vec![finishes("old", &turn("old", "n2"), 0, position(now), None)];
    owner.commit(&late).await.unwrap();
    assert_eq!(listed(&store).await, ["kept"]);
    // What is said late is deleted in its turn. The rows follow after two months; what the calls
    // cost stays.
    assert_eq!((clean().await, count("messages", "old").await), (0, 4));
    database.execute("UPDATE threads SET head_position = 1 WHERE thread_id = 'old'").await;
    assert_eq!((clean().await, count("messages", "old").await), (1, 0));
    database
        .execute("UPDATE threads SET emptied_at = emptied_at - interval '61 days' WHERE thread_id = 'old'")
        .await;
    assert_eq!((clean().await, clean().await), (1, 0));
    assert_eq!((count("threads", "old").await, count("messages", "old").await), (0, 0));
    assert_eq!((count("threads", "empty").await, count("usage", "old").await), (1, 1));
    // A request that comes again begins with an age of its own.
    store.create_temporary(&thread("empty"), &ann).await.unwrap();
    let anew = "SELECT count(*) FROM threads WHERE thread_id = 'empty' AND emptied_at IS NULL AND created_at > now() - interval '1 hour'";
    assert_eq!((database.number(anew).await, clean().await), (1, 0));
}

#[tokio::test]
async fn a_temporary_thread_that_a_client_changes_is_kept() {
    let (database, store) = Database::new(2).await;
    for name in ["t", "other"] {
        store.create_temporary(&thread(name), &agent("ann")).await.unwrap();
    }
    let ids = async || -> Vec<String> {
        let all = store.thread_ids(None, 10).await.unwrap();
        let of_tenant = store.thread_ids_of_tenant(None, None, 10).await.unwrap();
        assert_eq!(all, of_tenant);
        all.iter().map(ThreadId::to_string).collect()
    };
    assert_eq!(ids().await, Vec::<String>::new(), "exports have no temporary threads");
    store.name_user(&thread("t"), "kim").await.unwrap();
    let title = ThreadPatch { title: Some(Some("Kept".to_owned())), ..ThreadPatch::default() };
    assert_eq!(store.patch_thread(&thread("t"), &title).await.unwrap(), PatchOutcome::Done);
    assert!(!is_temporary(&store, "t").await && is_temporary(&store, "other").await);
    let of_kim = ThreadFilter { user: Some("kim".to_owned()), ..ThreadFilter::default() };
    let page = store.list_threads(None, &of_kim, 10).await.unwrap();
    assert_eq!(page.threads[0].listing.agent, Some(agent("ann")));
    assert_eq!((listed(&store).await, ids().await), (vec!["t".to_owned()], vec!["t".to_owned()]));
    database.execute("UPDATE threads SET created_at = created_at - interval '2 days'").await;
    assert_eq!(store.clean_up(CleanupKind::TemporaryThreads, DAY, 10).await.unwrap(), 1);
    assert_eq!(
        database.number("SELECT count(*) FROM threads WHERE thread_id = 't' AND emptied_at IS NULL").await,
        1
    );
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
    let named = NewThread {
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
