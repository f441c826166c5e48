//! Records that are kept for people: retention, erasure and replay.

use std::time::Duration;

use model::{CommandId, FollowedTurn, PartitionId, Position, TaskId, TaskOrigin, TurnId};
use partition::{CommandKey, CommandVerdict};
use store::{CleanupKind, CleanupLimit, Committed, DeadLetterCursor, ReplayClaim, Store};

use crate::fixture::{Database, Owner, dead_entry, key, message, thread};
use crate::values::task;

const DAY: Duration = Duration::from_secs(86_400);

fn act(id: &str) -> CommandId {
    CommandId::parse(id).unwrap()
}

async fn beyond(store: &Store, kind: CleanupKind, bound: CleanupLimit) -> u64 {
    store.clean_up(kind, bound, 1_000).await.unwrap()
}

#[tokio::test]
async fn everything_kept_has_a_bound_in_age_and_in_bytes() {
    let (database, store) = Database::new(2).await;
    // Three old and three new rows of each kind, except for tasks: 1 and 2 are old, and 5 is
    // pending.
    database
        .execute(
            "INSERT INTO agents (bucket, agent_id, head_position) VALUES (1, 'a', 4);
             INSERT INTO tasks (bucket, agent_id, position, task_id, kind, content, created_at)
             SELECT 1, 'a', n, 't' || n, 'task', repeat('x', 20000), now() - CASE WHEN n < 3 THEN 9 ELSE 1 END * interval '1 day'
             FROM generate_series(1, 5) AS n;
             INSERT INTO task_ids (bucket, agent_id, task_id, position, digest) SELECT 1, 'a', 't' || n, n, 0 FROM generate_series(1, 5) AS n;
             INSERT INTO failed_tasks (bucket, agent_id, position, code, text, failed_at) VALUES (1, 'a', 2, 'c', 't', now() - interval '9 days');
             INSERT INTO failed_turns (bucket, thread_id, turn_id, agent_id, run, content, metadata, code, text, is_retryable, failed_at)
             SELECT 1, 't', 'u' || n, 'a', 0, repeat('x', 20000), '{}', 'c', 't', true, now() - n * interval '1 day'
             FROM generate_series(1, 6) AS n;
             INSERT INTO dead_letters (bucket, kind, key, partition_id, stream_seq, reason, detail, raw, created_at)
             SELECT 1, 'entry', 's:' || n, 1, n, 'malformed', '{}',
                    (SELECT string_agg(decode(md5(random()::text || n || m), 'hex'), ''::bytea) FROM generate_series(1, 1250) AS m),
                    now() - n * interval '1 day'
             FROM generate_series(1, 6) AS n;
             INSERT INTO audit_log (bucket, subject_id, command_id, actor, action, created_at)
             SELECT 1, 'a', 'c' || n, repeat('x', 2000), 'pause', now() - n * interval '1 day' FROM generate_series(1, 60) AS n;
             INSERT INTO erased_threads (bucket, thread_id, actor, erased_at)
             SELECT 1, 't' || n, 'ada', now() - n * interval '1 day' FROM generate_series(1, 600) AS n;
             INSERT INTO erased_tenants (tenant, actor, erased_at, erasing)
             VALUES ('old', 'ada', now() - interval '91 days', NULL), ('going', 'ada', now() - interval '91 days', 'run'),
                    ('new', 'ada', now(), NULL);
             INSERT INTO erasures (erasure_id, tenant, kind, subject, is_preview, actor, state, ended_at)
             SELECT lpad(to_hex(n), 32, '0'), '-', 'user', 'u' || n, false, 'ada', 'done', CASE WHEN n > 1 THEN now() - n * interval '1 day' END
             FROM generate_series(1, 100) AS n",
        )
        .await;
    let age = |days: u32| CleanupLimit::Age(DAY * days);
    // Failed tasks are deleted with their marks and ids, so that none becomes pending or completed.
    assert_eq!(beyond(&store, CleanupKind::FailedTasks, age(5)).await, 1);
    assert_eq!(database.number("SELECT count(*) FROM tasks WHERE position = 2").await, 0);
    assert_eq!(database.number("SELECT count(*) FROM task_ids WHERE position = 2").await, 0);
    assert_eq!(beyond(&store, CleanupKind::CompletedTasks, age(5)).await, 1);
    assert_eq!(
        beyond(&store, CleanupKind::CompletedTasks, CleanupLimit::Bytes(0)).await,
        2,
        "the pending one stays, however little room there is"
    );
    assert_eq!(database.number("SELECT sum(position)::bigint FROM tasks").await, 5);
    assert_eq!(
        beyond(&store, CleanupKind::FailedTurns, age(5)).await,
        2,
        "of the fifth day some milliseconds have passed"
    );
    assert_eq!(beyond(&store, CleanupKind::DeadLetters, CleanupLimit::Bytes(50_000)).await, 4);
    assert_eq!(database.number("SELECT max(stream_seq) FROM dead_letters").await, 2, "the oldest go");
    assert_eq!(beyond(&store, CleanupKind::DeadLetters, CleanupLimit::Bytes(50_000)).await, 0);
    assert_eq!(beyond(&store, CleanupKind::Audit, age(30)).await, 31);
    assert_eq!(beyond(&store, CleanupKind::ErasedThreads, age(90)).await, 511);
    // A tenant that is not completely erased stays marked.
    assert_eq!(beyond(&store, CleanupKind::ErasedTenants, age(90)).await, 1);
    // From the 90th day on; one that has not ended stays.
    assert_eq!(beyond(&store, CleanupKind::Erasures, age(90)).await, 11);
    assert_eq!(beyond(&store, CleanupKind::Erasures, CleanupLimit::Bytes(0)).await, 88);
    let bytes = store.cleanup_bytes().await.unwrap();
    assert!(bytes.len() == 8 && bytes.iter().all(|(_, bytes)| *bytes > 0), "{bytes:?}");
}

