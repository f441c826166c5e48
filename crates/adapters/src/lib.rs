//! Client protocols as folds over ordered chunks: the same input gives the same bytes on every machine.
//!
//! [`native`] is Antiphon's own event stream. Nothing here knows a socket, a subject, a table or a clock.

pub mod cursor;
mod json;
pub mod native;

pub use cursor::{Cursor, InvalidCursor, Seen};
pub use native::{Encoded, FailureNote, Native};
