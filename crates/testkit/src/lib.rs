//! The outside view for tests: real NATS and Postgres, the shipped binary as processes, publishers,
//! and SSE clients.
//!
//! Nothing here depends on the internals of a worker or gateway: [`fleet`] starts the `antiphon`
//! binary, and everything else uses subjects, HTTP and tables. Building blocks: [`services`],
//! [`nats_cluster`], [`fleet`], [`load`], [`publisher`], [`sse`], [`manual_workflow`], [`api`],
//! [`proxy`], [`link`], [`db_snapshot`].
#![allow(
    clippy::disallowed_methods,
    reason = "tooling at the edge: it reads the environment and spawns what it likes"
)]

pub mod acked_publishes;
pub mod api;
pub mod db_snapshot;
pub mod examples;
pub mod fleet;
pub mod http;
pub mod link;
pub mod live_follower;
pub mod load;
pub mod manual_workflow;
pub mod nats_cluster;
pub mod prometheus;
pub mod proxy;
pub mod publisher;
pub mod services;
pub mod sse;
pub mod text;
pub mod turn_events;

/// A struct that is read from a row by its field names. The derive macro of sqlx would compile sqlx
/// and its dependencies twice.
#[macro_export]
macro_rules! from_row {
    ($(#[$meta:meta])* $visible:vis struct $name:ident { $($(#[$about:meta])* $shown:vis $field:ident: $kind:ty),* $(,)? }) => {
        $(#[$meta])*
        $visible struct $name { $($(#[$about])* $shown $field: $kind),* }

        impl sqlx::FromRow<'_, sqlx::postgres::PgRow> for $name {
            fn from_row(row: &sqlx::postgres::PgRow) -> Result<Self, sqlx::Error> {
                Ok(Self { $($field: sqlx::Row::try_get(row, stringify!($field))?),* })
            }
        }
    };
}

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result};
use async_nats::ServerAddr;

/// How long a test waits for something that must happen. A test that passes does not wait that
/// long: the limit only ends a test that hangs, on a machine that is busy with others.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(90);

/// Locks a mutex, and ignores poisoning by a panicked holder.
pub fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Parses a url, or several that are separated by commas.
pub fn nats_addresses(urls: &str) -> Result<Vec<ServerAddr>> {
    urls.split(',').map(|url| url.parse().with_context(|| format!("{url}: not a NATS url"))).collect()
}

/// Host and port of a url that contains both.
pub fn host_and_port(url: &str) -> Result<(String, u16)> {
    let (_, rest) = url.split_once("://").with_context(|| format!("{url}: no scheme"))?;
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let address = authority.rsplit('@').next().unwrap_or_default();
    let (host, port) = address.rsplit_once(':').with_context(|| format!("{url}: no port"))?;
    Ok((host.to_owned(), port.parse().with_context(|| format!("{url}: not a port"))?))
}
