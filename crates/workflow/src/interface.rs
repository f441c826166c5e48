//! The interfaces of providers: the URL, headers and body of a request.
//!
//! Requests are built as chat completions and converted. An answer of the model that is sent back
//! keeps its provider's own data under the key `native`, which never leaves this process.

mod anthropic;
mod google;
mod request;
mod responses;

use reqwest::Url;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, InvalidHeaderValue};
use runtime::http;
use serde_json::Value;

pub(crate) use request::NATIVE;

/// The protocol of an endpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Interface {
    /// OpenAI's chat completions, which most endpoints offer.
    #[default]
    ChatCompletions,
    Responses,
    Anthropic,
    /// Google's `generateContent`.
    Google,
}

/// Version of Anthropic's interface.
const ANTHROPIC_VERSION: &str = "2023-06-01";

impl Interface {
    /// The URL for requests to a model; `None` if the base is not a URL.
    pub(crate) fn url(self, base_url: &str, model: &str) -> Option<Url> {
        let path = match self {
            Self::ChatCompletions => "chat/completions".to_owned(),
            Self::Responses => "responses".to_owned(),
            Self::Anthropic => "messages".to_owned(),
            Self::Google => {
                let model = model.trim_start_matches("models/");
                let is_plain = |char: char| char.is_ascii_alphanumeric() || "-._".contains(char);
                let model: String = model.chars().filter(|char| is_plain(*char)).collect();
                format!("models/{model}:streamGenerateContent?alt=sse")
            }
        };
        // A relative reference with a colon in its first segment would be parsed as a scheme.
        http::url_below(base_url, &format!("./{path}"))
    }

    /// The headers of each request.
    pub(crate) fn headers(self, api_key: Option<&str>) -> Result<HeaderMap, InvalidHeaderValue> {
        let mut headers = HeaderMap::new();
        let bearer = http::bearer(api_key)?;
        let plain = |name: &'static str| -> Result<Option<(HeaderName, HeaderValue)>, InvalidHeaderValue> {
            let Some(key) = api_key.map(str::trim).filter(|key| !key.is_empty()) else { return Ok(None) };
            let mut value = HeaderValue::from_str(key)?;
            value.set_sensitive(true);
            Ok(Some((HeaderName::from_static(name), value)))
        };
        let key = match self {
            Self::ChatCompletions | Self::Responses => bearer.map(|value| (AUTHORIZATION, value)),
            Self::Anthropic => plain("x-api-key")?,
            Self::Google => plain("x-goog-api-key")?,
        };
        headers.extend(key);
        if self == Self::Anthropic {
            let name = HeaderName::from_static("anthropic-version");
            headers.insert(name, HeaderValue::from_static(ANTHROPIC_VERSION));
        }
        Ok(headers)
    }

    /// Converts the body of a chat completions request to this interface.
    pub(crate) fn body(self, mut chat: Value) -> Value {
        match self {
            Self::ChatCompletions => {
                for message in chat["messages"].as_array_mut().into_iter().flatten() {
                    message.as_object_mut().map(|message| message.remove(NATIVE));
                }
                chat
            }
            Self::Responses => responses::body(&chat),
            Self::Anthropic => anthropic::body(&chat),
            Self::Google => google::body(&chat),
        }
    }

    /// The provider, as spans name it.
    pub(crate) fn provider(self) -> &'static str {
        match self {
            Self::ChatCompletions | Self::Responses => "openai",
            Self::Anthropic => "anthropic",
            Self::Google => "gcp.gemini",
        }
    }
}

#[cfg(test)]
mod tests;
