//! Agents.

use axum::handler::Handler;
use http_server::error::ErrorCode;
use model::WaitReason;
use serde_json::{Value, json};

use crate::api::agents::{AgentBody, AgentDetail, AgentsPage, AgentsQuery, PutAnswer};
use crate::api::audit::{AuditPage, AuditQuery};
use crate::api::batches::{IncompletePage, IncompleteQuery};
use crate::api::dead_letters::{
    DeadLettersPage, DeadLettersQuery, DroppedDeadLetter, ReplayedDeadLetter, WholeDeadLetter,
};
use crate::api::usage::{UsageQuery, UsageReport};
use crate::api::{agents, audit, batches, dead_letters, usage};
use crate::app::state::AppState;
use crate::openapi::error_codes::PUBLISH;
use crate::openapi::examples::{active_turn, audit, batch};
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::tags::AGENTS;

pub(crate) fn operations() -> Vec<Operation> {
    let put = json!({ "agent_id": "ann", "workflow": "default", "settings": { "deadline_ms": 60_000 }, "version": 2 });
    vec![
        Operation::get("/v1/agents", "listAgents", "List agents", agents::list)
            .tag(AGENTS)
            .scope(Scope::ReadAgents)
            .query::<AgentsQuery>()
            .response::<AgentsPage>(200, "Agents, ordered by id", json!({ "agents": [agent()], "next": null }))
            .errors(&[ErrorCode::InvalidLimit]),
        Operation::get(
            "/v1/agents/{agent}",
            "showAgent",
            "Show an agent, its queue, and why the first task waits",
            agents::get,
        )
        .tag(AGENTS)
        .scope(Scope::ReadAgents)
        .response::<AgentDetail>(200, "The agent", agent_now())
        .errors(&[ErrorCode::UnknownAgent]),
        Operation::put(
            "/v1/agents/{agent}",
            "putAgent",
            "Create an agent or change its settings",
            agents::put,
        )
        .tag(AGENTS)
        .scope(Scope::ConfigureAgents)
        .actor_header()
        .body::<AgentBody>(json!({ "workflow": "default", "settings": { "deadline_ms": 60_000 } }))
        .response::<PutAnswer>(201, "Created", put.clone())
        .response::<PutAnswer>(200, "Updated", put)
        .errors(&[ErrorCode::InvalidSettings, ErrorCode::ThreadErased]),
        act("/v1/agents/{agent}/pause", "pauseAgent", "Pause an agent: it starts no task until it is resumed", agents::pause),
        act("/v1/agents/{agent}/resume", "resumeAgent", "Resume a paused agent", agents::resume),
        act(
            "/v1/agents/{agent}/clear-backoff",
            "clearBackoff",
            "Clear the backoff: retry the first task now",
            agents::clear_backoff,
        ),
        Operation::get("/v1/agents/{agent}/audit", "auditAgent", "Show the audit log of an agent", audit::of_agent)
            .tag(AGENTS)
            .scope(Scope::ReadAudit)
            .query::<AuditQuery>()
            .response::<AuditPage>(200, "Entries of the audit log, newest first", audit("ann"))
            .errors(&[ErrorCode::UnknownAgent, ErrorCode::InvalidLimit]),
        Operation::get(
            "/v1/agents/{agent}/batches",
            "listIncompleteBatches",
            "List incomplete turns in all threads of an agent",
            batches::incomplete_of_agent,
        )
        .tag(AGENTS)
        .scope(Scope::ReadThreads)
        .query::<IncompleteQuery>()
        .response::<IncompletePage>(
            200,
            "Incomplete batches, grouped by thread",
            json!({ "agent_id": "ann", "batches": [incomplete()], "next": null }),
        )
        .errors(&[ErrorCode::InvalidLimit, ErrorCode::InvalidId, ErrorCode::InvalidPosition]),
        Operation::get(
            "/v1/dead-letters",
            "listDeadLetters",
            "List dead letters: inputs that could not be processed, with the reason",
            dead_letters::list,
        )
        .tag(AGENTS)
        .scope(Scope::ReadDeadLetters)
        .query::<DeadLettersQuery>()
        .response::<DeadLettersPage>(
            200,
            "Dead letters, newest first",
            json!({ "dead_letters": [dead_letter()], "next": "1795000000000000:entry:3:7f3a:17" }),
        )
        .errors(&[ErrorCode::InvalidLimit, ErrorCode::InvalidId]),
        Operation::get("/v1/dead-letters/{letter}", "showDeadLetter", "Show a dead letter with its whole payload", dead_letters::get)
            .tag(AGENTS)
            .scope(Scope::ReadDeadLetters)
            .response::<WholeDeadLetter>(200, "The dead letter", whole_dead_letter())
            .errors(&[ErrorCode::UnknownDeadLetter]),
        Operation::post(
            "/v1/dead-letters/{letter}/replay",
            "replayDeadLetter",
            "Replay a dead letter: publish its payload to its stream again",
            dead_letters::replay,
        )
        .tag(AGENTS)
        .description("A dead letter is replayed once, and the ids in its payload ensure that it is processed once. Failed messages cannot be replayed.")
        .scope(Scope::OperateDeadLetters)
        .actor_header()
        .no_body()
        .response::<ReplayedDeadLetter>(
            200,
            "The payload is in the stream",
            json!({ "id": "entry:3:7f3a:17", "replayed": true, "stream": "PARTITION_3", "stream_seq": 18 }),
        )
        .errors(&PUBLISH)
        .errors(&[ErrorCode::InputTooLarge, ErrorCode::UnknownDeadLetter, ErrorCode::DeadLetterReplayed, ErrorCode::DeadLetterBusy, ErrorCode::DeadLetterNotReplayable]),
        Operation::delete("/v1/dead-letters/{letter}", "dropDeadLetter", "Delete a dead letter", dead_letters::delete)
            .tag(AGENTS)
            .scope(Scope::OperateDeadLetters)
            .actor_header()
            .no_body()
            .response::<DroppedDeadLetter>(200, "Deleted", json!({ "id": "entry:3:7f3a:17", "dropped": true }))
            .errors(&[ErrorCode::UnknownDeadLetter]),
        Operation::get("/v1/usage", "showUsage", "Show the usage of model calls in totals", usage::get)
            .tag(AGENTS)
            .scope(Scope::ReadAgents)
            .query::<UsageQuery>()
            .response::<UsageReport>(
                200,
                "Totals, ordered by group",
                json!({ "currency": "USD", "details_from": "2025-10-18", "usage": [used()] }),
            )
            .or_as("text/csv", json!({ "type": "string" }))
            .errors(&[ErrorCode::DatabaseBusy]),
    ]
}

