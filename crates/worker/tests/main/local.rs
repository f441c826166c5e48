//! Workflows inside the process.

use std::sync::Arc;

use model::{Chunk, Role, WorkflowName};
use worker::{LocalWorkflow, LocalWorkflows};

use crate::fixture::Fixture;

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
    // Nothing else shows whether it is read again: the thread's version says that it is as it was.
    fixture.execute("UPDATE messages SET content = 'read again' WHERE position = (SELECT min(position) FROM messages)").await;
    assert_eq!(run(60..70).await, "139: task 0");
    fixture.execute("UPDATE threads SET revision = revision + 1").await;
    assert_eq!(run(70..71).await, "141: read again");
    fixture.end().await;
}
