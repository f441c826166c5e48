//! The workflow service against a real `nats-server` (the binary that `ANTIPHON_NATS_SERVER` names): each test starts its
//! own, publishes turn requests as an owner does, and reads the chunks as an owner does.
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