fn used() -> Value {
    json!({
        "day": "2026-11-22", "agent_id": "ann", "thread_id": null, "user_id": null, "model": "m-1", "kind": null, "finish_reason": null,
        "calls": 12, "partial_calls": 1, "estimated_calls": 1, "input_tokens": 14_400, "output_tokens": 960, "cached_tokens": 12_288, "reasoning_tokens": 192,
        "cost": "0.0456", "unpriced_calls": 0,
    })
}

fn incomplete() -> Value {
    let mut batch = batch();
    batch["thread_id"] = json!("hello");
    batch["state"] = json!("abandoned");
    batch["incomplete_code"] = json!("unanswered_calls");
    batch["incomplete"] = json!("calls have no results: call-1");
    batch["abandoned_since"] = json!("2026-11-22T12:49:44.123Z");
    batch
}

fn dead_letter() -> Value {
    json!({
        "id": "entry:3:7f3a:17", "kind": "entry", "partition": 3, "stream_seq": 17, "subject": "chunks.3.hello", "thread_id": "hello",
        "message_id": null, "reason": "malformed", "detail": { "text": "it is neither JSON nor protobuf" }, "bytes": 4,
        "preview": "oops", "created_at": "2026-11-22T11:49:44.123Z", "replayed_at": null,
    })
}

fn whole_dead_letter() -> Value {
    let mut letter = dead_letter();
    letter["text"] = json!("oops");
    letter["hex"] = json!("6f6f7073");
    letter
}

fn act<T: 'static>(
    path: &'static str,
    id: &'static str,
    summary: &'static str,
    handler: impl Handler<T, AppState>,
) -> Operation {
    Operation::post(path, id, summary, handler)
        .tag(AGENTS)
        .scope(Scope::OperateAgents)
        .actor_header()
        .no_body()
        .acts()
        .errors(&[ErrorCode::UnknownAgent])
}

fn agent() -> Value {
    json!({
        "agent_id": "ann", "workflow": "default", "settings": { "deadline_ms": 60_000 }, "version": 2,
        "created_at": "2026-11-22T11:49:44.123Z", "updated_at": "2026-11-22T11:49:44.123Z", "pending": 3, "failed": 0,
        "head_task_id": "t-1", "paused": false, "backoff_attempt_count": 1,
        "backoff_next_run_at": "2026-11-22T11:50:44.123Z",
        "last_error": { "code": "deadline", "message": "the workflow made no progress within its deadline", "at": "2026-11-22T11:49:44.123Z" },
    })
}

fn agent_now() -> Value {
    let mut agent = agent();
    agent["owner_status"] = json!("available");
    agent["active_turn"] = active_turn();
    agent["waiting"] = json!({
        "reason": "backoff", "until": "2026-11-22T11:50:44.123Z",
        "message": WaitReason::Backoff { for_ms: 0 }.message(),
    });
    agent
}
