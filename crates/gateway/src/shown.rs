//! Forms in which values appear in JSON.

use model::Timestamp;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// A moment as RFC 3339.
pub(crate) fn rfc3339(at: Timestamp) -> Option<String> {
    let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(at.0) * 1_000_000).ok()?;
    at.format(&Rfc3339).ok()
}
