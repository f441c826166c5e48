//! Failed authentication as a problem response.

use axum::http::StatusCode;

use crate::error::Problem;

/// Why a request is not authenticated.
#[derive(Debug)]
pub(crate) enum AuthError {
    Missing,
    /// The credential is not valid; the reason is for the log.
    Refused(String),
    /// The client's address has sent too many unknown keys.
    TooManyUnknown,
    /// The credential cannot be checked at the moment.
    Away(&'static str),
}

impl From<AuthError> for Problem {
    fn from(denied: AuthError) -> Self {
        let code = "unauthenticated";
        match denied {
            AuthError::Missing => {
                let detail = "an API key or a token is needed: Authorization: Bearer <key>";
                Self::new(StatusCode::UNAUTHORIZED, code, detail)
            }
            AuthError::Refused(why) => {
                tracing::debug!(why, "a credential was refused");
                // A client that guesses must not learn how close the guess was.
                Self::new(StatusCode::UNAUTHORIZED, code, "the credential is not valid")
            }
            AuthError::TooManyUnknown => {
                let detail = "this address has sent too many unknown keys";
                Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_unknown_keys", detail).retry_after(1)
            }
            AuthError::Away(detail) => Self::unavailable("credentials_unavailable", detail),
        }
    }
}
