//! What went wrong, sorted by what to do next.

use std::borrow::Cow;

use model::PartitionCount;
use sqlx::error::DatabaseError;

/// What to do after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// Nothing was changed, and waiting may cure it: try again after a pause.
    Retry,
    /// Nothing was changed, because it took longer than a statement may: try less at once.
    TooSlow,
    /// It is unknown whether it was applied: raise the own epoch with [`crate::Store::reclaim`], which waits for
    /// the doubtful statement, and rebuild from the store.
    Unknown,
    /// Something in it can never be stored or read: halve the batch until it is alone, then give that one up.
    Data,
    /// The server met something damaged, or a defect of its own: try a few times, and then as [`Self::Data`], so that a
    /// damaged page holds up nothing but what lies on it.
    Damaged,
    /// Neither waiting nor another batch helps: stop and say so.
    Fatal,
}

/// An operation that did not succeed. Except for [`crate::CommitWriter::commit`], which has an error of its own, every
/// operation may be tried again whatever became of the first try.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The URL cannot be understood.
    #[error("the database URL is not usable: {0}")]
    Url(#[source] sqlx::Error),
    /// A file of certificates that the URL names, or a certificate in a connection, cannot be used.
    #[error("the TLS settings of the database URL do not work: {0}")]
    Tls(String),
    /// The server is there and refuses us: wrong user, password or database name.
    #[error("Postgres refuses the connection: {0}")]
    Refused(#[source] sqlx::Error),
    /// Between us and the server stands a pooler that hands out server sessions as it likes.
    #[error(
        "DATABASE_URL leads to a connection pooler ({0}); Antiphon needs sessions of its own, for their settings and prepared \
         statements, and keeps few: give it the address of Postgres itself"
    )]
    Pooler(String),
    /// No answer in time; the connection was closed.
    #[error("Postgres did not answer in time")]
    TimedOut,
    /// As many statements of [`crate::Store::wide`] run as may.
    #[error("too many expensive reads are running")]
    Busy,
    /// The statement failed.
    #[error(transparent)]
    Statement(sqlx::Error),
    /// A row holds what this version cannot read.
    #[error("a stored row cannot be read: {0}")]
    Row(String),
    /// The database is laid out for another number of partitions.
    #[error(
        "the database is laid out for {stored} partitions, not for {wanted}; only `antiphon partitions change` changes the number"
    )]
    PartitionCount {
        /// What the database says.
        stored: u16,
        /// What was asked for.
        wanted: u16,
    },
    /// The number of partitions is being changed, and no process may use them meanwhile.
    #[error(
        "the number of partitions is being changed from {from} to {to}: run `antiphon partitions change {to}` to its end"
    )]
    PartitionsChanging {
        /// What it was.
        from: u16,
        /// What it will be.
        to: u16,
    },
    /// Who asks has lost its partition to another owner, as the store has it now.
    #[error("another worker owns the partition")]
    NotOwner,
    /// The statement was for a tenant that is marked as erased, and was not run.
    #[error(
        "the tenant was erased, and nothing is read or written for it; an operator can let its name be used again with `antiphon tenants reopen`"
    )]
    TenantErased,
    /// The process is stopping.
    #[error("the process is stopping")]
    Stopping,
}

impl StoreError {
    /// Whether it is an answer of the server, which is there.
    pub fn is_answer(&self) -> bool {
        matches!(self, Self::Statement(sqlx::Error::Database(_)))
    }

    /// The session is at a server that takes no writes, as a primary that has become a standby.
    pub(crate) fn is_read_only(&self) -> bool {
        match self {
            Self::Statement(sqlx::Error::Database(error)) => sqlstate(error.as_ref()) == "25006",
            _ => false,
        }
    }

    /// Whether something that the statement names is the cause, so that the same statement may succeed without it.
    pub fn refuses_data(&self) -> bool {
        matches!(self.disposition(), Disposition::Data | Disposition::Damaged)
    }

    /// What to do next; never [`Disposition::Unknown`].
    pub fn disposition(&self) -> Disposition {
        match self {
            // Its lease ends it, unless the store goes back to when it was the owner.
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

    /// Fails unless `stored` is what this process was configured with.
    pub(crate) fn check_count(stored: PartitionCount, wanted: PartitionCount) -> Result<(), Self> {
        match stored == wanted {
            true => Ok(()),
            false => Err(Self::PartitionCount { stored: stored.get(), wanted: wanted.get() }),
        }
    }
}

impl StoreError {
    /// Of a connection that could not be opened.
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

/// Of a session that is open.
impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        match error {
            sqlx::Error::Configuration(_) => Self::Url(error),
            error => Self::Statement(error),
        }
    }
}

/// Why a statement failed, as far as it matters for what comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// There is no connection; nothing was sent.
    Connect,
    /// The server says that nothing was applied, and that it may be later.
    NotNow,
    /// It took longer than a statement may; nothing was applied.
    TooSlow,
    /// The connection or the server broke while the statement was under way.
    Lost,
    /// The server can never store what is in it.
    Data,
    /// A page or an index that is damaged, or a defect of the server.
    Damaged,
    /// A defect of ours, or a database that is not ours.
    Other,
}

impl Cause {
    /// Of an error of a statement that was sent.
    pub(crate) fn of(error: &sqlx::Error) -> Self {
        match error {
            sqlx::Error::Database(error) => Self::of_sqlstate(&sqlstate(error.as_ref())),
            sqlx::Error::PoolTimedOut => Self::Connect,
            sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::Protocol(_) => Self::Lost,
            // A value of a row has no place in the type that it is read as.
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => Self::Data,
            // Too large for the protocol: found before anything is sent.
            sqlx::Error::Encode(_) => Self::Data,
            _ => Self::Other,
        }
    }

    fn of_sqlstate(code: &str) -> Self {
        match code {
            // Own keys: every insert says which conflict it expects, so any other is a defect.
            "23505" => Self::Other,
            // The server itself does not know.
            "40003" => Self::Lost,
            // A primary that has become a standby; the pool or the writer finds the new one.
            "25006" | "25P03" => Self::NotNow,
            // A right was taken away, or not given yet: that is mended without restarting anything.
            "42501" => Self::NotNow,
            "57014" => Self::TooSlow,
            _ => match code.get(..2) {
                // Inside a session this is a proxy that lost its server.
                Some("08") => Self::Lost,
                // Rolled back; out of resources; a lock not free; cancelled, or the server stops or starts; its disk.
                Some("40" | "53" | "55" | "57" | "58") => Self::NotNow,
                // Values, constraints, limits.
                Some("22" | "23" | "54") => Self::Data,
                Some("XX") => Self::Damaged,
                _ => Self::Other,
            },
        }
    }
}

/// True for what waiting for a server to come up does not cure. Of a connection that is being opened: in a session some of these codes
/// say something else.
pub(crate) fn refuses_login(error: &dyn DatabaseError) -> bool {
    matches!(sqlstate(error).as_ref(), "28000" | "28P01" | "3D000" | "42501")
}

/// What pgbouncer says to settings that come with the first packet. Postgres has none that it would not take there.
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
