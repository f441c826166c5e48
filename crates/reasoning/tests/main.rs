//! Tests of the rules of reasoning threads.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod appends;
mod compressions;
mod fixture;
mod properties;
mod undo;
mod views;
