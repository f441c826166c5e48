//! Calls of models: rows of `usage`.

use model::FinishReason;

use super::columns::{bigint, bucket, smallint, storable};
use super::rows::{Given, TableParts, row};

pub(super) const TABLE: TableParts = TableParts::new(&[UsageRow::ROWS], include_str!("usage.sql"));

row! {
    /// A call of a model.
    struct UsageRow<'a> as usage_rows of calls {
        bucket: i16,
        thread_id: &'a str,
        message_id: &'a str,
        call: i16,
        agent_id: &'a str,
        kind: &'a str,
        model: Option<String>,
        input_tokens: i64,
        output_tokens: i64,
        cached_tokens: Option<i64>,
        reasoning_tokens: Option<i64>,
        is_partial: bool,
        is_estimated: bool,
        finish_reason: Option<&'a str>,
    }
}

fn calls(given: Given<'_>) -> impl Iterator<Item = UsageRow<'_>> {
    given.submission.commit.usage.iter().map(|used| UsageRow {
        bucket: bucket(&used.answer),
        thread_id: used.answer.thread.as_str(),
        message_id: used.answer.message.as_str(),
        call: smallint(used.number),
        agent_id: used.agent.as_str(),
        kind: used.kind.name(),
        model: used.call.model.as_deref().map(storable),
        input_tokens: bigint(used.call.input_tokens),
        output_tokens: bigint(used.call.output_tokens),
        cached_tokens: used.call.cached_tokens.map(bigint),
        reasoning_tokens: used.call.reasoning_tokens.map(bigint),
        is_partial: used.is_partial,
        is_estimated: used.call.is_estimated,
        finish_reason: used.finish_reason.map(FinishReason::name),
    })
}
