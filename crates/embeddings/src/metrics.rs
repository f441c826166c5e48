//! Requests to the endpoint, by what they were for and what came of them.

use ::metrics::{counter, describe_counter};

use crate::endpoint::EmbeddingsError;

const REQUESTS: &str = "antiphon_embeddings_requests_total";

/// What a vector is for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose {
    Question,
    Facts,
}

impl Purpose {
    fn name(self) -> &'static str {
        match self {
            Self::Question => "question",
            Self::Facts => "facts",
        }
    }
}

/// What came of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Outcome {
    Ok,
    TimedOut,
    Refused,
    Failed,
}

impl Outcome {
    pub(crate) fn of<T>(asked: &Result<T, EmbeddingsError>) -> Self {
        match asked {
            Ok(_) => Self::Ok,
            Err(EmbeddingsError::TimedOut) => Self::TimedOut,
            Err(EmbeddingsError::Refused(_)) => Self::Refused,
            Err(EmbeddingsError::Failed(_)) => Self::Failed,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::TimedOut => "timeout",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

/// Help texts for the metrics endpoint.
pub fn describe() {
    describe_counter!(REQUESTS, "Requests for vectors of texts, by purpose and outcome");
}

pub(crate) fn count(purpose: Purpose, outcome: Outcome) {
    counter!(REQUESTS, "purpose" => purpose.name(), "outcome" => outcome.name()).increment(1);
}
