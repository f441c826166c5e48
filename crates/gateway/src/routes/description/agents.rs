//! Agents.

use serde_json::{Value, json};

use super::AGENTS;
use super::operation::{Operation, Scope};
use super::threads::{active_turn, audit};
use crate::routes::agents::{AgentBody, AgentNow, AgentsPage, AgentsQuery, PutAnswer};
use crate::routes::{AuditPage, AuditQuery};

pub(super) fn operations() -> Vec<Operation> {
    let put = json!({ "agent_id": "ann", "workflow": "default", "settings": { "deadline_ms": 60_000 }, "version": 2 });
    vec![
        Operation::get("/v1/agents", "listAgents", "All agents")
            .tag(AGENTS)
            .needs(Scope::ReadAgents)
            .asks::<AgentsQuery>()
            .answers::<AgentsPage>(
                200,
                "Agents, by their ids",
                json!({ "agents": [agent()], "has_more": false }),
            )
            .may_say(&["invalid_limit"]),
        Operation::get("/v1/agents/{agent}", "showAgent", "An agent, its queue, and why its head waits")
            .tag(AGENTS)
            .needs(Scope::ReadAgents)
            .answers::<AgentNow>(200, "The agent", agent_now())
            .may_say(&["unknown_agent"]),
        Operation::put("/v1/agents/{agent}", "putAgent", "Create an agent, or change its settings")
            .tag(AGENTS)
            .needs(Scope::ConfigureAgents)
            .takes_actor()
            .body::<AgentBody>(json!({ "workflow": "default", "settings": { "deadline_ms": 60_000 } }))
            .answers::<PutAnswer>(201, "It is new", put.clone())
            .answers::<PutAnswer>(200, "Its settings are these now", put)
            .may_say(&["invalid_settings"]),
        act("/v1/agents/{agent}/pause", "pauseAgent", "Start no task until it is resumed"),
        act("/v1/agents/{agent}/resume", "resumeAgent", "Start tasks again"),
        act("/v1/agents/{agent}/clear-backoff", "clearBackoff", "Try the head again now"),
        Operation::get("/v1/agents/{agent}/audit", "auditAgent", "Who did what to an agent")
            .tag(AGENTS)
            .needs(Scope::ReadAudit)
            .asks::<AuditQuery>()
            .answers::<AuditPage>(200, "Acts, newest first", audit("ann"))
            .may_say(&["unknown_agent", "invalid_limit"]),
    ]
}

fn act(path: &'static str, id: &'static str, summary: &'static str) -> Operation {
    Operation::post(path, id, summary).tag(AGENTS).needs(Scope::OperateAgents).takes_actor().no_body().acts()
}

fn agent() -> Value {
    json!({
        "agent_id": "ann", "workflow": "default", "settings": { "deadline_ms": 60_000 }, "version": 2,
        "created_at": "2026-11-22T11:49:44.123Z", "updated_at": "2026-11-22T11:49:44.123Z", "pending": 3, "failed": 0,
        "head_task_id": "t-1", "paused": false, "backoff_attempt_count": 1,
        "backoff_next_run_at": "2026-11-22T11:50:44.123Z",
        "last_error": { "code": "deadline", "text": "nobody answered", "at": "2026-11-22T11:49:44.123Z" },
    })
}

fn agent_now() -> Value {
    let mut agent = agent();
    agent["owner"] = json!("present");
    agent["active_turn"] = active_turn();
    agent["waiting"] = json!({ "reason": "backoff until", "until": "2026-11-22T11:50:44.123Z" });
    agent
}
