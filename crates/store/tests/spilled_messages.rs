//! Saving open messages and inputs, and loading them again.

use std::sync::Arc;
use std::time::Duration;

use model::{Chunk, ModelCall, Role, Seq};
use partition::{Save, SpilledMessage, Takeover};
use store::{Applied, Committed, Store, StoreError};

use crate::fixture::{Database, Owner, TTL, key, message, metadata, thread_of};

const COUNT: u64 = 2;

fn chunk(id: u32) -> Arc<Chunk> {
    Chunk::content(id, &format!("text {id}"), false).into()
}

fn part(thread: &str, attempt: u32, first_chunk: u32, ids: &[u32]) -> SpilledMessage {
    SpilledMessage {
        key: key(thread, "m"),
        attempt,
        first_chunk,
        role: Role::Assistant,
        first_seq: Seq(3),
        open_ms: 1_000,
        gap_ms: None,
        idle_ms: 0,
        chunks: ids.iter().map(|id| chunk(*id)).collect(),
        earlier_calls: Vec::new(),
    }
}

async fn saved(owner: &Owner, part: SpilledMessage) {
    let save = Save { messages: vec![part], turns: Vec::new() };
    owner.store.save(owner.applied().await, "s", &save).await.unwrap();
}

async fn loaded(store: &Store, owner: &Owner) -> Takeover {
    store.load(&owner.grant, 8).await.unwrap()
}

fn ids(takeover: &Takeover) -> Vec<(u32, Vec<u32>)> {
    let ids = |save: &SpilledMessage| save.chunks.iter().map(|chunk| chunk.id).collect();
    takeover.spilled_messages.iter().map(|save| (save.attempt, ids(save))).collect()
}

#[tokio::test]
async fn parts_come_back_in_their_order_and_twice_is_once() {
    let (database, store) = Database::new(COUNT).await;
    let owner = Owner::new(&store, "a").await;
    let thread = thread_of(owner.grant.partition, COUNT, 0);
    saved(&owner, part(&thread, 1, 0, &[0, 1, 5])).await;
    saved(&owner, part(&thread, 1, 2, &[2])).await;
    saved(&owner, part(&thread, 1, 2, &[2, 3, 5])).await;
    saved(&owner, part(&thread, 1, 2, &[2, 3, 5])).await;
    let takeover = loaded(&store, &owner).await;
    assert_eq!(
        ids(&takeover),
        [(1, vec![0, 1, 2, 3, 5])],
        "of a chunk that is in two parts the later one counts"
    );
    assert_eq!(takeover.spilled_messages[0].chunks[4], chunk(5));
    assert_eq!(database.number("SELECT count(*) FROM spilled_messages").await, 2, "a row for each part");
}

#[tokio::test]
async fn who_is_not_the_owner_saves_nothing() {
    let (database, store) = Database::new(COUNT).await;
    let owner = Owner::new(&store, "a").await;
    let thread = thread_of(owner.grant.partition, COUNT, 0);
    let save = Save { messages: vec![part(&thread, 0, 0, &[0])], turns: Vec::new() };
    let known = owner.applied().await;
    let wrong = [
        Applied { epoch: known.epoch - 1, ..known },
        Applied { epoch: known.epoch + 1, ..known },
        // A store that has gone back in time has fewer commits than it had acknowledged.
        Applied { commits: known.commits + 1, ..known },
        Applied { saves: known.saves + 1, ..known },
    ];
    for applied in wrong {
        let refused = store.save(applied, "s", &save).await;
        assert!(matches!(refused, Err(StoreError::NotOwner)), "{refused:?}");
    }
    store.release("a", known.partition, known.epoch).await.unwrap();
    assert!(matches!(store.save(known, "s", &save).await, Err(StoreError::NotOwner)), "it has no owner");
    assert_eq!(database.number("SELECT count(*) FROM spilled_messages").await, 0);
}

