//! The row of a thread in the list of threads.

use model::{ThreadTitle, Timestamp, TitleSource};
use sqlx::Row;
use sqlx::postgres::PgRow;

use crate::error::StoreError;
use crate::row::parse_column;

/// Activity is written again after this time; see migration 48.
const ACTIVITY_US: i64 = 60_000_000;

/// Values of a thread for lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    pub title: Option<ThreadTitle>,
    pub is_archived: bool,
    /// Starts at 0; each change by a client increments it.
    pub version: u32,
    /// The last activity (µs since 1970), at most a minute too early.
    pub active_us: i64,
}

impl Listing {
    /// True if an activity at `now` has to be written.
    pub fn is_stale(&self, now: Timestamp) -> bool {
        now.0.saturating_mul(1_000).saturating_sub(self.active_us) > ACTIVITY_US
    }
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
        is_archived: row.try_get("is_archived")?,
        version: row.try_get::<i32, _>("version")?.unsigned_abs(),
        active_us: row.try_get("active_us")?,
    })
}
