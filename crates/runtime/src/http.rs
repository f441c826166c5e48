//! The HTTP client for external services. It uses rustls with ring and no proxy from the
//! environment. It follows no redirects, because these would send the request, and perhaps a key,
//! to another host.

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{HeaderValue, InvalidHeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, Url};
use rustls::{ClientConfig, RootCertStore};

const CONNECT: Duration = Duration::from_secs(10);

/// The HTTP client could not be created.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error("TLS cannot be set up: {0}")]
    Tls(#[from] rustls::Error),
    #[error("the HTTP client cannot be set up: {0}")]
    Build(#[from] reqwest::Error),
}

/// A client with this read timeout; `None`: no timeout.
///
/// # Errors
/// TLS cannot be set up.
pub fn client(silence: Option<Duration>) -> Result<Client, ClientError> {
    let builder = Client::builder()
        .tls_backend_preconfigured(tls()?)
        .no_proxy()
        .redirect(Policy::none())
        .connect_timeout(CONNECT)
        .tcp_nodelay(true)
        .user_agent(concat!("antiphon/", env!("CARGO_PKG_VERSION")));
    Ok(match silence {
        Some(silence) => builder.read_timeout(silence),
        None => builder,
    }
    .build()?)
}

/// TLS with Mozilla's authorities and the machine's own, if any. An image may have no authorities,
/// and a company may have its own.
fn tls() -> Result<ClientConfig, rustls::Error> {
    let mut roots = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    let own = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(own.certs);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(config.with_root_certificates(roots).with_no_client_auth())
}

/// An `Authorization` header with an API key as bearer token; `None`: there is no key. The header
/// is marked sensitive, so that it does not appear in logs.
///
/// # Errors
/// The key has characters that are not allowed in a header.
pub fn bearer(api_key: Option<&str>) -> Result<Option<HeaderValue>, InvalidHeaderValue> {
    let Some(key) = api_key.map(str::trim).filter(|key| !key.is_empty()) else { return Ok(None) };
    let mut value = HeaderValue::from_str(&format!("Bearer {key}"))?;
    value.set_sensitive(true);
    Ok(Some(value))
}

/// Appends `path` to a base URL, which may end with a slash. Returns `None` if the base is not an
/// http or https URL with a host.
pub fn url_below(base: &str, path: &str) -> Option<Url> {
    let base = format!("{}/", base.trim().trim_end_matches('/'));
    let url = Url::parse(&base).and_then(|base| base.join(path)).ok()?;
    (matches!(url.scheme(), "http" | "https") && url.has_host()).then_some(url)
}

/// Reads at most `limit` bytes of the body; returns them and whether there was more.
///
/// # Errors
/// The body broke off.
pub async fn read_at_most(mut response: Response, limit: usize) -> Result<(Vec<u8>, bool), reqwest::Error> {
    let mut body = Vec::new();
    while let Some(bytes) = response.chunk().await? {
        let room = limit - body.len();
        body.extend_from_slice(&bytes[..bytes.len().min(room)]);
        if bytes.len() > room {
            return Ok((body, true));
        }
    }
    Ok((body, false))
}
