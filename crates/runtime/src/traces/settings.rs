//! Settings of traces, with the names of OpenTelemetry.

use http::{HeaderMap, HeaderName, HeaderValue};
use opentelemetry::KeyValue;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, ShouldSample};
use percent_encoding::percent_decode_str;
use reqwest::Url;

/// The receiver, and the selection of traces to send.
#[derive(Debug, Clone)]
pub struct TraceSettings {
    /// The full URL; see [`parse_endpoint`].
    pub endpoint: Url,
    /// Headers sent with every request, such as a key for the receiver.
    pub headers: HeaderMap,
    /// The value of `service.name`, unless an attribute sets it.
    pub service_name: String,
    /// Attributes of the process.
    pub attributes: Vec<(String, String)>,
    pub sampler: TraceSampler,
    /// Maximum number of spans that wait for the receiver.
    pub max_queue: usize,
}

/// An unusable setting; the text lists valid values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTraceSetting {
    /// The text is not an HTTP URL.
    #[error("{0:?} is no http or https URL, such as http://collector:4318")]
    Endpoint(String),
    /// The text is not a list of names and values. The error does not repeat the text, because it
    /// may be a secret.
    #[error("it must be a list such as name=value,other=value")]
    List,
    /// The text is not the name of a sampler.
    #[error(
        "{0:?} is no sampler; one of always_on, always_off, traceidratio, parentbased_always_on, parentbased_always_off, \
         parentbased_traceidratio"
    )]
    Sampler(String),
    /// The text is not a ratio.
    #[error("{0:?} is no ratio from 0 to 1")]
    Ratio(String),
}

/// The URL to which spans are posted, derived from that of the receiver.
///
/// # Errors
/// The text is not an HTTP URL.
pub fn parse_endpoint(text: &str) -> Result<Url, InvalidTraceSetting> {
    let wrong = || InvalidTraceSetting::Endpoint(text.to_owned());
    let base = Url::parse(text).map_err(|_| wrong())?;
    if !matches!(base.scheme(), "http" | "https") || base.host_str().is_none() {
        return Err(wrong());
    }
    let path = format!("{}/v1/traces", base.path().trim_end_matches('/'));
    let mut url = base;
    url.set_path(&path);
    Ok(url)
}

/// Parses headers from a comma-separated list of `name=value`, with `%2C` for a comma.
///
/// # Errors
/// The text is not such a list, or has values that are not valid headers.
pub fn parse_headers(text: &str) -> Result<HeaderMap, InvalidTraceSetting> {
    let mut headers = HeaderMap::new();
    for (name, value) in parse_attributes(text)? {
        let name = HeaderName::try_from(name).map_err(|_| InvalidTraceSetting::List)?;
        let mut value = HeaderValue::try_from(value).map_err(|_| InvalidTraceSetting::List)?;
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Ok(headers)
}

/// Parses attributes from a list in the form that [`parse_headers`] accepts.
///
/// # Errors
/// The text is not such a list.
pub fn parse_attributes(text: &str) -> Result<Vec<(String, String)>, InvalidTraceSetting> {
    let pairs = text.split(',').map(str::trim).filter(|pair| !pair.is_empty());
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').ok_or(InvalidTraceSetting::List)?;
        let value = percent_decode_str(value.trim()).decode_utf8().map_err(|_| InvalidTraceSetting::List)?;
        let name = name.trim();
        if name.is_empty() {
            Err(InvalidTraceSetting::List)
        } else {
            Ok((name.to_owned(), value.into_owned()))
        }
    };
    pairs.map(pair).collect()
}

/// Selects the traces to record.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TraceSampler {
    /// The ratio of recorded traces. It applies to traces that begin here, or without
    /// `follows_parent` to all traces.
    ratio: f64,
    /// True if a trace that began elsewhere is recorded whenever its parent is.
    follows_parent: bool,
}

impl TraceSampler {
    /// The sampler with this name. `ratio` applies to samplers with a ratio in their name; 1 when
    /// absent.
    ///
    /// # Errors
    /// No sampler has this name, or the ratio is invalid.
    pub fn parse(name: &str, ratio: Option<&str>) -> Result<Self, InvalidTraceSetting> {
        let (follows_parent, rule) = match name.strip_prefix("parentbased_") {
            Some(rule) => (true, rule),
            None => (false, name),
        };
        let ratio = match rule {
            "always_on" => 1.0,
            "always_off" => 0.0,
            "traceidratio" => Self::ratio(ratio)?,
            _ => return Err(InvalidTraceSetting::Sampler(name.to_owned())),
        };
        Ok(Self { ratio, follows_parent })
    }

    fn ratio(text: Option<&str>) -> Result<f64, InvalidTraceSetting> {
        let Some(text) = text else { return Ok(1.0) };
        let ratio = text.parse::<f64>().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
        ratio.ok_or_else(|| InvalidTraceSetting::Ratio(text.to_owned()))
    }

    pub(super) fn sampler(self) -> Box<dyn ShouldSample> {
        let own = match self.ratio {
            1.0.. => Sampler::AlwaysOn,
            0.0 => Sampler::AlwaysOff,
            ratio => Sampler::TraceIdRatioBased(ratio),
        };
        Box::new(if self.follows_parent { Sampler::ParentBased(Box::new(own)) } else { own })
    }
}

impl TraceSettings {
    pub(super) fn resource(&self) -> Resource {
        let instance = format!("{:016x}", rand::random::<u64>());
        let own = [
            ("service.name", self.service_name.clone()),
            ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
            ("service.instance.id", instance),
        ];
        let own = own.map(|(name, value)| KeyValue::new(name, value));
        let said = self.attributes.iter().map(|(name, value)| KeyValue::new(name.clone(), value.clone()));
        Resource::builder_empty().with_attributes(own).with_attributes(said).build()
    }
}
