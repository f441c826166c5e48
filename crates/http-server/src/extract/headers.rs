//! Headers of the API: actor, idempotency key, correlation id, effect of a disconnect.

use axum::http::{HeaderMap, HeaderValue};

use crate::error::{ErrorCode, Problem};

pub const MAX_HEADER_LEN: usize = 255;
pub const MAX_ACTOR_LEN: usize = 128;
pub const DEFAULT_ACTOR: &str = "api";

/// The actor on whose behalf the caller says it acts.
pub fn actor(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    one_of(headers, "x-antiphon-actor", ErrorCode::InvalidActor, "X-Antiphon-Actor", MAX_ACTOR_LEN)
}

/// The idempotency key: repeated requests with it open the same turn.
pub fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    one_of(headers, "idempotency-key", ErrorCode::InvalidIdempotencyKey, "Idempotency-Key", MAX_HEADER_LEN)
}

/// An id for tracing across services.
pub fn correlation_id(headers: &HeaderMap) -> Result<Option<Box<str>>, Problem> {
    let (code, header_name) = (ErrorCode::InvalidCorrelationId, "X-Correlation-Id");
    let id = one_of(headers, "x-correlation-id", code, header_name, MAX_HEADER_LEN)?;
    Ok(id.map(Into::into))
}

/// The header with the effect of a disconnect.
pub const ON_DISCONNECT: &str = "X-Antiphon-On-Disconnect";
/// The turn goes on when its client disconnects.
pub const CONTINUE: &str = "continue";
/// The turn is stopped when its client disconnects.
pub const STOP: &str = "stop";

/// Whether the turn is stopped when the client disconnects before the answer has ended.
pub fn stops_on_disconnect(headers: &HeaderMap) -> Result<bool, Problem> {
    let (code, name) = (ErrorCode::InvalidOnDisconnect, "x-antiphon-on-disconnect");
    match one_of(headers, name, code, ON_DISCONNECT, MAX_HEADER_LEN)?.as_deref() {
        None | Some(CONTINUE) => Ok(false),
        Some(STOP) => Ok(true),
        Some(_) => Err(Problem::new(code, format!("{ON_DISCONNECT} must be {CONTINUE} or {STOP}"))),
    }
}

/// The header with the ETag that a resource must have.
pub const IF_MATCH: &str = "If-Match";

/// The version that the resource must have, from its ETag; `None` for any.
pub fn if_match(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let (code, name) = (ErrorCode::InvalidIfMatch, "if-match");
    let tag = one_of(headers, name, code, IF_MATCH, MAX_HEADER_LEN)?.filter(|tag| tag != "*");
    let version = |tag: String| {
        let digits = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"'));
        let digits = digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
        let detail = "If-Match must be the ETag of this resource, such as \"3\"";
        digits.and_then(|digits| digits.parse().ok()).ok_or_else(|| Problem::new(code, detail))
    };
    tag.map(version).transpose()
}

fn one_of(
    headers: &HeaderMap,
    name: &str,
    code: ErrorCode,
    header_name: &str,
    most: usize,
) -> Result<Option<String>, Problem> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    match visible(value, most).filter(|_| values.next().is_none()) {
        Some(text) => Ok(Some(text)),
        None => {
            let detail = format!("{header_name} must come once, with 1 to {most} visible ASCII characters");
            Err(Problem::new(code, detail))
        }
    }
}

fn visible(value: &HeaderValue, most: usize) -> Option<String> {
    let bytes = value.as_bytes();
    let is_fit = (1..=most).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic);
    is_fit.then(|| String::from_utf8_lossy(bytes).into_owned())
}
