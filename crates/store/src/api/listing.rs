//! The row of a thread in the list of threads.

use model::{AgentId, ThreadTitle, TitleSource};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::error::StoreError;
use crate::row::parse_column;

/// Values of a thread for lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    pub title: Option<ThreadTitle>,
    /// The agent that answers; `None`: it is not decided yet.
    pub agent: Option<AgentId>,
    pub is_archived: bool,
    /// Starts at 0; each change by a client increments it.
    pub version: u32,
    /// The last activity (µs since 1970), at most a minute too early.
    pub active_us: i64,
}

pub(super) fn listing(row: &PgRow) -> Result<Listing, StoreError> {
    let title = match row.try_get::<Option<String>, _>("title")? {
        Some(text) => {
            let by = |name: &str| TitleSource::from_name(name).ok_or("no such source of titles");
            Some(ThreadTitle { text, by: parse_column(row, "title_by", by)? })
        }
        None => None,
    };
    Ok(Listing {
        title,
        agent: row
            .try_get::<Option<String>, _>("listed_agent")?
            .map(|_| parse_column(row, "listed_agent", AgentId::parse))
            .transpose()?,
        is_archived: row.try_get("is_archived")?,
        version: row.try_get::<i32, _>("version")?.unsigned_abs(),
        active_us: row.try_get("active_us")?,
    })
}
