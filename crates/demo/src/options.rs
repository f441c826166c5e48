//! The options of the demo.

/// The options of the demo.
#[derive(Debug, Clone)]
pub struct DemoOptions {
    pub nats_url: String,
    pub database_url: String,
    pub partitions: u16,
    /// Run without a person: a script sends the lines, and the exit code is the verdict.
    pub is_once: bool,
}
