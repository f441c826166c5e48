//! Laying out a database, and checking its layout.

use model::PartitionCount;
use store::{Disposition, Layout, MigrateError, Store, StoreConfig, StoreError};

use crate::fixture::Database;

fn count(n: u64) -> PartitionCount {
    PartitionCount::new(n).unwrap()
}

#[tokio::test]
async fn migrating_twice_and_at_once_changes_nothing() {
    let database = Database::empty().await;
    let store = Store::connect(&StoreConfig::new(&database.url)).await.unwrap();
    assert_eq!(store.partition_count().await.unwrap(), None);
    let both = tokio::join!(store::migrate(&database.url, count(8)), store::migrate(&database.url, count(8)));
    assert!(both.0.is_ok() && both.1.is_ok(), "{both:?}");
    store::migrate(&database.url, count(8)).await.unwrap();
    assert_eq!(store.partition_count().await.unwrap(), Some(count(8)));
    assert_eq!(store.partitions_status().await.unwrap().len(), 8);
    store.ping().await.unwrap();
}

#[tokio::test]
async fn another_number_of_partitions_is_refused() {
    let (database, store) = Database::new(8).await;
    let error = store::migrate(&database.url, count(16)).await.unwrap_err();
    let says = "the database is laid out for 8 partitions, not for 16; only `antiphon partitions change` changes the number";
    assert_eq!(error.to_string(), says);
    assert!(matches!(error, MigrateError::Store(StoreError::PartitionCount { stored: 8, wanted: 16 })));
    assert_eq!(store.check_partition_count(count(16)).await.unwrap_err().to_string(), says);
    assert_eq!(store.partitions_status().await.unwrap().len(), 8);
}

#[tokio::test]
async fn newer_schema_is_accepted() {
    let (database, store) = Database::new(8).await;
    database
        .execute(
            "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
             VALUES (99990101, 'from a newer binary', true, '', 0)",
        )
        .await;
    store::migrate(&database.url, count(8)).await.unwrap();
    assert_eq!(store.layout().await.unwrap(), Layout::Enough);
}

#[tokio::test]
async fn older_schema_names_the_missing_migration() {
    let database = Database::empty().await;
    let store = Store::connect(&StoreConfig::new(&database.url)).await.unwrap();
    assert_eq!(store.layout().await.unwrap(), Layout::Nothing);
    store::migrate(&database.url, count(8)).await.unwrap();
    database.execute("DELETE FROM _sqlx_migrations WHERE version = 3").await;
    assert_eq!(store.layout().await.unwrap(), Layout::Lacks(3));
}

#[tokio::test]
async fn schema_of_another_build_is_refused() {
    let (database, store) = Database::new(8).await;
    database.execute("UPDATE _sqlx_migrations SET checksum = '' WHERE version = 2").await;
    assert_eq!(store.layout().await.unwrap(), Layout::Differs(2));
    let error = store::migrate(&database.url, count(8)).await.unwrap_err().to_string();
    assert_eq!(
        error,
        "the database could not be migrated: migration 2 was previously applied but has been modified"
    );
}

#[tokio::test]
async fn what_waiting_cannot_cure_is_said_at_once() {
    let database = Database::empty().await;
    for url in ["", "localhost:5432", "mysql://localhost/x", "postgres://host:port/x"] {
        let error = Store::connect(&StoreConfig::new(url)).await.unwrap_err();
        assert!(matches!(error, StoreError::Url(_)), "{url}: {error:?}");
    }
    let missing = database.url.replace("?", "_not?");
    let error = Store::connect(&StoreConfig::new(missing)).await.unwrap_err();
    assert!(matches!(error, StoreError::Refused(_)), "{error:?}");
    assert_eq!(error.disposition(), Disposition::Fatal);
}

#[tokio::test]
async fn a_server_that_is_not_there_is_waited_for() {
    let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let config = StoreConfig::new(format!("postgres://antiphon@{free}/none"));
    let waited = tokio::time::timeout(std::time::Duration::from_secs(1), Store::connect(&config)).await;
    assert!(waited.is_err(), "{waited:?}");
}

/// Tables of the whole fleet. They are small, and are used next to the commits of turns or once a
/// day.
const FLEET_WIDE: &[&str] = &[
    "_sqlx_migrations",
    "agent_aliases",
    "api_keys",
    "budgets",
    "erased_tenants",
    "erasures",
    "incidents",
    "installation",
    "partition_change",
    "partition_saves",
    "partitions",
    "turn_limit_turns",
    "turn_limit_workers",
    "turn_limits",
    "usage_days",
    "workers",
];

