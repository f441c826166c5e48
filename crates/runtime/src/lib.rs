//! Services that every process needs: named tasks, signals, logs, traces, health, metrics, a clock,
//! a backoff, retries.
//!
//! This crate is independent of the domain: it does not know threads, partitions or chunks.

pub mod backoff;
pub mod certificates;
pub mod clock;
pub mod endpoint;
pub mod escape;
pub mod health;
pub mod http;
pub mod metrics;
pub mod retry;
pub mod shutdown;
pub mod spawn;
pub mod telemetry;
pub mod traces;

pub use backoff::Backoff;
pub use clock::{Clock, system_time_ms};
pub use health::{Condition, Health, Heartbeat};
pub use retry::{retry, retry_until};
pub use shutdown::Shutdown;
pub use spawn::spawn_named;
