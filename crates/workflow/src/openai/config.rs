//! Settings of a model's endpoint.

use std::sync::Arc;
use std::time::Duration;

use model::PriceTable;
use reqwest::Url;
use runtime::http::ClientError;

use super::limits::EndpointLimits;
use crate::interface::Interface;
use crate::tools::Tools;

/// Settings of a model's endpoint and of the model's tools.
#[derive(Debug, Clone)]
pub struct OpenAiConfig {
    /// The protocol that the endpoint implements.
    pub interface: Interface,
    /// Base URL to which the interface's path is appended, for example `https://api.openai.com/v1`.
    pub base_url: String,
    /// Sent as a bearer token; some interfaces use a header of their own.
    pub api_key: Option<String>,
    /// The model to use when the agent's settings name none.
    pub model: String,
    /// Longest silence of the endpoint before the call fails.
    pub silence: Duration,
    /// How long a call that has not produced output is retried while the endpoint is busy,
    /// unreachable or breaks off.
    pub retry: Duration,
    /// Limits that the endpoint sets for this process.
    pub limits: EndpointLimits,
    /// Maximum number of model calls in one turn.
    pub max_steps: u32,
    /// The tools that the model may call.
    pub tools: Tools,
    /// Prices of tokens, for turns with a cost budget.
    pub prices: Option<Arc<PriceTable>>,
}

impl OpenAiConfig {
    /// Checks that requests to the endpoint can be built.
    ///
    /// # Errors
    /// The URL or the key cannot be used.
    pub fn check(&self) -> Result<(), EndpointError> {
        check(self.interface, &self.base_url, self.api_key.as_deref())
    }
}

/// Why an endpoint cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// Not a URL.
    #[error("{0:?} is no base URL: http:// or https:// with a host is expected")]
    Url(String),
    /// Not a key.
    #[error("the API key holds characters that a header may not have")]
    Key,
    /// No HTTP client.
    #[error(transparent)]
    Client(#[from] ClientError),
}

fn check(interface: Interface, base_url: &str, api_key: Option<&str>) -> Result<(), EndpointError> {
    url_of(interface, base_url, "")?;
    interface.headers(api_key).map(drop).map_err(|_| EndpointError::Key)
}

pub(super) fn url_of(interface: Interface, base_url: &str, model: &str) -> Result<Url, EndpointError> {
    interface.url(base_url, model).ok_or_else(|| EndpointError::Url(base_url.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_is_appended_to_the_base() {
        let url = |base: &str| url_of(Interface::default(), base, "m");
        for base in ["http://h:1/v1", "http://h:1/v1/", " http://h:1/v1// "] {
            assert_eq!(url(base).unwrap().as_str(), "http://h:1/v1/chat/completions", "{base}");
        }
        assert_eq!(url("https://h").unwrap().as_str(), "https://h/chat/completions");
        for wrong in ["", "h:1/v1", "ftp://h/v1", "http://", "api.openai.com/v1"] {
            assert!(matches!(url(wrong), Err(EndpointError::Url(_))), "{wrong}");
        }
        assert!(Interface::default().headers(Some("  ")).unwrap().is_empty());
        assert!(matches!(check(Interface::Google, "http://h", Some("a\nb")), Err(EndpointError::Key)));
        assert!(matches!(check(Interface::Anthropic, "h", None), Err(EndpointError::Url(_))));
    }
}
