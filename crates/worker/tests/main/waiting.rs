//! Wait reasons, and which turns may start.

use model::{
    AgentId, Bucket, CommandId, Control, ControlKind, PartitionId, QueryTarget, QueueStatus, TaskId,
    WaitReason,
};
use wire::status;

use crate::fixture::{Fixture, SOON, TEST_TIMEOUT, count, next, until};

async fn status_of(fixture: &Fixture, partition: PartitionId, target: QueryTarget) -> QueueStatus {
    let reply =
        fixture.bus.query_owner(partition, status::encode_query(&target), TEST_TIMEOUT).await.unwrap();
    status::decode_reply(&reply).unwrap()
}

#[tokio::test]
async fn the_owner_says_why_something_waits() {
    let fixture = Fixture::new().await;
    let agent = AgentId::parse("a1").unwrap();
    let partition = Bucket::of_key(agent.as_str()).partition(count());
    let target = || QueryTarget::Agent(agent.clone());
    until("the partition has an owner", async || {
        fixture.bus.query_owner(partition, status::encode_query(&target()), SOON).await.is_ok()
    })
    .await;
    fixture.put("a1", serde_json::json!({})).await;
    let control = Control {
        id: CommandId::parse("c1").unwrap(),
        actor: "test".into(),
        subject: agent.clone(),
        kind: ControlKind::Pause,
    };
    fixture.publish(&wire::subject::control_subject(count(), &control), wire::encode_control(&control)).await;
    fixture.send_task("a1", "k1", "one").await;
    let paused = |it: &QueueStatus| it.reason == Some(WaitReason::Paused) && it.paused;
    until("its queue is paused", async || paused(&status_of(&fixture, partition, target()).await)).await;
    let status = status_of(&fixture, partition, target()).await;
    assert_eq!(status.head, Some(TaskId::parse("k1").unwrap()));
    assert_eq!(status.active, None);

    let resume = Control { id: CommandId::parse("c2").unwrap(), kind: ControlKind::Resume, ..control };
    fixture.publish(&wire::subject::control_subject(count(), &resume), wire::encode_control(&resume)).await;
    let mut work = fixture.work("default");
    let (_item, request) = next(&mut work).await;
    let status = status_of(&fixture, partition, target()).await;
    let active = status.active.expect("its turn is under way");
    assert_eq!(active.turn.as_str(), request.turn_id);
    let taken = |status: &QueueStatus| {
        status.active.as_ref().is_some_and(|active| active.waits_for == Some(WaitReason::Taken))
    };
    until("it is known that a service took it", async || {
        taken(&status_of(&fixture, partition, target()).await)
    })
    .await;
    assert!(!status.paused);
    fixture.end().await;
}

#[tokio::test]
async fn unknown_agents_are_not_created_without_auto_create() {
    let fixture = Fixture::with(|config| config.limits.create_agents = false).await;
    fixture.put("known", serde_json::json!({})).await;
    fixture.send_task("unknown", "k1", "one").await;
    fixture.send_task("known", "k1", "two").await;
    let mut work = fixture.work("default");
    assert_eq!(next(&mut work).await.1.agent_id, "known");
    assert!(tokio::time::timeout(SOON, work.next()).await.is_err());
    until("the other task is a dead letter", async || fixture.count("dead_letters").await == 1).await;
    fixture.end().await;
}
