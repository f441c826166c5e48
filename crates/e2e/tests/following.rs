//! Work that follows a turn, and continuations without a person: never before a task, never while
//! the agent backs off or is paused.

use serde_json::{Value, json};
use testkit::{db_snapshot::turns, manual_workflow::ManualWorkflow};

use crate::{
    api_client::{SOON, alone, asked_for, said},
    fixture::Fixture,
};

/// The next request, which must be for this task.
async fn asked_to(
    manual_workflow: &ManualWorkflow,
    task: &str,
) -> testkit::manual_workflow::DeliveredRequest {
    let asked = manual_workflow.next(SOON).await.unwrap();
    assert_eq!(asked.request.task.as_ref().map(|task| task.task_id.as_str()), Some(task));
    asked
}

async fn fails(manual_workflow: &ManualWorkflow, task: &str) {
    let mut asked = asked_to(manual_workflow, task).await;
    asked.fail("busy", json!({"class": "transient"})).await.unwrap();
    asked.ack().await.unwrap();
}

impl Fixture {
    async fn until_backing_off(&self, agent: &str) {
        self.until(&format!("{agent} backs off"), SOON, async || {
            turns::agent(&self.pool, agent)
                .await
                .unwrap()
                .is_some_and(|agent| agent.backoff_attempt_count > 0)
        })
        .await;
    }
}

