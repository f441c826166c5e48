//! Why something waits, and who may begin.

use model::{Act, ActId, ActKind, AgentId, Bucket, PartitionId, TaskId};
use wire::explain::{About, Explanation, WaitReason, decode_explanation, encode_question};

use crate::bed::{Bed, PATIENCE, SOON, count, next, until};

async fn explain(bed: &Bed, partition: PartitionId, about: About) -> Explanation {
    let reply = bed.bus.ask(partition, encode_question(&about), PATIENCE).await.unwrap();
    decode_explanation(&reply).unwrap()
}

#[tokio::test]
async fn the_owner_says_why_something_waits() {
    let bed = Bed::new().await;
    let agent = AgentId::parse("a1").unwrap();
    let partition = Bucket::of_key(agent.as_str()).partition(count());
    let about = || About::Agent(agent.clone());
    until("the partition has an owner", async || {
        bed.bus.ask(partition, encode_question(&about()), SOON).await.is_ok()
    })
    .await;
    let act = Act {
        id: ActId::parse("c1").unwrap(),
        actor: "test".into(),
        subject: agent.clone(),
        what: ActKind::Pause,
    };
    bed.publish(&wire::subject::act_exact(count(), &act), wire::encode_act(&act)).await;
    bed.send_task("a1", "k1", "one").await;
    let paused = |it: &Explanation| it.reason == Some(WaitReason::Paused) && it.paused;
    until("its queue is paused", async || paused(&explain(&bed, partition, about()).await)).await;
    let explanation = explain(&bed, partition, about()).await;
    assert_eq!(explanation.head, Some(TaskId::parse("k1").unwrap()));
    assert_eq!(explanation.active, None);

    let resume = Act { id: ActId::parse("c2").unwrap(), what: ActKind::Resume, ..act };
    bed.publish(&wire::subject::act_exact(count(), &resume), wire::encode_act(&resume)).await;
    let mut work = bed.work("default");
    let (_item, request) = next(&mut work).await;
    let explanation = explain(&bed, partition, about()).await;
    let active = explanation.active.expect("its turn is under way");
    assert_eq!(
        (active.turn.as_str(), active.waits_for),
        (request.turn_id.as_str(), Some(WaitReason::NoWorkflow))
    );
    assert!(!explanation.paused);
    bed.end().await;
}

#[tokio::test]
async fn agents_that_nobody_made_are_not_created_where_that_is_forbidden() {
    let bed = Bed::with(|config| config.limits.create_agents = false).await;
    bed.put("known", serde_json::json!({})).await;
    bed.send_task("unknown", "k1", "one").await;
    bed.send_task("known", "k1", "two").await;
    let mut work = bed.work("default");
    assert_eq!(next(&mut work).await.1.agent_id, "known");
    assert!(tokio::time::timeout(SOON, work.next()).await.is_err());
    until("the other task is a dead letter", async || bed.count("dead_letters").await == 1).await;
    bed.end().await;
}
