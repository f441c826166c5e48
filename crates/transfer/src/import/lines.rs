//! Splits an input into lines, with bounded memory for each line.

use super::interface::ImportFault;

/// Bytes that are kept beyond the maximum of a line: more than the length of one character, which
/// may be cut.
const BEYOND: usize = 8;

#[derive(Debug)]
pub(super) struct Lines {
    /// Maximum size of a line in bytes. Of a longer line a few more bytes are returned, enough to
    /// report it.
    most: usize,
    bytes: Vec<u8>,
    /// Where the next line begins.
    begin: usize,
    /// Up to here there is no line break after `begin`.
    searched: usize,
    is_whole: bool,
    number: u64,
}

impl Lines {
    pub(super) fn new(most: usize) -> Self {
        Self { most, bytes: Vec::new(), begin: 0, searched: 0, is_whole: false, number: 0 }
    }

    /// Adds bytes of the input. Lines that are there must be taken before.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.begin);
        self.searched -= self.begin;
        self.begin = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The input has no more bytes: the last line may have no line break.
    pub(super) fn end(&mut self) {
        self.is_whole = true;
    }

    /// The next whole line, including its line break; `None` if more bytes are needed.
    ///
    /// # Errors
    /// The line is not UTF-8.
    pub(super) fn next(&mut self) -> Result<Option<&str>, ImportFault> {
        let line_break = self.bytes[self.searched..].iter().position(|byte| *byte == b'\n');
        let end = line_break.map_or(self.bytes.len(), |at| self.searched + at + 1);
        let is_long = end - self.begin > self.most + BEYOND;
        if line_break.is_none() && !is_long && !(self.is_whole && end > self.begin) {
            self.searched = end;
            return Ok(None);
        }
        self.number += 1;
        let line = &self.bytes[self.begin..end];
        (self.begin, self.searched) = (end, end);
        if is_long {
            let line = &line[..self.most + BEYOND];
            let whole = std::str::from_utf8(line).map_or_else(|error| error.valid_up_to(), str::len);
            return Ok(std::str::from_utf8(&line[..whole]).ok());
        }
        match std::str::from_utf8(line) {
            Ok(line) => Ok(Some(line)),
            Err(_) => Err(ImportFault::new(self.number, "it is not UTF-8 text")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(parts: &[&[u8]]) -> Vec<String> {
        let (mut lines, mut found) = (Lines::new(4), Vec::new());
        for part in parts {
            lines.push(part);
            while let Some(line) = lines.next().unwrap() {
                found.push(line.to_owned());
            }
        }
        lines.end();
        while let Some(line) = lines.next().unwrap() {
            found.push(line.to_owned());
        }
        found
    }

    #[test]
    fn lines_come_one_by_one_wherever_the_input_is_cut() {
        let text = "ab\n\nx\u{e4}\nlast";
        for at in 0..text.len() {
            let (front, back) = text.as_bytes().split_at(at);
            assert_eq!(all(&[front, back]), ["ab\n", "\n", "x\u{e4}\n", "last"], "{at}");
        }
        assert_eq!(all(&[b""]), [""; 0]);
    }

    #[test]
    fn long_lines_are_cut_and_others_must_be_utf8() {
        let text = "ab\nx\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\u{e4}\nc";
        assert_eq!(all(&[text.as_bytes()])[1].len(), 11);
        let mut lines = Lines::new(4);
        lines.push(b"ab\n\xff\n");
        assert!(lines.next().is_ok());
        assert_eq!(lines.next().unwrap_err().to_string(), "line 2: it is not UTF-8 text");
    }
}
