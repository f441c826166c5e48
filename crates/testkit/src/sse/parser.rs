//! Parses the bytes of an event stream into events and comments, however the bytes are split.

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SseItem {
    /// A line that began with a colon; its text.
    Comment(String),
    Event {
        /// Its own `id:` field, if any.
        id: Option<String>,
        /// Its `event:` field, if any.
        name: Option<String>,
        /// Its data lines, joined.
        data: String,
    },
}

/// Reads the stream piece by piece; lines end with `\n` or `\r\n`.
#[derive(Debug, Default)]
pub struct Parser {
    line: Vec<u8>,
    id: Option<String>,
    name: Option<String>,
    data: Option<String>,
    retry_ms: Option<u64>,
}

impl Parser {
    /// The reconnect pause that the stream last asked for, ms.
    pub fn retry_ms(&self) -> Option<u64> {
        self.retry_ms
    }

    /// Takes the next bytes and returns the items that they complete.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<SseItem> {
        let mut items = Vec::new();
        let mut rest = bytes;
        while let Some(at) = rest.iter().position(|byte| *byte == b'\n') {
            self.line.extend_from_slice(&rest[..at]);
            rest = &rest[at + 1..];
            let mut line = std::mem::take(&mut self.line);
            if line.last() == Some(&b'\r') {
                line.pop();
            }
            items.extend(self.take_line(&String::from_utf8_lossy(&line)));
        }
        self.line.extend_from_slice(rest);
        items
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
            let mut parser = Parser::default();
            let read: Vec<SseItem> =
                STREAM.as_bytes().chunks(size).flat_map(|piece| parser.feed(piece)).collect();
            assert_eq!(read, items(), "pieces of {size}");
            assert_eq!(parser.retry_ms(), Some(1_000));
        }
    }

    #[test]
    fn an_unfinished_event_is_not_dispatched() {
        assert_eq!(Parser::default().feed(b"id: 1\ndata: x\n"), []);
    }
}
