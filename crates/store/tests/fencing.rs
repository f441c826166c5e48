//! Two sessions in a defined order: a bare session holds the lock that decides which comes first.

use std::time::Duration;

use model::Seq;
use sqlx::{AssertSqlSafe, PgConnection};
use store::{CommitError, Committed, Disposition, Store, StoreConfig};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

use crate::fixture::{Database, Owner, TTL, dead_entry, message, submission};

const LONG_ENOUGH: Duration = Duration::from_millis(300);

async fn run(session: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(session).await.unwrap();
}

/// A transaction that holds the row of thread `t`. A commit passes its fence and then waits for the
/// row.
async fn hold_thread(database: &Database) -> PgConnection {
    let mut session = database.session().await;
    run(&mut session, "BEGIN").await;
    let bucket = model::Bucket::of_key("t").get();
    run(&mut session, &format!("INSERT INTO threads (bucket, thread_id) VALUES ({bucket}, 't')")).await;
    session
}

async fn until_waiting(database: &Database, count: i64) {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    while database.number(sql).await < count {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_takeover_waits_for_a_commit_under_way() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    store.renew("a", Duration::ZERO, &[owner.applied().await]).await.unwrap();
    let mut commit = owner.empty();
    (commit.messages, commit.checkpoint) = (vec![message("t", "m", 1)], Seq(42));
    let mut holder = hold_thread(&database).await;

    let committing = owner.commit(&commit);
    let taking = async {
        until_waiting(&database, 1).await;
        // The lease has expired, but the row is locked, so it is skipped.
        assert_eq!(store.acquire("b", TTL, 1).await.unwrap(), []);
        let known = owner.applied().await;
        let mut reclaiming = Box::pin(store.reclaim("a", &known, 0, TTL));
        assert!(tokio::time::timeout(LONG_ENOUGH, &mut reclaiming).await.is_err());
        run(&mut holder, "COMMIT").await;
        reclaiming.await.unwrap().unwrap()
    };
    let (committed, grant) = tokio::join!(committing, taking);
    assert_eq!(committed.unwrap(), Committed::Applied);
    assert!(!grant.stepped_back && grant.grant.epoch > owner.grant.epoch, "{grant:?}");
    assert_eq!((grant.grant.commits, grant.grant.checkpoint), (1, Seq(42)));
}

#[tokio::test]
async fn a_zombie_that_waited_behind_a_takeover_writes_nothing() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    let mut commit = owner.empty();
    commit.messages = vec![message("t", "m", 1)];
    commit.dead_letters = vec![dead_entry(1, b"x")];
    commit.checkpoint = Seq(42);
    let mut taker = database.session().await;
    run(&mut taker, "BEGIN; UPDATE partitions SET epoch = epoch + 1, owner = 'b'").await;

    let takeover = async {
        until_waiting(&database, 1).await;
        run(&mut taker, "COMMIT").await;
    };
    let (committed, ()) = tokio::join!(owner.commit(&commit), takeover);
    assert_eq!(committed.unwrap(), Committed::Fenced);
    for table in ["threads", "messages", "dead_letters"] {
        assert_eq!(database.number(&format!("SELECT count(*) FROM {table}")).await, 0, "{table}");
    }
    assert_eq!(store.partitions_status().await.unwrap()[0].checkpoint, Seq(0));
}

#[tokio::test]
async fn a_commit_that_waited_behind_a_renewal_is_applied() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    let mut commit = owner.empty();
    (commit.messages, commit.checkpoint) = (vec![message("t", "m", 1)], Seq(42));
    let mut renewer = database.session().await;
    run(&mut renewer, "BEGIN; UPDATE partitions SET lease_until = clock_timestamp() + interval '1 hour'")
        .await;
    let renewal = async {
        until_waiting(&database, 1).await;
        run(&mut renewer, "COMMIT").await;
    };
    let (committed, ()) = tokio::join!(owner.commit(&commit), renewal);
    assert_eq!(committed.unwrap(), Committed::Applied);
    let status = store.partitions_status().await.unwrap().remove(0);
    assert_eq!(status.checkpoint, Seq(42));
    assert!(status.lease_left_ms.unwrap() > 3_000_000, "the renewal is kept: {status:?}");
}

