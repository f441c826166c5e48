//! Streaming from a feed to a socket: one feed task per thread with subscribers, plus their send
//! queues and response bodies. Contains no routes.

pub(crate) mod feed_context;
pub(crate) mod feed_task;
pub(crate) mod live_listener;
pub(crate) mod registry;
pub(crate) mod remembered;
pub(crate) mod response;
pub(crate) mod resume;
pub(crate) mod revocation;
pub(crate) mod send_queue;
pub(crate) mod store_reads;
pub(crate) mod subscriber;
pub(crate) mod transcode;
