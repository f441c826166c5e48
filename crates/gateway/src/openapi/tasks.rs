//! The tasks of agents.

use http_server::error::ErrorCode;
use serde_json::{Value, json};

use crate::api::tasks;
use crate::api::tasks::{EditBody, TaskAccepted, TaskBody, TaskView, TasksPage, TasksQuery};
use crate::openapi::error_codes::{INPUT, PUBLISH};
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::tags::TASKS;

pub(crate) fn operations() -> Vec<Operation> {
    let accepted = json!({ "task_id": "t-1", "agent_id": "ann", "task_url": "/v1/agents/ann/tasks/t-1" });
    let one = "/v1/agents/{agent}/tasks/{task}";
    vec![
        Operation::post("/v1/agents/{agent}/tasks", "sendTask", "Give an agent work", tasks::enqueue_task)
            .tag(TASKS)
            .description("The same `task_id` is the same task for seven days. With `not_before` it enters the queue then.")
            .scope(Scope::SendTasks)
            .actor_header()
            .body::<TaskBody>(json!({ "task_id": "t-1", "content": "Write the report" }))
            .response::<TaskAccepted>(202, "It is durable, and will be in the queue", accepted)
            .with_header("Location", "Where it is.", json!({ "type": "string", "format": "uri-reference" }))
            .errors(&INPUT)
            .errors(&PUBLISH)
            .errors(&[
                ErrorCode::TaskConflict,
                ErrorCode::ThreadErased,
                ErrorCode::InvalidNotBefore,
                ErrorCode::TooManyDelayedTasks,
                ErrorCode::AgentChanged,
            ]),
        Operation::get("/v1/agents/{agent}/tasks", "listTasks", "The queue of an agent", tasks::list)
            .tag(TASKS)
            .scope(Scope::ReadAgents)
            .query::<TasksQuery>()
            .response::<TasksPage>(
                200,
                "Tasks, in the order of the queue",
                json!({ "agent_id": "ann", "tasks": [task()], "next": null }),
            )
            .errors(&[ErrorCode::UnknownAgent, ErrorCode::InvalidPosition, ErrorCode::InvalidLimit]),
        Operation::get(one, "showTask", "A task, and what became of it", tasks::get)
            .tag(TASKS)
            .scope(Scope::ReadAgents)
            .response::<TaskView>(200, "The task", task())
            .errors(&[ErrorCode::UnknownTask]),
        Operation::patch(one, "editTask", "Change a task that waits", tasks::edit)
            .tag(TASKS)
            .description("What the body leaves out stays as it is, and so does what Antiphon wrote into the metadata of a task that it sent itself.")
            .scope(Scope::OperateAgents)
            .actor_header()
            .body::<EditBody>(json!({ "content": "Write a short report" }))
            .acts()
            .errors(&INPUT)
            .errors(&[ErrorCode::UnknownTask]),
        Operation::delete(one, "dropTask", "Drop a task", tasks::delete)
            .tag(TASKS)
            .scope(Scope::OperateAgents)
            .actor_header()
            .no_body()
            .acts()
            .errors(&[ErrorCode::UnknownTask]),
        Operation::post(
            "/v1/agents/{agent}/tasks/{task}/retry",
            "retryTask",
            "Run a task again that has failed", tasks::retry
        )
        .tag(TASKS)
        .scope(Scope::OperateAgents)
        .actor_header()
        .no_body()
        .acts()
        .errors(&[ErrorCode::UnknownTask]),
    ]
}

fn task() -> Value {
    json!({
        "task_id": "t-1", "position": "7524873984012345344", "kind": "task", "status": "failed",
        "content": "Write the report", "metadata": {}, "created_at": "2026-11-22T11:49:44.123Z",
        "failure": { "code": "workflow", "message": "there is no report", "at": "2026-11-22T11:49:44.123Z" },
    })
}
