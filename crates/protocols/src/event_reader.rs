//! Reads the bytes of an event stream as events and comments, however the bytes are split.
//!
//! It is made for clients of our own streams. Streams of models deviate from the standard, and
//! `workflow` reads those.

/// Maximum size in bytes of one event, above that of the largest answer in one event.
const MAX_EVENT_BYTES: usize = 64 << 20;

/// An event or a comment of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SseItem {
    /// A line that began with a colon; its text.
    Comment(String),
    /// The fields up to an empty line.
    Event {
        /// Its own `id:` field, if any.
        id: Option<String>,
        /// Its `event:` field, if any.
        name: Option<String>,
        /// Its data lines, joined.
        data: String,
    },
}

/// An event is larger than a reader accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream has more than {0} bytes: the answer is not from a gateway")]
pub struct EventTooLarge(usize);

/// Reads the stream piece by piece; lines end with `\n` or `\r\n`.
#[derive(Debug)]
pub struct EventReader {
    max_event_bytes: usize,
    line: Vec<u8>,
    id: Option<String>,
    name: Option<String>,
    data: Option<String>,
    retry_ms: Option<u64>,
}

impl Default for EventReader {
    fn default() -> Self {
        Self::with_limit(MAX_EVENT_BYTES)
    }
}

impl EventReader {
    /// A reader that refuses events of more bytes.
    pub fn with_limit(max_event_bytes: usize) -> Self {
        Self { max_event_bytes, line: Vec::new(), id: None, name: None, data: None, retry_ms: None }
    }

    /// The reconnect pause that the stream last asked for, ms.
    pub fn retry_ms(&self) -> Option<u64> {
        self.retry_ms
    }

    /// Takes the next bytes and returns the items that they complete.
    ///
    /// # Errors
    /// An event is too large; the stream cannot be read further.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Vec<SseItem>, EventTooLarge> {
        let mut items = Vec::new();
        let mut rest = bytes;
        while let Some(at) = rest.iter().position(|byte| *byte == b'\n') {
            self.line.extend_from_slice(&rest[..at]);
            self.check_size()?;
            rest = &rest[at + 1..];
            let mut line = std::mem::take(&mut self.line);
            if line.last() == Some(&b'\r') {
                line.pop();
            }
            items.extend(self.take_line(&String::from_utf8_lossy(&line)));
        }
        self.line.extend_from_slice(rest);
        self.check_size()?;
        Ok(items)
    }

    fn check_size(&self) -> Result<(), EventTooLarge> {
        match self.line.len() + self.data.as_ref().map_or(0, String::len) > self.max_event_bytes {
            true => Err(EventTooLarge(self.max_event_bytes)),
            false => Ok(()),
        }
    }

    fn take_line(&mut self, line: &str) -> Option<SseItem> {
        if line.is_empty() {
            return self.dispatch();
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "" => return Some(SseItem::Comment(value.to_owned())),
            "id" => self.id = Some(value.to_owned()),
            "retry" => self.retry_ms = value.parse().ok().or(self.retry_ms),
            "event" => self.name = Some(value.to_owned()),
            "data" => match &mut self.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => self.data = Some(value.to_owned()),
            },
            _ => {}
        }
        None
    }

    fn dispatch(&mut self) -> Option<SseItem> {
        let (id, name) = (self.id.take(), self.name.take());
        self.data.take().map(|data| SseItem::Event { id, name, data })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = ": open\n\nretry: 1000\n\nid: 1\ndata: {\"a\":\"é\"}\r\n\r\n:hb\n\nevent: reset\ndata: x\ndata: y\n\n";

    fn items() -> Vec<SseItem> {
        vec![
            SseItem::Comment("open".into()),
            SseItem::Event { id: Some("1".into()), name: None, data: "{\"a\":\"é\"}".into() },
            SseItem::Comment("hb".into()),
            SseItem::Event { id: None, name: Some("reset".into()), data: "x\ny".into() },
        ]
    }

    #[test]
    fn cuts_do_not_matter() {
        for size in [1, 2, 3, 7, 1000] {
            let mut parser = EventReader::default();
            let read: Vec<SseItem> =
                STREAM.as_bytes().chunks(size).flat_map(|piece| parser.feed(piece).unwrap()).collect();
            assert_eq!(read, items(), "pieces of {size}");
            assert_eq!(parser.retry_ms(), Some(1_000));
        }
    }

    #[test]
    fn an_unfinished_event_is_not_dispatched() {
        assert_eq!(EventReader::default().feed(b"id: 1\ndata: x\n"), Ok(vec![]));
    }

    #[test]
    fn an_event_above_the_limit_is_refused_however_it_is_written() {
        let event = SseItem::Event { id: None, name: None, data: "1234567\n90".into() };
        for (bytes, expected) in [
            ("data: 1234567\ndata: 90\n\n".to_owned(), Ok(vec![event])),
            ("data: 1234567\ndata: 90\ndata: 12345\n\n".to_owned(), Err(EventTooLarge(20))),
            ("x".repeat(21), Err(EventTooLarge(20))),
            (format!("{}\n", "x".repeat(21)), Err(EventTooLarge(20))),
        ] {
            assert_eq!(EventReader::with_limit(20).feed(bytes.as_bytes()), expected, "{bytes}");
        }
    }
}