#[tokio::test]
async fn a_dead_letter_is_replayed_once_and_audited() {
    let (database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    let mut commit = owner.empty();
    commit.dead_letters = vec![dead_entry(7, b"one"), dead_entry(8, b"two"), dead_entry(9, b"three")];
    owner.commit(&commit).await.unwrap();
    let page = store.list_dead_letters(None, None, 2).await.unwrap();
    let next = DeadLetterCursor::parse(&page[1].cursor().text());
    let rest = store.list_dead_letters(Some("malformed"), next.as_ref(), 2).await.unwrap();
    assert_eq!((page.len(), rest.len()), (2, 1));
    assert!(page.iter().all(|letter| letter.id != rest[0].id));
    assert!(store.list_dead_letters(Some("gap_timeout"), None, 9).await.unwrap().is_empty());

    let (letter, id) = (&rest[0], &rest[0].id);
    assert_eq!(store.claim_replay(id).await.unwrap(), ReplayClaim::Claimed);
    assert_eq!(store.claim_replay(id).await.unwrap(), ReplayClaim::Busy);
    assert!(store.replayed(letter, &act("c1"), "ada").await.unwrap());
    assert!(!store.replayed(letter, &act("c2"), "ada").await.unwrap());
    assert_eq!(store.claim_replay(id).await.unwrap(), ReplayClaim::Replayed);
    assert!(store.drop_dead_letter(letter, &act("c3"), "bob").await.unwrap());
    assert!(!store.drop_dead_letter(letter, &act("c4"), "bob").await.unwrap());
    assert_eq!(store.claim_replay(id).await.unwrap(), ReplayClaim::Unknown);
    let audit = store.control_log("t", None, 9).await.unwrap();
    let mut done: Vec<_> = audit.iter().map(|row| (row.action.as_str(), row.actor.as_str())).collect();
    done.sort_unstable();
    assert_eq!(done, [("drop_dead_letter", "bob"), ("replay_dead_letter", "ada")]);
    assert!(audit.iter().all(|row| row.target == Some(id.text())));
    assert_eq!(database.number("SELECT count(*) FROM dead_letters").await, 2);
}

#[tokio::test]
async fn commit_decided_before_an_erasure_writes_nothing_after_it() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    let mut commit = owner.empty();
    commit.messages = vec![message("t", "m1", 10)];
    owner.commit(&commit).await.unwrap();
    let mut late = owner.empty();
    late.messages = vec![message("t", "m2", 11), message("other", "m3", 12)];
    let commits = owner.applied().await;
    store.mark_erased(&[thread("t")], "ada", "run", None).await.unwrap();
    store.renounce(&[PartitionId(0)]).await.unwrap();
    let submission = store::Submission { commits: commits.commits, ..crate::fixture::submission(&late, 0) };
    assert_eq!(owner.writer.commit(&[submission]).await.unwrap(), [Committed::Fenced]);
    assert_eq!(store.erase_some(&[thread("t")]).await.unwrap()["messages"], 1);
    assert_eq!(database.number("SELECT count(*) FROM messages").await, 0);

    // Owners that still hold text of the erased thread in memory cannot write it either.
    let owner = Owner::new(&store, "a").await;
    let mut late = owner.empty();
    let following = |id: &str, position: i64, origin: &str| {
        let mut write = task("bob", id, position);
        let (thread, batch) = (thread(origin), Position::from_stored(1));
        let turn = TurnId::foreground(&thread, "x").unwrap();
        let answer = turn.answer(0);
        write.queued.task.origin = TaskOrigin::AfterTurn(FollowedTurn { thread, turn, answer, batch });
        write
    };
    late.tasks = vec![following("k1", 20, "t"), following("k2", 21, "other")];
    owner.commit(&late).await.unwrap();
    assert_eq!(database.number("SELECT count(*) FROM tasks").await, 1);
    assert_eq!(database.number("SELECT count(*) FROM task_ids WHERE task_id = 'k2'").await, 1);

    // Every lookup about the thread, or with its text, reports it as erased until the thread is
    // created again.
    let asked = |origin: Option<&str>| {
        CommandKey::Task(thread("a").agent(), TaskId::parse("k").unwrap(), origin.map(thread))
    };
    let keys = [asked(None), asked(Some("t")), asked(Some("other"))];
    let verdicts = async || -> Vec<CommandVerdict> {
        store.check(None, &keys, true).await.unwrap().into_iter().map(|(_, verdict)| verdict).collect()
    };
    assert_eq!(verdicts().await, [CommandVerdict::New, CommandVerdict::Erased, CommandVerdict::New]);
    let known = store.lookup(None, &[key("t", "m9")], true).await.unwrap();
    assert_eq!(known[0].1, partition::Lookup::Ended);
    // A row written by a commit in flight does not create the thread.
    database
        .execute("INSERT INTO threads (bucket, thread_id) SELECT bucket, thread_id FROM erased_threads")
        .await;
    assert_eq!(verdicts().await[1], CommandVerdict::Erased);
    database.execute("DELETE FROM threads").await;
    let named =
        store::NewThread { thread: thread("t"), agent: None, policy: None, metadata: model::Metadata::EMPTY };
    // The thread can be created neither before everything is erased nor because an earlier run has
    // finished.
    let settings = store::PutAgent {
        agent: thread("t").agent(),
        workflow: model::WorkflowName::parse("default").unwrap(),
        settings: serde_json::Map::new(),
        act: model::CommandId::parse("put").unwrap(),
        actor: "ada".to_owned(),
    };
    for done in ["", "earlier"] {
        store.finish_erasing(&[thread("t")], done).await.unwrap();
        assert_eq!(store.upsert_thread(&named).await.unwrap(), store::NamedThread::BeingErased);
        assert_eq!(store.put_agent(&settings).await.unwrap(), store::PutAgentOutcome::BeingErased);
    }
    let written = "SELECT (SELECT count(*) FROM threads) + (SELECT count(*) FROM agent_settings) + (SELECT count(*) FROM audit_log)";
    assert_eq!(database.number(written).await, 0);
    assert_eq!(verdicts().await[1], CommandVerdict::Erased);
    store.finish_erasing(&[thread("t")], "run").await.unwrap();
    assert_eq!(store.upsert_thread(&named).await.unwrap(), store::NamedThread::New);
    assert_eq!(verdicts().await[1], CommandVerdict::New);
    assert_eq!(store.put_agent(&settings).await.unwrap(), store::PutAgentOutcome::Stored(1));
}

