//! How long commands wait: a person does.

use std::time::Duration;

/// For an answer of Postgres or NATS.
pub(super) const SERVER_TIMEOUT: Duration = Duration::from_secs(15);
/// For what an owner adds, and what can be shown without.
pub(super) const OWNER_TIMEOUT: Duration = Duration::from_secs(3);
/// A copy of a long thread is one statement.
pub(super) const STATEMENT_TIMEOUT: Duration = Duration::from_secs(300);
