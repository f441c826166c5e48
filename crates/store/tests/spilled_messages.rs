//! What is saved of open messages, and how it comes back.

use std::sync::Arc;
use std::time::Duration;

use model::{Chunk, ModelCall, Role, Seq};
use partition::{SpilledMessage, Takeover};
use store::{Committed, Store};

use crate::fixture::{Database, Owner, TTL, key, metadata, thread_of};

const COUNT: u64 = 2;

fn chunk(id: u32) -> Arc<Chunk> {
    Chunk::content(id, &format!("text {id}"), false).into()
}

fn save(thread: &str, attempt: u32, ids: &[u32]) -> SpilledMessage {
    SpilledMessage {
        key: key(thread, "m"),
        attempt,
        role: Role::Assistant,
        first_seq: Seq(3),
        open_ms: 1_000,
        gap_ms: None,
        idle_ms: 0,
        chunks: ids.iter().map(|id| chunk(*id)).collect(),
        earlier_calls: Vec::new(),
    }
}

async fn saved(owner: &Owner, save: SpilledMessage) {
    let mut commit = owner.empty();
    commit.spilled_messages = vec![save];
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
}

async fn loaded(store: &Store, owner: &Owner) -> Takeover {
    store.load(&owner.grant, 8).await.unwrap()
}

fn ids(takeover: &Takeover) -> Vec<(u32, Vec<u32>)> {
    let ids = |save: &SpilledMessage| save.chunks.iter().map(|chunk| chunk.id).collect();
    takeover.spilled_messages.iter().map(|save| (save.attempt, ids(save))).collect()
}

#[tokio::test]
async fn saves_append_and_come_back_in_order_of_arrival() {
    let (_database, store) = Database::new(COUNT).await;
    let owner = Owner::new(&store, "a").await;
    let thread = thread_of(owner.grant.partition, COUNT, 0);
    saved(&owner, save(&thread, 1, &[5, 2])).await;
    saved(&owner, save(&thread, 1, &[9, 2, 0])).await;
    saved(&owner, save(&thread, 1, &[])).await;
    let takeover = loaded(&store, &owner).await;
    assert_eq!(ids(&takeover), [(1, vec![5, 2, 9, 0])]);
    assert_eq!(takeover.spilled_messages[0].chunks[0], chunk(5));
}

#[tokio::test]
async fn calls_of_earlier_attempts_come_back_with_the_message() {
    let (_database, store) = Database::new(COUNT).await;
    let owner = Owner::new(&store, "a").await;
    let thread = thread_of(owner.grant.partition, COUNT, 0);
    let call = |input_tokens| ModelCall { input_tokens, model: Some("m".into()), ..ModelCall::default() };
    let save = |attempt, earlier_calls| SpilledMessage { earlier_calls, ..save(&thread, attempt, &[0]) };
    saved(&owner, save(0, vec![])).await;
    assert_eq!(loaded(&store, &owner).await.spilled_messages[0].earlier_calls, []);
    saved(&owner, save(1, vec![call(5)])).await;
    saved(&owner, save(2, vec![call(5), call(7)])).await;
    let calls = &loaded(&store, &owner).await.spilled_messages[0].earlier_calls;
    assert_eq!(calls, &[call(5), call(7)]);
}

#[tokio::test]
async fn higher_attempt_replaces_a_spill_and_lower_is_ignored() {
    let (database, store) = Database::new(COUNT).await;
    let owner = Owner::new(&store, "a").await;
    let thread = thread_of(owner.grant.partition, COUNT, 0);
    saved(&owner, save(&thread, 1, &[0, 1, 2])).await;
    saved(&owner, save(&thread, 2, &[1])).await;
    saved(&owner, save(&thread, 1, &[7])).await;
    assert_eq!(ids(&loaded(&store, &owner).await), [(2, vec![1])]);
    assert_eq!(database.number("SELECT count(*) FROM spilled_chunks").await, 1);
}

#[tokio::test]
async fn what_ends_leaves_no_rows() {
    let (database, store) = Database::new(COUNT).await;
    let owner = Owner::new(&store, "a").await;
    let [one, two] = [0, 1].map(|n| thread_of(owner.grant.partition, COUNT, n));
    saved(&owner, save(&one, 0, &[0, 1])).await;
    saved(&owner, save(&two, 0, &[4])).await;
    let mut commit = owner.empty();
    commit.ended_spills = vec![key(&one, "m"), key(&one, "never-saved")];
    owner.commit(&commit).await.unwrap();
    assert_eq!(loaded(&store, &owner).await.spilled_messages[0].key, key(&two, "m"));
    assert_eq!(database.number("SELECT count(*) FROM spilled_messages").await, 1);
    assert_eq!(database.number("SELECT count(*) FROM spilled_chunks").await, 1);
}

#[tokio::test]
async fn each_partition_loads_its_own() {
    let (_database, store) = Database::new(COUNT).await;
    let owners = [Owner::new(&store, "a").await, Owner::new(&store, "a").await];
    for owner in &owners {
        saved(owner, save(&thread_of(owner.grant.partition, COUNT, 0), 0, &[0])).await;
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
    let mut save = save(&thread, 4, &[]);
    (save.role, save.gap_ms, save.idle_ms) = (Role::Tool, Some(20), 10);
    save.chunks = vec![Arc::new(Chunk {
        id: 7,
        kind: model::ChunkKind::ToolResult,
        is_final: true,
        text: "ü\n".into(),
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
