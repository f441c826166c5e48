use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use prost::Message;

use super::*;

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn context(parent: &str, state: Option<&str>) -> Option<TraceContext> {
    TraceContext::from_headers(|name| match name {
        TraceContext::PARENT => Some(parent),
        TraceContext::STATE => state,
        _ => None,
    })
}

#[test]
fn context_is_written_as_it_was_read() {
    let read = context(PARENT, Some("a=1,b=2")).expect("valid");
    assert_eq!(read.traceparent(), PARENT);
    assert_eq!(read.tracestate().as_deref(), Some("a=1,b=2"));
    let not_recorded = context(&PARENT.replace("-01", "-00"), None).expect("valid");
    assert_eq!(not_recorded.traceparent(), PARENT.replace("-01", "-00"));
    assert_eq!(not_recorded.headers().count(), 1);
}

#[test]
fn what_is_no_context_counts_as_none() {
    for wrong in ["", "00", "00-0-0-01", &PARENT.replace("0af7", "0AF7"), &PARENT.replacen("00", "ff", 1)] {
        assert_eq!(context(wrong, None), None, "{wrong}");
    }
    let zero = "00-00000000000000000000000000000000-b7ad6b7169203331-01";
    assert_eq!(context(zero, None), None);
    let long = format!("a={}", "x".repeat(600));
    assert_eq!(context(PARENT, Some(&long)).and_then(|read| read.tracestate()), None);
    assert_eq!(context(PARENT, Some("a")).and_then(|read| read.tracestate()), None);
}

#[test]
fn settings_are_read_as_the_standard_has_them() {
    for (base, whole) in [
        ("http://c:4318", "http://c:4318/v1/traces"),
        ("http://c:4318/", "http://c:4318/v1/traces"),
        ("https://c/otlp/", "https://c/otlp/v1/traces"),
    ] {
        assert_eq!(parse_endpoint(base).expect(base).as_str(), whole);
    }
    for wrong in ["c:4318", "grpc://c:4317", "", "http://"] {
        assert!(matches!(parse_endpoint(wrong), Err(InvalidTraceSetting::Endpoint(_))), "{wrong}");
    }
    let pairs = parse_attributes("a=1, b = x%2Cy=z ,").expect("a list");
    assert_eq!(pairs, [("a".to_owned(), "1".to_owned()), ("b".to_owned(), "x,y=z".to_owned())]);
    assert!(parse_attributes("a").is_err() && parse_attributes("=1").is_err());
    let headers = parse_headers("Authorization=Basic%20abc").expect("headers");
    assert_eq!(headers["authorization"], "Basic abc");
    assert!(parse_headers("a b=1").is_err() && parse_headers("a=%0A").is_err());
}

#[test]
fn samplers_have_the_names_of_the_standard() {
    for name in ["always_on", "always_off", "parentbased_always_on", "parentbased_always_off"] {
        assert!(TraceSampler::parse(name, None).is_ok(), "{name}");
    }
    for name in ["traceidratio", "parentbased_traceidratio"] {
        assert!(TraceSampler::parse(name, Some("0.25")).is_ok() && TraceSampler::parse(name, None).is_ok());
        for wrong in ["1.5", "-1", "x", "NaN"] {
            let error = TraceSampler::parse(name, Some(wrong)).expect_err(wrong).to_string();
            assert_eq!(error, format!("{wrong:?} is no ratio from 0 to 1"));
        }
    }
    assert!(matches!(TraceSampler::parse("jaeger_remote", None), Err(InvalidTraceSetting::Sampler(_))));
}

/// A receiver whose first answer is 503.
async fn receiver() -> (String, Arc<Mutex<Vec<(HeaderMap, Bytes)>>>) {
    let received = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&received);
    let handler = post(async move |headers: HeaderMap, body: Bytes| {
        let mut kept = kept.lock().expect("lock");
        kept.push((headers, body));
        if kept.len() == 1 { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK }
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let address = listener.local_addr().expect("address");
    let router = Router::new().route("/v1/traces", handler);
    crate::spawn_named("receiver", async move { axum::serve(listener, router).await });
    (format!("http://{address}"), received)
}

/// The only test that installs traces, because they are installed for the whole process.
#[tokio::test]
async fn spans_are_sent_again_after_a_refusal_that_passes() {
    let off = Span::start("x", SpanKind::Internal, None, SpanStart::Now);
    assert!(!is_on() && off.context().is_none());
    let (base, received) = receiver().await;
    install(TraceSettings {
        endpoint: parse_endpoint(&base).expect("endpoint"),
        headers: parse_headers("x-key=secret").expect("headers"),
        service_name: "test".to_owned(),
        attributes: Vec::new(),
        sampler: TraceSampler::parse("parentbased_always_on", None).expect("sampler"),
        max_queue: 4,
    })
    .expect("installed");
    let parent = context(PARENT, Some("a=1")).expect("valid");
    let mut span =
        Span::start("work", SpanKind::Consumer, Some(&parent), SpanStart::Ago(Duration::from_secs(2)));
    assert_eq!(span.context().expect("context").tracestate().as_deref(), Some("a=1"));
    span.fail("broken");
    span.end();
    let not_recorded = context(&PARENT.replace("-01", "-00"), None).expect("valid");
    let silent = Span::start("silent", SpanKind::Internal, Some(&not_recorded), SpanStart::Now);
    assert!(!silent.is_recorded() && silent.context().expect("goes on").traceparent().ends_with("-00"));
    drop(silent);
    while received.lock().expect("lock").is_empty() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    flush(Duration::from_secs(5)).await;
    let received = received.lock().expect("lock");
    assert_eq!(received.len(), 2);
    assert_eq!(
        (&received[1].0["x-key"], &received[1].0["content-type"]),
        (&"secret".parse().expect("v"), &"application/x-protobuf".parse().expect("v"))
    );
    assert_eq!(received[0].1, received[1].1);
    let request = ExportTraceServiceRequest::decode(received[1].1.clone()).expect("OTLP");
    let spans = &request.resource_spans[0].scope_spans[0].spans;
    assert_eq!(spans.len(), 1);
    assert_eq!(spans[0].name, "work");
    assert_eq!(spans[0].parent_span_id, [0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31]);
    assert!(spans[0].end_time_unix_nano - spans[0].start_time_unix_nano >= 2_000_000_000);
}
