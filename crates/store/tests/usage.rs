//! What turns have used: written with their commit, under its fence, once.

use model::{ModelCall, TurnId, UsageKind};
use partition::UsageWrite;
use store::Committed;

use crate::fixture::{Database, Owner, key, thread};
use crate::values::agent;

fn used(of: &str, input: &str, number: u16, call: ModelCall) -> UsageWrite {
    let turn = TurnId::foreground(&thread(of), input).unwrap();
    UsageWrite {
        answer: key(of, turn.answer(0).as_str()),
        turn,
        number,
        agent: agent("helper"),
        kind: UsageKind::FollowUp,
        call,
        is_partial: number > 0,
    }
}

fn call(model: &str, input_tokens: u64, output_tokens: u64) -> ModelCall {
    ModelCall { model: Some(model.into()), input_tokens, output_tokens, ..ModelCall::default() }
}

async fn rows(database: &Database) -> Vec<String> {
    let sql = "SELECT call, agent_id, kind, model, input_tokens, output_tokens, cached_tokens, reasoning_tokens, is_partial
               FROM usage ORDER BY thread_id, message_id, call";
    database.rows(sql).await
}

#[tokio::test]
async fn calls_are_written_with_their_commit_and_once() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    let mut commit = owner.empty();
    let counted = ModelCall { cached_tokens: Some(5), reasoning_tokens: Some(0), ..call("m", 7, 3) };
    commit.usage = vec![used("t", "x", 0, counted), used("t", "x", 1, ModelCall::default())];
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
    let written = [
        r#"{"call":0,"agent_id":"helper","kind":"follow_up","model":"m","input_tokens":7,"output_tokens":3,"cached_tokens":5,"reasoning_tokens":0,"is_partial":false}"#,
        r#"{"call":1,"agent_id":"helper","kind":"follow_up","model":null,"input_tokens":0,"output_tokens":0,"cached_tokens":null,"reasoning_tokens":null,"is_partial":true}"#,
    ];
    assert_eq!(rows(&database).await, written);
    // A turn that is decided again.
    commit.usage[0].call = call("other", 99, 99);
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
    assert_eq!(rows(&database).await, written);
}

#[tokio::test]
async fn who_has_lost_the_lease_writes_no_usage() {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    store.renounce(&[owner.grant.partition]).await.unwrap();
    let mut commit = owner.empty();
    commit.usage = vec![used("t", "x", 0, call("m", 7, 3))];
    assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Fenced);
    assert!(rows(&database).await.is_empty());
}
