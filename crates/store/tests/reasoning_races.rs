//! Concurrent changes of a reasoning session, and connections that are killed half-way.

use std::collections::BTreeSet;
use std::time::Duration;

use model::ReasoningSessionId;
use reasoning::{NewMessage, ReasoningRole};
use sqlx::{AssertSqlSafe, Connection, Row};
use store::{Appended, Store};

use crate::fixture::Database;
use crate::reasoning_sessions::{appended, compressed, made, range, says, seen};

fn user(content: &str) -> NewMessage {
    says(ReasoningRole::User, content)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundred_appends_at_once_are_dense_and_unique() {
    let (_database, store) = Database::new(1).await;
    let id = made(&store, "s").await;
    let append = |number: usize| {
        let (store, id) = (store.clone(), id.clone());
        let messages = vec![user(&number.to_string()); 1 + number % 3];
        let count = messages.len() as u64;
        tokio::spawn(async move {
            match appended(&store, &id, messages).await {
                Appended::Done(first) => first..first + count,
                other => panic!("{other:?}"),
            }
        })
    };
    let mut numbers = BTreeSet::new();
    let mut count = 0;
    for appended in (0..100).map(append).collect::<Vec<_>>() {
        for number in appended.await.unwrap() {
            assert!(numbers.insert(number), "{number} was given twice");
            count += 1;
        }
    }
    assert!(numbers.into_iter().eq(1..=count));
    assert_eq!(seen(&store, &id).await.thread.len(), count);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_compressions_at_once_one_wins() {
    let (database, store) = Database::new(1).await;
    for round in 0..20 {
        let id = made(&store, &format!("s{round}")).await;
        appended(&store, &id, vec![user("A"), user("B"), user("C"), user("D")]).await;
        let seen_by_both = seen(&store, &id).await;
        let (first, second) = (range(1, 2, "AB"), range(2, 3, "BC"));
        let (first, second) = tokio::join!(
            compressed(&store, &seen_by_both, &first),
            compressed(&store, &seen_by_both, &second)
        );
        assert!(first.is_some() != second.is_some(), "{first:?} {second:?}");
        let now = seen(&store, &id).await;
        assert_eq!((now.thread.len(), now.head), (3, 1));
    }
    assert_eq!(database.number("SELECT count(*) FROM reasoning_layers").await, 20);
    assert_eq!(database.number("SELECT count(*) FROM reasoning_messages WHERE role = 'summary'").await, 20);
}

/// A trigger that makes every change of a row wait for the connection that holds the lock. So a
/// connection can be killed at each point of a statement.
const STOP: &str = "CREATE OR REPLACE FUNCTION stop() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN PERFORM pg_advisory_xact_lock_shared(42); RETURN NEW; END $$";

/// Kills the session that waits for the lock.
async fn kill_the_waiting(database: &Database) {
    let sql = "SELECT pg_terminate_backend(pid) AS killed FROM pg_stat_activity
               WHERE datname = current_database() AND wait_event_type = 'Lock' AND wait_event = 'advisory'";
    let mut tries = 0..200;
    while database.number(&format!("SELECT count(*) FROM ({sql}) AS k WHERE killed")).await == 0 {
        assert!(tries.next().is_some(), "no session waits for the lock");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn rows(database: &Database) -> i64 {
    let sql = "SELECT (SELECT count(*) FROM reasoning_messages) + (SELECT count(*) FROM reasoning_layers)
               + (SELECT count(*) FROM audit_log) + (SELECT count(*) FROM reasoning_layers WHERE undone_at IS NOT NULL)";
    database.number(sql).await
}

async fn change(store: &Store, id: &ReasoningSessionId, what: &str) -> Result<(), String> {
    let text = |error: store::StoreError| error.to_string();
    let current = store.reasoning_thread(id, true, None).await.map_err(text)?.ok_or("gone")?;
    match what {
        "append" => {
            let new = reasoning::append(vec![user("X"), user("Y")]).map_err(|refusal| refusal.to_string())?;
            store.append_reasoning(id, &new, None).await.map(drop).map_err(text)
        }
        "compress" => {
            let asked = range(1, 2, "AB");
            let decided =
                reasoning::compress(&current.thread, &asked).map_err(|refusal| refusal.to_string())?;
            store.compress_reasoning(&current, &decided, "AB", None, "x").await.map(drop).map_err(text)
        }
        _ => {
            let newest = store.restorable_reasoning(id).await.map_err(text)?.ok_or("gone")?;
            store.undo_reasoning(id, &newest, None, "x").await.map(drop).map_err(text)
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_in_the_middle_there_is_all_or_nothing() {
    let (database, store) = Database::new(1).await;
    // With a tenant scope, a write is a transaction of three statements.
    let scoped = store.for_tenant(None);
    database.execute(STOP).await;
    let id = made(&store, "s").await;
    appended(&store, &id, (0..6).map(|number| user(&number.to_string())).collect()).await;
    let cases = [
        ("append", "reasoning_sessions"),
        ("append", "reasoning_messages"),
        ("compress", "reasoning_sessions"),
        ("compress", "reasoning_messages"),
        ("compress", "reasoning_layers"),
        ("compress", "audit_log"),
        ("undo", "reasoning_sessions"),
        ("undo", "reasoning_layers"),
        ("undo", "audit_log"),
    ];
    for (what, table) in cases {
        for store in [&store, &scoped] {
            if what == "undo" {
                change(store, &id, "compress").await.unwrap();
            }
            let before = (seen(store, &id).await, rows(&database).await);
            database
                .execute(&format!("CREATE TRIGGER stop BEFORE INSERT OR UPDATE ON {table} FOR EACH ROW EXECUTE FUNCTION stop()"))
                .await;
            let mut holder = database.session().await;
            sqlx::query("SELECT pg_advisory_lock(42)").execute(&mut holder).await.unwrap();
            let changed = {
                let (store, id) = (store.clone(), id.clone());
                tokio::spawn(async move { change(&store, &id, what).await })
            };
            kill_the_waiting(&database).await;
            changed.await.unwrap().unwrap_err();
            holder.close().await.unwrap();
            database.execute(&format!("DROP TRIGGER stop ON {table}")).await;
            let after = (seen(store, &id).await, rows(&database).await);
            assert_eq!(after, before, "{what} killed at {table}");
            change(store, &id, what).await.unwrap();
            assert_ne!(rows(&database).await, before.1, "{what} after it was killed at {table}");
        }
    }
    let mut session = database.session().await;
    let sql = "SELECT count(*) = max(number) AS dense FROM reasoning_messages";
    let dense = sqlx::query(AssertSqlSafe(sql)).fetch_one(&mut session).await.unwrap();
    assert!(dense.get::<bool, _>("dense"));
}
