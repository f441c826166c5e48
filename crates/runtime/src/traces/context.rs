//! The context of a trace as carried in headers: W3C Trace Context.

use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{SpanContext, TraceContextExt};
use opentelemetry_sdk::propagation::TraceContextPropagator;

/// Maximum length in bytes of a `tracestate` that is propagated: the minimum that the standard
/// requires.
const MAX_STATE_BYTES: usize = 512;

/// A trace, the span that is the parent of the following spans, and whether the trace is recorded.
#[derive(Debug, Clone, PartialEq)]
pub struct TraceContext(SpanContext);

impl TraceContext {
    /// The header with the ids of trace and span.
    pub const PARENT: &str = "traceparent";
    /// The header with data of tracing systems.
    pub const STATE: &str = "tracestate";

    /// Reads the two headers; `None` without a valid `traceparent`. A `tracestate` that is invalid
    /// or longer than 512 bytes counts as absent.
    pub fn from_headers<'a>(header: impl Fn(&str) -> Option<&'a str>) -> Option<Self> {
        let parent = header(Self::PARENT)?;
        let state = header(Self::STATE).filter(|state| state.len() <= MAX_STATE_BYTES);
        let context = TraceContextPropagator::new()
            .extract_with_context(&opentelemetry::Context::new(), &Headers { parent, state });
        let found = context.span().span_context().clone();
        found.is_valid().then_some(Self(found))
    }

    /// The id of the trace, for the log.
    pub fn trace_id(&self) -> String {
        self.0.trace_id().to_string()
    }

    /// The value of [`TraceContext::PARENT`].
    pub fn traceparent(&self) -> String {
        let recorded = u8::from(self.0.is_sampled());
        format!("00-{}-{}-{recorded:02x}", self.0.trace_id(), self.0.span_id())
    }

    /// The value of [`TraceContext::STATE`], if there is one.
    pub fn tracestate(&self) -> Option<String> {
        Some(self.0.trace_state().header()).filter(|state| !state.is_empty())
    }

    /// The headers to send.
    pub fn headers(&self) -> impl Iterator<Item = (&'static str, String)> {
        let state = self.tracestate().map(|state| (Self::STATE, state));
        [(Self::PARENT, self.traceparent())].into_iter().chain(state)
    }

    pub(super) fn of(span: &SpanContext) -> Option<Self> {
        span.is_valid().then(|| Self(span.clone()))
    }

    pub(super) fn as_parent(&self) -> opentelemetry::Context {
        opentelemetry::Context::new().with_remote_span_context(self.0.clone())
    }
}

struct Headers<'a> {
    parent: &'a str,
    state: Option<&'a str>,
}

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        match key {
            TraceContext::PARENT => Some(self.parent),
            TraceContext::STATE => self.state,
            _ => None,
        }
    }

    fn keys(&self) -> Vec<&str> {
        vec![TraceContext::PARENT, TraceContext::STATE]
    }
}

tokio::task_local! {
    static CURRENT: TraceContext;
}

/// Runs `work` with `context` as [`current`], but not in tasks that it spawns.
pub async fn with_current<T>(context: Option<TraceContext>, work: impl Future<Output = T>) -> T {
    match context {
        Some(context) => CURRENT.scope(context, work).await,
        None => work.await,
    }
}

/// The context of the current task, if any.
pub fn current() -> Option<TraceContext> {
    CURRENT.try_with(Clone::clone).ok()
}
