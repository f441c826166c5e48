//! Timeouts of commands. They are short enough for a person who waits.

use std::time::Duration;

/// Timeout of an answer of Postgres or NATS.
pub(super) const SERVER_TIMEOUT: Duration = Duration::from_secs(15);
/// Long, because the copy of a long thread is one statement.
pub(super) const STATEMENT_TIMEOUT: Duration = Duration::from_secs(300);
