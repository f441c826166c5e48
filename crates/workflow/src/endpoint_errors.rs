//! Classifies an endpoint's errors into failures of a turn.

use std::time::{Duration, UNIX_EPOCH};

use model::ErrorClass;
use reqwest::StatusCode;
use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};
use serde_json::Value;

use crate::engine_event::Failure;

/// Maximum characters of an endpoint's message that clients see.
const LONGEST_TEXT: usize = 300;
/// Maximum delay that an endpoint can ask for.
const LONGEST_DELAY: Duration = Duration::from_secs(86_400);

/// The failure for an error response. `now_ms`: milliseconds since the Unix epoch.
pub(crate) fn of_response(status: StatusCode, headers: &HeaderMap, body: &[u8], now_ms: i64) -> Failure {
    let body = serde_json::from_slice::<Value>(body).unwrap_or_default();
    // Google wraps the object in a list.
    let body = body.get(0).unwrap_or(&body);
    let error = body.get("error").filter(|error| is_present(error, true));
    let error = error.map_or_else(|| body.clone(), |error| described(error, body));
    let (class, code) = class_and_code(Some(status.as_u16()), &error);
    Failure {
        class,
        code: code.to_owned(),
        text: text(&format!("the model's endpoint answered {status}"), class, &said(&error)),
        retry_after: (class == ErrorClass::Transient).then(|| retry_after(headers, now_ms)).flatten(),
    }
}

/// Whether a value in the place of an error is an error. `is_alone`: the event has no other fields.
pub(crate) fn is_present(error: &Value, is_alone: bool) -> bool {
    match error {
        Value::Null => false,
        Value::Bool(is_error) => *is_error,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !NO_ERROR.contains(&text.trim().to_ascii_lowercase().as_str()),
        Value::Array(list) => list.iter().any(|error| is_present(error, is_alone)),
        Value::Object(map) => {
            let is_success = map.get("code").is_some_and(|code| !is_present(code, true) && !code.is_null());
            map.values().any(|value| is_present(value, true)) && (is_alone || !is_success)
        }
    }
}

/// The object with the most detail about an error. The event around it may hold the status, the
/// kind or the message.
pub(crate) fn described(error: &Value, event: &Value) -> Value {
    match error {
        Value::Array(list) => list
            .iter()
            .find(|error| is_present(error, true))
            .map_or(Value::Null, |error| described(error, event)),
        Value::Object(map) => {
            let mut map = map.clone();
            if let Some(status) = status_of(event).filter(|_| status_of(error).is_none()) {
                map.insert("status_code".to_owned(), status.into());
            }
            Value::Object(map)
        }
        Value::String(text) => match serde_json::from_str::<Value>(text) {
            Ok(inner @ Value::Object(_)) => {
                match inner.get("error").filter(|error| is_present(error, true)) {
                    Some(error) => described(error, &inner),
                    None => described(&inner, event),
                }
            }
            _ if status_of(event).is_some() || says_more(event) => event.clone(),
            _ => error.clone(),
        },
        Value::Bool(_) | Value::Number(_) | Value::Null => event.clone(),
    }
}

/// Whether an event has content besides its text `error`.
fn says_more(event: &Value) -> bool {
    let is_text = |key: &str| event.get(key).is_some_and(Value::is_string);
    KINDS.iter().chain(&TEXTS).any(|key| *key != "error" && is_text(key))
}

/// The failure for an error object within a stream.
pub(crate) fn of_object(error: &Value) -> Failure {
    let (class, code) = class_and_code(status_of(error), error);
    Failure {
        class,
        code: code.to_owned(),
        text: text("the model's endpoint broke off with an error", class, &said(error)),
        retry_after: None,
    }
}

/// The failure for a response that ended early.
pub(crate) fn cut() -> Failure {
    Failure::transient("upstream_cut", "the model's answer broke off")
}

/// The failure for a request without a response.
pub(crate) fn of_transport(error: &reqwest::Error) -> Failure {
    let (code, text) = match () {
        () if error.is_timeout() => ("upstream_timeout", "the model's endpoint was silent for too long"),
        () if error.is_connect() => ("upstream_away", "the model's endpoint cannot be reached"),
        () if error.is_body() || error.is_decode() => ("upstream_cut", "the model's answer broke off"),
        () => ("upstream_cut", "the request to the model's endpoint failed"),
    };
    Failure::transient(code, text)
}

