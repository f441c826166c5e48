//! A span: a timed operation in a trace.

use std::borrow::Cow;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry::trace::{Span as _, SpanBuilder, Status, Tracer};
use opentelemetry::{Array, Context, KeyValue, StringValue, Value};
use opentelemetry_sdk::trace::Span as SdkSpan;

use super::context::TraceContext;
use super::tracer;

/// The role of a span towards its peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    /// The span answers a request.
    Server,
    /// The span waits for the answer to a request.
    Client,
    /// The span sends a message.
    Producer,
    /// The span processes a message.
    Consumer,
    /// The span has no peer.
    Internal,
}

/// When a span begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanStart {
    Now,
    /// The span began this long ago.
    Ago(Duration),
    /// The span began at this time by the clock of another machine, in ns of Unix time. A time in
    /// the future counts as now.
    AtNs(i64),
}

/// A started span, or an empty value when traces are off. The span ends when this value is dropped.
#[derive(Debug, Default)]
pub struct Span(Option<SdkSpan>);

impl Span {
    /// Begins a span with this `parent`. Without a parent it is the root of its trace.
    pub fn start(
        name: impl Into<Cow<'static, str>>,
        kind: SpanKind,
        parent: Option<&TraceContext>,
        at: SpanStart,
    ) -> Self {
        let Some(tracer) = tracer() else { return Self(None) };
        let mut builder = SpanBuilder::from_name(name).with_kind(of(kind));
        if let Some(at) = time(at) {
            builder = builder.with_start_time(at);
        }
        let parent = parent.map_or_else(Context::new, TraceContext::as_parent);
        Self(Some(tracer.build_with_context(builder, &parent)))
    }

    /// The context for child spans; `None` when traces are off.
    pub fn context(&self) -> Option<TraceContext> {
        self.0.as_ref().and_then(|span| TraceContext::of(span.span_context()))
    }

    /// True if the span will be sent. If not, its attributes need not be computed.
    pub fn is_recorded(&self) -> bool {
        self.0.as_ref().is_some_and(SdkSpan::is_recording)
    }

    pub fn set(&mut self, key: &'static str, value: impl Into<Value>) {
        if let Some(span) = self.0.as_mut().filter(|span| span.is_recording()) {
            span.set_attribute(KeyValue::new(key, value));
        }
    }

    /// Sets an attribute to a list.
    pub fn set_list(&mut self, key: &'static str, values: impl IntoIterator<Item = String>) {
        let values = values.into_iter().map(StringValue::from).collect();
        self.set(key, Value::Array(Array::String(values)));
    }

    /// Marks the span as failed, with this code.
    pub fn fail(&mut self, code: impl Into<String>) {
        if self.is_recorded() {
            self.set("error.type", code.into());
            if let Some(span) = &mut self.0 {
                span.set_status(Status::error(""));
            }
        }
    }

    pub fn end(self) {}
}

fn of(kind: SpanKind) -> opentelemetry::trace::SpanKind {
    use opentelemetry::trace::SpanKind as Kind;
    match kind {
        SpanKind::Server => Kind::Server,
        SpanKind::Client => Kind::Client,
        SpanKind::Producer => Kind::Producer,
        SpanKind::Consumer => Kind::Consumer,
        SpanKind::Internal => Kind::Internal,
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "spans of several machines are compared: they bear the time of the system"
)]
fn time(at: SpanStart) -> Option<SystemTime> {
    match at {
        SpanStart::Now => None,
        SpanStart::Ago(ago) => SystemTime::now().checked_sub(ago),
        SpanStart::AtNs(ns) => {
            Some((UNIX_EPOCH + Duration::from_nanos(u64::try_from(ns).ok()?)).min(SystemTime::now()))
        }
    }
}
