//! Tests of the workflow service against a real `nats-server` (the binary in
//! `ANTIPHON_NATS_SERVER`). Each test starts its own server, publishes turn requests as an owner
//! does, and reads the chunks as an owner does.
#![allow(
    clippy::disallowed_methods,
    reason = "tests spawn what they await, and are told by a variable where the server is"
)]

mod fixture;
mod inputs;
mod interfaces;
mod models;
mod requests;
mod usage;
