//! HTTP client for `POST {base}/embeddings` with a model and texts.

use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Client, StatusCode, Url};
use runtime::http::{self, ClientError};
use serde::Deserialize;
use serde_json::json;

/// Maximum bytes of a response: 64 vectors of 4,096 numbers in JSON take a twelfth of it.
const LONGEST_RESPONSE: usize = 64 << 20;
/// Maximum bytes of an error response that are read and reported.
const LONGEST_ERROR: usize = 512;

/// Settings of the embeddings endpoint.
#[derive(Debug, Clone)]
pub struct EmbeddingsConfig {
    /// Base URL to which `/embeddings` is appended, for example `https://api.openai.com/v1`.
    pub base_url: String,
    /// The key that is sent as a bearer token.
    pub api_key: Option<String>,
    pub model: String,
    /// Dimensions requested from the model; `None`: the default of the model.
    pub dimensions: Option<u32>,
    /// How long a query waits for its vector.
    pub timeout: Duration,
}

impl EmbeddingsConfig {
    /// Checks that a request can be made with these settings.
    ///
    /// # Errors
    /// The URL, the key or the model is invalid.
    pub fn check(&self) -> Result<(), InvalidEmbeddings> {
        url(&self.base_url)?;
        model(&self.model)?;
        authorization(self.api_key.as_deref()).map(drop)
    }

    /// Name of the vector space, made from model and dimensions. Vectors of different spaces cannot
    /// be compared.
    pub fn vectors_of(&self) -> String {
        match self.dimensions {
            Some(dimensions) => format!("{}@{dimensions}", self.model.trim()),
            None => self.model.trim().to_owned(),
        }
    }
}

/// The reason why an endpoint cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum InvalidEmbeddings {
    /// The base URL is not a URL.
    #[error("{0:?} is no base URL: http:// or https:// with a host is expected")]
    Url(String),
    /// The key is not valid in a header.
    #[error("the API key holds characters that a header may not have")]
    Key,
    /// The model name is not valid.
    #[error("a model is needed: ANTIPHON_EMBEDDINGS_MODEL")]
    Model,
    /// The HTTP client cannot be built.
    #[error(transparent)]
    Client(#[from] ClientError),
}

/// Error of a request for vectors.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EmbeddingsError {
    /// The endpoint rejects the texts permanently.
    #[error("the endpoint refuses the texts: {0}")]
    Refused(String),
    /// The complete answer did not arrive in time.
    #[error("the endpoint did not answer in time")]
    TimedOut,
    /// The endpoint is unavailable, or answers with an error or without vectors.
    #[error("{0}")]
    Failed(String),
}

#[derive(Debug)]
pub(crate) struct Endpoint {
    client: Client,
    url: Url,
    authorization: Option<HeaderValue>,
    model: String,
    dimensions: Option<u32>,
}

#[derive(Deserialize)]
struct Answer {
    data: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    /// The index of the text. Some endpoints omit it, and then the order counts.
    index: Option<usize>,
    embedding: Vec<f32>,
}

impl Endpoint {
    pub(crate) fn new(config: &EmbeddingsConfig) -> Result<Self, InvalidEmbeddings> {
        Ok(Self {
            client: http::client(None)?,
            url: url(&config.base_url)?,
            authorization: authorization(config.api_key.as_deref())?,
            model: model(&config.model)?,
            dimensions: config.dimensions,
        })
    }

    /// Vectors of length 1 for the texts, in the same order.
    pub(crate) async fn vectors(
        &self,
        texts: &[&str],
        timeout: Duration,
    ) -> Result<Vec<Vec<f32>>, EmbeddingsError> {
        match tokio::time::timeout(timeout, self.ask(texts)).await {
            Ok(asked) => asked,
            Err(_) => Err(EmbeddingsError::TimedOut),
        }
    }

    async fn ask(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbeddingsError> {
        let mut body = json!({ "model": self.model, "input": texts, "encoding_format": "float" });
        if let Some(dimensions) = self.dimensions {
            body["dimensions"] = dimensions.into();
        }
        let mut request = self.client.post(self.url.clone()).body(body.to_string());
        request = request.header(CONTENT_TYPE, "application/json");
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization.clone());
        }
        let failed = |error: reqwest::Error| EmbeddingsError::Failed(error.without_url().to_string());
        let response = request.send().await.map_err(failed)?;
        let status = response.status();
        if !status.is_success() {
            let (body, _) = http::read_at_most(response, LONGEST_ERROR).await.unwrap_or_default();
            return Err(of_status(status, &body));
        }
        let (body, is_cut) = http::read_at_most(response, LONGEST_RESPONSE).await.map_err(failed)?;
        if is_cut {
            return Err(EmbeddingsError::Failed(format!(
                "the answer has more than {LONGEST_RESPONSE} bytes"
            )));
        }
        vectors_of(&body, texts.len(), self.dimensions)
    }
}

/// The error for a status. Some statuses reject the texts themselves. Others, such as those for a
/// wrong key or an exhausted quota, have causes that can be removed.
fn of_status(status: StatusCode, body: &[u8]) -> EmbeddingsError {
    let text = format!("HTTP {}: {}", status.as_u16(), String::from_utf8_lossy(body).trim());
    match status {
        StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE | StatusCode::UNPROCESSABLE_ENTITY => {
            EmbeddingsError::Refused(text)
        }
        _ => EmbeddingsError::Failed(text),
    }
}

