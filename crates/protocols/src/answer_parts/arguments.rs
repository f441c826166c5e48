//! The arguments of a call while they arrive: a JSON object in pieces.

/// Detects without parsing when the object is complete: JSON cannot continue after its closing
/// brace.
#[derive(Debug, Default)]
pub(crate) struct ArgumentsScanner {
    text: String,
    depth: usize,
    in_string: bool,
    is_escaped: bool,
    state: ScanState,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum ScanState {
    #[default]
    Blank,
    Object,
    CompletePart,
    /// Not an object, so its end is not detected here.
    Other,
}

impl ArgumentsScanner {
    pub(crate) fn push(&mut self, text: &str) {
        self.text.push_str(text);
        for byte in text.bytes() {
            self.look_at(byte);
        }
    }

    /// Whether nothing can follow.
    pub(crate) fn are_whole(&self) -> bool {
        self.state == ScanState::CompletePart
    }

    pub(crate) fn into_text(self) -> String {
        self.text
    }

    fn look_at(&mut self, byte: u8) {
        match self.state {
            ScanState::Blank if byte.is_ascii_whitespace() => {}
            ScanState::Blank if byte == b'{' => (self.state, self.depth) = (ScanState::Object, 1),
            ScanState::Blank => self.state = ScanState::Other,
            ScanState::Object => self.look_inside(byte),
            // Only white space may follow; anything else makes it invalid JSON.
            ScanState::CompletePart if byte.is_ascii_whitespace() => {}
            ScanState::CompletePart => self.state = ScanState::Other,
            ScanState::Other => {}
        }
    }

    fn look_inside(&mut self, byte: u8) {
        if self.in_string {
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' => self.is_escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' | b'[' => self.depth += 1,
            b'}' | b']' => self.depth -= 1,
            _ => {}
        }
        if self.depth == 0 {
            self.state = ScanState::CompletePart;
        }
    }
}

/// The arguments as a JSON value. Empty arguments become an empty object, which is what models
/// mean.
///
/// # Errors
/// They are not JSON; the error says why.
pub(crate) fn parse(text: &str) -> Result<serde_json::Value, serde_json::Error> {
    match text.trim() {
        "" => Ok(serde_json::Value::Object(serde_json::Map::new())),
        text => serde_json::from_str(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole_after(pieces: &[&str]) -> Option<usize> {
        let mut arguments = ArgumentsScanner::default();
        pieces.iter().position(|piece| {
            arguments.push(piece);
            arguments.are_whole()
        })
    }

    #[test]
    fn an_object_is_whole_with_the_brace_that_closes_it() {
        assert_eq!(whole_after(&["{", "\"a\":", "{\"b\":[1]}", " ", "}"]), Some(4));
        assert_eq!(whole_after(&[" \n", "{}"]), Some(1));
        assert_eq!(whole_after(&[r#"{"a":"}"#, r#"\"}"#, r#"\\"}"#]), Some(2));
        assert_eq!(whole_after(&["{\"é\":\"\u{2028}}\"", "}\n"]), Some(1));
    }

    #[test]
    fn end_of_anything_but_one_object_is_unknown() {
        for never in ["", "[1]", "\"{}\"", "1", "{", "{\"a\":\"}", "{}{}", "x{}"] {
            assert_eq!(whole_after(&[never]), None, "{never}");
        }
    }

    #[test]
    fn no_arguments_are_an_empty_object() {
        assert_eq!(parse(" ").unwrap(), serde_json::json!({}));
        assert_eq!(parse("{\"a\": 1}\n").unwrap(), serde_json::json!({"a": 1}));
        assert!(parse("{\"a\"").is_err());
    }
}
