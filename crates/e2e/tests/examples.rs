//! The example services in other languages answer a real fleet.

use std::time::Duration;

use serde_json::json;
use testkit::{db_snapshot::turns, examples, fleet::WorkflowOptions, sse::StreamEvent};

use crate::{
    api_client::{SOON, alone, events, said, text_seen, until_ended},
    fixture::Fixture,
};

#[tokio::test(flavor = "multi_thread")]
async fn the_example_in_python_serves_a_workflow() {
    serves_a_workflow(examples::python("example").await.unwrap(), "Python heard: ").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_in_typescript_serves_a_workflow() {
    serves_a_workflow(examples::typescript("example").await.unwrap(), "TypeScript heard: ").await;
}

/// An answer, a failure, a task, a stop, a redelivery after a kill, a drain.
async fn serves_a_workflow(service: WorkflowOptions, greeting: &str) {
    let mut fixture = Fixture::with(|options| alone(options).with_workflow(service.clone())).await;
    let api = fixture.api();
    // The consumer is changed where it is there already: what is not acknowledged comes again soon.
    let consumer = fixture.manual_workflow_of("example", Duration::from_secs(2)).await;
    let settings = json!({"backoff_base_ms": 1});
    for agent in ["talk", "ann"] {
        api.put_agent(agent, "example", settings.clone()).await.unwrap();
    }
    let follower = fixture.following("talk").await;
    let hello = api.say("talk", "hello there").await.unwrap();
    until_ended(&follower, &hello.answer).await;
    assert_eq!(text_seen(&follower, &hello.answer), format!("{greeting}hello there "));
    let failing = api.say("talk", "fail now").await.unwrap();
    until_ended(&follower, &failing.answer).await;
    let failed = turns::failed_turns(&fixture.pool).await.unwrap();
    assert_eq!((failed[0].turn_id.as_str(), failed[0].is_retryable), (failing.id.as_str(), false));
    fixture.send_tasks("ann", [("k".to_owned(), "a task".to_owned())]).await;
    fixture.until_tasks("ann", &["completed"]).await;
    let task = fixture.messages_of("ann").await;
    assert_eq!(said(&task), [("user", "a task"), ("assistant", &format!("{greeting}a task "))]);
    assert_eq!(task[1].metadata["model"], "echo");
    // A stop ends it at once; the service goes on with others.
    let many = vec!["word"; 500].join(" ");
    let stopped = api.say("talk", &many).await.unwrap();
    let pieces = |message: &str| text_seen(&follower, message).split(' ').count();
    // Piece by piece: it speaks before it has ended.
    fixture.until("it speaks", SOON, async || pieces(&stopped.answer) > 5).await;
    api.stop(&stopped.id).await.unwrap();
    until_ended(&follower, &stopped.answer).await;
    fixture
        .until("the request is done with", SOON, async || consumer.standing().await.unwrap() == (0, 0))
        .await;
    // Killed in the middle, it is followed by a next attempt.
    let cut = api.say("talk", "one two three four five six seven eight nine ten").await.unwrap();
    fixture.until("it speaks", SOON, async || pieces(&cut.answer) > 2).await;
    fixture.fleet.workflows[0].restart().await.unwrap();
    until_ended(&follower, &cut.answer).await;
    let resets = events(&follower).iter().filter(|event| matches!(event, StreamEvent::Reset { .. })).count();
    assert_eq!(resets, 1);
    let messages = fixture.messages_of("talk").await;
    let last = messages.last().unwrap();
    assert_eq!(last.content, format!("{greeting}one two three four five six seven eight nine ten "));
    assert_eq!((last.message_id.as_str(), last.attempt), (cut.answer.as_str(), 1));
    // Told to end, it finishes what it has in hand.
    let drained = api.say("talk", "and now to something completely different").await.unwrap();
    fixture.until("it speaks", SOON, async || pieces(&drained.answer) > 2).await;
    fixture.fleet.workflows[0].terminate();
    let status = fixture.fleet.workflows[0].ended(Duration::from_secs(30)).await.unwrap();
    assert!(status.success(), "{status}: {}", fixture.fleet.workflows[0].log_tail());
    until_ended(&follower, &drained.answer).await;
    let last = fixture.messages_of("talk").await.pop().unwrap();
    assert_eq!((last.message_id.as_str(), last.attempt), (drained.answer.as_str(), 0));
}
