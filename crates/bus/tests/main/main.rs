//! The bus against real servers. Each test starts its own `nats-server` (the binary named by
//! `ANTIPHON_NATS_SERVER`) with its own store, and may kill it.
#![allow(
    clippy::disallowed_methods,
    reason = "tests spawn what they await, and are told by a variable where servers are"
)]

mod asks;
mod live;
mod reading;
mod server;
mod streams;
mod work;
