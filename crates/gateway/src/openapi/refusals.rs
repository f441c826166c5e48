//! Refusals in the document: components to which operations refer.
//!
//! Codes of credentials, limits, addresses, the reading of bodies, queries and headers, and of NATS
//! are in the `default` response of every secured operation. An operation lists its further codes
//! in [`CODES`]; each of their statuses has a response with all codes of that status. Client
//! protocols with a form of their own for errors have the `default` response only.

use std::collections::{BTreeMap, BTreeSet};

use axum::http::StatusCode;
use http_server::error::ErrorCode;
use protocols::ErrorForm;
use serde_json::{Map, Value, json};

use crate::openapi::error_codes::{BODY, FREQUENT, SECURED};
use crate::openapi::response::{JSON, PROBLEM};

/// The codes of an operation besides those of the `default` response.
pub(crate) const CODES: &str = "x-error-codes";
const DEFAULT: &str = "default";

/// The refusals that operations refer to: their codes, by the names of their components.
#[derive(Debug, Default)]
pub(crate) struct Refusals {
    components: BTreeMap<String, (ErrorForm, BTreeSet<ErrorCode>)>,
}

impl Refusals {
    /// Adds references to an operation with these codes.
    pub(crate) fn add_to_operation(
        &mut self,
        (form, is_secured): (ErrorForm, bool),
        codes: &BTreeSet<ErrorCode>,
        operation: &mut Map<String, Value>,
        responses: &mut Map<String, Value>,
    ) {
        let shared = shared();
        let own: Vec<_> = codes.iter().filter(|code| !is_secured || !shared.contains(code)).collect();
        if !own.is_empty() {
            operation.insert(CODES.to_owned(), own.iter().map(|code| code.name()).collect());
        }
        if is_secured {
            responses.entry(DEFAULT).or_insert_with(|| self.refer("Refused", form, &shared));
        }
        if form != ErrorForm::Problem {
            return;
        }
        let statuses: BTreeSet<_> = own.iter().map(|code| code.status()).collect();
        for status in statuses {
            let of_status = codes.iter().copied().filter(|code| code.status() == status).collect();
            let refer = || self.refer(&name_of(status), form, &of_status);
            responses.entry(status.as_str()).or_insert_with(refer);
        }
    }

    fn refer(&mut self, name: &str, form: ErrorForm, codes: &BTreeSet<ErrorCode>) -> Value {
        let name = format!("{name}{}", suffix(form));
        let reference = reference("responses", &name);
        let known = self.components.entry(name).or_insert_with(|| (form, BTreeSet::new()));
        known.1.extend(codes);
        reference
    }

    /// Adds the components to which operations refer.
    pub(crate) fn add_to_components(&self, components: &mut Value) {
        let responses = self.components.iter().map(|(name, (form, codes))| (name, response(*form, codes)));
        components["responses"] = responses.map(|(name, response)| (name.clone(), response)).collect();
        components["headers"] = json!({
            RETRY_AFTER: retry_after(true),
            MAYBE_RETRY_AFTER: retry_after(false),
            WWW_AUTHENTICATE: {
                "description": "With a 401: how to authenticate.", "schema": { "type": "string" },
            },
        });
    }
}

/// The codes of the `default` response. An operation answers the codes about bodies, queries and
/// actors if it takes any of them. It answers `unknown_address` if its path has variables, and the
/// codes about NATS and workers if it needs NATS or a worker.
pub(crate) fn shared() -> BTreeSet<ErrorCode> {
    let others = [ErrorCode::UnexpectedBody, ErrorCode::UnknownAddress];
    SECURED.into_iter().chain(BODY).chain(FREQUENT).chain(others).collect()
}

/// Suffix of the names of the components for this form.
fn suffix(form: ErrorForm) -> &'static str {
    match form {
        ErrorForm::Problem => "",
        ErrorForm::Text => "Text",
        ErrorForm::Wrapped => "OpenAi",
        ErrorForm::RunError => "AgUi",
    }
}

