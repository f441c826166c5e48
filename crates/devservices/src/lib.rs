//! NATS, Postgres and nginx for development. [`tools`] finds or fetches the programs, [`services`]
//! starts them as child processes, [`npm`] and [`pip`] install packages for node and Python, and
//! [`workspace`] knows the paths.
//!
//! Plain blocking std: async callers wrap calls in `spawn_blocking`. It has few dependencies,
//! because a newcomer's first command waits only for this crate.
#![allow(
    clippy::disallowed_methods,
    reason = "tooling at the edge: it reads the environment and the wall clock itself"
)]

pub mod npm;
pub mod pip;
pub mod services;
pub mod tools;
pub mod workspace;
