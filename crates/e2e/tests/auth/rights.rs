//! The table of rights: each operation of the API with the scope that it needs. A new operation
//! needs a line here.

use serde_json::{Value, json};
use testkit::api::Api;

/// Every route that needs a permission, with a valid body.
pub(super) fn routes() -> Vec<(&'static str, &'static str, &'static str, Option<Value>)> {
    let empty = || Some(json!({}));
    let said = || Some(json!({"content": "hi"}));
    vec![
        ("POST", "/v1/threads", "threads:write", empty()),
        ("GET", "/v1/threads", "threads:read", None),
        ("GET", "/v1/threads/t1", "threads:read", None),
        ("PATCH", "/v1/threads/t1", "threads:write", empty()),
        ("PUT", "/v1/threads/t1/messages/m1/feedback", "threads:write", empty()),
        ("DELETE", "/v1/threads/t1/messages/m1/feedback", "threads:write", None),
        ("GET", "/v1/feedback", "threads:read", None),
        ("GET", "/v1/threads/t1/events", "threads:read", None),
        ("GET", "/v1/threads/t1/history", "threads:read", None),
        ("GET", "/v1/threads/t1/export", "threads:read", None),
        ("GET", "/v1/export", "data:export", None),
        ("POST", "/v1/import", "data:import", empty()),
        ("GET", "/v1/threads/t1/context", "threads:read", None),
        ("GET", "/v1/threads/t1/compactions", "threads:read", None),
        ("GET", "/v1/threads/t1/batches", "threads:read", None),
        ("GET", "/v1/threads/t1/batches/1", "threads:read", None),
        ("GET", "/v1/threads/t1/failed-turns", "threads:read", None),
        ("POST", "/v1/threads/t1/tickets", "threads:read", empty()),
        ("POST", "/v1/threads/t1/messages", "threads:write", said()),
        ("POST", "/v1/threads/t1/compactions/undo", "agents:operate", empty()),
        ("DELETE", "/v1/threads/t1/failed-turns/u0000-x", "agents:operate", None),
        ("POST", "/v1/threads/t1/failed-turns/u0000-x/retry", "agents:operate", empty()),
        ("GET", "/v1/threads/t1/audit", "audit:read", None),
        ("POST", "/v1/threads/t1/batches/7/continue", "threads:write", empty()),
        ("POST", "/v1/threads/t1/notes", "agents:operate", said()),
        ("GET", "/v1/turns/u0000-x", "threads:read", None),
        ("POST", "/v1/turns/u0000-x/stop", "threads:write", empty()),
        ("GET", "/v1/agents", "agents:read", None),
        ("GET", "/v1/reasoning/s1", "reasoning:read", None),
        ("GET", "/v1/reasoning/s1/messages/1", "reasoning:read", None),
        ("GET", "/v1/agents/a1", "agents:read", None),
        ("PUT", "/v1/agents/a1", "agents:configure", Some(json!({"workflow": "default"}))),
        ("POST", "/v1/agents/a1/pause", "agents:operate", empty()),
        ("POST", "/v1/agents/a1/resume", "agents:operate", empty()),
        ("POST", "/v1/agents/a1/clear-backoff", "agents:operate", empty()),
        ("GET", "/v1/agents/a1/audit", "audit:read", None),
        ("GET", "/v1/agents/a1/batches", "threads:read", None),
        ("GET", "/v1/agents/a1/tasks", "agents:read", None),
        ("POST", "/v1/agents/a1/tasks", "tasks:write", said()),
        ("GET", "/v1/agents/a1/tasks/x", "agents:read", None),
        ("PATCH", "/v1/agents/a1/tasks/x", "agents:operate", said()),
        ("DELETE", "/v1/agents/a1/tasks/x", "agents:operate", None),
        ("POST", "/v1/agents/a1/tasks/x/retry", "agents:operate", empty()),
        ("GET", "/v1/threads/t1/follow-ups", "threads:read", None),
        ("GET", "/v1/threads/t1/follow-ups/x", "threads:read", None),
        ("DELETE", "/v1/threads/t1/follow-ups/x", "threads:write", None),
        ("POST", "/v1/threads/t1/follow-ups/x/snooze", "threads:write", Some(json!({"seconds": 60}))),
        ("GET", "/v1/agents/a1/memory", "threads:read", None),
        ("POST", "/v1/agents/a1/memory", "agents:operate", empty()),
        ("PATCH", "/v1/agents/a1/memory/x", "agents:operate", empty()),
        ("DELETE", "/v1/agents/a1/memory/x", "agents:operate", None),
        ("GET", "/v1/budgets", "agents:read", None),
        ("GET", "/v1/budgets/x", "agents:read", None),
        ("PUT", "/v1/budgets/x", "agents:configure", Some(json!({"tokens": 1, "period": "day"}))),
        ("DELETE", "/v1/budgets/x", "agents:configure", None),
        ("GET", "/v1/budgets/x/audit", "audit:read", None),
        ("GET", "/v1/agents/a1/schedules", "agents:read", None),
        ("GET", "/v1/agents/a1/schedules/x", "agents:read", None),
        ("PUT", "/v1/agents/a1/schedules/x", "agents:operate", empty()),
        ("DELETE", "/v1/agents/a1/schedules/x", "agents:operate", None),
        ("POST", "/v1/agents/a1/schedules/x/dry-run", "agents:read", empty()),
        ("GET", "/v1/agents/a1/delayed-tasks", "agents:read", None),
        ("GET", "/v1/agents/a1/delayed-tasks/x", "agents:read", None),
        ("DELETE", "/v1/agents/a1/delayed-tasks/x", "agents:operate", None),
        ("GET", "/v1/usage?from=2026-11-22T00:00:00Z&to=2026-11-23T00:00:00Z", "agents:read", None),
        ("GET", "/v1/dead-letters", "dead-letters:read", None),
        ("GET", "/v1/dead-letters/entry:0:s:1", "dead-letters:read", None),
        ("POST", "/v1/dead-letters/entry:0:s:1/replay", "dead-letters:operate", empty()),
        ("DELETE", "/v1/dead-letters/entry:0:s:1", "dead-letters:operate", None),
        ("GET", "/v1/incidents", "fleet:read", None),
        ("POST", "/v1/incidents/acknowledge", "fleet:operate", Some(json!({"partition": "all"}))),
        ("POST", "/v1/threads/t1/fork", "threads:write", Some(json!({"thread_id": "t1-copy"}))),
        ("POST", "/v1/reasoning/s1/undo", "reasoning:write", empty()),
        ("DELETE", "/v1/threads/t8", "data:erase", None),
        ("DELETE", "/v1/users/unknown?dry_run=true", "data:erase", None),
        ("DELETE", "/v1/tenants/unknown?dry_run=true", "data:erase", None),
        ("GET", "/v1/erasures", "data:erase", None),
        ("GET", "/v1/erasures/0198c4d2e5f57a60b1d3c8a94e27f610", "data:erase", None),
        ("GET", "/v1/tool-incidents", "threads:read", None),
        ("POST", "/v1/threads/t1/tool-incidents/u0001-t1/x/decide", "agents:operate", empty()),
        ("GET", "/v1/keys", "keys:manage", None),
        (
            "POST",
            "/v1/keys",
            "keys:manage",
            Some(json!({"name": "k", "role": "admin", "scopes": ["keys:manage"]})),
        ),
        ("DELETE", "/v1/keys/0123456789abcdef", "keys:manage", None),
        ("POST", "/v1/keys/0123456789abcdef/rotate", "keys:manage", empty()),
        ("POST", "/v1/signing-keys/tickets/rotate", "fleet:operate", empty()),
        ("GET", "/v1/signing-keys/tickets/audit", "audit:read", None),
        ("GET", "/v1/erased-tenants", "data:erase", None),
        ("POST", "/v1/tenants/unknown/reopen", "data:erase", empty()),
        ("GET", "/v1/tenants/unknown/audit", "audit:read", None),
        ("GET", "/v1/keys/0123456789abcdef/audit", "audit:read", None),
        ("POST", "/api/chat", "threads:write", empty()),
        ("GET", "/api/chat/idle", "threads:read", None),
        ("GET", "/api/chat/idle/stream", "threads:read", None),
        ("POST", "/api/chat/idle/stop?message=x", "threads:write", empty()),
        ("POST", "/v1/chat/completions", "threads:write", empty()),
        ("GET", "/v1/models", "agents:read", None),
        ("GET", "/v1/models/a1", "agents:read", None),
        ("POST", "/v1/responses", "threads:write", empty()),
        ("GET", "/v1/responses/resp_x", "threads:read", None),
        ("GET", "/v1/responses/resp_x/input_items", "threads:read", None),
        ("POST", "/v1/responses/resp_x/cancel", "threads:write", empty()),
        ("POST", "/agui", "threads:write", empty()),
        ("POST", "/agui/connect", "threads:read", empty()),
    ]
}

