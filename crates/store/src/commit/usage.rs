//! Calls of models as arrays.

use std::collections::HashSet;

use model::FinishReason;
use partition::UsageWrite;

use super::columns::{bigint, bucket, column, numbered, smallint, storable};
use super::submission::Submission;
use crate::statement::Statement;

/// Parameters of `8_usage.sql`.
pub(super) fn usage(statement: Statement, group: &[Submission<'_>]) -> Statement {
    let mut seen = HashSet::new();
    let rows: Vec<(i64, &UsageWrite)> = numbered(group, |commit| &commit.usage)
        .filter(|(_, used)| seen.insert((&used.answer, used.number)))
        .collect();
    statement
        .bind(column(&rows, |(number, _)| *number))
        .bind(column(&rows, |(_, used)| bucket(&used.answer)))
        .bind(column(&rows, |(_, used)| used.answer.thread.as_str()))
        .bind(column(&rows, |(_, used)| used.answer.message.as_str()))
        .bind(column(&rows, |(_, used)| smallint(used.number)))
        .bind(column(&rows, |(_, used)| used.agent.as_str()))
        .bind(column(&rows, |(_, used)| used.kind.name()))
        .bind(column(&rows, |(_, used)| used.call.model.as_deref().map(storable)))
        .bind(column(&rows, |(_, used)| bigint(used.call.input_tokens)))
        .bind(column(&rows, |(_, used)| bigint(used.call.output_tokens)))
        .bind(column(&rows, |(_, used)| used.call.cached_tokens.map(bigint)))
        .bind(column(&rows, |(_, used)| used.call.reasoning_tokens.map(bigint)))
        .bind(column(&rows, |(_, used)| used.is_partial))
        .bind(column(&rows, |(_, used)| used.call.is_estimated))
        .bind(column(&rows, |(_, used)| used.finish_reason.map(FinishReason::name)))
}
