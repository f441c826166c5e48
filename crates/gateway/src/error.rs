//! Errors as `application/problem+json` (RFC 9457).

use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use protocols::request::{BadRequest, ErrorBody, RequestRejection};
use serde::Serialize;
use store::{Disposition, StoreError};
use utoipa::ToSchema;

use crate::metrics;

/// An answer that says what was wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    status: StatusCode,
    code: &'static str,
    detail: String,
    is_retryable: bool,
    retry_after_s: Option<u32>,
    /// The field that is at fault, where a protocol says it apart.
    param: Option<String>,
    /// The budget that is spent.
    budget: Option<Box<BudgetProblem>>,
}

/// The budget for which an input is refused. Amounts are decimal numbers, in tokens or in the currency of the prices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct BudgetProblem {
    pub(crate) name: String,
    /// `tenant`, `agent` or `user`: whose calls count.
    pub(crate) scope: &'static str,
    /// `tokens` or `cost`.
    pub(crate) unit: &'static str,
    pub(crate) limit: String,
    pub(crate) spent: String,
    /// When its next period begins, in RFC 3339.
    pub(crate) until: String,
}

/// The code of what the database would have to say.
pub(crate) const DATABASE_UNAVAILABLE: &str = "database_unavailable";

/// Whether the same request may succeed later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retry {
    Never,
    Maybe,
    /// After so many seconds at the earliest.
    After(u32),
}

/// What is wrong with a request, and whether to try again.
#[derive(Serialize, ToSchema)]
#[schema(as = Problem)]
pub(crate) struct ProblemBody<'a> {
    /// `about:blank`: the status and the code say all.
    #[serde(rename = "type")]
    kind: &'static str,
    /// The status in words.
    title: &'a str,
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// For programs. It stays what it is.
    code: &'static str,
    /// The same request may succeed later; Retry-After says after how many seconds.
    retryable: bool,
    /// For people.
    detail: &'a str,
    /// With the code `budget_exceeded`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    budget: Option<&'a BudgetProblem>,
}

/// What OpenAI's libraries ask before the status.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
/// The longest pause that they make, seconds.
const LONGEST_PAUSE_S: u32 = 60;

