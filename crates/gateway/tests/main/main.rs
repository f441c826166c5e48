//! A gateway with real NATS and Postgres; the test plays the owner.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so when it fails")]

mod agents;
mod bounds;
mod client;
mod contexts;
mod doors;
mod fixture;
mod inputs;
mod parameters;
mod playing;
mod requests;
mod sending;
mod stopping;
mod streams;
mod tasks;
mod turns;
