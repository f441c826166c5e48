//! Parses the event stream of any of the servers. It takes the bytes of a connection, and returns
//! stamps and the resume cursor.
//!
//! Entry type: [`SseStream`]. Only complete events are used: if a connection breaks within an
//! event, the client has not received it.

use anyhow::{Context as _, Result, bail, ensure};

use super::timestamped_payload::Stamp;

/// The longest head of a response.
const HEAD_BYTES: usize = 16 << 10;
/// The longest size line of a chunked body.
const SIZE_BYTES: usize = 64;

/// The form in which a server sends the resume cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// A field `id:` in the event itself.
    Id,
    /// An event `control` after the data, with `streamNextOffset`.
    Control,
}

/// The events that the last bytes completed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Taken {
    /// The stamps in order of arrival.
    pub(super) stamps: Vec<Stamp>,
    /// True if the body has ended properly.
    pub(super) is_ended: bool,
}

/// The parser of one connection.
#[derive(Debug)]
pub(super) struct SseStream {
    dialect: Dialect,
    framing: Framing,
    /// Unparsed bytes of the head or of a size line.
    raw: Vec<u8>,
    /// Bytes of the body after the last complete event.
    body: Vec<u8>,
    /// Received stamps whose cursor is not known yet.
    held: Vec<Stamp>,
    cursor: Option<Vec<u8>>,
    /// True if a part of the body has arrived.
    is_open: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    Head,
    /// The size line of the next piece is expected.
    Size,
    /// This number of bytes of a piece remains.
    Piece(usize),
    /// The line break after a piece is expected.
    AfterPiece,
    UntilClose,
    Ended,
}

impl SseStream {
    /// Creates the parser for a connection that resumes after `cursor`.
    pub(super) fn new(dialect: Dialect, cursor: Option<Vec<u8>>) -> Self {
        let (raw, body, held) = (Vec::new(), Vec::new(), Vec::new());
        Self { dialect, framing: Framing::Head, raw, body, held, cursor, is_open: false }
    }

    /// The cursor to resume from.
    pub(super) fn into_cursor(self) -> Option<Vec<u8>> {
        self.cursor
    }

    /// True if the server has begun the body, so that the subscriber is attached.
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Takes the next bytes of the connection.
    ///
    /// # Errors
    /// The status is not 200, or the answer is not HTTP.
    pub(super) fn feed(&mut self, bytes: &[u8], taken: &mut Taken) -> Result<()> {
        let mut rest = bytes;
        if self.framing == Framing::Head {
            self.raw.extend_from_slice(rest);
            let Some(end) = self.raw.windows(4).position(|four| four == b"\r\n\r\n") else {
                ensure!(self.raw.len() < HEAD_BYTES, "a head without an end");
                return Ok(());
            };
            let raw = std::mem::take(&mut self.raw);
            self.framing = framing_of(&raw[..end])?;
            return self.feed(&raw[end + 4..], taken);
        }
        while !rest.is_empty() {
            rest = self.unframe(rest)?;
        }
        self.events(taken);
        taken.is_ended = self.framing == Framing::Ended;
        Ok(())
    }

    /// Moves the bytes of the body to `body`, and returns the rest.
    fn unframe<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8]> {
        match self.framing {
            Framing::Piece(left) => {
                let (piece, rest) = bytes.split_at(left.min(bytes.len()));
                self.shown(piece);
                self.framing = match left - piece.len() {
                    0 => Framing::AfterPiece,
                    left => Framing::Piece(left),
                };
                Ok(rest)
            }
            Framing::UntilClose => {
                self.shown(bytes);
                Ok(&[])
            }
            Framing::Size | Framing::AfterPiece => {
                let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else {
                    self.raw.extend_from_slice(bytes);
                    ensure!(self.raw.len() < SIZE_BYTES, "a size without an end");
                    return Ok(&[]);
                };
                self.raw.extend_from_slice(&bytes[..end]);
                self.framing = match self.framing {
                    Framing::AfterPiece => Framing::Size,
                    _ => match size(&self.raw)? {
                        0 => Framing::Ended,
                        size => Framing::Piece(size),
                    },
                };
                self.raw.clear();
                Ok(&bytes[end + 1..])
            }
            // Bytes after the end do not belong to the stream.
            Framing::Ended => Ok(&[]),
            Framing::Head => bail!("the head is read before"),
        }
    }

    fn shown(&mut self, bytes: &[u8]) {
        self.is_open = true;
        self.body.extend_from_slice(bytes);
    }

    fn events(&mut self, taken: &mut Taken) {
        let mut start = 0;
        while let Some(length) = end_of_event(&self.body[start..]) {
            let event = &self.body[start..start + length];
            match self.dialect {
                Dialect::Id => {
                    if let Some(id) = line_of(event, b"id: ") {
                        place(&mut self.cursor, id);
                    }
                    taken.stamps.extend(Stamp::all_in(event));
                }
                Dialect::Control if event.starts_with(b"event: control") => {
                    if let Some(offset) = next_offset(event) {
                        place(&mut self.cursor, offset);
                    }
                    taken.stamps.append(&mut self.held);
                }
                Dialect::Control => self.held.extend(Stamp::all_in(event)),
            }
            start += length + 2;
        }
        self.body.drain(..start);
    }
}

