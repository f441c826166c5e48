//! A worker in this process with its own NATS and database: its handling of turns, tasks and
//! agents.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "tests say what went wrong by panicking, and spawn what they await"
)]

mod compacting;
mod fixture;
mod handover;
mod local;
mod outbox;
mod requests;
mod waiting;
