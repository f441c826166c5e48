//! How long commands wait: a person does.

use std::time::Duration;

/// For an answer of Postgres or NATS.
pub(super) const SERVER_TIMEOUT: Duration = Duration::from_secs(15);
/// A copy of a long thread is one statement.
pub(super) const STATEMENT_TIMEOUT: Duration = Duration::from_secs(300);
