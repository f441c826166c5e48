//! NATS, Postgres and nginx for development: [`tools`] finds or fetches the programs, [`services`] starts them as child
//! processes, [`npm`] and [`pip`] install what runs in node and Python, [`workspace`] says where things are.
//!
//! Plain blocking std: async callers wrap calls in `spawn_blocking`. Few dependencies, because a newcomer's first
//! command waits for this crate alone.
#![allow(
    clippy::disallowed_methods,
    reason = "tooling at the edge: it reads the environment and the wall clock itself"
)]

pub mod npm;
pub mod pip;
pub mod services;
pub mod tools;
pub mod workspace;
