//! Metric of requests to the endpoint, by purpose and outcome.

use ::metrics::counter;
use runtime::metrics::MetricDescription;

use crate::endpoint::EmbeddingsError;

const REQUESTS: &str = "antiphon_embeddings_requests_total";

/// Purpose of a request for a vector.
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

/// Metrics of the endpoint's clients.
pub const METRICS: &[MetricDescription] = &[MetricDescription::counter(
    REQUESTS,
    "Requests of workers and gateways for vectors, by `purpose` (`question`, `facts`) and `outcome`: \
         `ok`, `timeout`, `refused`, `failed`; a question without a vector is searched by words alone",
)
.by(&["purpose", "outcome"])];

/// Registers the help texts for the metrics endpoint.
pub fn describe() {
    runtime::metrics::describe(METRICS);
}

pub(crate) fn count(purpose: Purpose, outcome: Outcome) {
    counter!(REQUESTS, "purpose" => purpose.name(), "outcome" => outcome.name()).increment(1);
}
