//! Failed authentication as a problem.

use crate::error::{ErrorCode, Problem};

/// Why a request is not authenticated.
#[derive(Debug)]
pub(crate) enum AuthError {
    /// No credential.
    Missing,
    /// One that is not valid, and why: for the log.
    Refused(String),
    /// Its address has sent too many unknown keys.
    TooManyUnknown,
    /// It cannot be checked at the moment.
    Away(&'static str),
}

impl From<AuthError> for Problem {
    fn from(denied: AuthError) -> Self {
        match denied {
            AuthError::Missing => {
                let detail = "an API key or a token is needed: Authorization: Bearer <key>";
                Self::new(ErrorCode::Unauthenticated, detail)
            }
            AuthError::Refused(why) => {
                tracing::debug!(why, "a credential was refused");
                // A client that guesses must not learn how close the guess was.
                Self::new(ErrorCode::Unauthenticated, "the credential is not valid")
            }
            AuthError::TooManyUnknown => Self::from(ErrorCode::TooManyUnknownKeys),
            AuthError::Away(detail) => Self::new(ErrorCode::CredentialsUnavailable, detail),
        }
    }
}
