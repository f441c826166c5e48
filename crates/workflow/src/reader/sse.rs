//! Splits bytes into server-sent events, wherever the bytes are cut.
//!
//! Works on bytes and not on text: an invalid UTF-8 byte costs a character, not the event. A line
//! without a field is kept as well, because some endpoints send JSON without `data:`.

use std::collections::VecDeque;

use super::deviations::{Deviation, Deviations};
use super::json::Closing;

const BOM: &[u8] = b"\xEF\xBB\xBF";

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Event {
    /// The field `event`, in lower case.
    pub(super) name: String,
    pub(super) data: Vec<u8>,
    /// The response ended within the line of its data.
    pub(super) is_open: bool,
}

#[derive(Debug, Default)]
pub(super) struct EventFold {
    line: Vec<u8>,
    /// The last byte was a CR: an LF that follows ends the same line.
    after_cr: bool,
    is_first_line_read: bool,
    name: String,
    data: Option<Vec<u8>>,
    data_closing: Closing,
    /// Whether the data is complete JSON.
    is_data_closed: bool,
    /// Lines without a field.
    bare: Vec<u8>,
    bare_closing: Closing,
    events: VecDeque<Event>,
}

impl EventFold {
    /// The next event that these bytes complete; unused bytes stay in `bytes`.
    pub(super) fn next(&mut self, bytes: &mut &[u8], deviations: &mut Deviations) -> Option<Event> {
        while self.events.is_empty() {
            let first = *bytes.first()?;
            if std::mem::take(&mut self.after_cr) && first == b'\n' {
                *bytes = &bytes[1..];
                continue;
            }
            let Some(end) = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
                self.line.extend_from_slice(bytes);
                *bytes = &[];
                return None;
            };
            self.line.extend_from_slice(&bytes[..end]);
            self.after_cr = bytes[end] == b'\r';
            *bytes = &bytes[end + 1..];
            let line = std::mem::take(&mut self.line);
            self.line(&line, deviations);
        }
        self.events.pop_front()
    }

    /// The remaining events when the response ends. Some endpoints omit the empty line after the
    /// last event.
    pub(super) fn end(&mut self, deviations: &mut Deviations) -> VecDeque<Event> {
        let line = std::mem::take(&mut self.line);
        // A last line without a colon is the beginning of a field's name, or of a comment.
        if line.contains(&b':') || line.starts_with(b"{") || line.starts_with(b"[") || !self.bare.is_empty() {
            self.line(&line, deviations);
        }
        let bare = std::mem::take(&mut self.bare);
        self.dispatch();
        if !bare.trim_ascii().is_empty() {
            self.events.push_back(Event { data: bare, ..Event::default() });
        }
        if let Some(last) = self.events.back_mut() {
            last.is_open = true;
        }
        std::mem::take(&mut self.events)
    }

    fn line(&mut self, line: &[u8], deviations: &mut Deviations) {
        let is_first = !std::mem::replace(&mut self.is_first_line_read, true);
        let line = if is_first { line.strip_prefix(BOM).unwrap_or(line) } else { line };
        let trimmed = line.trim_ascii();
        if trimmed.is_empty() {
            if !self.bare.is_empty() {
                self.bare.push(b'\n');
            }
            return self.dispatch();
        }
        let (field, value) = match trimmed.iter().position(|byte| *byte == b':') {
            // A comment line.
            Some(0) => return,
            Some(colon) => (trimmed[..colon].trim_ascii_end(), trimmed[colon + 1..].trim_ascii_start()),
            None => (trimmed, &b""[..]),
        };
        match field.to_ascii_lowercase().as_slice() {
            b"data" => self.data(value, deviations),
            b"event" => {
                self.dispatch_if_whole(deviations);
                self.name = String::from_utf8_lossy(value).to_ascii_lowercase();
            }
            b"id" | b"retry" => {}
            _ => self.bare(line, deviations),
        }
    }

    fn data(&mut self, value: &[u8], deviations: &mut Deviations) {
        let mut value = value;
        // Some proxies repeat the field's name.
        while let Some(rest) = value.strip_prefix(b"data:") {
            deviations.note(Deviation::NoDataField);
            value = rest.trim_ascii_start();
        }
        self.dispatch_if_whole(deviations);
        // JSON does not continue other data, such as a `ping`.
        let is_other = self.data.as_ref().is_some_and(|data| !data.is_empty() && !begins_json(data));
        if is_other && begins_json(value) {
            deviations.note(Deviation::NoEmptyLine);
            self.dispatch();
        }
        match &mut self.data {
            Some(data) => {
                data.push(b'\n');
                data.extend_from_slice(value);
            }
            none => *none = Some(value.to_vec()),
        }
        self.is_data_closed = self.data_closing.feed(value);
    }

    /// Some servers omit the empty line between events: complete data is not continued.
    fn dispatch_if_whole(&mut self, deviations: &mut Deviations) {
        if self.is_data_closed && self.data.as_deref().is_some_and(begins_json) {
            deviations.note(Deviation::NoEmptyLine);
            self.dispatch();
        }
    }

    fn bare(&mut self, line: &[u8], deviations: &mut Deviations) {
        if self.bare.is_empty() && !begins_json(line.trim_ascii_start()) {
            return deviations.note(Deviation::NotJson);
        }
        self.bare.extend_from_slice(line);
        self.bare.push(b'\n');
        if self.bare_closing.feed(line) {
            self.bare_closing = Closing::default();
            deviations.note(Deviation::NoDataField);
            let data = std::mem::take(&mut self.bare);
            self.events.push_back(Event { name: std::mem::take(&mut self.name), data, is_open: false });
        }
    }

    fn dispatch(&mut self) {
        let name = std::mem::take(&mut self.name);
        (self.data_closing, self.is_data_closed) = (Closing::default(), false);
        if let Some(data) = self.data.take() {
            self.events.push_back(Event { name, data, is_open: false });
        }
    }
}

