//! Tests of the protocols with whole answers: exact bytes, any order of arrival, any cut, and real
//! clients.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test says so when it fails")]

mod clients;
mod cuts;
mod encoders;
mod golden;
mod history;
mod scenarios;
mod shuffles;