/// Values that some endpoints write where there is no error.
const NO_ERROR: [&str; 8] = ["", "0", "null", "none", "false", "ok", "success", "no error"];
/// Fields that hold the kind of an error.
const KINDS: [&str; 7] = ["type", "code", "status", "reason", "error_type", "error_code", "errorCode"];
/// Fields that may hold an HTTP status. `error_code` holds numbers of the provider's own.
const STATUSES: [&str; 7] =
    ["status_code", "code", "status", "http_status", "http_code", "statusCode", "error"];
/// Fields with a human-readable message, the best first.
const TEXTS: [&str; 9] = [
    "message",
    "detail",
    "msg",
    "error_msg",
    "error_message",
    "errorMessage",
    "error_description",
    "error",
    "description",
];
/// Texts up to this length are a kind and not a message: `Bad Request`, `invalid_api_key`.
const LONGEST_KIND: usize = 48;
const MOST_KIND_WORDS: usize = 3;

/// Words in types and codes for unusable output of the model. A retry gives other output, although
/// the status is that of a bad request.
const SLIPS: [&str; 9] = [
    "tool_use_failed",
    "tool_call_failed",
    "invalid_tool_call",
    "malformed_function_call",
    "malformed_tool_call",
    "json_validate_failed",
    "output_parse",
    "tool_parse",
    "failed_generation",
];
/// Phrases in messages for unusable output of the model.
const SLIP_TEXTS: [&str; 10] = [
    "failed to generate tool_calls",
    "failed to generate tool calls",
    "failed to call a function",
    "failed to generate json",
    "failed to validate json",
    "failed to parse tool call",
    "failed to parse the tool call",
    "tool call validation failed",
    "malformed function call",
    "failed to parse model output",
];
/// The account has no credit left: retries fail until an operator acts.
const UNPAID: [&str; 5] =
    ["insufficient_quota", "billing", "credit_balance", "insufficient_balance", "payment"];
const BUSY: [&str; 10] = [
    "rate_limit",
    "ratelimit",
    "too_many_requests",
    "overloaded",
    "unavailable",
    "timeout",
    "resource_exhausted",
    "server_error",
    "internal",
    "capacity",
];
const FORBIDDEN: [&str; 5] = ["auth", "permission", "api_key", "forbidden", "access_denied"];
const WRONG: [&str; 15] = [
    "validation",
    "invalid_request",
    "invalidrequest",
    "bad_request",
    "badrequest",
    "context_length",
    "context_window",
    "string_above_max",
    "not_found",
    "notfound",
    "invalid_argument",
    "content_policy",
    "content_filter",
    "unsupported",
    "unprocessable",
];

/// Texts that show, in an error without a type, that the context is too long.
const TOO_LONG: [&str; 12] = [
    "context length",
    "context size",
    "context window",
    "context_length",
    "maximum context",
    "maximum prompt",
    "prompt is too long",
    "prompt too long",
    "prompt length",
    "input is too long",
    "input length",
    "too many tokens",
];
/// Rate limits, whose messages also mention tokens.
const TOO_FAST: [&str; 5] = ["rate limit", "too many requests", "per minute", "per hour", "per day"];

/// Classifies an error. Its words about the model or the account decide first, then its status,
/// then other words.
fn class_and_code(status: Option<u16>, error: &Value) -> (ErrorClass, &'static str) {
    let words = kinds(error);
    let has = |list: &[&str]| list.iter().any(|word| words.contains(word));
    // A gateway puts the error of the provider behind it into `metadata.raw`.
    let raw = match error.pointer("/metadata/raw") {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(raw) => raw.to_string(),
    };
    let message = format!("{} {raw}", said(error)).to_ascii_lowercase();
    let says = |list: &[&str]| list.iter().any(|text| message.contains(text));
    let is_slip = has(&SLIPS)
        || error.get("failed_generation").is_some_and(|value| !value.is_null())
        || says(&SLIPS)
        || says(&SLIP_TEXTS);
    match status {
        _ if is_slip => (ErrorClass::Transient, "model_error"),
        _ if has(&UNPAID) => (ErrorClass::Auth, "upstream_auth"),
        Some(status) => (class_of_status(status), code_of_status(status)),
        None if has(&["rate_limit", "ratelimit", "too_many_requests", "resource_exhausted"]) => {
            (ErrorClass::Transient, "rate_limited")
        }
        None if has(&BUSY) => (ErrorClass::Transient, "upstream_error"),
        None if has(&FORBIDDEN) => (ErrorClass::Auth, "upstream_auth"),
        None if has(&WRONG) => (ErrorClass::Permanent, "upstream_error"),
        None if says(&TOO_FAST) => (ErrorClass::Transient, "rate_limited"),
        None if says(&TOO_LONG) => (ErrorClass::Permanent, "upstream_error"),
        None => (ErrorClass::Transient, "upstream_error"),
    }
}

