//! Ephemeral `nats-server` and Postgres as child processes, for tests, the demo, benchmarks and
//! chaos.
//!
//! Entry: [`NatsProcess::start`], [`Postgres::start`] and [`Nginx::start`]. The first two can be
//! killed (SIGKILL, like a crash) and restarted on the same port with the same data. They end with
//! their owner: on `Drop`, and when the process dies for any reason. Everything blocks and is
//! `Send`; async callers use `spawn_blocking`.

mod files;
mod nats;
mod nginx;
mod port;
mod postgres;
mod process;
mod scratch;
#[cfg(test)]
mod tests;

pub use nats::{ClusterOptions, NatsOptions, NatsProcess};
pub use nginx::{Nginx, Server};
pub use port::Port;
pub use postgres::{Postgres, PostgresOptions};
pub use scratch::ScratchDir;