fn vectors_of(body: &[u8], wanted: usize, dimensions: Option<u32>) -> Result<Vec<Vec<f32>>, EmbeddingsError> {
    let failed = |why: String| EmbeddingsError::Failed(format!("the answer holds no vectors: {why}"));
    let answer: Answer = serde_json::from_slice(body).map_err(|error| failed(error.to_string()))?;
    if answer.data.len() != wanted {
        return Err(failed(format!("{} of {wanted}", answer.data.len())));
    }
    let mut items = answer.data;
    // The sort is stable, so without indices the order does not change.
    items.sort_by_key(|item| item.index);
    let vector = |item: Item| {
        let numbers = item.embedding.len();
        if dimensions.is_some_and(|dimensions| dimensions as usize != numbers) {
            return Err(failed(format!("{numbers} numbers, where {dimensions:?} are asked for")));
        }
        unit(item.embedding).ok_or_else(|| failed("a vector without a direction".to_owned()))
    };
    items.into_iter().map(vector).collect()
}

/// Scales the vector to length 1; `None`: the vector has no direction.
fn unit(mut vector: Vec<f32>) -> Option<Vec<f32>> {
    let length = vector.iter().map(|number| f64::from(*number).powi(2)).sum::<f64>().sqrt();
    if !length.is_normal() {
        return None;
    }
    vector.iter_mut().for_each(|number| *number = (f64::from(*number) / length) as f32);
    Some(vector)
}

fn model(name: &str) -> Result<String, InvalidEmbeddings> {
    match name.trim() {
        "" => Err(InvalidEmbeddings::Model),
        name => Ok(name.to_owned()),
    }
}

fn authorization(api_key: Option<&str>) -> Result<Option<HeaderValue>, InvalidEmbeddings> {
    http::bearer(api_key).map_err(|_| InvalidEmbeddings::Key)
}

fn url(base_url: &str) -> Result<Url, InvalidEmbeddings> {
    http::url_below(base_url, "embeddings").ok_or_else(|| InvalidEmbeddings::Url(base_url.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str, wanted: usize, dimensions: Option<u32>) -> Result<Vec<Vec<f32>>, EmbeddingsError> {
        vectors_of(body.as_bytes(), wanted, dimensions)
    }

    #[test]
    fn vectors_come_in_the_order_of_their_texts() {
        let body = r#"{"object": "list", "data": [{"index": 1, "embedding": [0, 2]}, {"index": 0, "embedding": [3, 4]}]}"#;
        assert_eq!(read(body, 2, Some(2)).unwrap(), [vec![0.6, 0.8], vec![0.0, 1.0]]);
        let unnumbered = r#"{"data": [{"embedding": [-5]}, {"embedding": [7]}]}"#;
        assert_eq!(read(unnumbered, 2, None).unwrap(), [[-1.0], [1.0]]);
    }

    #[test]
    fn what_is_no_vector_is_refused() {
        for (body, wanted, dimensions) in [
            ("[]", 1, None),
            (r#"{"data": []}"#, 1, None),
            (r#"{"data": [{"embedding": []}]}"#, 1, None),
            (r#"{"data": [{"embedding": [0, 0]}]}"#, 1, None),
            (r#"{"data": [{"embedding": [1e30, 1e39]}]}"#, 1, None),
            (r#"{"data": [{"embedding": [1, 2, 3]}]}"#, 1, Some(2)),
            (r#"{"data": [{"embedding": "AAAA"}]}"#, 1, None),
        ] {
            let error = read(body, wanted, dimensions).unwrap_err();
            assert!(matches!(error, EmbeddingsError::Failed(_)), "{body}: {error}");
        }
    }

    #[test]
    fn a_text_is_to_blame_for_few_errors_alone() {
        let is_refused = |code| {
            matches!(of_status(StatusCode::from_u16(code).unwrap(), b"why"), EmbeddingsError::Refused(_))
        };
        assert!([400, 413, 422].into_iter().all(is_refused));
        assert!(![401, 403, 404, 408, 429, 500, 503].into_iter().any(is_refused));
    }

    #[test]
    fn wrong_settings_are_named() {
        let config = |base_url: &str, key: Option<&str>, model: &str| EmbeddingsConfig {
            base_url: base_url.to_owned(),
            api_key: key.map(str::to_owned),
            model: model.to_owned(),
            dimensions: Some(8),
            timeout: Duration::from_millis(500),
        };
        assert_eq!(url(" http://h:1/v1// ").unwrap().as_str(), "http://h:1/v1/embeddings");
        for wrong in ["", "h:1/v1", "ftp://h/v1", "http://"] {
            assert!(matches!(config(wrong, None, "m").check(), Err(InvalidEmbeddings::Url(_))), "{wrong}");
        }
        assert!(matches!(config("http://h", Some("a\nb"), "m").check(), Err(InvalidEmbeddings::Key)));
        assert!(matches!(config("http://h", None, " ").check(), Err(InvalidEmbeddings::Model)));
        config("http://h", Some(" "), "m").check().unwrap();
        assert_eq!(config("http://h", None, " m ").vectors_of(), "m@8");
    }
}