/// The status in one word.
fn name_of(status: StatusCode) -> String {
    status.canonical_reason().unwrap_or_default().split([' ', '-']).collect()
}

fn response(form: ErrorForm, codes: &BTreeSet<ErrorCode>) -> Value {
    let names: Vec<_> = codes.iter().map(|code| code.name()).collect();
    let has_statuses = codes.first().map(|code| code.status()) != codes.last().map(|code| code.status());
    let line = |code: &ErrorCode| {
        let status = if has_statuses { format!("{} ", code.status().as_u16()) } else { String::new() };
        format!("* {status}`{}`: {}", code.name(), code.meaning())
    };
    // A response for one status omits the codes of the `default` response and refers to it.
    let shared = if has_statuses { BTreeSet::new() } else { shared() };
    let mut lines: Vec<_> = codes.difference(&shared).map(line).collect();
    if !codes.is_disjoint(&shared) {
        lines.push("* also codes of `Refused`".to_owned());
    }
    let of_codes = json!({
        "allOf": [reference("schemas", "Problem")],
        "properties": { "code": { "enum": names } },
    });
    let protocols =
        format!("A code of `Refused` or of `{CODES}`. Requests that match no operation return a problem.");
    let (text, schema, media) = match form {
        ErrorForm::Problem => (lines.join("\n"), of_codes, None),
        ErrorForm::Text => (
            protocols,
            reference("schemas", "Problem"),
            Some(("text/plain", json!({ "schema": { "type": "string" } }))),
        ),
        ErrorForm::Wrapped => {
            let (schema, example) = (reference("schemas", "WrappedError"), wrapped(ErrorCode::RateLimited));
            let media = json!({ "schema": schema, "example": example });
            (protocols, reference("schemas", "Problem"), Some((JSON, media)))
        }
        ErrorForm::RunError => {
            let (schema, example) = (reference("schemas", "RunRefusal"), run_error(ErrorCode::RateLimited));
            let media = json!({ "schema": schema, "example": example });
            (protocols, reference("schemas", "Problem"), Some((JSON, media)))
        }
    };
    let mut content = json!({ PROBLEM: { "schema": schema } });
    if let Some((kind, media)) = media {
        content[kind] = media;
    }
    let mut response = json!({ "description": text, "content": content });
    let headers = headers(codes);
    if !headers.is_empty() {
        response["headers"] = json!(headers);
    }
    response
}

const RETRY_AFTER: &str = "RetryAfter";
const MAYBE_RETRY_AFTER: &str = "MaybeRetryAfter";
const WWW_AUTHENTICATE: &str = "WwwAuthenticate";

fn headers(codes: &BTreeSet<ErrorCode>) -> Map<String, Value> {
    let mut found = Map::new();
    let is_retryable = |code: &ErrorCode| code.retry_after_s().is_some();
    if codes.iter().any(is_retryable) {
        let name = if codes.iter().all(is_retryable) { RETRY_AFTER } else { MAYBE_RETRY_AFTER };
        found.insert("Retry-After".to_owned(), reference("headers", name));
    }
    if codes.contains(&ErrorCode::Unauthenticated) {
        found.insert("WWW-Authenticate".to_owned(), reference("headers", WWW_AUTHENTICATE));
    }
    found
}

fn reference(kind: &str, name: &str) -> Value {
    json!({ "$ref": format!("#/components/{kind}/{name}") })
}

fn wrapped(code: ErrorCode) -> Value {
    json!({
        "error": { "message": code.meaning(), "type": "rate_limit_error", "param": null, "code": code.name() },
    })
}

fn run_error(code: ErrorCode) -> Value {
    json!({ "message": code.meaning(), "code": code.name() })
}

fn retry_after(is_required: bool) -> Value {
    json!({
        "description": "Seconds after which the same request may succeed.", "required": is_required,
        "schema": { "type": "integer", "minimum": 0 },
    })
}
