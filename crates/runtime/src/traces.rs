//! Traces: spans of a process's work, sent to an OpenTelemetry receiver over OTLP (HTTP with
//! protobuf).
//!
//! Entry points: [`install`], once per process; then [`Span::start`]. Without [`install`], every
//! call here returns at once and allocates nothing. A span that ends enters a bounded queue. If the
//! queue is full, the span is dropped and counted, so that work never waits for the receiver.
//!
//! Spans carry ids, names and numbers, never the text of messages.

mod context;
mod exporter;
mod settings;
mod span;

use std::sync::OnceLock;
use std::time::Duration;

use opentelemetry::InstrumentationScope;
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};

use crate::http::ClientError;

pub use context::{TraceContext, current, with_current};
pub use settings::{
    InvalidTraceSetting, TraceSampler, TraceSettings, parse_attributes, parse_endpoint, parse_headers,
};
pub use span::{Span, SpanKind, SpanStart};

pub use exporter::METRICS;
use exporter::{Exporter, QueueProcessor};

static INSTALLED: OnceLock<Installed> = OnceLock::new();

#[derive(Debug)]
struct Installed {
    /// Kept because dropping the provider would end the tracer.
    _provider: SdkTracerProvider,
    tracer: SdkTracer,
    exporter: Exporter,
}

/// The reason why traces could not be installed.
#[derive(Debug, thiserror::Error)]
pub enum InstallTracesError {
    /// The HTTP client could not be created.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// Traces are installed already in this process.
    #[error("traces are already installed")]
    AlreadyInstalled,
}

/// Sends the spans of this process to a receiver from now on. Call it within a tokio runtime. This
/// call itself sends nothing, so an unreachable receiver is not an error.
///
/// # Errors
/// See [`InstallTracesError`].
pub fn install(settings: TraceSettings) -> Result<(), InstallTracesError> {
    let resource = settings.resource();
    let sampler = settings.sampler;
    let (exporter, queue) = Exporter::start(settings, &resource)?;
    let provider = SdkTracerProvider::builder()
        .with_span_processor(QueueProcessor(queue))
        .with_sampler(sampler.sampler())
        .with_resource(resource)
        .build();
    let scope = InstrumentationScope::builder("antiphon").with_version(env!("CARGO_PKG_VERSION")).build();
    let tracer = provider.tracer_with_scope(scope);
    let installed = Installed { _provider: provider, tracer, exporter };
    INSTALLED.set(installed).map_err(|_| InstallTracesError::AlreadyInstalled)
}

/// True if traces are installed in this process.
pub fn is_on() -> bool {
    INSTALLED.get().is_some()
}

fn tracer() -> Option<&'static SdkTracer> {
    INSTALLED.get().map(|installed| &installed.tracer)
}

/// Sends the spans that have ended. Returns when they are sent or `timeout` has passed.
pub async fn flush(timeout: Duration) {
    if let Some(installed) = INSTALLED.get()
        && !installed.exporter.flush(timeout).await
    {
        tracing::warn!("the receiver of traces did not take the last spans in time");
    }
}

/// Describes the metrics of the exporter; call it once the recorder is installed.
pub fn describe_metrics() {
    if is_on() {
        exporter::describe();
    }
}

#[cfg(test)]
mod tests;
