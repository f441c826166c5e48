//! Checks texts and names from outside.

use model::quoting;

use crate::{MAX_NAME_BYTES, Reason};

/// Refuses a text that is too long or that Postgres cannot store.
///
/// # Errors
/// The text has more than `max_bytes` bytes, or a NUL character.
pub fn check_text(what: &'static str, text: &str, max_bytes: usize) -> Result<(), Reason> {
    if text.len() > max_bytes {
        return Err(Reason::TooLong { what, bytes: text.len(), max_bytes });
    }
    if text.contains('\0') {
        return Err(Reason::Nul { what });
    }
    Ok(())
}

/// True if a text has no visible character: only white space, hidden characters and modifiers.
pub(crate) fn is_blank(text: &str) -> bool {
    let shows_nothing = |character: char| {
        let changes_others = matches!(
            character,
            '\u{34f}'
                | '\u{115f}'
                | '\u{1160}'
                | '\u{200c}'
                | '\u{200d}'
                | '\u{2800}'
                | '\u{3164}'
                | '\u{fe00}'..='\u{fe0f}' | '\u{ffa0}'
        );
        character.is_whitespace() || quoting::is_hidden(character) || changes_others
    };
    text.chars().all(shows_nothing)
}

/// Refuses a name that is blank, too long, or not one plain line.
pub(crate) fn check_name(what: &'static str, name: &str) -> Result<(), Reason> {
    check_text(what, name, MAX_NAME_BYTES)?;
    if is_blank(name) || quoting::not_of_one_line(name).is_some() {
        return Err(Reason::Name { what });
    }
    Ok(())
}