/// A schema can be sharded by bucket if no unique key of a thread or agent spans several buckets.
#[tokio::test]
async fn keys_of_threads_and_agents_begin_with_the_bucket() {
    let (database, _) = Database::new(8).await;
    let keys: Vec<(String, String)> = sqlx::query_as(
        "SELECT c.relname::text, a.attname::text FROM pg_index i
         JOIN pg_class c ON c.oid = i.indrelid AND c.relnamespace = 'public'::regnamespace
         JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]
         WHERE i.indisunique",
    )
    .fetch_all(&mut database.session().await)
    .await
    .unwrap();
    let of_fleet = |table: &str| FLEET_WIDE.contains(&table);
    let wrong: Vec<_> = keys.iter().filter(|(table, first)| !of_fleet(table) && first != "bucket").collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    let led = keys.iter().filter(|(_, first)| first == "bucket").count();
    assert!(led >= 30, "only {led} keys were found");
    let gone: Vec<_> =
        FLEET_WIDE.iter().filter(|name| !keys.iter().any(|(table, _)| table == *name)).collect();
    assert!(gone.is_empty(), "not there any more: {gone:?}");
}

/// Changing collations would be unsafe for sessions with prepared statements, and on large tables.
#[tokio::test]
async fn databases_in_use_keep_their_collations() {
    let (database, _) = Database::new(8).await;
    database.execute("ALTER TABLE turn_limits ALTER COLUMN key TYPE text COLLATE \"default\"").await;
    database.execute("DELETE FROM _sqlx_migrations WHERE version = 16").await;
    store::migrate(&database.url, count(8)).await.unwrap();
    let by_language = "SELECT attcollation::regcollation::text AS collation FROM pg_attribute
                       WHERE attrelid = 'turn_limits'::regclass AND attname = 'key'";
    assert_eq!(database.rows(by_language).await, [r#"{"collation":"\"default\""}"#]);
}

/// An index sorted by the rules of a language is slow. It also becomes corrupt when the operating
/// system changes the rules.
#[tokio::test]
async fn indexes_compare_text_by_its_bytes() {
    let database = Database::empty().await;
    // The database also has a table of another application.
    database.execute("CREATE TABLE users (email text PRIMARY KEY)").await;
    store::migrate(&database.url, count(8)).await.unwrap();
    let by_language = "SELECT i.indexrelid::regclass AS name FROM pg_index i
         JOIN pg_class c ON c.oid = i.indrelid AND c.relnamespace = 'public'::regnamespace
         JOIN pg_attribute a ON a.attrelid = i.indexrelid
         WHERE a.attcollation NOT IN (0, '\"C\"'::regcollation)";
    assert_eq!(database.rows(by_language).await, [r#"{"name":"users_pkey"}"#]);
}

/// If two indexes have the same cost for the planner, it uses the newer one.
#[tokio::test]
async fn indexes_keep_their_order_of_age() {
    let (database, _) = Database::new(8).await;
    for (table, expected) in [
        (
            "messages",
            "messages_pkey messages_bucket_message_id_thread_id_key messages_out_of_range messages_unnumbered messages_origin messages_parent_batch",
        ),
        (
            "failed_messages",
            "failed_messages_pkey failed_messages_bucket_message_id_thread_id_key failed_messages_created_at",
        ),
        ("audit_log", "audit_log_created_at audit_log_pkey audit_log_created_at_brin audit_log_about"),
        ("facts", "facts_pkey facts_agent facts_created_at facts_texts facts_long_texts facts_answer"),
    ] {
        let sql = format!(
            "SELECT string_agg(indexrelid::regclass::text, ' ' ORDER BY indexrelid) AS names
             FROM pg_index WHERE indrelid = '{table}'::regclass"
        );
        assert_eq!(database.rows(&sql).await, [format!(r#"{{"names":"{expected}"}}"#)]);
    }
}

/// `pg_dump` may read a table for an hour. Other reads must not queue behind a migration that waits
/// for it.
#[tokio::test]
async fn reads_go_on_while_a_migration_waits_for_a_lock() {
    let (database, _) = Database::new(1).await;
    // Migration 29 alters the table of facts each time it runs.
    database.execute("DELETE FROM _sqlx_migrations WHERE version = 29").await;
    let mut dump = database.session().await;
    sqlx::raw_sql("BEGIN; LOCK TABLE facts IN ACCESS SHARE MODE").execute(&mut dump).await.unwrap();
    let url = database.url.clone();
    let migrating = tokio::spawn(async move { store::migrate(&url, count(1)).await });
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    while database.number(waits).await == 0 {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    database.execute("SET lock_timeout = '30s'; SELECT count(*) FROM facts").await;
    assert!(!migrating.is_finished(), "it tries again");
    sqlx::raw_sql("COMMIT").execute(&mut dump).await.unwrap();
    migrating.await.unwrap().unwrap();
    assert_eq!(database.number("SELECT count(*) FROM _sqlx_migrations WHERE version = 29").await, 1);
}
