//! Budgets of the caller's tenant: their limits, and what has been used.

use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use http_server::error::{ErrorCode, Problem};
use http_server::extract::body::{EmptyBody, JsonBody, MaxBodySize};
use http_server::extract::path::{self, PathParam};
use http_server::extract::query::{self, QueryParams};
use model::{AgentId, BudgetName, PriceTable, Tenant};
use scheduling::Zone;
use scheduling::budget::{BudgetPeriod, BudgetUnit};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::{Budget, BudgetRow, BudgetScope, budget_subject};
use utoipa::{IntoParams, ToSchema};

use crate::api::audit::{self, AuditPage, AuditQuery};
use crate::api::respond::json_no_store;
use crate::api::views;
use crate::app::request_context::RequestContext;
use crate::commands::control;
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::response::ResponseSpec;
use crate::openapi::schemas;
use crate::openapi::tags::BUDGETS;

pub(crate) fn operations() -> Vec<Operation> {
    let one = "/v1/budgets/{budget}";
    vec![
        Operation::get("/v1/budgets", "listBudgets", "List budgets and their usage", list)
            .tag(BUDGETS)
            .scope(Scope::ReadAgents)
            .query::<BudgetsQuery>()
            .response::<BudgetsPage>(200, "Budgets, ordered by name", json!({ "budgets": [budget_example()], "next": null }))
            .errors(&[ErrorCode::InvalidLimit]),
        Operation::get(one, "showBudget", "Show a budget and its usage", get)
            .tag(BUDGETS)
            .scope(Scope::ReadAgents)
            .response::<BudgetView>(200, "The budget", budget_example())
            .errors(&[ErrorCode::UnknownBudget]),
        Operation::put(one, "putBudget", "Create or replace a budget", put)
            .tag(BUDGETS)
            .description(
                "A tenant may have 1,000 budgets. Usage counts from the start of the period. While \
                 a budget is exhausted, inputs are refused with 429 (`budget_exceeded`) and queued inputs wait; turns in progress continue.",
            )
            .scope(Scope::ConfigureAgents)
            .actor_header()
            .body::<BudgetBody>(
                json!({ "tokens": 100_000, "period": "day", "time_zone": "Europe/Berlin", "agent_id": "ann" }),
            )
            .response::<BudgetView>(201, "Created", budget_example())
            .response::<BudgetView>(200, "Replaced the budget of that name", budget_example())
            .errors(&[ErrorCode::InvalidBudget, ErrorCode::TooManyBudgets, ErrorCode::UnknownBudget]),
        Operation::delete(one, "deleteBudget", "Delete a budget", delete)
            .tag(BUDGETS)
            .description("Inputs that waited because of it begin within seconds.")
            .scope(Scope::ConfigureAgents)
            .actor_header()
            .no_body()
            .response_with(ResponseSpec::nothing("Deleted"))
            .errors(&[ErrorCode::UnknownBudget]),
        Operation::get("/v1/budgets/{budget}/audit", "auditBudget", "Show the audit log of a budget", audit)
            .tag(BUDGETS)
            .scope(Scope::ReadAudit)
            .query::<AuditQuery>()
            .response::<AuditPage>(200, "Entries of the audit log, newest first", audit::page_example())
            .errors(&[ErrorCode::UnknownBudget, ErrorCode::InvalidLimit]),
    ]
}

/// Longest `user_id`, bytes.
const MOST_USER_BYTES: usize = 256;

/// A budget: a limit in `tokens` or as a `cost`. It applies to one agent or one user, or to the
/// whole tenant if neither is given.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BudgetBody {
    /// Limit of the tokens that models read and write; exactly one of `tokens` and `cost` is given.
    #[schema(value_type = Option<schemas::BudgetTokens>)]
    pub(crate) tokens: Option<u64>,
    /// Limit in the currency of the operator's prices: a decimal number with at most nine digits
    /// after the point.
    #[schema(pattern = r"^[0-9]{1,9}([.][0-9]{1,9})?$", example = "12.50")]
    pub(crate) cost: Option<String>,
    /// The period after which the budget starts again: `day` or `month`.
    #[schema(value_type = schemas::BudgetPeriodSchema)]
    pub(crate) period: String,
    /// The time zone in which the day or month begins: a zone of the IANA database.
    #[schema(default = "UTC")]
    pub(crate) time_zone: Option<String>,
    /// The agent whose calls count. Without this and `user_id`, the calls of the whole tenant
    /// count.
    #[schema(value_type = Option<schemas::AgentIdSchema>)]
    pub(crate) agent_id: Option<String>,
    /// The user whose calls count: `user_id` in the metadata of threads.
    #[schema(min_length = 1, max_length = 256)]
    pub(crate) user_id: Option<String>,
}

