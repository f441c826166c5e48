//! Failed authentication as a problem response.

use crate::error::{ErrorCode, Problem};

/// Why a request is not authenticated.
#[derive(Debug)]
pub enum AuthError {
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
