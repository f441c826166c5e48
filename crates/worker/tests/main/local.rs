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
