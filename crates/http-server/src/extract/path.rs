//! Path parameters, and the parsing of ids in general.

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use model::InvalidId;
use serde::de::DeserializeOwned;

use crate::error::{ErrorCode, Problem};

/// Path parameters of the URL.
#[derive(Debug)]
pub struct PathParam<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for PathParam<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(params)) => Ok(Self(params)),
            Err(error) => Err(Problem::new(ErrorCode::InvalidId, error.body_text())),
        }
    }
}

/// Parses an id; `name` is the field shown in an error.
pub fn id<T, E: Into<BadId>>(
    name: &str,
    text: &str,
    parse: impl FnOnce(&str) -> Result<T, E>,
) -> Result<T, Problem> {
    parse(text).map_err(|error| Problem::new(ErrorCode::InvalidId, format!("{name}: {}", error.into().0)))
}

/// Why the text is not an id, as a readable message.
pub struct BadId(String);

impl From<InvalidId> for BadId {
    fn from(error: InvalidId) -> Self {
        Self(error.to_string())
    }
}

impl From<model::InvalidTimerId> for BadId {
    fn from(error: model::InvalidTimerId) -> Self {
        Self(error.to_string())
    }
}

impl From<model::InvalidTurnId> for BadId {
    fn from(error: model::InvalidTurnId) -> Self {
        Self(error.to_string())
    }
}