/// Passes bytes between one client and the server until the client side is cut. The server side
/// stays open, as when a network breaks.
async fn cuttable(server: String) -> (std::net::SocketAddr, tokio::sync::oneshot::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (cut, mut when) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let (mut client, _) = listener.accept().await.unwrap();
        let mut upstream = TcpStream::connect(server).await.unwrap();
        tokio::select! {
            _ = tokio::io::copy_bidirectional(&mut client, &mut upstream) => {}
            _ = &mut when => {}
        }
        client.shutdown().await.ok();
        drop(client);
        tokio::time::sleep(Duration::from_secs(30)).await;
        drop(upstream);
    });
    (address, cut)
}

#[tokio::test]
async fn reclaim_waits_for_a_commit_with_unknown_outcome() {
    let (database, store) = Database::new(1).await;
    let mut owner = Owner::new(&store, "a").await;
    let place = database.url.split_once("//").unwrap().1.split('/').next().unwrap();
    let server = place.rsplit('@').next().unwrap().to_owned();
    let (proxy, cut) = cuttable(server.clone()).await;
    let config = StoreConfig::new(database.url.replace(&server, &proxy.to_string()));
    // Only the writer uses the proxy.
    owner.writer = store::CommitWriter::new("a", &config).unwrap();

    let mut commit = owner.empty();
    (commit.messages, commit.checkpoint) = (vec![message("t", "m", 1)], Seq(42));
    let mut holder = hold_thread(&database).await;
    let cutting = async {
        until_waiting(&database, 1).await;
        cut.send(()).unwrap();
    };
    let (outcome, ()) = tokio::join!(owner.commit(&commit), cutting);
    let error = outcome.unwrap_err();
    assert_eq!(error.disposition(), Disposition::Unknown, "{error}");

    let known = owner.applied().await;
    let mut reclaiming = Box::pin(store.reclaim("a", &known, 0, TTL));
    assert!(tokio::time::timeout(LONG_ENOUGH, &mut reclaiming).await.is_err());
    run(&mut holder, "COMMIT").await;
    let grant = reclaiming.await.unwrap().unwrap();
    assert!(!grant.stepped_back && grant.grant.epoch > owner.grant.epoch, "{grant:?}");
    assert_eq!((grant.grant.commits, grant.grant.checkpoint), (1, Seq(42)));
    assert_eq!(database.number("SELECT count(*) FROM messages").await, 1);
}

#[tokio::test]
async fn busy_locks_and_ended_sessions_are_retried() {
    let (database, _) = Database::new(1).await;
    let config = StoreConfig { lock_timeout: Duration::from_millis(100), ..StoreConfig::new(&database.url) };
    let store = Store::connect(&config).await.unwrap();
    let owner = Owner::new(&store, "a").await;
    let mut commit = owner.empty();
    commit.messages = vec![message("t", "m", 1)];
    let mut holder = hold_thread(&database).await;
    assert!(matches!(owner.commit(&commit).await, Err(CommitError::Retry(_))));
    run(&mut holder, "ROLLBACK").await;
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);

    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
               WHERE datname = current_database() AND pid <> pg_backend_pid()";
    assert!(database.number(end).await > 0);
    let disposition = match owner.writer.commit(&[submission(&commit, 1)]).await {
        Ok(_) => Disposition::Retry,
        Err(error) => error.disposition(),
    };
    assert!(matches!(disposition, Disposition::Retry | Disposition::Unknown), "{disposition:?}");
    assert_eq!(owner.writer.commit(&[submission(&commit, 1)]).await.unwrap(), [Committed::Applied]);
}