fn framing_of(head: &[u8]) -> Result<Framing> {
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    let status = head.lines().next().unwrap_or_default();
    ensure!(status.split(' ').nth(1) == Some("200"), "the answer is {status}");
    let is_in_pieces = head.lines().any(|line| line.replace(' ', "") == "transfer-encoding:chunked");
    Ok(if is_in_pieces { Framing::Size } else { Framing::UntilClose })
}

fn size(line: &[u8]) -> Result<usize> {
    let text = std::str::from_utf8(line).unwrap_or_default().trim_end();
    usize::from_str_radix(text, 16).with_context(|| format!("no size of a piece: {text:?}"))
}

fn end_of_event(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    while let Some(found) = bytes[at..].iter().position(|byte| *byte == b'\n') {
        at += found + 1;
        if bytes.get(at) == Some(&b'\n') {
            return Some(at - 1);
        }
    }
    None
}

fn line_of<'a>(event: &'a [u8], field: &[u8]) -> Option<&'a [u8]> {
    event.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(field))
}

fn next_offset(event: &[u8]) -> Option<&[u8]> {
    const FIELD: &[u8] = b"\"streamNextOffset\":\"";
    let at = event.windows(FIELD.len()).position(|window| window == FIELD)? + FIELD.len();
    let length = event[at..].iter().position(|byte| *byte == b'"')?;
    Some(&event[at..at + length])
}

fn place(cursor: &mut Option<Vec<u8>>, at: &[u8]) {
    let cursor = cursor.get_or_insert_default();
    cursor.clear();
    cursor.extend_from_slice(at);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(number: u32) -> String {
        Stamp { sent_ns: 9, number }.text(60)
    }

    fn in_pieces(pieces: &[&str]) -> String {
        let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
        let body: String = pieces.iter().map(|piece| format!("{:X}\r\n{piece}\r\n", piece.len())).collect();
        format!("{head}{body}0\r\n\r\n")
    }

    /// Numbers and cursor of a stream. The bytes are fed in parts of every size.
    fn read(dialect: Dialect, bytes: &str) -> (Vec<u32>, String, bool) {
        let read_in = |size: usize| {
            let (mut stream, mut taken) = (SseStream::new(dialect, None), Taken::default());
            for part in bytes.as_bytes().chunks(size) {
                stream.feed(part, &mut taken).unwrap();
            }
            let cursor = String::from_utf8(stream.into_cursor().unwrap_or_default()).unwrap();
            (taken.stamps.iter().map(|stamp| stamp.number).collect(), cursor, taken.is_ended)
        };
        let whole = read_in(bytes.len());
        for size in [1, 2, 3, 7, 64] {
            assert_eq!(read_in(size), whole, "parts of {size}");
        }
        whole
    }

    #[test]
    fn id_is_kept_only_after_its_whole_event() {
        let events = [
            ": open\n\nretry: 1000\n\n".to_owned(),
            "id: 1~a.0.1.9\n".to_owned(),
            format!("data: {{\"chunk\":\"{}\"}}\n\nid: 2\ndata: {}\n\n", text(0), text(1)),
            format!("id: 3\ndata: {}\n", text(2)),
        ];
        let events: Vec<&str> = events.iter().map(String::as_str).collect();
        assert_eq!(read(Dialect::Id, &in_pieces(&events)), (vec![0, 1], "2".to_owned(), true));
    }

    #[test]
    fn a_body_without_a_length_lasts_until_the_connection_ends() {
        let stream = format!("HTTP/1.1 200 OK\r\nServer: x\r\n\r\n: hi\n\nid: 7:0\ndata: {}\n\n", text(5));
        assert_eq!(read(Dialect::Id, &stream), (vec![5], "7:0".to_owned(), false));
    }

    #[test]
    fn data_counts_when_its_control_has_come() {
        let control =
            |offset: &str| format!("event: control\ndata:{{\"streamNextOffset\":\"{offset}\"}}\n\n");
        let data = |from: u32| format!("event: data\ndata:[\"{}\",\"{}\"]\n\n", text(from), text(from + 1));
        let pieces = [control("0_0"), data(0) + &control("0_8"), data(2)];
        let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
        assert_eq!(read(Dialect::Control, &in_pieces(&pieces)), (vec![0, 1], "0_8".to_owned(), true));
    }

    #[test]
    fn refusals_are_errors() {
        let mut stream = SseStream::new(Dialect::Id, None);
        let refused = stream.feed(b"HTTP/1.1 403 Forbidden\r\n\r\n", &mut Taken::default());
        assert_eq!(refused.unwrap_err().to_string(), "the answer is http/1.1 403 forbidden");
    }
}
