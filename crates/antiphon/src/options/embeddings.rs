//! Options for the vectors of agents' memory.

use std::time::Duration;

use clap::Args;
use embeddings::{Embeddings, EmbeddingsConfig};

use crate::exit::ExitError;

/// The endpoint that makes vectors of texts.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Vectors of memory")]
pub(crate) struct EmbeddingsArguments {
    /// Base URL of an OpenAI-compatible endpoint, to which `/embeddings` is appended, for example
    /// https://api.openai.com/v1: memory is then also searched by vectors, if Postgres has the
    /// extension vector. The same for `migrate`, workers, gateways and `doctor`.
    #[arg(long, env = "ANTIPHON_EMBEDDINGS_URL")]
    embeddings_url: Option<String>,
    /// Name of the model that makes the vectors. After a change `antiphon migrate` has all vectors
    /// made again.
    #[arg(long, env = "ANTIPHON_EMBEDDINGS_MODEL")]
    embeddings_model: Option<String>,
    /// API key of the endpoint for vectors, sent as a bearer token.
    #[arg(long, env = "ANTIPHON_EMBEDDINGS_API_KEY", hide_env_values = true)]
    embeddings_api_key: Option<String>,
    /// Number of dimensions of a vector (8 to 16000), for models that can shorten their vectors.
    /// [default: the model's number]
    #[arg(long, env = "ANTIPHON_EMBEDDINGS_DIMENSIONS", value_parser = clap::value_parser!(u32).range(8..=16_000))]
    embeddings_dimensions: Option<u32>,
    /// Timeout in milliseconds of the request for a question's vector, for which the beginning of a
    /// turn waits; after it memory is searched by words alone.
    #[arg(long, env = "ANTIPHON_EMBEDDINGS_TIMEOUT_MS", default_value_t = 500, value_parser = clap::value_parser!(u32).range(10..=30_000))]
    embeddings_timeout_ms: u32,
}

impl EmbeddingsArguments {
    /// The configuration of the endpoint; `None` without an endpoint.
    ///
    /// # Errors
    /// The settings are invalid.
    pub(crate) fn config(&self) -> Result<Option<EmbeddingsConfig>, ExitError> {
        let Some(base_url) = given(&self.embeddings_url) else { return Ok(None) };
        let config = EmbeddingsConfig {
            base_url,
            api_key: given(&self.embeddings_api_key),
            model: given(&self.embeddings_model).unwrap_or_default(),
            dimensions: self.embeddings_dimensions,
            timeout: Duration::from_millis(self.embeddings_timeout_ms.into()),
        };
        config.check().map_err(wrong)?;
        Ok(Some(config))
    }

    /// A client of the endpoint; `None` without an endpoint.
    ///
    /// # Errors
    /// The settings are invalid.
    pub(crate) fn client(&self) -> Result<Option<Embeddings>, ExitError> {
        self.config()?.map(|config| Embeddings::new(&config).map_err(wrong)).transpose()
    }
}

/// An empty value counts as absent.
fn given(value: &Option<String>) -> Option<String> {
    value.as_deref().map(str::trim).filter(|value| !value.is_empty()).map(str::to_owned)
}

fn wrong(error: embeddings::InvalidEmbeddings) -> ExitError {
    ExitError::Configuration(format!("ANTIPHON_EMBEDDINGS_URL: {error}"))
}
