//! The shipped binary as processes, on a real NATS and a real Postgres, through its outside contract only.
//!
//! `ANTIPHON_BIN` names the binary, `DATABASE_URL` a Postgres on which databases may be made.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "tests say what went wrong by panicking"
)]

mod bed;
mod chaos;
mod figures;
mod handover;
mod inputs;
mod outages;
mod streams;
