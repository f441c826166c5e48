//! What addresses, queries and headers say.

use axum::extract::{FromRequestParts, Path, Query};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue};
use model::{InvalidId, Position};
use serde::de::DeserializeOwned;

use crate::problem::Problem;

pub(crate) const DEFAULT_LIMIT: u32 = 50;
pub(crate) const MAX_LIMIT: u32 = 200;
pub(crate) const MAX_HEADER_LEN: usize = 255;
pub(crate) const MAX_ACTOR_LEN: usize = 128;
pub(crate) const DEFAULT_ACTOR: &str = "api";

/// The variable parts of the address.
#[derive(Debug)]
pub(crate) struct Params<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(params)) => Ok(Self(params)),
            Err(error) => Err(Problem::bad_request("invalid_id", error.body_text())),
        }
    }
}

/// The query.
#[derive(Debug)]
pub(crate) struct Asked<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Query::from_request_parts(parts, state).await {
            Ok(Query(query)) => Ok(Self(query)),
            Err(error) => Err(Problem::bad_request("invalid_query", error.body_text())),
        }
    }
}

/// An id; `name` says which one it is.
pub(crate) fn id<T, E: Into<BadId>>(
    name: &str,
    text: &str,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, Problem> {
    parse(text).map_err(|error| Problem::bad_request("invalid_id", format!("{name}: {}", error.into().0)))
}

/// Why it is no id, for people.
pub(crate) struct BadId(String);

impl From<InvalidId> for BadId {
    fn from(error: InvalidId) -> Self {
        Self(error.to_string())
    }
}

impl From<model::InvalidTurnId> for BadId {
    fn from(error: model::InvalidTurnId) -> Self {
        Self(error.to_string())
    }
}

/// Digits only: a position is what a reader was given, not what it computes.
pub(crate) fn position(name: &str, text: Option<String>) -> Result<Option<Position>, Problem> {
    let Some(text) = text else { return Ok(None) };
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse().ok().filter(|_| digits) {
        Some(value) => Ok(Some(Position::from_stored(value))),
        None => Err(Problem::bad_request("invalid_position", format!("{name} is not a position"))),
    }
}

/// How many items a page has.
pub(crate) fn limit(text: Option<&str>) -> Result<u32, Problem> {
    let Some(text) = text else { return Ok(DEFAULT_LIMIT) };
    let allowed = text.parse().ok().filter(|limit| (1..=MAX_LIMIT).contains(limit));
    allowed
        .ok_or_else(|| Problem::bad_request("invalid_limit", format!("limit must be from 1 to {MAX_LIMIT}")))
}

/// Takes the item off that was read to know whether there are more; what `next` of the page is, and of the request for the page after it.
pub(crate) fn next<T>(items: &mut Vec<T>, limit: u32, of: impl FnOnce(&T) -> String) -> Option<String> {
    let has_more = has_more(items, limit);
    items.last().filter(|_| has_more).map(of)
}

/// Takes the item off that was read to know whether there are more.
pub(crate) fn has_more<T>(items: &mut Vec<T>, limit: u32) -> bool {
    let has_more = items.len() > limit as usize;
    items.truncate(limit as usize);
    has_more
}

/// For whom the caller says that it acts.
pub(crate) fn actor(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    one_of(headers, "x-antiphon-actor", "invalid_actor", "X-Antiphon-Actor", MAX_ACTOR_LEN)
}

/// The key under which an input is sent once, however often it comes.
pub(crate) fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    one_of(headers, "idempotency-key", "invalid_idempotency_key", "Idempotency-Key", MAX_HEADER_LEN)
}

/// For tracing across services.
pub(crate) fn correlation_id(headers: &HeaderMap) -> Result<Option<Box<str>>, Problem> {
    let (code, shown) = ("invalid_correlation_id", "X-Correlation-Id");
    let id = one_of(headers, "x-correlation-id", code, shown, MAX_HEADER_LEN)?;
    Ok(id.map(Into::into))
}

fn one_of(
    headers: &HeaderMap,
    name: &str,
    code: &'static str,
    shown: &str,
    most: usize,
) -> Result<Option<String>, Problem> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    match visible(value, most).filter(|_| values.next().is_none()) {
        Some(text) => Ok(Some(text)),
        None => {
            let detail = format!("{shown} must come once, with 1 to {most} visible ASCII characters");
            Err(Problem::bad_request(code, detail))
        }
    }
}

fn visible(value: &HeaderValue, most: usize) -> Option<String> {
    let bytes = value.as_bytes();
    let is_fit = (1..=most).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic);
    is_fit.then(|| String::from_utf8_lossy(bytes).into_owned())
}
