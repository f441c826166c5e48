//! Errors of failed calls, with advice.

use reqwest::StatusCode;
use reqwest::header::{HeaderMap, RETRY_AFTER};
use serde_json::Value;

use super::arguments::Call;
use crate::exit::ExitError;

/// The error when there is no answer.
pub(super) fn unreachable(call: &Call, error: &reqwest::Error) -> ExitError {
    let url = &call.server.url;
    if error.is_timeout() {
        return ExitError::Failed(format!("the API at {url} does not answer in time"));
    }
    let mut why: &dyn std::error::Error = error;
    while let Some(source) = why.source() {
        why = source;
    }
    ExitError::Failed(format!(
        "the API at {url} cannot be reached ({why}): is a gateway running, and is ANTIPHON_URL its address?"
    ))
}

/// The error for a refusal: detail, code and advice.
pub(super) fn refusal(call: &Call, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> ExitError {
    let again = headers.get(RETRY_AFTER).and_then(|seconds| seconds.to_str().ok()?.parse().ok());
    let problem: Value = serde_json::from_slice(body).unwrap_or_default();
    let (Some(code), Some(detail)) = (problem["code"].as_str(), problem["detail"].as_str()) else {
        return ExitError::Failed(format!(
            "{} answered {status} and does not say why: is ANTIPHON_URL the address of a gateway?",
            call.server.url
        ));
    };
    let retryable = problem["retryable"] == true;
    let advice = advice(status, code, retryable, again, call.server.api_key.is_some());
    let line = format!("{detail} ({code}){}", advice.map_or(String::new(), |advice| format!(": {advice}")));
    match status {
        StatusCode::BAD_REQUEST
        | StatusCode::PAYLOAD_TOO_LARGE
        | StatusCode::UNSUPPORTED_MEDIA_TYPE
        | StatusCode::UNPROCESSABLE_ENTITY => ExitError::Configuration(line),
        _ => ExitError::Failed(line),
    }
}

fn advice(
    status: StatusCode,
    code: &str,
    is_retryable: bool,
    seconds: Option<u64>,
    has_key: bool,
) -> Option<String> {
    let text = match (status, code) {
        (StatusCode::UNAUTHORIZED, _) if has_key => {
            "give another key in ANTIPHON_API_KEY; with the database `antiphon keys create-first` makes one"
        }
        (StatusCode::UNAUTHORIZED, _) => {
            "set ANTIPHON_API_KEY; with the database `antiphon keys create-first` makes the first key"
        }
        (_, "insufficient_scope") => "use a key that has it; `antiphon keys list` shows what keys may",
        (StatusCode::NOT_FOUND, "unknown_address") => "the gateway may be of another version",
        (_, "invalid_import") => "correct the file, and import all of it again",
        (StatusCode::MISDIRECTED_REQUEST, _) => "use the address 127.0.0.1 in ANTIPHON_URL",
        _ if is_retryable => {
            return Some(
                seconds.map_or("try again".to_owned(), |seconds| format!("try again in {seconds} s")),
            );
        }
        _ => return None,
    };
    Some(text.to_owned())
}
