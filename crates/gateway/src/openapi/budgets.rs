//! Budgets.

use http_server::error::ErrorCode;
use serde_json::{Value, json};

use crate::api::audit::{AuditPage, AuditQuery};
use crate::api::budgets;
use crate::api::budgets::{BudgetBody, BudgetView, BudgetsPage, BudgetsQuery};
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::response::ResponseSpec;
use crate::openapi::tags::BUDGETS;

pub(crate) fn operations() -> Vec<Operation> {
    let one = "/v1/budgets/{budget}";
    vec![
        Operation::get("/v1/budgets", "listBudgets", "List budgets and their usage", budgets::list)
            .tag(BUDGETS)
            .scope(Scope::ReadAgents)
            .query::<BudgetsQuery>()
            .response::<BudgetsPage>(200, "Budgets, ordered by name", json!({ "budgets": [budget()], "next": null }))
            .errors(&[ErrorCode::InvalidLimit]),
        Operation::get(one, "showBudget", "Show a budget and its usage", budgets::get)
            .tag(BUDGETS)
            .scope(Scope::ReadAgents)
            .response::<BudgetView>(200, "The budget", budget())
            .errors(&[ErrorCode::UnknownBudget]),
        Operation::put(one, "putBudget", "Create or replace a budget", budgets::put)
            .tag(BUDGETS)
            .description(
                "A tenant may have 1,000 budgets. Usage counts from the start of the period, even if the budget is created or replaced later. While \
                 a budget is exhausted, inputs are refused with 429 (`budget_exceeded`) and queued inputs wait; turns in progress continue.",
            )
            .scope(Scope::ConfigureAgents)
            .actor_header()
            .body::<BudgetBody>(
                json!({ "tokens": 100_000, "period": "day", "time_zone": "Europe/Berlin", "agent_id": "ann" }),
            )
            .response::<BudgetView>(201, "Created", budget())
            .response::<BudgetView>(200, "Replaced the budget of that name", budget())
            .errors(&[ErrorCode::InvalidBudget, ErrorCode::TooManyBudgets, ErrorCode::UnknownBudget]),
        Operation::delete(one, "deleteBudget", "Delete a budget", budgets::delete)
            .tag(BUDGETS)
            .description("Inputs that waited because of it begin within seconds.")
            .scope(Scope::ConfigureAgents)
            .actor_header()
            .no_body()
            .response_with(ResponseSpec::nothing("Deleted"))
            .errors(&[ErrorCode::UnknownBudget]),
        Operation::get("/v1/budgets/{budget}/audit", "auditBudget", "Show the audit log of a budget", budgets::audit)
            .tag(BUDGETS)
            .scope(Scope::ReadAudit)
            .query::<AuditQuery>()
            .response::<AuditPage>(200, "Entries of the audit log, newest first", log())
            .errors(&[ErrorCode::UnknownBudget, ErrorCode::InvalidLimit]),
    ]
}

fn budget() -> Value {
    json!({
        "name": "ann-daily", "scope": "agent", "agent_id": "ann", "user_id": null, "unit": "tokens", "currency": null, "limit": "100000",
        "spent": "1234", "remaining": "98766", "unpriced_calls": 0, "period": "day", "time_zone": "Europe/Berlin",
        "period_start": "2026-11-21T23:00:00Z", "resets_at": "2026-11-22T23:00:00Z", "version": 1,
        "created_at": "2026-11-22T11:49:44.123Z", "updated_at": "2026-11-22T11:49:44.123Z",
    })
}

fn log() -> Value {
    json!({ "subject_id": "ann-daily", "next": null, "entries": [{
        "command_id": "0198c4d2e5f57a60b1d3c8a94e27f610", "actor": "ada", "action": "put_budget", "target": "ann-daily",
        "detail": null, "status": "done", "error": null, "created_at": "2026-11-22T11:49:44.123Z",
    }] })
}
