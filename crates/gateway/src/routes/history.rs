//! What is committed in a thread.

use axum::response::Response;
use serde::{Deserialize, Serialize};
use store::Range;
use utoipa::{IntoParams, ToSchema};

use super::{fresh, threads};
use crate::desk::Desk;
use crate::forms;
use crate::params::{self, Asked, Params};
use crate::problem::Problem;
use crate::shown::ShownMessage;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct HistoryQuery {
    /// Only messages after this position: the page begins there.
    #[param(value_type = Option<forms::PositionText>)]
    after: Option<String>,
    /// Only messages before this position: the page ends there, unless `after` is said as well.
    #[param(value_type = Option<forms::PositionText>)]
    before: Option<String>,
    #[param(value_type = Option<forms::Limit>)]
    limit: Option<String>,
    /// Also what the system made up: for operators.
    synthetic: Option<bool>,
}

/// Messages, oldest first.
#[derive(Serialize, ToSchema)]
pub(super) struct HistoryPage {
    #[schema(value_type = forms::ThreadName)]
    session_id: String,
    messages: Vec<ShownMessage>,
    has_more: bool,
}

pub(super) async fn page(
    desk: Desk,
    Params(thread): Params<String>,
    Asked(query): Asked<HistoryQuery>,
) -> Result<Response, Problem> {
    let thread = desk.thread(&thread)?;
    let range = Range {
        after: params::position("after", query.after)?,
        before: params::position("before", query.before)?,
        with_synthetic: query.synthetic.unwrap_or(false),
    };
    if range.after.zip(range.before).is_some_and(|(after, before)| after > before) {
        return Err(Problem::bad_request("invalid_range", "after is above before"));
    }
    let limit = params::limit(query.limit.as_deref())?;
    let read = desk.store()?.history(&thread, range, limit + 1).await?;
    let mut messages = read.ok_or_else(threads::unknown)?;
    let has_more = messages.len() > limit as usize;
    if has_more {
        // One more was read to know; it stands at the far end.
        let backwards = range.before.is_some() && range.after.is_none();
        let _ = if backwards { messages.remove(0) } else { messages.remove(limit as usize) };
    }
    let messages = messages.into_iter().map(ShownMessage::from).collect();
    Ok(fresh(HistoryPage { session_id: thread.name().to_owned(), messages, has_more }))
}
