//! An OTLP receiver of traces, and a tool at the same address.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use axum::{Router, body::Bytes, http::HeaderMap, routing::post};
use opentelemetry_proto::tonic::{
    collector::trace::v1::ExportTraceServiceRequest,
    common::v1::{AnyValue, KeyValue, any_value::Value},
    trace::v1::span::SpanKind,
};
use prost::Message;
use testkit::locked;

/// The received requests and tool calls.
#[derive(Clone, Default)]
pub(super) struct Receiver {
    requests: Arc<Mutex<Vec<(HeaderMap, Bytes)>>>,
    tool_calls: Arc<Mutex<Vec<HeaderMap>>>,
}

/// A span with the name of its process.
#[derive(Debug, Clone)]
pub(super) struct ReceivedSpan {
    pub(super) service: String,
    pub(super) name: String,
    pub(super) kind: SpanKind,
    pub(super) trace: String,
    pub(super) id: String,
    pub(super) parent: String,
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
    pub(super) is_error: bool,
    pub(super) attributes: HashMap<String, String>,
}

impl Receiver {
    /// Starts the receiver; the URL is for `OTEL_EXPORTER_OTLP_ENDPOINT`.
    pub(super) async fn start() -> (Self, String) {
        let receiver = Self::default();
        let requests = Arc::clone(&receiver.requests);
        let handler = post(async move |headers: HeaderMap, body: Bytes| {
            locked(&requests).push((headers, body));
        });
        let tool_calls = Arc::clone(&receiver.tool_calls);
        let tool = post(async move |headers: HeaderMap| {
            locked(&tool_calls).push(headers);
            "noon"
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().route("/v1/traces", handler).route("/clock", tool);
        tokio::spawn(async move { axum::serve(listener, router).await });
        (receiver, url)
    }

    pub(super) fn spans(&self) -> Vec<ReceivedSpan> {
        let requests = locked(&self.requests);
        requests.iter().flat_map(|(_, body)| spans(body)).collect()
    }

    /// True if the bytes of any request contain this text.
    pub(super) fn mentions(&self, text: &str) -> bool {
        let requests = locked(&self.requests);
        requests.iter().any(|(_, body)| body.windows(text.len()).any(|window| window == text.as_bytes()))
    }

    /// The `traceparent` of each call of the tool.
    pub(super) fn tool_traces(&self) -> Vec<String> {
        let calls = locked(&self.tool_calls);
        calls.iter().map(|headers| headers["traceparent"].to_str().unwrap().to_owned()).collect()
    }

    /// The values of a header, one per request.
    pub(super) fn header(&self, name: &str) -> Vec<String> {
        let requests = locked(&self.requests);
        requests.iter().map(|(headers, _)| headers[name].to_str().unwrap().to_owned()).collect()
    }
}

fn spans(body: &Bytes) -> Vec<ReceivedSpan> {
    let request = ExportTraceServiceRequest::decode(body.clone()).unwrap();
    let mut found = Vec::new();
    for of_resource in request.resource_spans {
        let resource = attributes(of_resource.resource.unwrap().attributes);
        for span in of_resource.scope_spans.into_iter().flat_map(|of_scope| of_scope.spans) {
            found.push(ReceivedSpan {
                service: resource["service.name"].clone(),
                kind: span.kind(),
                name: span.name,
                trace: hex(&span.trace_id),
                id: hex(&span.span_id),
                parent: hex(&span.parent_span_id),
                start_ns: span.start_time_unix_nano,
                end_ns: span.end_time_unix_nano,
                is_error: span.status.is_some_and(|status| status.code == 2),
                attributes: attributes(span.attributes),
            });
        }
    }
    found
}

fn attributes(of: Vec<KeyValue>) -> HashMap<String, String> {
    of.into_iter().map(|pair| (pair.key, text(pair.value))).collect()
}

fn text(value: Option<AnyValue>) -> String {
    match value.and_then(|value| value.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::ArrayValue(list)) => list.values.into_iter().map(|value| text(Some(value))).collect(),
        other => format!("{other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