/// The kinds that an error names, in lower case, with `_` between words.
fn kinds(error: &Value) -> String {
    let is_kind =
        |text: &&str| text.len() <= LONGEST_KIND && text.split_whitespace().count() <= MOST_KIND_WORDS;
    let label = error.as_str().or_else(|| error.get("error")?.as_str()).filter(is_kind);
    let kinds = KINDS.iter().filter_map(|key| error.get(*key)?.as_str()).chain(label);
    kinds.map(|kind| kind.to_ascii_lowercase().replace(['-', ' ', '.'], "_") + " ").collect()
}

fn status_of(error: &Value) -> Option<u16> {
    STATUSES.iter().find_map(|key| error.get(*key).and_then(status_in))
}

fn class_of_status(status: u16) -> ErrorClass {
    match status {
        401..=403 => ErrorClass::Auth,
        408 | 409 | 423 | 425 | 429 | 498 | 499 => ErrorClass::Transient,
        300..=499 => ErrorClass::Permanent,
        _ => ErrorClass::Transient,
    }
}

fn code_of_status(status: u16) -> &'static str {
    match status {
        401..=403 => "upstream_auth",
        429 => "rate_limited",
        408 => "upstream_timeout",
        300..=499 => "upstream_refused",
        _ => "upstream_error",
    }
}

/// Accepts 429, 429.0 and "429".
fn status_in(value: &Value) -> Option<u16> {
    let number = value.as_f64().or_else(|| value.as_str()?.trim().parse().ok())?;
    ((300.0..600.0).contains(&number) && number.fract() == 0.0).then_some(number as u16)
}

/// An error's message for people, from whichever field holds it.
fn said(error: &Value) -> String {
    if let Some(text) = error.as_str() {
        return text.to_owned();
    }
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.clone()).filter(|text| !text.trim().is_empty()),
        Value::Object(map) => map.get("message").and_then(Value::as_str).map(str::to_owned),
        _ => None,
    };
    TEXTS.iter().find_map(|key| error.get(*key).and_then(text)).unwrap_or_default()
}

/// Messages about credentials are not shown, because endpoints often repeat part of the credential.
fn text(what: &str, class: ErrorClass, said: &str) -> String {
    match (class, said.trim()) {
        (ErrorClass::Auth, _) | (_, "") => what.to_owned(),
        (_, said) => format!("{what}: {}", said.chars().take(LONGEST_TEXT).collect::<String>()),
    }
}

