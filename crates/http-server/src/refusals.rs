//! Refusals outside of the routes: of a connection, of a `Host` or `Origin`, of an unknown address.

use std::sync::Arc;

use auth::CorsRules;
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use protocols::ErrorForm;

use crate::auth::cors;
use crate::auth::host_check::HostPolicy;
use crate::error::{self, ErrorCode, Problem};
use crate::transport::connection::{Refusal, Refuse};

/// Checks Host and Origin before anything else of a request is read.
pub(crate) async fn check_head(
    State(policy): State<Arc<HostPolicy>>,
    request: Request,
    next: Next,
) -> Response {
    match policy.check(&request) {
        Ok(()) => next.run(request).await,
        Err(problem) => {
            let origin = cors::origin(request.headers());
            cors::readable(refusal_at(request.uri().path(), problem), &policy.cors, origin.as_deref())
        }
    }
}

/// Makes the responses of requests that a connection refuses.
pub(crate) fn refusals(rules: Arc<CorsRules>) -> Refuse {
    Arc::new(move |why, uri, origin| {
        let code = match why {
            Refusal::Draining => ErrorCode::Draining,
            Refusal::TooManyRequests => ErrorCode::TooManyRequests,
            Refusal::TooManyStreams => ErrorCode::TooManyStreams,
        };
        let origin = origin.and_then(|origin| origin.to_str().ok());
        cors::readable(refusal_at(uri.path(), Problem::from(code)), &rules, origin)
    })
}

/// A refusal outside of the handlers, in the form of the protocol of its path.
pub fn refusal_at(path: &str, problem: Problem) -> Response {
    let Some(form) = ErrorForm::at(path).error_body() else { return problem.into_response() };
    problem.count();
    error::refusal(&problem, form)
}
