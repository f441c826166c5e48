//! Transport: connections, HTTP/1.1 and HTTP/2, timeouts and limits per client. Knows no threads,
//! tables or roles.

pub(crate) mod connection;
pub(crate) mod event_stream;
pub mod extensions;
pub(crate) mod header_timer;
pub(crate) mod http2;
pub(crate) mod ip_limit;
pub mod limits;
pub(crate) mod listener;
pub mod request_id;
pub mod request_metrics;
pub mod request_trace;
pub(crate) mod stream_handover;
pub(crate) mod timeout_stream;
pub mod trusted_proxies;
pub(crate) mod wake_gated;
