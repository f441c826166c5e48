//! Batches: their messages, their calls and results, and whether they are whole.

use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{fresh, threads};
use crate::desk::Desk;
use crate::forms;
use crate::params::{self, Asked, Params};
use crate::problem::Problem;
use crate::shown::{ShownBatch, WholeBatch};

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(super) struct BatchesQuery {
    /// Only batches that began before this position.
    #[param(value_type = Option<forms::PositionText>)]
    before: Option<String>,
    #[param(value_type = Option<forms::Limit>)]
    limit: Option<String>,
}

/// Batches, newest first.
#[derive(Serialize, ToSchema)]
pub(super) struct BatchesPage {
    #[schema(value_type = forms::ThreadName)]
    thread_id: String,
    batches: Vec<ShownBatch>,
    has_more: bool,
}

/// Newest first.
pub(super) async fn page(
    desk: Desk,
    Params(thread): Params<String>,
    Asked(query): Asked<BatchesQuery>,
) -> Result<Response, Problem> {
    let (thread, before) = (desk.thread(&thread)?, params::position("before", query.before)?);
    let limit = params::limit(query.limit.as_deref())?;
    let store = desk.store()?;
    let mut ids = store.batch_ids(&thread, before, limit + 1).await?.ok_or_else(threads::unknown)?;
    let has_more = params::has_more(&mut ids, limit);
    let messages = store.batches(&thread, &ids).await?;
    let batches = batches::group(messages.into_iter().map(Into::into));
    let batches = batches.iter().rev().map(ShownBatch::from).collect();
    Ok(fresh(BatchesPage { thread_id: thread.name().to_owned(), batches, has_more }))
}

pub(super) async fn show(
    desk: Desk,
    Params((thread, batch)): Params<(String, String)>,
) -> Result<Response, Problem> {
    let unknown = || Problem::not_found("unknown_batch", "there is no such batch in this thread");
    let (thread, batch) =
        (desk.thread(&thread)?, params::position("batch", Some(batch))?.ok_or_else(unknown)?);
    let messages = desk.store()?.batches(&thread, &[batch]).await?;
    let batches = batches::group(messages.iter().cloned().map(Into::into));
    let found = batches.first().ok_or_else(unknown)?;
    Ok(fresh(WholeBatch::new(found, messages)))
}
