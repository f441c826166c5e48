//! JSON on one line for every reader: U+2028, U+2029 and U+0085 are escaped, because some clients
//! split lines there.

use std::io;

use serde::Serialize;
use serde_json::ser::{Formatter, Serializer};

/// Appends `value` to `out`.
///
/// Serializing into memory cannot fail for the values of this crate: their maps have string keys.
pub(crate) fn append(out: &mut Vec<u8>, value: &impl Serialize) {
    let written = value.serialize(&mut Serializer::with_formatter(&mut *out, OneLine));
    debug_assert!(written.is_ok());
}

struct OneLine;

impl Formatter for OneLine {
    fn write_string_fragment<W: io::Write + ?Sized>(
        &mut self,
        out: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        if fragment.is_ascii() {
            return out.write_all(fragment.as_bytes());
        }
        let mut rest = fragment;
        while let Some((at, escape, len)) = next_separator(rest) {
            out.write_all(&rest.as_bytes()[..at])?;
            out.write_all(escape)?;
            rest = &rest[at + len..];
        }
        out.write_all(rest.as_bytes())
    }
}

fn next_separator(text: &str) -> Option<(usize, &'static [u8], usize)> {
    let bytes = text.as_bytes();
    (0..bytes.len()).find_map(|at| match &bytes[at..] {
        [0xC2, 0x85, ..] => Some((at, &b"\\u0085"[..], 2)),
        [0xE2, 0x80, 0xA8, ..] => Some((at, &b"\\u2028"[..], 3)),
        [0xE2, 0x80, 0xA9, ..] => Some((at, &b"\\u2029"[..], 3)),
        _ => None,
    })
}
