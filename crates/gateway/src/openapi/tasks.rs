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
        Operation::post("/v1/agents/{agent}/tasks", "sendTask", "Send a task to an agent", tasks::enqueue_task)
            .tag(TASKS)
            .description("For seven days a repeated `task_id` means the same task. With `not_before` the task enters the queue at that time.")
            .scope(Scope::SendTasks)
            .actor_header()
            .body::<TaskBody>(json!({ "task_id": "t-1", "content": "Write the report" }))
            .response::<TaskAccepted>(202, "Stored durably; the task will be queued", accepted)
            .with_header("Location", "The URL of the task.", json!({ "type": "string", "format": "uri-reference" }))
            .errors(&INPUT)
            .errors(&PUBLISH)
            .errors(&[
                ErrorCode::TaskConflict,
                ErrorCode::ThreadErased,
                ErrorCode::InvalidNotBefore,
                ErrorCode::TooManyDelayedTasks,
                ErrorCode::AgentChanged,
            ]),
        Operation::get("/v1/agents/{agent}/tasks", "listTasks", "List the task queue of an agent", tasks::list)
            .tag(TASKS)
            .scope(Scope::ReadAgents)
            .query::<TasksQuery>()
            .response::<TasksPage>(
                200,
                "Tasks, in queue order",
                json!({ "agent_id": "ann", "tasks": [task()], "next": null }),
            )
            .errors(&[ErrorCode::UnknownAgent, ErrorCode::InvalidPosition, ErrorCode::InvalidLimit]),
        Operation::get(one, "showTask", "Show a task and its outcome", tasks::get)
            .tag(TASKS)
            .scope(Scope::ReadAgents)
            .response::<TaskView>(200, "The task", task())
            .errors(&[ErrorCode::UnknownTask]),
        Operation::patch(one, "editTask", "Edit a pending task", tasks::edit)
            .tag(TASKS)
            .description("Omitted fields are unchanged. Metadata that Antiphon wrote into its own tasks is also unchanged.")
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
            "Retry a failed task", tasks::retry
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
