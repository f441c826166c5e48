//! Signals, drain, named spawn, telemetry, the metrics endpoint, health.
