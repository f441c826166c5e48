//! Texts and names that come from outside.

use model::quoting;

use crate::{MAX_NAME_BYTES, Reason};

/// Refuses a text that is too long, or that Postgres cannot keep.
///
/// # Errors
/// It has more than `max_bytes` bytes, or a NUL character.
pub fn check_text(what: &'static str, text: &str, max_bytes: usize) -> Result<(), Reason> {
    if text.len() > max_bytes {
        return Err(Reason::TooLong { what, bytes: text.len(), max_bytes });
    }
    if text.contains('\0') {
        return Err(Reason::Nul { what });
    }
    Ok(())
}

/// Refuses a name that is blank, too long, or no plain line.
pub(crate) fn check_name(what: &'static str, name: &str) -> Result<(), Reason> {
    check_text(what, name, MAX_NAME_BYTES)?;
    if name.trim().is_empty() || quoting::not_of_one_line(name).is_some() {
        return Err(Reason::Name { what });
    }
    Ok(())
}
