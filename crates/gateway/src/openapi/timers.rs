//! Follow-ups, schedules and delayed tasks.

use http_server::error::ErrorCode;
use serde_json::{Value, json};

use crate::api::delayed_tasks::{DelayedQuery, DelayedTaskView, DelayedTasksPage};
use crate::api::follow_ups::{FollowUpDetail, FollowUpsPage, FollowUpsQuery, SnoozeBody};
use crate::api::schedules::{ScheduleBody, ScheduleDryRun, ScheduleView, SchedulesPage};
use crate::api::{delayed_tasks, follow_ups, schedules};
use crate::openapi::error_codes::{INPUT, PUBLISH};
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::tags::TIMERS;

pub(crate) fn operations() -> Vec<Operation> {
    [follow_ups(), schedules(), delayed_tasks()].into_iter().flatten().collect()
}

fn follow_ups() -> Vec<Operation> {
    let all = "/v1/threads/{thread}/follow-ups";
    let one = "/v1/threads/{thread}/follow-ups/{timer}";
    vec![
        Operation::get(all, "listFollowUps", "When an agent speaks first, did so, or was kept from it", follow_ups::list)
            .tag(TIMERS)
            .scope(Scope::ReadThreads)
            .query::<FollowUpsQuery>()
            .response::<FollowUpsPage>(
                200,
                "Follow-ups, newest first",
                json!({ "thread_id": "hello", "follow_ups": [follow_up()], "next": null }),
            )
            .errors(&[ErrorCode::UnknownThread, ErrorCode::PartitionUnavailable, ErrorCode::InvalidLimit]),
        Operation::get(one, "showFollowUp", "Why an agent spoke first, or whether it would now", follow_ups::get)
            .tag(TIMERS)
            .description(
                "Which turn has armed it, and what each rule says: of one that waits as things stand now (nothing is changed by asking), \
                 of another as they stood when it was decided about.",
            )
            .scope(Scope::ReadThreads)
            .response::<FollowUpDetail>(200, "The follow-up", follow_up_now())
            .errors(&[ErrorCode::UnknownFollowUp]),
        Operation::post("/v1/threads/{thread}/follow-ups/{timer}/snooze", "snoozeFollowUp", "Have a follow-up wait longer, or less", follow_ups::snooze)
            .tag(TIMERS)
            .description("When it is due all rules are asked, as always.")
            .scope(Scope::WriteThreads)
            .actor_header()
            .body::<SnoozeBody>(json!({ "seconds": 3_600 }))
            .acts()
            .errors(&[ErrorCode::UnknownFollowUp, ErrorCode::FollowUpEnded, ErrorCode::InvalidSnooze]),
        Operation::delete(one, "cancelFollowUp", "Cancel a follow-up that waits", follow_ups::cancel)
            .tag(TIMERS)
            .description("One that has fired is a turn, and is stopped as such.")
            .scope(Scope::WriteThreads)
            .actor_header()
            .no_body()
            .acts()
            .errors(&[ErrorCode::UnknownFollowUp, ErrorCode::FollowUpEnded]),
    ]
}

fn schedules() -> Vec<Operation> {
    let one = "/v1/agents/{agent}/schedules/{schedule}";
    let body = || json!({ "cron": "0 9 * * 1-5", "time_zone": "Europe/Berlin", "content": "Write the report", "missed": "one" });
    vec![
        Operation::get("/v1/agents/{agent}/schedules", "listSchedules", "When an agent's work falls due", schedules::list)
            .tag(TIMERS)
            .scope(Scope::ReadAgents)
            .response::<SchedulesPage>(
                200,
                "Schedules, by their names",
                json!({ "agent_id": "ann", "schedules": [schedule()] }),
            )
            .errors(&[ErrorCode::UnknownAgent]),
        Operation::get(one, "showSchedule", "A schedule, and its next five occurrences", schedules::get)
            .tag(TIMERS)
            .scope(Scope::ReadAgents)
            .response::<ScheduleView>(200, "The schedule", schedule())
            .errors(&[ErrorCode::UnknownSchedule]),
        Operation::put(one, "putSchedule", "Create a schedule, or replace it", schedules::put)
            .tag(TIMERS)
            .description("An agent may have 64. Each occurrence sends the agent a task, whose id comes from the occurrence.")
            .scope(Scope::OperateAgents)
            .actor_header()
            .body::<ScheduleBody>(body())
            .response::<ScheduleView>(201, "It is new", schedule())
            .response::<ScheduleView>(200, "It is this now", schedule())
            .errors(&INPUT)
            .errors(&PUBLISH)
            .errors(&[
                ErrorCode::InvalidSchedule,
                ErrorCode::TooManySchedules,
                ErrorCode::ThreadErased,
                ErrorCode::AgentChanged,
                ErrorCode::UnknownAgent,
                ErrorCode::UnknownSchedule,
            ]),
        Operation::post(
            "/v1/agents/{agent}/schedules/{schedule}/dry-run",
            "tryScheduleOut",
            "When a schedule would occur", schedules::dry_run
        )
        .tag(TIMERS)
        .description("Nothing is stored.")
        .scope(Scope::ReadAgents)
        .body::<ScheduleBody>(body())
        .response::<ScheduleDryRun>(
            200,
            "The next five occurrences",
            json!({ "next_occurrences": ["2026-11-23T08:00:00Z"] }),
        )
        .errors(&INPUT)
        .errors(&[ErrorCode::InvalidSchedule]),
        Operation::delete(one, "deleteSchedule", "Delete a schedule", schedules::delete)
            .tag(TIMERS)
            .scope(Scope::OperateAgents)
            .actor_header()
            .no_body()
            .acts()
            .errors(&[ErrorCode::UnknownSchedule]),
    ]
}

