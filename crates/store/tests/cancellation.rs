//! Futures that are dropped half-way.

use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::poll;
use model::Timestamp;
use store::{Applied, Committed, Store, StoreConfig, StoreError};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::fixture::{Database, Owner, TTL, key, message, submission, thread};

/// Polls `work` `times` times and yields in between; returns its output if it completed.
async fn polled<T>(work: impl Future<Output = T>, times: usize) -> Option<T> {
    let mut work = pin!(work);
    for n in 0..times {
        if let Poll::Ready(outcome) = poll!(&mut work) {
            return Some(outcome);
        }
        match n % 3 {
            0 => tokio::time::sleep(std::time::Duration::from_micros(200)).await,
            _ => tokio::task::yield_now().await,
        }
    }
    None
}

/// Dropped callers must not occupy more connections, so that others can still use them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_wide_reads_run_two_at_a_time() {
    let (database, store) = Database::new(1).await;
    let mut session = database.session().await;
    sqlx::raw_sql("BEGIN; LOCK TABLE usage").execute(&mut session).await.unwrap();
    let wide = store.wide();
    let read = async || wide.usage(Timestamp(0), Timestamp(1), &[], 1).await;
    for _ in 0..12 {
        assert!(tokio::time::timeout(Duration::from_millis(50), read()).await.is_err());
    }
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    assert_eq!(database.number(waiting).await, 2);
    store.ping().await.unwrap();
    sqlx::raw_sql("COMMIT").execute(&mut session).await.unwrap();
    assert!(read().await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_futures_poison_no_session_and_lose_nothing() {
    let (database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    let mut acknowledged = Vec::new();
    for times in 0..50_usize {
        let id = format!("m{times}");
        let mut commit = owner.empty();
        commit.messages = vec![message("t", &id, 1 + times as i64)];
        let commits = owner.applied().await.commits;
        let group = [submission(&commit, commits)];
        if let Some(outcome) = polled(owner.writer.commit(&group), times).await {
            // A commit whose result was not awaited has come in between, and this one was decided
            // without it.
            if outcome.unwrap() == [Committed::Applied] {
                acknowledged.push(id);
            }
        }
        polled(store.lookup(None, &[key("t", "x")], false), times).await;
        polled(store.renew("a", TTL, &[Applied::from(&owner.grant)]), times).await;
        if let Some(created) = polled(store.create_thread(&thread(&format!("c{times}"))), times).await {
            created.unwrap();
            acknowledged.push(format!("c{times}"));
        }
    }
    let mut commit = owner.empty();
    commit.messages = vec![message("t", "last", 1_000)];
    while owner.commit(&commit).await.unwrap() != Committed::Applied {}
    acknowledged.push("last".to_owned());
    assert!(acknowledged.len() > 20, "{}", acknowledged.len());

    let visible =
        database.rows("SELECT message_id AS id FROM messages UNION SELECT thread_id FROM threads").await;
    for id in acknowledged {
        assert!(visible.contains(&format!("{{\"id\":\"{id}\"}}")), "{id} was acknowledged and is gone");
    }
    // Dropped commits also run to their end. They are applied whole or fenced by an intervening
    // commit.
    let under_way = "SELECT count(*) FROM pg_stat_activity
                     WHERE datname = current_database() AND state = 'active' AND pid <> pg_backend_pid()";
    while database.number(under_way).await > 0 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let counted = "SELECT sum(commits)::bigint FROM partitions";
    assert_eq!(
        database.number("SELECT count(*) FROM messages").await,
        database.number(counted).await,
        "a commit is a message here"
    );
    let stuck = "SELECT count(*) FROM pg_stat_activity
                 WHERE datname = current_database() AND state LIKE 'idle in transaction%'";
    assert_eq!(database.number(stuck).await, 0);
}

/// A source check that completes the guard: if a future is dropped while it begins a transaction,
/// its session is unusable.
#[test]
fn no_operation_begins_a_transaction() {
    // The first file runs in its own task: see the tests of row security. The others define
    // functions and blocks, which contain the word `BEGIN`.
    const BEGINNERS: [&str; 4] =
        ["row_security.rs", "fact_vectors/lay_out.sql", "fact_vectors/triggers.sql", "migrate/grants.sql"];
    let sources = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut folders = vec![sources];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if !BEGINNERS.iter().any(|file| path.ends_with(file)) {
                let text = std::fs::read_to_string(&path).unwrap();
                assert!(!text.contains(".begin") && !text.contains("BEGIN"), "{}", path.display());
            }
        }
    }
}

