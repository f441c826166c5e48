//! Data that Postgres refuses, and the resulting errors.

use store::{CommitError, Committed, Disposition};

use crate::fixture::{Database, Owner, message};

#[tokio::test]
async fn unstorable_data_differs_from_errors_that_may_pass() {
    let (database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    let mut commit = owner.empty();
    commit.messages = vec![message("t", "good", 1), message("t", "bad", 2)];
    commit.messages[1].content = "NUL \0 that slipped past the model".to_owned();
    let error = owner.commit(&commit).await.unwrap_err();
    assert!(matches!(&error, CommitError::Data { sqlstate, .. } if sqlstate == "22021"), "{error}");

    commit.messages[1].content.clear();
    commit.messages[1].tool_calls = Some(serde_json::json!([{"arguments": "\0"}]));
    let error = owner.commit(&commit).await.unwrap_err();
    assert!(matches!(&error, CommitError::Data { sqlstate, .. } if sqlstate == "22P05"), "{error}");
    assert_eq!(database.number("SELECT count(*) FROM messages").await, 0);

    // On its own, the valid message is stored.
    commit.messages.truncate(1);
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
}

#[tokio::test]
async fn two_messages_at_one_position_are_a_defect() {
    let (_database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    let mut commit = owner.empty();
    commit.messages = vec![message("t", "one", 1), message("t", "two", 1)];
    assert_eq!(owner.commit(&commit).await.unwrap_err().disposition(), Disposition::Fatal);
}

#[tokio::test]
async fn damaged_rows_differ_from_defects() {
    // The codes: internal_error, which a damaged page usually gives; data_corrupted;
    // index_corrupted.
    for code in ["XX000", "XX001", "XX002"] {
        let (database, store) = Database::new(2).await;
        let owner = Owner::new(&store, "a").await;
        database
            .execute(&format!(
                "CREATE FUNCTION damaged() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN RAISE EXCEPTION 'invalid page in block 7' USING ERRCODE = '{code}'; END $$"
            ))
            .await;
        database
            .execute(
                "CREATE TRIGGER damaged BEFORE INSERT ON messages FOR EACH ROW
                 WHEN (NEW.message_id = 'two') EXECUTE FUNCTION damaged()",
            )
            .await;
        let mut commit = owner.empty();
        commit.messages = vec![message("t", "one", 1), message("t", "two", 2)];
        let error = owner.commit(&commit).await.unwrap_err();
        assert_eq!(error.disposition(), Disposition::Damaged, "{error}");
        assert_eq!(database.number("SELECT count(*) FROM messages").await, 0);
        commit.messages.truncate(1);
        assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
    }
}

#[tokio::test]
async fn a_right_that_is_missing_is_waited_for() {
    let (database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    let commit = owner.empty();
    database.execute("REVOKE ALL ON partitions FROM CURRENT_USER").await;
    let error = store.partitions_status().await.unwrap_err();
    assert!(error.to_string().contains("permission denied"), "{error}");
    assert_eq!(error.disposition(), Disposition::Retry);
    let refused = owner.writer.commit(&[crate::fixture::submission(&commit, 0)]).await;
    assert_eq!(refused.unwrap_err().disposition(), Disposition::Retry);
    database.execute("GRANT ALL ON partitions TO CURRENT_USER").await;
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
}

#[tokio::test]
async fn a_database_without_our_tables_is_fatal() {
    let database = Database::empty().await;
    let store = store::Store::connect(&store::StoreConfig::new(&database.url)).await.unwrap();
    let writer = store.writer("a").unwrap();
    let commit = crate::fixture::commit(model::PartitionId(0), 1);
    let group = [crate::fixture::submission(&commit, 0)];
    assert_eq!(writer.commit(&group).await.unwrap_err().disposition(), Disposition::Fatal);
    assert_eq!(store.partitions_status().await.unwrap_err().disposition(), Disposition::Fatal);
}
