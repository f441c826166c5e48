//! Workflows inside the process.

use std::sync::{Arc, Mutex};

use model::{Chunk, ChunkKind, Frame, IncomingChunk, MessageId, Metadata, Role, ThreadId, WorkflowName};
use serde_json::{Value, json};
use worker::{LocalWorkflow, LocalWorkflows};

use crate::fixture::{Fixture, count, until};

#[tokio::test]
async fn a_workflow_inside_the_process_answers_at_once() {
    let echo: LocalWorkflow = Arc::new(|request| {
        let input = &request.context.last().unwrap().content;
        let texts = [format!("{}: ", request.context.len()), input.clone()];
        let chunk = |(id, text): (usize, &String)| Arc::new(Chunk::content(id as u32, text, id == 1));
        texts.iter().enumerate().map(chunk).collect()
    });
    let name = WorkflowName::parse("default").unwrap();
    let fixture = Fixture::with(|config| config.local_workflows = LocalWorkflows::new([(name, echo)])).await;
    for number in 0..3 {
        fixture.send_task("a1", &format!("k{number}"), &format!("task {number}")).await;
    }
    let said = fixture.said("a1", 6).await;
    let answers: Vec<_> =
        said.iter().filter(|(role, _)| *role == Role::Assistant).map(|it| it.1.as_str()).collect();
    assert_eq!(answers, ["1: task 0", "3: task 1", "5: task 2"]);
    assert!(fixture.stored("WORK").await.is_empty());
    fixture.end().await;
}

#[tokio::test]
async fn a_long_context_is_read_once() {
    let shows_first: LocalWorkflow = Arc::new(|request| {
        let first = &request.context.first().unwrap().content;
        vec![Arc::new(Chunk::content(0, &format!("{}: {first}", request.context.len()), true))]
    });
    let name = WorkflowName::parse("default").unwrap();
    let fixture =
        Fixture::with(|config| config.local_workflows = LocalWorkflows::new([(name, shows_first)])).await;
    let run = async |numbers: std::ops::Range<usize>| {
        for number in numbers.clone() {
            fixture.send_task("a1", &format!("k{number}"), &format!("task {number}")).await;
        }
        fixture.said("a1", numbers.end * 2).await.pop().unwrap().1
    };
    assert_eq!(run(0..60).await, "119: task 0");
    // The thread's version is unchanged, so only the new text would show that the message was read
    // again.
    fixture.execute("UPDATE messages SET content = 'read again' WHERE position = (SELECT min(position) FROM messages)").await;
    assert_eq!(run(60..70).await, "139: task 0");
    fixture.execute("UPDATE threads SET revision = revision + 1").await;
    assert_eq!(run(70..71).await, "141: read again");
    // Messages read beyond the first page are cached as well.
    fixture
        .execute("UPDATE messages SET content = 'read twice' WHERE position = (SELECT min(position) FROM messages)")
        .await;
    assert_eq!(run(71..72).await, "143: read again");
    fixture.end().await;
}

fn chunk(id: u32, kind: ChunkKind, text: &str, metadata: &Value) -> Arc<Chunk> {
    let metadata = Metadata::new(metadata.as_object().unwrap().clone()).unwrap();
    Arc::new(Chunk { kind, metadata, ..Chunk::content(id, text, false) })
}

/// Everything a turn may store: two steps, a call with its result, reasoning, and metadata of every
/// type.
fn answer(text: &str) -> Vec<Arc<Chunk>> {
    let call = json!({"tool_call_id": "c1", "tool_name": "look"});
    let odd = json!({"zz": 1, "a": {"n": [1.0, 1e30, -7, u64::MAX, null, "é\u{1f600}"]}, "tokens_used": 12});
    let last = chunk(4, ChunkKind::Content, text, &odd);
    vec![
        chunk(0, ChunkKind::Reasoning, "think", &json!({})),
        chunk(1, ChunkKind::ToolCall, "{\"b\": 1, \"a\": 2.50}", &call),
        chunk(2, ChunkKind::ToolResult, "seen", &call),
        chunk(3, ChunkKind::Reasoning, "again", &json!({})),
        Arc::new(Chunk { is_final: true, ..(*last).clone() }),
    ]
}

#[tokio::test]
async fn what_is_committed_is_as_it_would_be_read() {
    let requests = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&requests);
    let workflow: LocalWorkflow = Arc::new(move |request| {
        seen.lock().unwrap().push(json!(request.context));
        answer(&request.context.last().unwrap().content)
    });
    let name = WorkflowName::parse("default").unwrap();
    let fixture =
        Fixture::with(|config| config.local_workflows = LocalWorkflows::new([(name, workflow)])).await;
    // One turn per thread. The cached version of the first thread is never valid, so that it is
    // always read.
    let turns = async |number: usize, stored: usize| {
        fixture.execute("UPDATE threads SET revision = revision + 1 WHERE thread_id = 'reads'").await;
        for agent in ["reads", "knows"] {
            fixture.send_task(agent, &format!("k{number}"), &format!("task {number}")).await;
            fixture.said(agent, stored).await;
        }
        let (mut known, mut read) = {
            let mut requests = requests.lock().unwrap();
            (requests.pop().unwrap(), requests.pop().unwrap())
        };
        let mut stored = fixture.history("knows").await.into_iter();
        for message in known.as_array_mut().unwrap() {
            let id = message.as_object_mut().unwrap().remove("message_id").unwrap();
            assert_eq!(id, stored.next().unwrap().message_id.as_str());
        }
        read.as_array_mut()
            .unwrap()
            .iter_mut()
            .for_each(|it| drop(it.as_object_mut().unwrap().remove("message_id")));
        assert_eq!(known, read);
        known.to_string()
    };
    for number in 0..4 {
        turns(number, (number + 1) * 4).await;
    }
    // Another publisher writes to the threads.
    for thread in ["reads", "knows"] {
        let arrival = IncomingChunk {
            message: MessageId::parse("bare").unwrap(),
            attempt: 0,
            step: 0,
            role: Role::Assistant,
            chunk: Arc::new(Chunk::content(0, "from elsewhere", true)),
        };
        let thread = ThreadId::parse(thread).unwrap();
        let subject = wire::subject::partition_chunks(count(), &thread);
        let frame = Frame { thread, chunks: vec![arrival], token: None };
        fixture.publish(&subject, wire::encode_json(&frame)).await;
    }
    until("it is stored", async || {
        fixture.history("knows").await.len() == 17 && fixture.history("reads").await.len() == 17
    })
    .await;
    turns(4, 21).await;
    let known = turns(5, 25).await;
    assert!(known.contains("task 4") && known.contains("1e+30") && known.contains("seen"), "{known}");
    // Content changed in the store shows that one thread was read and the other one cached.
    fixture.execute("UPDATE messages SET content = 'read again'").await;
    fixture.execute("UPDATE threads SET revision = revision + 1 WHERE thread_id = 'reads'").await;
    for (agent, is_read) in [("reads", true), ("knows", false)] {
        fixture.send_task(agent, "last", "last").await;
        fixture.said(agent, 29).await;
        let last = requests.lock().unwrap().pop().unwrap().to_string();
        assert_eq!((last.contains("read again"), last.contains("task 5")), (is_read, !is_read), "{last}");
    }
    fixture.end().await;
}