fn delayed_tasks() -> Vec<Operation> {
    let one = "/v1/agents/{agent}/delayed-tasks/{task}";
    vec![
        Operation::get(
            "/v1/agents/{agent}/delayed-tasks",
            "listDelayedTasks",
            "Tasks that wait for their time",
            delayed_tasks::list,
        )
        .tag(TIMERS)
        .description("They were sent with `not_before`, and are in no queue yet.")
        .scope(Scope::ReadAgents)
        .query::<DelayedQuery>()
        .response::<DelayedTasksPage>(
            200,
            "Delayed tasks, in the order in which they are due",
            json!({ "agent_id": "ann", "delayed_tasks": [delayed_task()], "next": null }),
        )
        .errors(&[ErrorCode::UnknownAgent, ErrorCode::InvalidLimit]),
        Operation::get(one, "showDelayedTask", "A task that waits for its time", delayed_tasks::get)
            .tag(TIMERS)
            .scope(Scope::ReadAgents)
            .response::<DelayedTaskView>(200, "The task", delayed_task())
            .errors(&[ErrorCode::UnknownTask]),
        Operation::delete(
            one,
            "cancelDelayedTask",
            "Cancel a task that waits for its time",
            delayed_tasks::delete,
        )
        .tag(TIMERS)
        .scope(Scope::OperateAgents)
        .actor_header()
        .no_body()
        .acts()
        .errors(&[ErrorCode::UnknownTask]),
    ]
}

fn follow_up() -> Value {
    json!({
        "follow_up_id": "f01f3-7524873984012345345", "agent_id": "ann", "status": "pending", "trigger_type": "question_unanswered",
        "reason": "asked for the city", "source": "hint", "armed_by": "u01f3-0198c4d2e5f57a60b1d3c8a94e27f610",
        "armed_at": "2026-11-22T11:49:44.123Z", "due_at": "2026-11-22T11:54:44.123Z", "ended_at": null, "decided_by": null,
        "turn_id": null,
    })
}

fn follow_up_now() -> Value {
    let mut follow_up = follow_up();
    follow_up["verdict"] = json!("later");
    follow_up["rules"] = json!([
        { "rule": "disabled", "outcome": "passes", "until": null },
        { "rule": "quiet_hours", "outcome": "delays", "until": "2026-11-23T07:00:00Z" },
    ]);
    follow_up
}

fn schedule() -> Value {
    json!({
        "name": "daily", "cron": "0 9 * * 1-5", "at": null, "time_zone": "Europe/Berlin", "overlap": "skip", "missed": "one",
        "content": "Write the report", "metadata": {}, "enabled": true, "version": 1, "created_by": "ann@example.org",
        "created_at": "2026-11-22T11:49:44.123Z", "updated_at": "2026-11-22T11:49:44.123Z", "next_at": "2026-11-23T08:00:00Z",
        "next_occurrences": ["2026-11-23T08:00:00Z", "2026-11-24T08:00:00Z"],
    })
}

fn delayed_task() -> Value {
    json!({ "task_id": "t-1", "not_before": "2026-11-23T08:00:00Z", "content": "Write the report", "metadata": {} })
}