pub(super) const ROLES: [(&str, &[&str]); 3] = [
    ("viewer", &["threads:read", "agents:read", "reasoning:read", "memory:read"]),
    (
        "operator",
        &[
            "threads:read",
            "agents:read",
            "threads:write",
            "tasks:write",
            "agents:operate",
            "audit:read",
            "reasoning:read",
            "reasoning:write",
            "memory:read",
            "memory:write",
            "fleet:read",
        ],
    ),
    (
        "admin",
        &[
            "threads:read",
            "agents:read",
            "threads:write",
            "tasks:write",
            "agents:operate",
            "audit:read",
            "agents:configure",
            "dead-letters:read",
            "dead-letters:operate",
            "keys:manage",
            "reasoning:read",
            "reasoning:write",
            "memory:read",
            "memory:write",
            "fleet:read",
            "fleet:operate",
            "data:erase",
            "data:export",
            "data:import",
        ],
    ),
];

/// Checks that the routes above are exactly those of the description, with the same scopes.
pub(super) async fn matches_the_description(api: Api) {
    let description = api.call("GET", "/openapi.json", None).await.unwrap();
    let is_of = |template: &str, path: &str| {
        let (template, path) = (template.split('/'), path.split('/'));
        template.clone().count() == path.clone().count()
            && template.zip(path).all(|(part, found)| part.starts_with('{') || part == found)
    };
    let asked = routes();
    let mut described = 0;
    for (template, operations) in description["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let Some(scope) = operation["security"][0]["bearer"][0].as_str() else { continue };
            let found = asked.iter().find(|(asked, path, ..)| {
                asked.eq_ignore_ascii_case(method) && is_of(template, path.split('?').next().unwrap_or(path))
            });
            assert_eq!(found.map(|(_, _, scope, _)| *scope), Some(scope), "{method} {template}");
            described += 1;
        }
    }
    assert_eq!(described, asked.len());
}
