//! Errors as `application/problem+json` (RFC 9457).

use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use model::RejectedEntry;
use protocols::request::{BadRequest, ErrorBody, RequestRejection};
use serde::Serialize;
use store::{Disposition, StoreError};
use utoipa::ToSchema;

use crate::metrics;

pub mod code;

pub use code::ErrorCode;

/// A response that reports why a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    code: ErrorCode,
    detail: String,
    retry_after_s: Option<u32>,
    /// The field at fault, for protocols that report it separately.
    param: Option<String>,
    /// The budget that is spent.
    budget: Option<Box<BudgetProblem>>,
}

/// The spent budget because of which an input is refused. Amounts are decimal numbers, in tokens or
/// in the currency of the prices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct BudgetProblem {
    pub name: String,
    /// The scope of the calls that count: `tenant`, `agent` or `user`.
    pub scope: &'static str,
    /// The unit of the amounts: `tokens` or `cost`.
    pub unit: &'static str,
    pub limit: String,
    pub spent: String,
    /// When the next period of the budget begins, in RFC 3339.
    pub until: String,
}

/// Whether the same request may succeed later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retry {
    Never,
    Maybe,
    /// The request may succeed after this number of seconds.
    After(u32),
}

/// Why a request failed, and whether to try again.
#[derive(Serialize, ToSchema)]
#[schema(
    as = Problem,
    examples(json!({
        "type": ErrorCode::RateLimited.address(), "title": "Too Many Requests", "status": 429, "code": ErrorCode::RateLimited.name(),
        "retryable": true, "detail": ErrorCode::RateLimited.meaning(),
    }))
)]
pub struct ProblemBody<'a> {
    /// The address of the code's entry in the book, at any gateway.
    #[serde(rename = "type")]
    address: String,
    /// The status in words.
    title: &'a str,
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// A code for programs, which never changes.
    code: &'static str,
    /// Whether the same request may succeed later; Retry-After is the number of seconds to wait.
    retryable: bool,
    /// A text for people, which may change.
    detail: &'a str,
    /// The spent budget; only with the code `budget_exceeded`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    budget: Option<&'a BudgetProblem>,
}

impl ErrorCode {
    /// Counts a response that reports this error.
    pub fn count(self) {
        metrics::http_error(self.name());
    }

    /// The address of the code's entry in the book, which every gateway serves.
    pub fn address(self) -> String {
        format!("/book/operate/error-codes.html#{}", self.name())
    }
}

/// The header that OpenAI's libraries check before the status.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");
/// The longest Retry-After that OpenAI's libraries follow, in seconds.
const LONGEST_PAUSE_S: u32 = 60;

impl Problem {
    /// A refusal with the status and the retry advice of its code.
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        let (detail, retry_after_s) = (detail.into(), code.retry_after_s());
        Self { code, detail, retry_after_s, param: None, budget: None }
    }

    /// The problem of a command that the owner of its partition would refuse. The code is that of
    /// the dead letter.
    pub fn of_command(refusal: RejectedEntry) -> Self {
        Self::new(ErrorCode::InvalidCommand, format!("{}: {}", refusal.code, refusal.detail))
    }

    pub fn code(&self) -> ErrorCode {
        self.code
    }

    /// The text for people.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// The response to a request whose database operation has failed. The usual cause is that the
    /// database is temporarily unreachable.
    fn store(error: &StoreError) -> Self {
        if matches!(error, StoreError::TenantErased) {
            return Self::tenant_erased();
        }
        tracing::warn!(%error, "the store did not answer a request");
        match (error, error.disposition()) {
            (StoreError::Busy, _) => Self::from(ErrorCode::DatabaseBusy),
            (StoreError::Stopping, _) | (_, Disposition::Retry | Disposition::TooSlow) => {
                Self::from(ErrorCode::DatabaseUnavailable)
            }
            (_, Disposition::Unknown | Disposition::Data | Disposition::Damaged | Disposition::Fatal) => {
                Self::from(ErrorCode::InternalError)
            }
        }
    }

    /// The problem of a credential whose tenant is marked as erased.
    pub fn tenant_erased() -> Self {
        Self::new(ErrorCode::TenantErased, StoreError::TenantErased.to_string())
    }

    /// The refusal and its retry advice, for a protocol that reports problems in its own form.
    pub fn rejection(&self) -> (RequestRejection, Retry) {
        let again = match self.retry_after_s {
            Some(seconds) => Retry::After(seconds),
            None => Retry::Never,
        };
        let (status, code, message) =
            (self.code.status().as_u16(), self.code.name().to_owned(), self.detail.clone());
        (RequestRejection { status, code, message, param: self.param.clone() }, again)
    }

    /// Counts the problem in the metrics; [`IntoResponse`] does so by itself.
    pub fn count(&self) {
        self.code.count();
    }

    /// The problem of a spent budget, which begins again after `seconds`.
    pub fn of_budget(budget: BudgetProblem, seconds: u32) -> Self {
        let BudgetProblem { name, scope, unit, limit, spent, until } = &budget;
        let detail = format!(
            "the budget {name} of the {scope} is spent: {spent} of {limit} ({unit}); it begins again at {until}"
        );
        let problem = Self::new(ErrorCode::BudgetExceeded, detail).retry_after(seconds);
        Self { budget: Some(Box::new(budget)), ..problem }
    }

    /// The same request may succeed later, after `seconds` at the earliest.
    pub fn retry_after(self, seconds: u32) -> Self {
        Self { retry_after_s: Some(seconds), ..self }
    }
}

impl From<ErrorCode> for Problem {
    /// The problem of this code, with the meaning of the code as its detail.
    fn from(code: ErrorCode) -> Self {
        Self::new(code, code.meaning())
    }
}

impl From<BadRequest> for Problem {
    fn from(bad: BadRequest) -> Self {
        let problem = Self::new(ErrorCode::from(&bad), bad.to_string());
        Self { param: bad.param().map(str::to_owned), ..problem }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        Self::store(&error)
    }
}

impl IntoResponse for Problem {
    /// The problem is also in the extensions of the response. A layer reads it there to report it
    /// in the form of another protocol.
    fn into_response(self) -> Response {
        self.count();
        let status = self.code.status();
        let body = ProblemBody {
            address: self.code.address(),
            title: status.canonical_reason().unwrap_or("Error"),
            status: status.as_u16(),
            code: self.code.name(),
            retryable: self.retry_after_s.is_some(),
            detail: &self.detail,
            budget: self.budget.as_deref(),
        };
        let mut response = (status, Json(body)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        challenge(&mut response);
        response.extensions_mut().insert(metrics::ProblemCode(self.code.name()));
        response.extensions_mut().insert(self);
        response
    }
}

/// A refusal in the form of a protocol. The problem has already been counted.
pub fn refusal(problem: &Problem, error_body: fn(&RequestRejection) -> ErrorBody) -> Response {
    let (rejection, again) = problem.rejection();
    let mut response = in_form(&rejection, again, error_body);
    response.extensions_mut().insert(metrics::ProblemCode(problem.code.name()));
    response
}

/// A refusal in the form of a protocol, with headers that control the retries of its client
/// libraries. These libraries retry by themselves after some statuses, unless the response forbids
/// it. They send no idempotency key, so a retry could open a second turn.
pub fn in_form(
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
            // The libraries ignore longer pauses and would retry at once.
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

/// Adds to a 401 response how to present a credential (RFC 9110, 11.6.1; RFC 6750).
fn challenge(response: &mut Response) {
    if response.status() == StatusCode::UNAUTHORIZED {
        let how = HeaderValue::from_static("Bearer realm=\"antiphon\"");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, how);
    }
}
