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
        Operation::get(all, "listFollowUps", "List follow-ups: proactive messages that are pending, sent or suppressed", follow_ups::list)
            .tag(TIMERS)
            .scope(Scope::ReadThreads)
            .query::<FollowUpsQuery>()
            .response::<FollowUpsPage>(
                200,
                "Follow-ups, newest first",
                json!({ "thread_id": "hello", "follow_ups": [follow_up()], "next": null }),
            )
            .errors(&[ErrorCode::UnknownThread, ErrorCode::PartitionUnavailable, ErrorCode::InvalidLimit]),
        Operation::get(one, "showFollowUp", "Show a follow-up: why it fired, or whether it would fire now", follow_ups::get)
            .tag(TIMERS)
            .description(
                "Shows the turn that armed it and the outcome of each rule. For a pending follow-up the rules are evaluated now, without \
                 changing anything; otherwise the outcomes are those of the decision.",
            )
            .scope(Scope::ReadThreads)
            .response::<FollowUpDetail>(200, "The follow-up", follow_up_now())
            .errors(&[ErrorCode::UnknownFollowUp]),
        Operation::post("/v1/threads/{thread}/follow-ups/{timer}/snooze", "snoozeFollowUp", "Postpone a follow-up, or bring it forward", follow_ups::snooze)
            .tag(TIMERS)
            .description("All rules are evaluated when it is due, as usual.")
            .scope(Scope::WriteThreads)
            .actor_header()
            .body::<SnoozeBody>(json!({ "seconds": 3_600 }))
            .acts()
            .errors(&[ErrorCode::UnknownFollowUp, ErrorCode::FollowUpEnded, ErrorCode::InvalidSnooze]),
        Operation::delete(one, "cancelFollowUp", "Cancel a pending follow-up", follow_ups::cancel)
            .tag(TIMERS)
            .description("A follow-up that has fired is a turn: stop the turn instead.")
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
        Operation::get("/v1/agents/{agent}/schedules", "listSchedules", "List the schedules of an agent", schedules::list)
            .tag(TIMERS)
            .scope(Scope::ReadAgents)
            .response::<SchedulesPage>(
                200,
                "Schedules, ordered by name",
                json!({ "agent_id": "ann", "schedules": [schedule()] }),
            )
            .errors(&[ErrorCode::UnknownAgent]),
        Operation::get(one, "showSchedule", "Show a schedule and its next five occurrences", schedules::get)
            .tag(TIMERS)
            .scope(Scope::ReadAgents)
            .response::<ScheduleView>(200, "The schedule", schedule())
            .errors(&[ErrorCode::UnknownSchedule]),
        Operation::put(one, "putSchedule", "Create or replace a schedule", schedules::put)
            .tag(TIMERS)
            .description("An agent may have 64 schedules. Each occurrence sends the agent a task whose id is derived from the occurrence.")
            .scope(Scope::OperateAgents)
            .actor_header()
            .body::<ScheduleBody>(body())
            .response::<ScheduleView>(201, "Created", schedule())
            .response::<ScheduleView>(200, "Replaced", schedule())
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
            "Preview the next occurrences of a schedule", schedules::dry_run
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
            "List delayed tasks",
            delayed_tasks::list,
        )
        .tag(TIMERS)
        .description("Tasks that were sent with `not_before` and are not queued yet.")
        .scope(Scope::ReadAgents)
        .query::<DelayedQuery>()
        .response::<DelayedTasksPage>(
            200,
            "Delayed tasks, ordered by due time",
            json!({ "agent_id": "ann", "delayed_tasks": [delayed_task()], "next": null }),
        )
        .errors(&[ErrorCode::UnknownAgent, ErrorCode::InvalidLimit]),
        Operation::get(one, "showDelayedTask", "Show a delayed task", delayed_tasks::get)
            .tag(TIMERS)
            .scope(Scope::ReadAgents)
            .response::<DelayedTaskView>(200, "The task", delayed_task())
            .errors(&[ErrorCode::UnknownTask]),
        Operation::delete(one, "cancelDelayedTask", "Cancel a delayed task", delayed_tasks::delete)
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