/// When a primary becomes a standby, sessions opened there stay read-only, even if its name now
/// leads to the new primary.
#[tokio::test]
async fn sessions_of_a_former_primary_are_left() {
    let (database, store) = Database::new(1).await;
    let name = database.rows("SELECT current_database() AS name").await.remove(0);
    let name = name.trim_start_matches(r#"{"name":""#).trim_end_matches(r#""}"#);
    let read_only = format!("ALTER DATABASE {name} SET default_transaction_read_only = on");
    database.execute_as_superuser(&read_only).await;
    // Terminates every session, so that the pool opens new ones.
    let others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
    database.execute_as_superuser(others).await;
    let mut refused = 0;
    for number in 0..20 {
        refused += usize::from(store.create_thread(&thread(&format!("t{number}"))).await.is_err());
        let reads = (0..8).map(|_| store.partition_count());
        futures_util::future::join_all(reads).await;
    }
    assert!(refused >= 19, "all are read-only: {refused}");
    database
        .execute_as_superuser(&format!(
            "SET TRANSACTION READ WRITE; ALTER DATABASE {name} RESET default_transaction_read_only"
        ))
        .await;
    let began = Instant::now();
    while store.create_thread(&thread("first")).await.is_err() {
        assert!(
            began.elapsed() < Duration::from_secs(5),
            "sessions of the former primary are used again and again"
        );
        sleep(Duration::from_millis(50)).await;
    }
    for number in 0..20 {
        store.create_thread(&thread(&format!("t{number}"))).await.unwrap();
    }
}

/// Passes bytes between clients and the server. After `freeze`, existing connections stay open but
/// pass no bytes, as when a host vanishes silently.
async fn freezable(server: String) -> (std::net::SocketAddr, watch::Sender<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (freeze, frozen) = watch::channel(false);
    tokio::spawn(async move {
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut upstream = TcpStream::connect(&server).await.unwrap();
            let mut frozen = frozen.clone();
            frozen.mark_unchanged();
            tokio::spawn(async move {
                let is_over = tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut client, &mut upstream) => true,
                    _ = frozen.changed() => false,
                };
                if !is_over {
                    std::future::pending::<()>().await;
                }
            });
        }
    });
    (address, freeze)
}

/// One statement detects that the host does not answer; the others need not detect it one by one.
#[tokio::test]
async fn sessions_of_a_silent_host_are_left() {
    let (database, _) = Database::new(1).await;
    let place = database.url.split_once("//").unwrap().1.split('/').next().unwrap();
    let server = place.rsplit('@').next().unwrap().to_owned();
    let (proxy, freeze) = freezable(server.clone()).await;
    let mut config = StoreConfig::new(database.url.replace(&server, &proxy.to_string()));
    config.statement_timeout = Duration::from_millis(500);
    let store = Store::connect(&config).await.unwrap();
    let read = || async { store.create_thread(&thread("t")).await };
    for _ in 0..4 {
        for made in futures_util::future::join_all((0..8).map(|_| read())).await {
            made.unwrap();
        }
    }
    let sessions =
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'INSERT%'";
    assert!(database.number(sessions).await >= 3, "there is more than one session to find out about");
    freeze.send_replace(true);
    assert!(matches!(read().await, Err(StoreError::TimedOut)));
    for _ in 0..16 {
        read().await.unwrap();
    }
}
