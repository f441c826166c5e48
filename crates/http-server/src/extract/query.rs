//! Query parameters, and the paging shared by lists.

use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;
use model::Position;
use serde::de::DeserializeOwned;

use crate::error::{ErrorCode, Problem};

pub const DEFAULT_LIMIT: u32 = 50;

pub const MAX_LIMIT: u32 = 200;

#[derive(Debug)]
pub struct QueryParams<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for QueryParams<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Query::from_request_parts(parts, state).await {
            Ok(Query(query)) => Ok(Self(query)),
            Err(error) => Err(Problem::new(ErrorCode::InvalidQuery, error.body_text())),
        }
    }
}

/// Parses a position, which has digits only: clients take positions from responses and never
/// compute them.
pub fn position(name: &str, text: Option<String>) -> Result<Option<Position>, Problem> {
    let Some(text) = text else { return Ok(None) };
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse().ok().filter(|_| digits) {
        Some(value) => Ok(Some(Position::from_stored(value))),
        None => Err(Problem::new(ErrorCode::InvalidPosition, format!("{name} is not a position"))),
    }
}

/// The number of items of a page.
pub fn limit(text: Option<&str>) -> Result<u32, Problem> {
    let Some(text) = text else { return Ok(DEFAULT_LIMIT) };
    let allowed = text.parse().ok().filter(|limit| (1..=MAX_LIMIT).contains(limit));
    allowed
        .ok_or_else(|| Problem::new(ErrorCode::InvalidLimit, format!("limit must be from 1 to {MAX_LIMIT}")))
}

/// Removes the extra item that was read to detect further items. Returns the `next` value of the
/// page, if there are more.
pub fn next<T>(items: &mut Vec<T>, limit: u32, of: impl FnOnce(&T) -> String) -> Option<String> {
    let has_more = has_more(items, limit);
    items.last().filter(|_| has_more).map(of)
}

/// Removes the extra item that was read to detect further items. True when there are more.
pub fn has_more<T>(items: &mut Vec<T>, limit: u32) -> bool {
    let has_more = items.len() > limit as usize;
    items.truncate(limit as usize);
    has_more
}
