//! A gateway with real NATS and Postgres; the test plays the owner.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so when it fails")]

mod bounds;
mod client;
mod requests;
mod streams;
mod town;
