//! NATS: connections, partition streams, the partition reader, publishing, requests.
//!
//! [`Bus`] is the entry type. [`PartitionReader`] reads one partition's stream without acks.
//! [`Bus::publish_live_frames`] and [`LiveSubscription`] carry live frames. With
//! [`Bus::query_owner`] and [`QueryServer`], gateways request missing frames.
//! [`Bus::publish_acked`] stores a message durably, [`Bus::replace_entry`] conditionally.
//! [`Bus::work`] passes turn requests to workflow services. Payloads are opaque bytes here.
//!
//! `async-nats` logs every event at `info`; start the log with [`QUIET_LOGS`] as a default
//! directive.

mod cancel;
mod config;
mod connection;
mod erase;
mod error;
mod failover;
mod inspect;
mod installation;
mod live;
mod metrics;
mod moving;
mod publish;
mod query;
mod reader;
mod servers;
mod stream;
mod trace;
mod work;

/// A NATS subject; dereferences to `str`.
pub use async_nats::Subject;
pub use cancel::CancelSubscription;
pub use config::BusConfig;
pub use connection::Bus;
pub use erase::StoredEntry;
pub use error::{BusError, Disposition};
pub use inspect::{StreamUsage, WorkflowConsumer};
pub use installation::INSTALLATION;
pub use live::{LiveMessage, LiveSubscription};
pub use metrics::METRICS;
pub use moving::MovedEntry;
pub use publish::PublishAck;
pub use query::{QueryError, QueryRequest, QueryServer};
pub use reader::{ExpectedStream, PartitionReader, RawEntry, ReaderEvent};
pub use stream::{INCARNATION, StreamOptions, StreamOwner, StreamState};
pub use work::{
    ACK_WAIT, StoredWork, WorkAck, WorkAckKind, WorkAcks, WorkItem, WorkOptions, WorkProgress,
    WorkSubscription,
};

/// A log directive that keeps only the relevant lines of the client library.
pub const QUIET_LOGS: &str = "async_nats=warn";