impl Problem {
    /// Something that the same request would meet again.
    pub(crate) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self { status, code, detail, is_retryable: false, retry_after_s: None, param: None, budget: None }
    }

    pub(crate) fn bad_request(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, detail)
    }

    pub(crate) fn not_found(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, code, detail)
    }

    pub(crate) fn conflict(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, code, detail)
    }

    pub(crate) fn too_large(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, code, detail)
    }

    pub(crate) fn method_not_allowed() -> Self {
        let detail = "this address does not take that method; Allow says which it takes";
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", detail)
    }

    /// For programs.
    pub(crate) fn code(&self) -> &'static str {
        self.code
    }

    /// Something that passes: the client may try again after a second.
    pub(crate) fn unavailable(code: &'static str, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code, detail).retry_after(1)
    }

    /// The database did not do what was asked: mostly because it cannot be reached at the moment.
    fn store(error: &StoreError) -> Self {
        if matches!(error, StoreError::TenantErased) {
            return Self::tenant_erased();
        }
        tracing::warn!(%error, "the store did not answer a request");
        match (error, error.disposition()) {
            (StoreError::Busy, _) => {
                let detail = "too many reports are being read at the moment";
                Self::unavailable("database_busy", detail)
            }
            (StoreError::Stopping, _) | (_, Disposition::Retry | Disposition::TooSlow) => {
                Self::unavailable(DATABASE_UNAVAILABLE, "the database cannot be reached at the moment")
            }
            (_, Disposition::Unknown | Disposition::Data | Disposition::Damaged | Disposition::Fatal) => {
                let detail = "something is wrong here; the log says what";
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", detail)
            }
        }
    }

    /// The tenant of the credential is marked as erased.
    pub(crate) fn tenant_erased() -> Self {
        Self::new(StatusCode::GONE, "tenant_erased", StoreError::TenantErased.to_string())
    }

    /// For a protocol that says it in its own form.
    pub(crate) fn rejection(&self) -> (RequestRejection, Retry) {
        let again = match self.retry_after_s {
            Some(seconds) => Retry::After(seconds),
            None if self.is_retryable => Retry::Maybe,
            None => Retry::Never,
        };
        let (status, code, message) = (self.status.as_u16(), self.code.to_owned(), self.detail.clone());
        (RequestRejection { status, code, message, param: self.param.clone() }, again)
    }

    /// A request of a protocol that asks for what is not done.
    pub(crate) fn of_request(bad: &BadRequest) -> Self {
        let problem = Self::bad_request(bad.code(), bad.to_string());
        Self { param: bad.param().map(str::to_owned), ..problem }
    }

    /// Counts it; [`IntoResponse`] does so by itself.
    pub(crate) fn count(&self) {
        metrics::http_error(self.code);
    }

    /// A budget is spent, for so many seconds still.
    pub(crate) fn of_budget(budget: BudgetProblem, seconds: u32) -> Self {
        let BudgetProblem { name, scope, unit, limit, spent, until } = &budget;
        let detail = format!(
            "the budget {name} of the {scope} is spent: {spent} of {limit} ({unit}); it begins anew at {until}"
        );
        let problem =
            Self::new(StatusCode::TOO_MANY_REQUESTS, "budget_exceeded", detail).retry_after(seconds);
        Self { budget: Some(Box::new(budget)), ..problem }
    }

    /// The same may succeed later, after so many seconds at the earliest.
    pub(crate) fn retry_after(self, seconds: u32) -> Self {
        Self { is_retryable: true, retry_after_s: Some(seconds), ..self }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        Self::store(&error)
    }
}

impl IntoResponse for Problem {
    /// It is in the extensions of the response, too: where a protocol has a form of its own, it is repeated in that.
    fn into_response(self) -> Response {
        self.count();
        let body = ProblemBody {
            kind: "about:blank",
            title: self.status.canonical_reason().unwrap_or("Error"),
            status: self.status.as_u16(),
            code: self.code,
            retryable: self.is_retryable,
            detail: &self.detail,
            budget: self.budget.as_deref(),
        };
        let mut response = (self.status, Json(body)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        challenge(&mut response);
        response.extensions_mut().insert(metrics::ProblemCode(self.code));
        response.extensions_mut().insert(self);
        response
    }
}

/// A refusal that was counted, in the form of a protocol.
pub(crate) fn refusal(problem: &Problem, error_body: fn(&RequestRejection) -> ErrorBody) -> Response {
    let (rejection, again) = problem.rejection();
    let mut response = in_form(&rejection, again, error_body);
    response.extensions_mut().insert(metrics::ProblemCode(problem.code));
    response
}

/// With what the libraries of these protocols go by: they try again by themselves after some statuses, without the key by which the
/// second time would be the first, unless the response forbids it.
pub(crate) fn in_form(
    rejection: &RequestRejection,
    again: Retry,
    error_body: fn(&RequestRejection) -> ErrorBody,
) -> Response {
    let body = error_body(rejection);
    let status = StatusCode::from_u16(rejection.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = (status, body.bytes).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(body.content_type));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    match again {
        Retry::After(seconds) => {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
            // They heed no longer pauses, and would try again at once.
            if seconds > LONGEST_PAUSE_S {
                headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
            }
        }
        Retry::Never if matches!(rejection.status, 408 | 409 | 429 | 500..) => {
            headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        Retry::Never | Retry::Maybe => {}
    }
    challenge(&mut response);
    response
}

/// Says with a 401 how to show a credential (RFC 9110, 11.6.1; RFC 6750).
fn challenge(response: &mut Response) {
    if response.status() == StatusCode::UNAUTHORIZED {
        let how = HeaderValue::from_static("Bearer realm=\"antiphon\"");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, how);
    }
}
