//! The HTTP client of a model's endpoint.

use std::time::Duration;

use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderMap};
use reqwest::{Client, Response};
use runtime::Clock;
use runtime::traces::TraceContext;
use serde_json::Value;

use super::config::{EndpointError, OpenAiConfig, url_of};
use super::limits::Limiter;
use crate::endpoint_errors;
use crate::engine_event::Failure;
use crate::interface::Interface;
use runtime::http;

/// Maximum bytes of one response. A message of the fleet has at most 4 MiB.
pub(super) const LONGEST_RESPONSE: usize = 32 << 20;
/// Maximum bytes read from an error response.
const LONGEST_ERROR: usize = 16 << 10;

pub(super) struct Endpoint {
    client: Client,
    pub(super) interface: Interface,
    base_url: String,
    headers: HeaderMap,
    clock: Clock,
    pub(super) limiter: Limiter,
    /// How long a failed call is retried.
    pub(super) retry: Duration,
}

impl Endpoint {
    pub(super) fn new(config: &OpenAiConfig, clock: Clock) -> Result<Self, EndpointError> {
        Ok(Self {
            client: http::client(Some(config.silence))?,
            interface: config.interface,
            base_url: config.base_url.clone(),
            headers: config.interface.headers(config.api_key.as_deref()).map_err(|_| EndpointError::Key)?,
            clock,
            limiter: Limiter::new(config.limits),
            retry: config.retry,
        })
    }

    /// Host name or address of the server, and its port.
    pub(super) fn server(&self) -> (String, Option<u16>) {
        let Ok(url) = url_of(self.interface, &self.base_url, "") else { return (String::new(), None) };
        (url.host_str().unwrap_or_default().to_owned(), url.port_or_known_default())
    }

    /// Sends a chat completions request as part of the trace. Dropping the response cancels the
    /// request.
    pub(super) async fn ask(&self, chat: &Value, trace: Option<&TraceContext>) -> Result<Response, Failure> {
        let model = chat["model"].as_str().unwrap_or_default();
        let url = url_of(self.interface, &self.base_url, model)
            .map_err(|error| Failure::permanent("upstream_refused", error.to_string()))?;
        let body = self.interface.body(chat.clone());
        let mut request = self.client.post(url).headers(self.headers.clone()).body(body.to_string());
        request = request.header(CONTENT_TYPE, "application/json").header(ACCEPT, "text/event-stream");
        for (name, value) in trace.into_iter().flat_map(TraceContext::headers) {
            request = request.header(name, value);
        }
        let response = request.send().await.map_err(|error| endpoint_errors::of_transport(&error))?;
        let (status, headers) = (response.status(), response.headers().clone());
        if !status.is_success() {
            let (body, _) = http::read_at_most(response, LONGEST_ERROR).await.unwrap_or_default();
            return Err(endpoint_errors::of_response(status, &headers, &body, self.clock.now_ms()));
        }
        // Whether the answer is a stream is decided by its content: not all endpoints declare it in
        // their headers.
        Ok(response)
    }
}
