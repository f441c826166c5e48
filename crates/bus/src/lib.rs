//! NATS: connections, partition streams, the partition reader, publishing, asking.
//!
//! [`Bus`] is the entry; [`Reader`] reads one partition's stream without acks, [`Bus::publish_out`] and
//! [`OutSubscription`] carry live frames, [`Bus::ask`] and [`AskServer`] resume them, [`Bus::publish_stored`] makes
//! something durable. [`Bus::work`] hands turn requests to workflow services. Payloads are bytes here: nothing in `bus`
//! knows what a chunk is.
//!
//! `async-nats` tells every event at `info` itself; start the log with [`QUIET_LOGS`] as a default directive.

mod ask;
mod backoff;
mod config;
mod connection;
mod erase;
mod error;
mod out;
mod reader;
mod servers;
mod stop;
mod stored;
mod stream;
mod work;

pub use ask::{AskError, AskRequest, AskServer};
/// A subject; dereferences to `str`.
pub use async_nats::Subject;
pub use config::BusConfig;
pub use connection::Bus;
pub use erase::StoredEntry;
pub use error::{BusError, Disposition};
pub use out::OutSubscription;
pub use reader::{RawEntry, Reader, ReaderEvent, Same};
pub use stop::StopSubscription;
pub use stored::StoredAck;
pub use stream::{INCARNATION, StreamOptions, StreamState};
pub use work::{ACK_WAIT, WorkItem, WorkOptions, WorkSubscription};

/// The log directive that leaves of the client library what is worth a line.
pub const QUIET_LOGS: &str = "async_nats=warn";