fn shown(history: &[Value]) -> Vec<&str> {
    history.iter().map(|message| message["content"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn background_tasks_precede_no_task_and_back_off_no_agent() {
    let fixture = Fixture::with(alone).await;
    let (api, manual_workflow) = (fixture.api(), fixture.manual_workflow().await);
    fixture.settle("ann", json!({"memory": true, "system": "You are Ann."})).await;
    api.create_thread(&json!({"thread_id": "talk", "agent_id": "ann"})).await.unwrap();
    let send =
        async |task: &str| fixture.send_tasks("ann", vec![(task.to_owned(), "do it".to_owned())]).await;
    // While the agent backs off, only people are answered.
    send("k-0").await;
    fails(&manual_workflow, "k-0").await;
    fixture.until_backing_off("ann").await;
    let turn = api.say("talk", "I live in Rome.").await.unwrap();
    asked_for(&manual_workflow, &turn).await.answer("Noted.").await.unwrap();
    fixture.until_tasks("ann+memory", &["pending"]).await;
    fixture.no_request_comes(&manual_workflow).await;
    api.act("ann", "clear-backoff").await.unwrap();
    asked_to(&manual_workflow, "k-0").await.answer("done").await.unwrap();
    // The memory task contains what was said, and nothing else: no other thread is read for it.
    let memory = format!("{}-memory", turn.id);
    let mut asked = asked_to(&manual_workflow, &memory).await;
    assert_eq!((asked.request.agent_id.as_str(), asked.request.thread_id.as_str()), ("ann", "ann+memory"));
    let context = asked.raw["context"].as_array().unwrap();
    let last = context.last().unwrap()["content"].as_str().unwrap();
    assert!(last.ends_with("user: I live in Rome.\nassistant: Noted.\n"), "{context:?}");
    // The memory task fails, and only its own queue waits.
    asked.fail("busy", json!({"class": "transient"})).await.unwrap();
    asked.ack().await.unwrap();
    fixture.until_backing_off("ann+memory").await;
    let ann = turns::agent(&fixture.pool, "ann").await.unwrap().unwrap();
    assert_eq!((ann.backoff_attempt_count, ann.next_run_ms), (0, None));
    send("k-1").await;
    asked_to(&manual_workflow, "k-1").await.answer("done").await.unwrap();
    fixture.until_tasks("ann", &["completed", "completed"]).await;
    // Operators manage this queue like any other.
    let queue = api.agent("ann+memory").await.unwrap();
    assert_eq!((&queue["pending"], &queue["waiting"]["reason"]), (&json!(1), &json!("backoff")));
    assert_eq!(api.act("ann+memory", "clear-backoff").await.unwrap()["status"], json!("done"));
    asked_to(&manual_workflow, &memory).await.answer("lives in Rome").await.unwrap();
    fixture.until_tasks("ann+memory", &["completed"]).await;
    // The thread shows nothing of the memory task.
    assert_eq!(shown(&api.history("talk").await.unwrap()), ["I live in Rome.", "Noted."]);
    assert_eq!(fixture.messages_of("ann").await.len(), 4, "two tasks");
    for refused in ["/v1/threads/ann+memory/history", "/v1/threads/ann%2Bmemory/events"] {
        assert!(api.call("GET", refused, None).await.is_err(), "{refused}");
    }
    fixture.no_request_comes(&manual_workflow).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_goes_on_once_its_agent_may_and_people_pass_it() {
    let fixture = Fixture::with(alone).await;
    let (api, manual_workflow) = (fixture.api(), fixture.manual_workflow().await);
    api.create_thread(&json!({"thread_id": "talk", "agent_id": "ann"})).await.unwrap();
    let turn = api.say("talk", "count").await.unwrap();
    let mut asked = asked_for(&manual_workflow, &turn).await;
    api.act("ann", "pause").await.unwrap();
    asked.say_with("One,", json!({"is_final": true, "metadata": {"continuation": true}})).await.unwrap();
    asked.ack().await.unwrap();
    fixture.until_messages("talk", 2).await;
    fixture.no_request_comes(&manual_workflow).await;
    fixture
        .until("it says why", SOON, async || {
            let waiting = api.thread("talk").await.unwrap()["waiting_turns"].clone();
            waiting.as_array().is_some_and(|waiting| waiting.len() == 1)
        })
        .await;
    let other = json!({"content": "and you?", "busy_policy": "reject"});
    let other = api.say_with("talk", &other, &[]).await.unwrap();
    assert_eq!(other.status, 202, "{other:?}");
    manual_workflow.next(SOON).await.unwrap().answer("Fine.").await.unwrap();
    fixture.until_messages("talk", 4).await;
    fixture.no_request_comes(&manual_workflow).await;
    api.act("ann", "resume").await.unwrap();
    manual_workflow.next(SOON).await.unwrap().answer("two.").await.unwrap();
    let messages = fixture.until_messages("talk", 6).await;
    assert_eq!(said(&messages)[5], ("assistant", "two."));
    assert_eq!(messages[5].batch_id, messages[0].batch_id, "the batch that it goes on with");
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_inputs_wait_for_the_end_of_the_backoff() {
    let fixture = Fixture::with(alone).await;
    let (api, manual_workflow) = (fixture.api(), fixture.manual_workflow().await);
    fixture.settle("ann", json!({"foreground_during_backoff": "refuse"})).await;
    api.create_thread(&json!({"thread_id": "talk", "agent_id": "ann"})).await.unwrap();
    let first = api.say("talk", "one").await.unwrap();
    let asked = asked_for(&manual_workflow, &first).await;
    let waiting = [api.say("talk", "two").await.unwrap(), api.say("talk", "three").await.unwrap()];
    fixture.send_tasks("ann", vec![("k-0".to_owned(), "do it".to_owned())]).await;
    fails(&manual_workflow, "k-0").await;
    fixture.until_backing_off("ann").await;
    asked.answer("1").await.unwrap();
    fixture.until_messages("talk", 2).await;
    fixture.no_request_comes(&manual_workflow).await;
    api.act("ann", "clear-backoff").await.unwrap();
    let mut left: Vec<String> = waiting.iter().map(|turn| turn.id.clone()).collect();
    for _ in 0..3 {
        let asked = manual_workflow.next(SOON).await.unwrap();
        if asked.request.task.is_none() {
            assert_eq!(asked.request.turn_id, left.remove(0), "in their order");
        }
        asked.answer("done").await.unwrap();
    }
    let texts: Vec<_> = fixture.until_messages("talk", 6).await;
    assert_eq!(
        said(&texts).iter().step_by(2).map(|said| said.1).collect::<Vec<_>>(),
        ["one", "two", "three"]
    );
}