fn begins_json(bytes: &[u8]) -> bool {
    bytes.first().is_some_and(|byte| b"{[".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pieces: &[&[u8]]) -> Vec<(String, String)> {
        let (mut fold, mut deviations) = (EventFold::default(), Deviations::default());
        let mut events = Vec::new();
        for piece in pieces {
            let mut piece = *piece;
            events.extend(std::iter::from_fn(|| fold.next(&mut piece, &mut deviations)));
        }
        events.extend(fold.end(&mut deviations));
        let text = |event: Event| (event.name, String::from_utf8_lossy(&event.data).into_owned());
        events.into_iter().map(text).collect()
    }

    #[test]
    fn events_are_the_same_wherever_the_bytes_are_cut() {
        let bytes = b"\xEF\xBB\xBF: hello\r\n\r\ndata: one\r\rEvent: Error\ndata:two\ndata: 2\n\nid: 7\n\n{\"a\":\n 1\n}\ndata: {}\ndata: []\ndata";
        let expected = [("", "one"), ("error", "two\n2"), ("", "{\"a\":\n 1\n}\n"), ("", "{}"), ("", "[]\n")]
            .map(|(name, data)| (name.to_owned(), data.to_owned()));
        assert_eq!(read(&[bytes])[..4], expected[..4]);
        let whole = read(&[bytes]);
        for at in 0..bytes.len() {
            let (front, back) = bytes.split_at(at);
            assert_eq!(read(&[front, back]), whole, "cut at {at}");
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(read(&single), whole);
    }

    #[test]
    fn data_that_is_written_otherwise_is_an_event_each() {
        let named = |data: &[&str]| data.iter().map(|data| (String::new(), (*data).to_owned())).collect();
        for (text, events) in [
            ("data: data: {\"a\":1}\n\n", &["{\"a\":1}"][..]),
            ("data:data:data: [DONE]\n\n", &["[DONE]"]),
            ("data: ping\ndata: {\"a\":1}\n\n", &["ping", "{\"a\":1}"]),
            (
                "data: {\"a\":1},\ndata: {\"a\":2}}\ndata: {\"a\":3}\n\n",
                &["{\"a\":1},", "{\"a\":2}}", "{\"a\":3}"],
            ),
            ("data: {\"a\":\"}\ndata: \"}\n\n", &["{\"a\":\"}\n\"}"]),
            ("data: one\ndata: two\n\n", &["one\ntwo"]),
            ("{\"a\":1}{\"a\":2}\n{\"a\":3},\n", &["{\"a\":1}{\"a\":2}\n", "{\"a\":3},\n"]),
        ] {
            let events: Vec<(String, String)> = named(events);
            assert_eq!(read(&[text.as_bytes()]), events, "{text}");
        }
    }

    /// Parsing the whole value again at each of these lines would take minutes.
    #[test]
    fn a_long_value_is_read_in_linear_time() {
        for (begin, line) in
            [("[\n", "{}\n"), ("data: [\n", "data: []\n"), ("data: {\"a\":[\n", "data: [1]\n")]
        {
            let mut bytes = begin.as_bytes().to_vec();
            bytes.extend(line.as_bytes().repeat(200_000));
            assert!(!read(&[&bytes]).is_empty(), "{begin}");
        }
    }

    #[test]
    fn json_over_several_data_lines_is_one_event() {
        assert_eq!(read(&[b"data: {\"a\":\ndata: 1}\n\n"]), [(String::new(), "{\"a\":\n1}".to_owned())]);
    }
}