/// Reads `Retry-After-Ms`, or `Retry-After` in seconds or as a date. A date is compared with the
/// response's own date, because the clocks may differ.
fn retry_after(headers: &HeaderMap, now_ms: i64) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let number = |text: &str| text.parse::<f64>().ok().filter(|number| *number >= 0.0 && number.is_finite());
    let seconds = |number: f64| Duration::from_secs_f64(number.min(LONGEST_DELAY.as_secs_f64()));
    if let Some(ms) = text("retry-after-ms").and_then(number) {
        return Some(seconds(ms / 1_000.0));
    }
    let after = text(RETRY_AFTER.as_str())?;
    if let Some(number) = number(after) {
        return Some(seconds(number));
    }
    let at = httpdate::parse_http_date(after).ok()?;
    let own = text(DATE.as_str()).and_then(|date| httpdate::parse_http_date(date).ok());
    let now = own.unwrap_or(UNIX_EPOCH + Duration::from_millis(now_ms.try_into().unwrap_or(0)));
    Some(at.duration_since(now).unwrap_or_default().min(LONGEST_DELAY))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn failure(status: u16, headers: &[(&'static str, &str)], body: &str) -> Failure {
        let headers = headers
            .iter()
            .map(|(name, value)| (reqwest::header::HeaderName::from_static(name), value.parse().unwrap()));
        let now = 784_111_777_000;
        of_response(StatusCode::from_u16(status).unwrap(), &headers.collect(), body.as_bytes(), now)
    }

    #[test]
    fn each_status_has_its_class_and_code() {
        use ErrorClass::{Auth, Permanent, Transient};
        let table = [
            (301, Permanent, "upstream_refused"),
            (400, Permanent, "upstream_refused"),
            (401, Auth, "upstream_auth"),
            (402, Auth, "upstream_auth"),
            (403, Auth, "upstream_auth"),
            (404, Permanent, "upstream_refused"),
            (408, Transient, "upstream_timeout"),
            (409, Transient, "upstream_refused"),
            (413, Permanent, "upstream_refused"),
            (422, Permanent, "upstream_refused"),
            (425, Transient, "upstream_refused"),
            (429, Transient, "rate_limited"),
            (500, Transient, "upstream_error"),
            (502, Transient, "upstream_error"),
            (503, Transient, "upstream_error"),
            (529, Transient, "upstream_error"),
        ];
        for (status, class, code) in table {
            let failure = failure(status, &[], "");
            assert_eq!(
                (failure.class, failure.code.as_str(), failure.retry_after),
                (class, code, None),
                "{status}"
            );
        }
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let after = |headers: &[(&'static str, &str)]| failure(429, headers, "").retry_after;
        assert_eq!(after(&[("retry-after", "7")]), Some(Duration::from_secs(7)));
        assert_eq!(after(&[("retry-after", "0.5")]), Some(Duration::from_millis(500)));
        assert_eq!(
            after(&[("retry-after", "7"), ("retry-after-ms", "250")]),
            Some(Duration::from_millis(250))
        );
        // These tests take 1994-11-06 08:49:37 as the current time.
        let date = "Sun, 06 Nov 1994 08:50:07 GMT";
        assert_eq!(after(&[("retry-after", date)]), Some(Duration::from_secs(30)));
        let own = ("date", "Sun, 06 Nov 1994 08:50:00 GMT");
        assert_eq!(after(&[("retry-after", date), own]), Some(Duration::from_secs(7)));
        assert_eq!(after(&[("retry-after", "Sun, 06 Nov 1994 08:00:00 GMT")]), Some(Duration::ZERO));
        assert_eq!(after(&[("retry-after", "1e99")]), Some(LONGEST_DELAY));
        for wrong in ["soon", "-1", "", "nan"] {
            assert_eq!(after(&[("retry-after", wrong)]), None, "{wrong}");
        }
        assert_eq!(failure(503, &[("retry-after", "3")], "").retry_after, Some(Duration::from_secs(3)));
        assert_eq!(failure(400, &[("retry-after", "3")], "").retry_after, None);
    }

    #[test]
    fn people_hear_what_the_endpoint_said_but_nothing_of_keys() {
        let body = json!({"error": {"message": "Incorrect API key provided: sk-12"}}).to_string();
        assert_eq!(failure(401, &[], &body).text, "the model's endpoint answered 401 Unauthorized");
        let body =
            json!({"error": {"message": "no such model", "type": "invalid_request_error"}}).to_string();
        assert_eq!(
            failure(404, &[], &body).text,
            "the model's endpoint answered 404 Not Found: no such model"
        );
        assert!(failure(400, &[], &json!({"detail": "x".repeat(999)}).to_string()).text.len() < 400);
        assert_eq!(
            failure(500, &[], "<html>").text,
            "the model's endpoint answered 500 Internal Server Error"
        );
    }

    #[test]
    fn errors_within_a_stream_are_classified_by_what_they_say() {
        let class = |error: Value| of_object(&error).class;
        assert_eq!(
            class(json!({"message": "overloaded", "type": "overloaded_error"})),
            ErrorClass::Transient
        );
        assert_eq!(class(json!({"code": 429})), ErrorClass::Transient);
        assert_eq!(class(json!({"code": "401"})), ErrorClass::Auth);
        assert_eq!(class(json!({"code": "context_length_exceeded"})), ErrorClass::Permanent);
        assert_eq!(
            class(json!({"type": "invalid_request_error", "code": "invalid_api_key"})),
            ErrorClass::Auth
        );
        assert_eq!(class(json!({"type": "invalid_request_error", "code": null})), ErrorClass::Permanent);
        assert_eq!(class(json!("what")), ErrorClass::Transient);
        assert_eq!(class(json!("the maximum context length is 8192 tokens")), ErrorClass::Permanent);
        assert_eq!(class(json!({"type": "InternalServerError", "code": 500.0})), ErrorClass::Transient);
        assert_eq!(class(json!({"type": "BadRequestError", "code": 400})), ErrorClass::Permanent);
        assert_eq!(class(json!({"type": "RateLimitError"})), ErrorClass::Transient);
        assert_eq!(
            class(json!({"type": "invalid_request_error", "code": "rate_limit_exceeded"})),
            ErrorClass::Transient
        );
        assert_eq!(
            class(json!({"code": "insufficient_quota", "type": "insufficient_quota"})),
            ErrorClass::Auth
        );
        for wrong in [
            "context size exceeded",
            "Too many tokens in the prompt",
            "prompt length of 9 exceeds",
            "Input is too long.",
        ] {
            assert_eq!(class(json!({"message": wrong})), ErrorClass::Permanent, "{wrong}");
        }
        assert_eq!(class(json!({"message": "too many tokens per minute"})), ErrorClass::Transient);
        assert_eq!(
            of_object(&json!({"code": "invalid_api_key"})).code,
            of_object(&json!({"code": 401})).code
        );
        let failure = of_object(&json!("what"));
        assert_eq!(failure.text, "the model's endpoint broke off with an error: what");
        assert_eq!(of_object(&json!({"code": 429})).code, "rate_limited");
    }

    #[test]
    fn an_error_is_described_by_all_that_is_around_it() {
        use ErrorClass::{Auth, Permanent, Transient};
        for (event, class, says) in [
            (
                json!({"error": "Bad Request", "status": 400, "message": "prompt is too long"}),
                Permanent,
                "prompt is too long",
            ),
            (json!({"error": "invalid_api_key", "status": 401}), Auth, ""),
            (json!({"error": "invalid_api_key"}), Auth, ""),
            (
                json!({"error": "`inputs` must not be empty", "error_type": "validation"}),
                Permanent,
                "`inputs` must not be empty",
            ),
            (
                json!({"error": "Model is overloaded", "error_type": "overloaded"}),
                Transient,
                "Model is overloaded",
            ),
            (json!({"error": {"message": "no such model"}, "status": 404}), Permanent, "no such model"),
            (json!({"error": 400, "detail": "no such model"}), Permanent, "no such model"),
            (json!({"error": true, "code": "400", "msg": "no such model"}), Permanent, "no such model"),
            (
                json!({"error": "{\"error\":{\"code\":400,\"message\":\"no such model\"}}"}),
                Permanent,
                "no such model",
            ),
            (json!({"error": [null, {"code": 400, "message": "no such model"}]}), Permanent, "no such model"),
            (json!({"error": "out of memory"}), Transient, "out of memory"),
        ] {
            assert!(is_present(&event["error"], false), "{event}");
            let failure = of_object(&described(&event["error"], &event));
            assert_eq!(failure.class, class, "{event}");
            assert!(failure.text.ends_with(says), "{event}: {}", failure.text);
        }
        let body = json!({"error": "Bad Request", "message": "prompt is too long"}).to_string();
        assert!(failure(400, &[], &body).text.ends_with(": prompt is too long"));
        let nothing = [
            json!(null),
            json!(0),
            json!(0.0),
            json!(false),
            json!(""),
            json!("None"),
            json!([]),
            json!({}),
            json!([null, 0]),
        ];
        for none in nothing
            .iter()
            .chain(&[json!({"code": 0, "message": ""}), json!({"code": 0, "message": "Success"})])
        {
            assert!(!is_present(none, false), "{none}");
        }
    }

    /// The request was valid: the model wrote output that the provider could not use.
    #[test]
    fn slips_of_the_model_are_worth_another_try() {
        for error in [
            json!({"type": "invalid_request_error", "code": "tool_use_failed", "status_code": 400}),
            json!({"type": "invalid_request_error", "failed_generation": "find_boat(", "code": 400}),
            json!({"code": "json_validate_failed", "message": "Failed to validate JSON"}),
            json!({"code": 400, "message": "Failed to call a function. Please adjust your prompt."}),
            json!({"code": "output-parse-failed"}),
            json!({"code": 400, "message": "Failed to generate tool_calls. See 'failed_generation' for more."}),
            json!({"code": 400, "message": "Provider returned error", "metadata": {"raw": "{\"error\":{\"code\":\"tool_use_failed\"}}"}}),
            json!({"code": 400, "message": "Provider returned error", "metadata": {"raw": {"code": "json_validate_failed"}}}),
        ] {
            let failure = of_object(&error);
            assert_eq!(
                (failure.class, failure.code.as_str()),
                (ErrorClass::Transient, "model_error"),
                "{error}"
            );
            let body = json!({ "error": error }).to_string();
            assert_eq!(self::failure(400, &[], &body).class, ErrorClass::Transient, "{body}");
        }
        let quota = json!({"error": {"code": "insufficient_quota", "message": "sk-1"}}).to_string();
        assert_eq!(failure(429, &[], &quota).class, ErrorClass::Auth);
        let google =
            json!([{"error": {"code": 429, "message": "slow down", "status": "RESOURCE_EXHAUSTED"}}]);
        assert!(failure(429, &[], &google.to_string()).text.ends_with(": slow down"));
    }
}
