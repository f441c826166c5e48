//! NATS: streams, the partition reader, publishing.