#[tokio::test]
async fn an_interrupted_erasing_of_an_owner_is_found_again() {
    let (database, store) = Database::new(1).await;
    let user = |tenant: Option<&str>, name: &str| {
        store::ErasedOwner::User(tenant.map(|name| model::Tenant::parse(name).unwrap()), name.to_owned())
    };
    let found = async |owner: store::ErasedOwner| store.threads_to_erase(&owner).await.unwrap();
    let (ann, other) = (user(None, "ann"), user(None, "ann/x"));
    store.mark_erased(&[thread("t1")], "op", "run-1", Some(&ann)).await.unwrap();
    store.mark_erased(&[thread("t2")], "op", "run-2", Some(&other)).await.unwrap();
    assert_eq!(found(ann.clone()).await, [thread("t1")]);
    assert_eq!(found(other.clone()).await, [thread("t2")]);
    assert_eq!(found(user(Some("acme"), "ann")).await, []);
    assert_eq!(found(store::ErasedOwner::Tenant(None)).await, [thread("t1"), thread("t2")]);
    let marks = database.rows("SELECT e::text AS row FROM erased_threads AS e").await;
    assert!(!marks.concat().contains("ann"), "the name itself is not kept: {marks:?}");
    // A run for another reason that is also interrupted.
    store.mark_erased(&[thread("t1")], "op", "run-3", None).await.unwrap();
    assert_eq!(found(ann.clone()).await, [thread("t1")]);
    store.finish_erasing(&[thread("t1")], "run-3").await.unwrap();
    assert_eq!(found(ann).await, []);
    assert_eq!(found(store::ErasedOwner::Tenant(None)).await, [thread("t2")]);
    // A build that does not know the user mark has created the threads again.
    database.execute("UPDATE erased_threads SET recreated_at = clock_timestamp()").await;
    assert_eq!(found(other).await, []);
    assert_eq!(found(store::ErasedOwner::Tenant(None)).await, []);
}
