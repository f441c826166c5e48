//! Reads lines of an input with bounded memory for each line.

use std::io::{BufRead, Read};

use crate::exit::ExitError;

/// Bytes that are read beyond the maximum of a line: more than the length of one character, which
/// may be cut.
const BEYOND: u64 = 8;

#[derive(Debug)]
pub(super) struct Lines<R> {
    input: R,
    /// Maximum size of a line in bytes. Of a longer line a few more bytes are read, enough to
    /// report it.
    most: usize,
    line: Vec<u8>,
    number: u64,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(input: R, most: usize) -> Self {
        Self { input, most, line: Vec::new(), number: 0 }
    }

    /// The next line, including its line break.
    pub(super) fn next(&mut self) -> Result<Option<&str>, ExitError> {
        self.line.clear();
        self.number += 1;
        let most = self.most as u64 + BEYOND;
        let read = self.input.by_ref().take(most).read_until(b'\n', &mut self.line);
        let read = read.map_err(|error| ExitError::Failed(format!("the input cannot be read: {error}")))?;
        if read as u64 == most {
            let whole = std::str::from_utf8(&self.line).map_or_else(|error| error.valid_up_to(), str::len);
            self.line.truncate(whole);
        }
        match std::str::from_utf8(&self.line) {
            Ok(line) => Ok((read > 0).then_some(line)),
            Err(_) => Err(ExitError::Failed(format!("line {}: it is no UTF-8", self.number))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_one_by_one_and_long_ones_are_cut() {
        let mut lines = Lines::new("ab\nxäääääää\nc".as_bytes(), 4);
        assert_eq!(lines.next().ok().flatten(), Some("ab\n"));
        assert_eq!(lines.next().ok().flatten().map(str::len), Some(11));
        let mut lines = Lines::new(&b"ab\n\xff\n"[..], 4);
        assert!(lines.next().is_ok());
        assert!(matches!(lines.next(), Err(ExitError::Failed(why)) if why == "line 2: it is no UTF-8"));
    }
}