impl MaxBodySize for BudgetBody {
    const MAX_BYTES: usize = 4 << 10;
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct BudgetsQuery {
    /// `next` of the previous page.
    #[param(value_type = Option<schemas::BudgetNameSchema>)]
    next: Option<String>,
    #[param(value_type = Option<schemas::Limit>)]
    limit: Option<String>,
}

/// A budget, and what has been used of it in its current period. Amounts are decimal numbers.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BudgetView {
    #[schema(value_type = schemas::BudgetNameSchema)]
    name: String,
    /// The scope of the calls that count: `tenant`, `agent` or `user`.
    scope: &'static str,
    #[schema(value_type = Option<schemas::AgentIdSchema>, required)]
    agent_id: Option<String>,
    #[schema(required)]
    user_id: Option<String>,
    #[schema(value_type = schemas::BudgetUnitSchema)]
    unit: &'static str,
    /// The currency of a cost; null for a budget in tokens, or when no prices are configured.
    #[schema(required)]
    currency: Option<String>,
    limit: String,
    /// Amount used by all turns that have ended in the period.
    spent: String,
    /// Amount that new turns may still use; `0`: no turn begins.
    remaining: String,
    /// Number of calls of models without a price, which `spent` leaves out.
    unpriced_calls: u64,
    #[schema(value_type = schemas::BudgetPeriodSchema)]
    period: &'static str,
    time_zone: String,
    /// When the current period began.
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    period_start: Option<String>,
    /// When the next period begins.
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    resets_at: Option<String>,
    /// Version of the budget, from 1; rises by one with each change.
    version: u64,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    created_at: Option<String>,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    updated_at: Option<String>,
}

/// A page of the tenant's budgets, ordered by name.
#[derive(Serialize, ToSchema)]
pub(crate) struct BudgetsPage {
    budgets: Vec<BudgetView>,
    #[schema(value_type = schemas::NextPage, required)]
    next: Option<String>,
}

fn unknown() -> Problem {
    Problem::from(ErrorCode::UnknownBudget)
}

fn invalid(detail: impl Into<String>) -> Problem {
    Problem::new(ErrorCode::InvalidBudget, detail.into())
}

fn name_of(text: &str) -> Result<BudgetName, Problem> {
    path::id("budget", text, BudgetName::parse)
}

impl BudgetBody {
    /// The budget of a tenant that the body describes. `has_prices`: the operator has configured
    /// prices, so that costs are known.
    ///
    /// # Errors
    /// What is wrong with the body.
    pub(crate) fn budget(self, tenant: Option<&Tenant>, has_prices: bool) -> Result<Budget, String> {
        let (unit, limit) = match (self.tokens, self.cost) {
            (Some(tokens), None) if tokens <= schemas::MOST_BUDGET_TOKENS => (BudgetUnit::Tokens, tokens),
            (Some(_), None) => {
                return Err(format!("tokens must be from 0 to {}", schemas::MOST_BUDGET_TOKENS));
            }
            (None, Some(cost)) => {
                let fits = cost.split('.').all(|digits| digits.len() <= 9);
                let amount = BudgetUnit::Cost.exact(&cost).filter(|_| fits);
                let detail = "cost must be a decimal number like 12.50, with at most nine digits before and after the point";
                (BudgetUnit::Cost, amount.ok_or(detail)?)
            }
            (Some(_), Some(_)) | (None, None) => return Err("a budget has either tokens or cost".to_owned()),
        };
        if unit == BudgetUnit::Cost && !has_prices {
            return Err(
                "cost: the operator has given no prices (ANTIPHON_PRICES_FILE), so nothing has a cost"
                    .to_owned(),
            );
        }
        let period = BudgetPeriod::from_name(&self.period).ok_or("period must be day or month")?;
        let zone = Zone::named(self.time_zone.as_deref().unwrap_or("UTC"))
            .map_err(|error| format!("time_zone: {error}"))?;
        let scope = match (self.agent_id, self.user_id) {
            (None, None) => BudgetScope::Tenant,
            (Some(agent), None) => {
                let agent = AgentId::of_tenant(tenant, &agent);
                BudgetScope::Agent(agent.map_err(|error| format!("agent_id: {error}"))?)
            }
            (None, Some(user)) if (1..=MOST_USER_BYTES).contains(&user.len()) && !user.contains('\0') => {
                BudgetScope::User(user)
            }
            (None, Some(_)) => {
                return Err("user_id must have 1 to 256 bytes, and no NUL character".to_owned());
            }
            (Some(_), Some(_)) => return Err("agent_id or user_id, not both".to_owned()),
        };
        Ok(Budget { scope, unit, limit, period, zone })
    }
}

pub(crate) async fn list(
    ctx: RequestContext,
    QueryParams(query): QueryParams<BudgetsQuery>,
) -> Result<Response, Problem> {
    let limit = query::limit(query.limit.as_deref())?;
    let after = query.next.map(|name| path::id("next", &name, BudgetName::parse)).transpose()?;
    let mut rows = ctx.store()?.budgets(ctx.tenant(), after.as_ref(), limit + 1).await?;
    let next = query::next(&mut rows, limit, |last| last.name.to_string());
    let budgets = rows.into_iter().map(|row| shown(&ctx, row)).collect::<Result<_, _>>()?;
    Ok(json_no_store(BudgetsPage { budgets, next }))
}

