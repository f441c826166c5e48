//! Vectors of texts from any OpenAI-compatible endpoint, for searches of what agents remember.
//!
//! Entry: [`Embeddings`]. Vectors have length 1, so that the inner product of two is their similarity. A question waits for its vector no longer
//! than the settings allow; a request that takes longer is counted, and the search goes on without the vector.

mod endpoint;
mod metrics;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use crate::endpoint::Endpoint;
use crate::metrics::{Outcome, Purpose};

pub use crate::endpoint::{EmbeddingsConfig, EmbeddingsError, InvalidEmbeddings};
pub use crate::metrics::{METRICS, describe as describe_metrics};

/// Timeout of a request for the vectors of facts.
const FACTS_TIMEOUT: Duration = Duration::from_secs(30);

/// A client of the endpoint. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Embeddings(Arc<Client>);

#[derive(Debug)]
struct Client {
    endpoint: Endpoint,
    vectors_of: String,
    timeout: Duration,
    /// Held by the one request for facts: those of many partitions must not delay questions at the endpoint.
    facts: Mutex<()>,
}

impl Embeddings {
    /// A client; it connects with the first request.
    ///
    /// # Errors
    /// As [`EmbeddingsConfig::check`], or TLS cannot be set up.
    pub fn new(config: &EmbeddingsConfig) -> Result<Self, InvalidEmbeddings> {
        let (endpoint, vectors_of) = (Endpoint::new(config)?, config.vectors_of());
        Ok(Self(Arc::new(Client { endpoint, vectors_of, timeout: config.timeout, facts: Mutex::default() })))
    }

    /// As [`EmbeddingsConfig::vectors_of`].
    pub fn vectors_of(&self) -> &str {
        &self.0.vectors_of
    }

    /// The vector of a question, for a database whose vectors are of `stored`; `None`: that is not this model, or the request failed or
    /// timed out, which is counted.
    pub async fn of_question(&self, stored: Option<&str>, text: &str) -> Option<Vec<f32>> {
        if stored != Some(self.vectors_of()) {
            return None;
        }
        let texts = [text];
        let asked = self.0.endpoint.vectors(&texts, self.0.timeout).await;
        metrics::count(Purpose::Question, Outcome::of(&asked));
        match asked {
            Ok(vectors) => vectors.into_iter().next(),
            Err(error) => {
                tracing::debug!(%error, "a question has no vector: memory is searched by words alone");
                None
            }
        }
    }

    /// The vectors of facts, in their order. One request of a process at a time.
    ///
    /// # Errors
    /// [`EmbeddingsError::Refused`] for at least one of the texts; other errors may be temporary.
    pub async fn of_facts(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbeddingsError> {
        let _turn = self.0.facts.lock().await;
        let asked = self.0.endpoint.vectors(texts, FACTS_TIMEOUT).await;
        metrics::count(Purpose::Facts, Outcome::of(&asked));
        asked
    }
}
