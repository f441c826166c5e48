//! What the calls of models have used.

use axum::response::Response;
use model::{AgentId, ThreadId};
use serde::{Deserialize, Serialize};
use store::{UsageGroup, UsageSum};
use utoipa::{IntoParams, ToSchema};

use crate::api::respond::json_no_store;
use crate::api::schemas;
use crate::app::request_context::RequestContext;
use crate::error::Problem;
use crate::extract::query::QueryParams;

/// Groups that one answer has.
const MOST_GROUPS: u32 = 10_000;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct UsageQuery {
    /// Turns that ended then or later.
    #[param(value_type = schemas::TimestampSchema)]
    from: String,
    /// Turns that ended before.
    #[param(value_type = schemas::TimestampSchema)]
    to: String,
    /// Any of `day` (in UTC), `agent`, `thread`, `user`, `model`, `kind`, with commas between them; without it all is one sum.
    group_by: Option<String>,
}

/// What the calls of models have used, in sums.
#[derive(Serialize, ToSchema)]
pub(crate) struct UsageReport {
    usage: Vec<Usage>,
}

/// The sum of one group. What was not asked for, or is not known, is null.
#[derive(Serialize, ToSchema)]
pub(crate) struct Usage {
    #[schema(required)]
    day: Option<String>,
    #[schema(required)]
    agent_id: Option<String>,
    #[schema(required)]
    thread_id: Option<String>,
    /// `user_id` in the metadata of the thread.
    #[schema(required)]
    user_id: Option<String>,
    #[schema(required)]
    model: Option<String>,
    /// `turn`, `follow_up`, `summary` or `memory`.
    #[schema(required)]
    kind: Option<String>,
    /// Calls of models.
    calls: i64,
    /// Those of answers that did not come to their end: there may have been more than are known.
    partial_calls: i64,
    input_tokens: i64,
    output_tokens: i64,
    /// Part of the input, as far as it was said.
    cached_tokens: i64,
    /// Part of the output, as far as it was said.
    reasoning_tokens: i64,
}

pub(crate) async fn get(
    ctx: RequestContext,
    QueryParams(query): QueryParams<UsageQuery>,
) -> Result<Response, Problem> {
    let invalid = |detail: String| Problem::bad_request("invalid_query", detail);
    let moment = |name: &str, text: &str| {
        wire::parse_rfc3339(text)
            .ok_or_else(|| invalid(format!("{name} must be a time like 2026-12-24T18:00:00Z")))
    };
    let (from, to) = (moment("from", &query.from)?, moment("to", &query.to)?);
    let names = query.group_by.as_deref().unwrap_or_default();
    let group = |name: &str| {
        let known = UsageGroup::ALL.into_iter().find(|group| group.name() == name);
        known.ok_or_else(|| {
            invalid(format!("group_by: {name} is none of day, agent, thread, user, model, kind"))
        })
    };
    let by: Vec<UsageGroup> =
        names.split(',').filter(|name| !name.is_empty()).map(group).collect::<Result<_, _>>()?;
    let sums = ctx.store()?.usage(from, to, &by, MOST_GROUPS + 1).await?;
    if sums.len() > MOST_GROUPS as usize {
        let detail = format!("these are more than {MOST_GROUPS} groups; ask for a shorter time or for fewer");
        return Err(invalid(detail));
    }
    Ok(json_no_store(UsageReport { usage: sums.into_iter().map(Usage::from).collect() }))
}

impl From<UsageSum> for Usage {
    fn from(sum: UsageSum) -> Self {
        let [day, agent, thread, user_id, model, kind] = sum.of;
        // Clients know of no tenant.
        let agent_id = agent.map(|id| AgentId::parse(&id).map_or(id, |agent| agent.name().to_owned()));
        let thread_id = thread.map(|id| ThreadId::parse(&id).map_or(id, |thread| thread.name().to_owned()));
        Self {
            day,
            agent_id,
            thread_id,
            user_id,
            model,
            kind,
            calls: sum.calls,
            partial_calls: sum.partial_calls,
            input_tokens: sum.input_tokens,
            output_tokens: sum.output_tokens,
            cached_tokens: sum.cached_tokens,
            reasoning_tokens: sum.reasoning_tokens,
        }
    }
}