#[tokio::test]
async fn saves_and_commits_do_not_wait_for_each_other_and_grants_do() {
    let (database, store) = Database::new(COUNT).await;
    let owner = Owner::new(&store, "a").await;
    let thread = thread_of(owner.grant.partition, COUNT, 0);
    let save = Save { messages: vec![part(&thread, 0, 0, &[0])], turns: Vec::new() };
    let known = owner.applied().await;
    // A commit has locked the row and does not end.
    let pool = sqlx::PgPool::connect(&database.url).await.unwrap();
    let mut commit = pool.begin().await.unwrap();
    sqlx::query("UPDATE partitions SET commits = commits + 1 WHERE partition_id = $1")
        .bind(known.partition.0.cast_signed())
        .execute(&mut *commit)
        .await
        .unwrap();
    store.save(known, "s", &save).await.unwrap();
    commit.rollback().await.unwrap();
    // A save has locked the row and does not end. A commit passes, and a new epoch has to wait.
    let mut saving = pool.begin().await.unwrap();
    sqlx::query("SELECT FROM partitions WHERE partition_id = $1 FOR KEY SHARE")
        .bind(known.partition.0.cast_signed())
        .execute(&mut *saving)
        .await
        .unwrap();
    let mut commit = owner.empty();
    commit.messages = vec![message(&thread, "other", 10)];
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
    let applied = owner.applied().await;
    let reclaim = tokio::spawn({
        let store = store.clone();
        async move { store.reclaim("a", &applied, 0, TTL).await }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!reclaim.is_finished(), "a grant must see what is saved");
    saving.commit().await.unwrap();
    assert!(reclaim.await.unwrap().unwrap().is_some());
}

#[tokio::test]
async fn calls_of_earlier_attempts_come_back_with_the_message() {
    let (_database, store) = Database::new(COUNT).await;
    let owner = Owner::new(&store, "a").await;
    let thread = thread_of(owner.grant.partition, COUNT, 0);
    let call = |input_tokens| ModelCall { input_tokens, model: Some("m".into()), ..ModelCall::default() };
    let save = |attempt, earlier_calls| SpilledMessage { earlier_calls, ..part(&thread, attempt, 0, &[0]) };
    saved(&owner, save(0, vec![])).await;
    assert_eq!(loaded(&store, &owner).await.spilled_messages[0].earlier_calls, []);
    saved(&owner, save(1, vec![call(5)])).await;
    saved(&owner, save(2, vec![call(5), call(7)])).await;
    let calls = &loaded(&store, &owner).await.spilled_messages[0].earlier_calls;
    assert_eq!(calls, &[call(5), call(7)]);
}

#[tokio::test]
async fn only_parts_of_the_highest_attempt_count() {
    let (_database, store) = Database::new(COUNT).await;
    let owner = Owner::new(&store, "a").await;
    let thread = thread_of(owner.grant.partition, COUNT, 0);
    saved(&owner, part(&thread, 1, 0, &[0, 1])).await;
    saved(&owner, part(&thread, 1, 2, &[2])).await;
    saved(&owner, part(&thread, 2, 0, &[0])).await;
    assert_eq!(ids(&loaded(&store, &owner).await), [(2, vec![0])]);
}

#[tokio::test]
async fn what_ends_leaves_no_rows() {
    let (database, store) = Database::new(COUNT).await;
    let owner = Owner::new(&store, "a").await;
    let [one, two] = [0, 1].map(|n| thread_of(owner.grant.partition, COUNT, n));
    saved(&owner, part(&one, 0, 0, &[0, 1])).await;
    saved(&owner, part(&one, 0, 2, &[2])).await;
    saved(&owner, part(&two, 0, 0, &[4])).await;
    let mut commit = owner.empty();
    commit.ended_spills = vec![key(&one, "m"), key(&one, "never-saved")];
    owner.commit(&commit).await.unwrap();
    assert_eq!(loaded(&store, &owner).await.spilled_messages[0].key, key(&two, "m"));
    assert_eq!(database.number("SELECT count(*) FROM spilled_messages").await, 1);
}

#[tokio::test]
async fn each_partition_loads_its_own() {
    let (_database, store) = Database::new(COUNT).await;
    let owners = [Owner::new(&store, "a").await, Owner::new(&store, "a").await];
    for owner in &owners {
        saved(owner, part(&thread_of(owner.grant.partition, COUNT, 0), 0, 0, &[0])).await;
    }
    for owner in &owners {
        let takeover = loaded(&store, owner).await;
        assert_eq!((takeover.partition, takeover.epoch), (owner.grant.partition, owner.grant.epoch));
        let keys: Vec<_> = takeover.spilled_messages.iter().map(|save| save.key.clone()).collect();
        assert_eq!(keys, [key(&thread_of(owner.grant.partition, COUNT, 0), "m")]);
    }
}

#[tokio::test]
async fn everything_of_a_chunk_comes_back_and_ages_go_on() {
    let (database, store) = Database::new(COUNT).await;
    let owner = Owner::new(&store, "a").await;
    let thread = thread_of(owner.grant.partition, COUNT, 0);
    let mut save = part(&thread, 4, 0, &[]);
    (save.role, save.gap_ms, save.idle_ms) = (Role::Tool, Some(20), 10);
    save.chunks = vec![Arc::new(Chunk {
        id: 7,
        kind: model::ChunkKind::ToolResult,
        is_final: true,
        text: "ü\n".into(),
        halves: model::Halves::new(Some(0xDEA4), Some(0xD83D)),
        metadata: metadata(serde_json::json!({"a": [1, {"b": null}]})),
        timestamp: Some("2026-01-01T00:00:00Z".into()),
        correlation_id: Some("c".into()),
    })];
    saved(&owner, save.clone()).await;
    database.execute("UPDATE spilled_messages SET saved_at = saved_at - interval '1 minute'").await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    let grant = store.reclaim("a", &owner.applied().await, 0, TTL).await.unwrap().unwrap().grant;
    let back = store.load(&grant, 8).await.unwrap().spilled_messages.remove(0);
    let aged = back.open_ms - save.open_ms;
    assert!((60_020..70_000).contains(&aged), "{aged}");
    assert_eq!((back.gap_ms, back.idle_ms), (Some(20 + aged), 10 + aged));
    let ages = |save: &mut SpilledMessage| (save.open_ms, save.gap_ms, save.idle_ms) = (0, None, 0);
    let (mut back, mut save) = (back, save);
    ages(&mut back);
    ages(&mut save);
    assert_eq!(back, save);
}
