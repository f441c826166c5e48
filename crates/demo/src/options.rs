//! What the demo is run with.

/// What the demo is run with.
#[derive(Debug, Clone)]
pub struct DemoOptions {
    /// Where NATS is.
    pub nats_url: String,
    /// Where Postgres is.
    pub database_url: String,
    /// Number of partitions.
    pub partitions: u16,
    /// Without a person: the lines are said by a script, and the end is the verdict.
    pub is_once: bool,
}
