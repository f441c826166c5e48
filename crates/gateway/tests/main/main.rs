//! A gateway with real NATS and Postgres; the test plays the owner.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so when it fails")]

mod access;
mod agents;
mod client;
mod command_log;
mod contexts;
mod fixture;
mod inputs;
mod limits;
mod operators;
mod parameters;
mod requests;
mod sending;
mod stopping;
mod streams;
mod tasks;
mod thread_list;
mod timers;
mod turns;
mod usage;
