//! Metrics of a server. Every metric is declared here, once; their names have the prefix of the
//! gateway in every role.

use std::time::Duration;

use metrics::{counter, gauge, histogram};
use runtime::metrics::MetricDescription;

const CONNECTIONS: &str = "antiphon_gateway_connections";
const CONNECTIONS_REJECTED: &str = "antiphon_gateway_connections_rejected_total";
const WRITE_TIMEOUTS: &str = "antiphon_gateway_write_timeouts_total";
const HTTP_ERRORS: &str = "antiphon_gateway_http_errors_total";
const HTTP_REQUESTS: &str = "antiphon_gateway_http_requests_total";
const HTTP_SECONDS: &str = "antiphon_gateway_http_request_seconds";

/// Metrics of a server.
pub const METRICS: &[MetricDescription] = &[
    MetricDescription::gauge(CONNECTIONS, "Open HTTP connections"),
    MetricDescription::counter(
        CONNECTIONS_REJECTED,
        "Connections closed at once because their address has the maximum number of connections",
    ),
    MetricDescription::counter(
        WRITE_TIMEOUTS,
        "Connections and HTTP/2 streams cut because the client read nothing for too long",
    ),
    MetricDescription::counter(
        HTTP_REQUESTS,
        "Requests answered, by `route` (`other` for an unknown one) and class of `status`: `2xx`, `3xx`, `4xx`, `5xx`",
    )
    .by(&["route", "status"]),
    MetricDescription::histogram(
        HTTP_SECONDS,
        "Duration from the head of a request to the head of its response, by `kind`: `read`, `write`, `stream` \
         (requests that can wait for an agent)",
    )
    .by(&["kind"]),
    MetricDescription::counter(HTTP_ERRORS, "Requests answered with an error, by its `code`").by(&["code"]),
];

/// Registers the help texts and initial values of the metrics.
pub(crate) fn describe() {
    runtime::metrics::describe(METRICS);
    // If a counter appears with its first increment, rates do not include that increment.
    gauge!(CONNECTIONS).increment(0.0);
    [CONNECTIONS_REJECTED, WRITE_TIMEOUTS].iter().for_each(|name| counter!(*name).increment(0));
}

pub(crate) fn connections(change: f64) {
    gauge!(CONNECTIONS).increment(change);
}

pub(crate) fn connection_rejected() {
    counter!(CONNECTIONS_REJECTED).increment(1);
}

pub(crate) fn write_timeout() {
    counter!(WRITE_TIMEOUTS).increment(1);
}

/// Counts a request that is answered with this error.
pub(crate) fn http_error(code: &'static str) {
    counter!(HTTP_ERRORS, "code" => code).increment(1);
}

pub(crate) fn http_request(route: String, status: &'static str) {
    counter!(HTTP_REQUESTS, "route" => route, "status" => status).increment(1);
}

pub(crate) fn http_seconds(kind: &'static str, took: Duration) {
    histogram!(HTTP_SECONDS, "kind" => kind).record(took);
}

/// Response extension with the code of its problem, for the log, whatever form the body has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProblemCode(pub(crate) &'static str);
