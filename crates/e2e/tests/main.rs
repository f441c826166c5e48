//! The shipped binary as processes, on a real NATS and a real Postgres, through its outside contract only.
//!
//! `ANTIPHON_BIN` names the binary, `DATABASE_URL` a Postgres on which databases may be made.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "tests say what went wrong by panicking"
)]

mod acts;
mod again;
mod auth;
mod bed;
mod chaos;
mod clients;
mod commands;
mod contracts;
mod corners;
mod databases;
mod dead_letters;
mod demo;
mod erasing;
mod examples;
mod figures;
mod first_chats;
mod following;
mod full_streams;
mod fuzz;
mod going_on;
mod handover;
mod inputs;
mod links;
mod losses;
mod outages;
mod protocols;
mod refusals;
mod restores;
mod rough;
mod streams;
mod talk;
mod tasks;
mod turns;
mod viewers;
