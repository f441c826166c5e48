//! Errors, classified by the action that should follow.

use std::borrow::Cow;

use model::PartitionCount;
use sqlx::error::DatabaseError;

/// The action that should follow an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// Nothing was changed, and waiting may help: try again after a pause.
    Retry,
    /// Nothing was changed, because the statement timeout expired: retry with fewer rows.
    TooSlow,
    /// It is unknown whether the statement was applied. Raise the epoch of the partition with
    /// [`crate::Store::reclaim`], which waits for the doubtful statement, and rebuild from the
    /// store.
    Unknown,
    /// Some value can never be stored or read. Halve the batch until that value is alone, then
    /// reject it.
    Data,
    /// The server found damaged data, or has a defect. Retry a few times, then treat the error as
    /// [`Self::Data`], so that a damaged page blocks only the rows on it.
    Damaged,
    /// Neither waiting nor another batch helps: stop and report the error.
    Fatal,
}

/// An operation failed. Every operation may be repeated, even if the first try has changed
/// something. The exception is [`crate::CommitWriter::commit`], which has its own error type.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The URL cannot be parsed.
    #[error("the database URL is not usable: {0}")]
    Url(#[source] sqlx::Error),
    /// A certificate file named in the URL, or a certificate of a connection, is unusable.
    #[error("the TLS settings of the database URL do not work: {0}")]
    Tls(String),
    /// The server refuses the login: wrong user, password or database name.
    #[error("Postgres refuses the connection: {0}")]
    Refused(#[source] sqlx::Error),
    /// There is a pooler between this process and the server, and it shares server sessions.
    #[error(
        "DATABASE_URL leads to a connection pooler ({0}); Antiphon needs sessions of its own, for their settings and prepared \
         statements, and keeps few: give it the address of Postgres itself"
    )]
    Pooler(String),
    /// No answer arrived in time; the connection was closed.
    #[error("Postgres did not answer in time")]
    TimedOut,
    /// The limit of concurrent statements of [`crate::Store::wide`] is reached.
    #[error("too many expensive reads are running")]
    Busy,
    #[error(transparent)]
    Statement(sqlx::Error),
    /// A row has a value that this version cannot read.
    #[error("a stored row cannot be read: {0}")]
    Row(String),
    /// The database has another number of partitions.
    #[error(
        "the database is laid out for {stored} partitions, not for {wanted}; only `antiphon partitions change` changes the number"
    )]
    PartitionCount {
        /// The number in the database.
        stored: u16,
        /// The configured number.
        wanted: u16,
    },
    /// The number of partitions is being changed, and no process may use them in the meantime.
    #[error(
        "the number of partitions is being changed from {from} to {to}: run `antiphon partitions change {to}` to its end"
    )]
    PartitionsChanging { from: u16, to: u16 },
    /// The caller has lost its partition to another owner, according to the store.
    #[error("another worker owns the partition")]
    NotOwner,
    /// The statement was for a tenant marked as erased, and was not run.
    #[error(
        "the tenant was erased, and nothing is read or written for it; an operator can let its name be used again with `antiphon tenants reopen`"
    )]
    TenantErased,
    #[error("the process is stopping")]
    Stopping,
}

impl StoreError {
    /// True if the server answered, so that it is reachable.
    pub fn is_answer(&self) -> bool {
        matches!(self, Self::Statement(sqlx::Error::Database(_)))
    }

    /// True if the statement failed because a unique value exists already.
    pub(crate) fn is_unique_violation(&self) -> bool {
        match self {
            Self::Statement(sqlx::Error::Database(error)) => sqlstate(error.as_ref()) == "23505",
            _ => false,
        }
    }

    /// True if the session is at a read-only server, such as a primary that has become a standby.
    pub(crate) fn is_read_only(&self) -> bool {
        match self {
            Self::Statement(sqlx::Error::Database(error)) => sqlstate(error.as_ref()) == "25006",
            _ => false,
        }
    }

    /// True if a value in the statement is the cause, so that the statement may succeed without the
    /// value.
    pub fn refuses_data(&self) -> bool {
        matches!(self.disposition(), Disposition::Data | Disposition::Damaged)
    }

    /// The action that should follow; never [`Disposition::Unknown`].
    pub fn disposition(&self) -> Disposition {
        match self {
            // A lost lease ends the retries. But the store may also go back to a state in which
            // this worker was the owner.
            Self::TimedOut | Self::Busy | Self::NotOwner => Disposition::Retry,
            Self::Statement(error) => match Cause::of(error) {
                Cause::Connect | Cause::NotNow | Cause::TooSlow | Cause::Lost => Disposition::Retry,
                Cause::Data => Disposition::Data,
                Cause::Damaged => Disposition::Damaged,
                Cause::Other => Disposition::Fatal,
            },
            Self::Row(_) => Disposition::Data,
            Self::Url(_)
            | Self::Tls(_)
            | Self::Refused(_)
            | Self::Pooler(_)
            | Self::PartitionCount { .. }
            | Self::PartitionsChanging { .. }
            | Self::TenantErased
            | Self::Stopping => Disposition::Fatal,
        }
    }

