//! Vectors of texts from any OpenAI-compatible endpoint, for searches of agents' memory.
//!
//! Entry type: [`Embeddings`]. Vectors have length 1, so the inner product of two is their
//! similarity. A query waits for its vector no longer than the settings allow. If a request takes
//! longer, it is counted, and the search continues without the vector.

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
    /// Held during a request for facts, so that there is only one at a time. Requests for many
    /// partitions must not delay queries at the endpoint.
    facts: Mutex<()>,
}

impl Embeddings {
    /// Creates a client. It connects with the first request.
    ///
    /// # Errors
    /// The errors of [`EmbeddingsConfig::check`], or TLS cannot be set up.
    pub fn new(config: &EmbeddingsConfig) -> Result<Self, InvalidEmbeddings> {
        let (endpoint, vectors_of) = (Endpoint::new(config)?, config.vectors_of());
        Ok(Self(Arc::new(Client { endpoint, vectors_of, timeout: config.timeout, facts: Mutex::default() })))
    }

    /// The result of [`EmbeddingsConfig::vectors_of`].
    pub fn vectors_of(&self) -> &str {
        &self.0.vectors_of
    }

    /// The vector of a query, for a database with vectors of `stored`. Returns `None` if `stored`
    /// is another model. Also returns `None` if the request failed or timed out, which is counted.
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

    /// The vectors of facts, in the same order. A process sends one such request at a time.
    ///
    /// # Errors
    /// [`EmbeddingsError::Refused`] if the endpoint rejects at least one of the texts. Other errors
    /// may be temporary.
    pub async fn of_facts(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbeddingsError> {
        let _turn = self.0.facts.lock().await;
        let asked = self.0.endpoint.vectors(texts, FACTS_TIMEOUT).await;
        metrics::count(Purpose::Facts, Outcome::of(&asked));
        asked
    }
}
