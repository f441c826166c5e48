//! The HTTP side of a model.

use std::time::Duration;

use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Client, Response, Url};
use runtime::Clock;
use runtime::traces::TraceContext;
use serde_json::Value;

use super::limits::Limiter;
use super::{OpenAiConfig, errors};
use crate::engine_event::Failure;
use runtime::http::{self, ClientError};

/// Bytes of one response; a whole message of the fleet has 4 MiB at most.
pub(super) const LONGEST_RESPONSE: usize = 32 << 20;
/// Bytes that are read of an error.
const LONGEST_ERROR: usize = 16 << 10;

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

pub(super) struct Endpoint {
    client: Client,
    url: Url,
    authorization: Option<HeaderValue>,
    clock: Clock,
    pub(super) limiter: Limiter,
    /// How long a call is tried again.
    pub(super) retry: Duration,
}

impl Endpoint {
    pub(super) fn new(config: &OpenAiConfig, clock: Clock) -> Result<Self, EndpointError> {
        Ok(Self {
            client: http::client(Some(config.silence))?,
            url: completions(&config.base_url)?,
            authorization: authorization(config.api_key.as_deref())?,
            clock,
            limiter: Limiter::new(config.limits),
            retry: config.retry,
        })
    }

    /// The name or address of the server.
    pub(super) fn host(&self) -> &str {
        self.url.host_str().unwrap_or_default()
    }

    /// Asks for a completion, as a part of the trace; dropping what comes back ends the request.
    pub(super) async fn ask(&self, body: &Value, trace: Option<&TraceContext>) -> Result<Response, Failure> {
        let mut request = self.client.post(self.url.clone()).body(body.to_string());
        request = request.header(CONTENT_TYPE, "application/json").header(ACCEPT, "text/event-stream");
        for (name, value) in trace.into_iter().flat_map(TraceContext::headers) {
            request = request.header(name, value);
        }
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization.clone());
        }
        let response = request.send().await.map_err(|error| errors::of_transport(&error))?;
        let (status, headers) = (response.status(), response.headers().clone());
        if !status.is_success() {
            let (body, _) = http::read_at_most(response, LONGEST_ERROR).await.unwrap_or_default();
            return Err(errors::of_response(status, &headers, &body, self.clock.now_ms()));
        }
        // Whether the answer is a stream or whole is seen by what it says: not all endpoints say it in their headers.
        Ok(response)
    }
}

pub(super) fn check(base_url: &str, api_key: Option<&str>) -> Result<(), EndpointError> {
    completions(base_url)?;
    authorization(api_key).map(drop)
}

fn authorization(api_key: Option<&str>) -> Result<Option<HeaderValue>, EndpointError> {
    http::bearer(api_key).map_err(|_| EndpointError::Key)
}

fn completions(base_url: &str) -> Result<Url, EndpointError> {
    http::url_below(base_url, "chat/completions").ok_or_else(|| EndpointError::Url(base_url.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_is_appended_to_the_base() {
        for base in ["http://h:1/v1", "http://h:1/v1/", " http://h:1/v1// "] {
            assert_eq!(completions(base).unwrap().as_str(), "http://h:1/v1/chat/completions", "{base}");
        }
        assert_eq!(completions("https://h").unwrap().as_str(), "https://h/chat/completions");
        for wrong in ["", "h:1/v1", "ftp://h/v1", "http://", "api.openai.com/v1"] {
            assert!(matches!(completions(wrong), Err(EndpointError::Url(_))), "{wrong}");
        }
        assert!(authorization(Some("  ")).unwrap().is_none());
        assert!(matches!(check("http://h", Some("a\nb")), Err(EndpointError::Key)));
        assert!(matches!(check("h", None), Err(EndpointError::Url(_))));
    }
}