pub(crate) async fn get(
    ctx: RequestContext,
    PathParam(name): PathParam<String>,
) -> Result<Response, Problem> {
    let name = name_of(&name)?;
    let row = ctx.store()?.budget(ctx.tenant(), &name).await?.ok_or_else(unknown)?;
    Ok(json_no_store(shown(&ctx, row)?))
}

pub(crate) async fn put(
    ctx: RequestContext,
    PathParam(name): PathParam<String>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<BudgetBody>,
) -> Result<Response, Problem> {
    let (name, actor, store) = (name_of(&name)?, ctx.actor(&headers)?, ctx.store()?);
    if let Some(agent) = &body.agent_id {
        ctx.agent_in("agent_id", agent)?;
    }
    let budget = body.budget(ctx.tenant(), store.prices().is_some()).map_err(invalid)?;
    let command = control::new_id()?;
    // Usage before this change counts, too, if it is in the current period.
    if !store.put_budget(ctx.tenant(), &name, &budget, &command, &actor).await? {
        let detail =
            format!("the tenant already has {} budgets, the maximum: delete one first", store::MOST_BUDGETS);
        return Err(Problem::new(ErrorCode::TooManyBudgets, detail));
    }
    let row = store.budget(ctx.tenant(), &name).await?.ok_or_else(unknown)?;
    tracing::info!(budget = %name, actor, scope = row.budget.scope.name(), "a budget was put");
    let status = if row.version == 1 { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, json_no_store(shown(&ctx, row)?)).into_response())
}

pub(crate) async fn delete(
    ctx: RequestContext,
    PathParam(name): PathParam<String>,
    headers: HeaderMap,
    _: EmptyBody,
) -> Result<Response, Problem> {
    let (name, actor, command) = (name_of(&name)?, ctx.actor(&headers)?, control::new_id()?);
    if !ctx.store()?.delete_budget(ctx.tenant(), &name, &command, &actor).await? {
        return Err(unknown());
    }
    tracing::info!(budget = %name, actor, "a budget was deleted");
    Ok(StatusCode::NO_CONTENT.into_response())
}

pub(crate) async fn audit(
    ctx: RequestContext,
    PathParam(name): PathParam<String>,
    QueryParams(query): QueryParams<AuditQuery>,
) -> Result<Response, Problem> {
    let (name, backend) = (name_of(&name)?, ctx.backend()?);
    let subject = budget_subject(ctx.tenant(), &name);
    let page = audit::audit(&ctx, &subject, name.as_str(), query).await?;
    // The log remains after the budget is deleted.
    if page.is_empty() && backend.store().budget(ctx.tenant(), &name).await?.is_none() {
        return Err(unknown());
    }
    Ok(json_no_store(page))
}

fn shown(ctx: &RequestContext, row: BudgetRow) -> Result<BudgetView, Problem> {
    Ok(BudgetView::of(row, ctx.store()?.prices()))
}

impl BudgetView {
    /// `prices`: the configured prices, which name the currency.
    pub(crate) fn of(row: BudgetRow, prices: Option<&PriceTable>) -> Self {
        let BudgetRow { name, budget, spent, .. } = row;
        let Budget { scope, unit, limit, period, zone } = budget;
        let scope_name = scope.name();
        let (agent_id, user_id) = match scope {
            BudgetScope::Tenant => (None, None),
            BudgetScope::Agent(agent) => (Some(agent.name().to_owned()), None),
            BudgetScope::User(user) => (None, Some(user)),
        };
        Self {
            name: name.to_string(),
            scope: scope_name,
            agent_id,
            user_id,
            unit: unit.name(),
            currency: prices.filter(|_| unit == BudgetUnit::Cost).map(|prices| prices.currency.clone()),
            limit: unit.show(limit),
            spent: unit.show(spent),
            remaining: unit.show(limit.saturating_sub(spent)),
            unpriced_calls: row.unpriced_calls,
            period: period.name(),
            time_zone: zone.name().to_owned(),
            period_start: views::rfc3339(row.period_start),
            resets_at: views::rfc3339(row.period_end),
            version: row.version,
            created_at: views::rfc3339(row.created_at),
            updated_at: views::rfc3339(row.updated_at),
        }
    }
}

fn budget_example() -> Value {
    json!({
        "name": "ann-daily", "scope": "agent", "agent_id": "ann", "user_id": null, "unit": "tokens", "currency": null, "limit": "100000",
        "spent": "1234", "remaining": "98766", "unpriced_calls": 0, "period": "day", "time_zone": "Europe/Berlin",
        "period_start": "2026-11-21T23:00:00Z", "resets_at": "2026-11-22T23:00:00Z", "version": 1,
        "created_at": "2026-11-22T11:49:44.123Z", "updated_at": "2026-11-22T11:49:44.123Z",
    })
}