    /// Fails unless `stored` equals the configured number.
    pub(crate) fn check_count(stored: PartitionCount, wanted: PartitionCount) -> Result<(), Self> {
        match stored == wanted {
            true => Ok(()),
            false => Err(Self::PartitionCount { stored: stored.get(), wanted: wanted.get() }),
        }
    }
}

impl StoreError {
    /// Classifies an error of opening a connection.
    pub(crate) fn of_connect(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::Database(ref refusal) if is_of_pooler(refusal.as_ref()) => {
                Self::Pooler(refusal.message().to_owned())
            }
            sqlx::Error::Database(ref refusal) if refuses_login(refusal.as_ref()) => Self::Refused(error),
            error => error.into(),
        }
    }
}

/// Classifies an error of an open session.
impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::Configuration(_) => Self::Url(error),
            error => Self::Statement(error),
        }
    }
}

/// The cause of a failed statement, as far as the next action depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// There is no connection; nothing was sent.
    Connect,
    /// The server reports that nothing was applied, and that a later try may succeed.
    NotNow,
    /// The statement timeout expired; nothing was applied.
    TooSlow,
    /// The connection or the server failed while the statement was in flight.
    Lost,
    /// The server can never store one of its values.
    Data,
    /// A damaged page or index, or a defect of the server.
    Damaged,
    /// A defect of Antiphon, or a foreign database.
    Other,
}

impl Cause {
    /// Classifies an error of a statement that was sent.
    pub(crate) fn of(error: &sqlx::Error) -> Self {
        match error {
            sqlx::Error::Database(error) => Self::of_sqlstate(&sqlstate(error.as_ref())),
            sqlx::Error::PoolTimedOut => Self::Connect,
            sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) => Self::Lost,
            // A value of a row does not fit the type that it is decoded to.
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => Self::Data,
            // A statement too large for the protocol. sqlx detects this before it sends anything.
            sqlx::Error::Encode(_) => Self::Data,
            _ => Self::Other,
        }
    }

    fn of_sqlstate(code: &str) -> Self {
        match code {
            // Every insert names the conflict it expects, so any other unique violation is a
            // defect.
            "23505" => Self::Other,
            // The server itself does not know the outcome.
            "40003" => Self::Lost,
            // The server was the primary and has become a standby. The pool or the writer finds the
            // new primary.
            "25006" | "25P03" => Self::NotNow,
            // A privilege was revoked or is not granted yet. An operator can fix that without
            // restarting anything.
            "42501" => Self::NotNow,
            "57014" => Self::TooSlow,
            _ => match code.get(..2) {
                // Within a session, a proxy that lost its server reports this.
                Some("08") => Self::Lost,
                // By class: rolled back; out of resources; a lock not available; cancelled, or the
                // server is stopping or starting; disk errors.
                Some("40" | "53" | "55" | "57" | "58") => Self::NotNow,
                // Values, constraints, limits.
                Some("22" | "23" | "54") => Self::Data,
                Some("XX") => Self::Damaged,
                _ => Self::Other,
            },
        }
    }
}

/// True for refusals that do not end by waiting. Only for a connection that is being opened: within
/// a session some of these codes have another meaning.
pub(crate) fn refuses_login(error: &dyn DatabaseError) -> bool {
    matches!(sqlstate(error).as_ref(), "28000" | "28P01" | "3D000" | "42501")
}

/// True for the error of pgbouncer about settings in the first packet. Postgres accepts any setting
/// there.
pub(crate) fn is_of_pooler(error: &dyn DatabaseError) -> bool {
    error.message().contains("unsupported startup parameter")
}

pub(crate) fn sqlstate(error: &dyn DatabaseError) -> Cow<'_, str> {
    error.code().unwrap_or(Cow::Borrowed(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sqlstates_say_what_to_do() {
        let all = [
            (Cause::TooSlow, "57014"),
            (Cause::NotNow, "40001 40P01 53100 53300 55P03 57P01 57P03 25006 42501"),
            (Cause::Lost, "08006 08P01 40003"),
            (Cause::Data, "22P05 22021 22P02 22003 22008 23514 23502 54000 54001"),
            (Cause::Damaged, "XX000 XX001 XX002"),
            (Cause::Other, "23505 42P01 42601 21000"),
        ];
        for (cause, codes) in all {
            for code in codes.split(' ') {
                assert_eq!(Cause::of_sqlstate(code), cause, "{code}");
            }
        }
        assert_eq!(Cause::of_sqlstate(""), Cause::Other);
    }
}
