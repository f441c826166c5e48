use model::Metadata;
use serde_json::json;

use super::*;

fn id(text: &str) -> MessageId {
    MessageId::parse(text).unwrap()
}

#[test]
fn text_and_value_are_the_same() {
    let texts = [
        "0",
        "7263004410880000",
        "5~a.0.3.12",
        "5~a.0.3.12~b-2.1.0.0",
        "5~a.0.3.12.f",
        "5~a.0.3.0.40.0",
        "5~a.0.9.12.40.2.14-0.7.f",
        "5~a.0.9.12.0.0.1.2.3.4.5.6.7.8.x",
        "9223372036854775807~x.4294967295.4294967295.18446744073709551615",
    ];
    for text in texts {
        assert_eq!(Cursor::parse(text).unwrap().to_string(), text);
    }
}

#[test]
fn whatever_else_is_refused_with_its_place() {
    for bad in ["", "-1", "+1", "9223372036854775808", "x", " 1", "1 ", "now", "1.5", "0x1", "'; --", "1\0"] {
        assert_eq!(Cursor::parse(bad), Err(InvalidCursor::Base), "{bad:?}");
    }
    let entries = [
        "",
        "a",
        "a.1",
        "a.1.2",
        "a.1.2.3.4",
        "a.-1.0.0",
        "a.0.4294967296.0",
        "a.0..0",
        "é",
        "a b",
        "%",
        "a.0.1.1.",
        "a.0.1.1.f.x",
        "a.0.1.1.f.f",
        "a.0.1.1.2.0.3-",
        "a.0.1.1.2.0.-3",
        "a.0.1.1.2.0.3-4-5",
        "a.0.9.1.0.0.1.2.3.4.5.6.7.8.9",
    ];
    for bad in entries {
        assert_eq!(Cursor::parse(&format!("1~ok.0.0.0~{bad}")), Err(InvalidCursor::Entry(2)), "{bad:?}");
    }
    assert_eq!(Cursor::parse("1~a.0.0.0~a.0.1.1"), Err(InvalidCursor::Entries));
    let many = (0..100).fold("1".to_owned(), |text, n| format!("{text}~m{n}.0.1.1"));
    assert_eq!(Cursor::parse(&many), Err(InvalidCursor::Entries));
    assert_eq!(Cursor::parse(&"1".repeat(MAX_LEN + 1)), Err(InvalidCursor::TooLong(MAX_LEN + 1)));
}

#[test]
fn an_end_moves_the_base_and_never_back() {
    let mut cursor = Cursor::at(Position::from_stored(10));
    cursor.set(&id("a"), MessageOffset { next: 2, bytes: 5, ..MessageOffset::default() });
    cursor.set(&id("b"), MessageOffset { next: 1, bytes: 1, ..MessageOffset::default() });
    cursor.end(&id("b"), Position::from_stored(12));
    assert_eq!(cursor.to_string(), "12~a.0.2.5");
    cursor.end(&id("a"), Position::from_stored(11));
    assert_eq!(cursor.to_string(), "12");
}

#[test]
fn the_largest_cursor_that_is_written_can_be_read() {
    let mut cursor = Cursor::at(Position::from_stored(1 << 62));
    let call = CallOffset { arguments: 4 << 20, result: Some(4 << 20) };
    for n in 0..MAX_OPEN {
        let seen = MessageOffset {
            attempt: u32::MAX,
            next: MAX_CHUNK_ID,
            bytes: 4 << 20,
            reasoning: 4 << 20,
            step: 9_999,
            calls: vec![call; MAX_CALLS],
            is_inexact: true,
            is_final: true,
        };
        cursor.set(&id(&format!("{n:0>128}")), seen);
    }
    let text = cursor.to_string();
    assert!(text.len() <= MAX_LEN, "{}", text.len());
    assert_eq!(Cursor::parse(&text).unwrap().to_string(), text);
}

fn shown(script: &[&str], has_steps: bool) -> String {
    let mut progress = MessageProgress::new(0, has_steps);
    for (number, word) in script.iter().enumerate() {
        let parts: Vec<&str> = word.split(':').collect();
        let (kind, call, text) = match parts.as_slice() {
            ["call", call, text] => (ChunkKind::ToolCall, *call, *text),
            ["result", call, text] => (ChunkKind::ToolResult, *call, *text),
            ["think", text] => (ChunkKind::Reasoning, "", *text),
            _ => (ChunkKind::Content, "", *word),
        };
        let metadata = Metadata::new(json!({"tool_call_id": call}).as_object().unwrap().clone()).unwrap();
        progress.advance(&Chunk { kind, metadata, ..Chunk::content(number as u32, text, false) });
    }
    let mut cursor = Cursor::at(Position::from_stored(1));
    cursor.set(&id("m"), progress.seen().clone());
    cursor.to_string()
}

#[test]
fn what_was_seen_is_counted_by_kind_and_step() {
    assert_eq!(shown(&["ab", "é"], true), "1~m.0.2.4");
    assert_eq!(shown(&["think:hmm", "ab"], true), "1~m.0.2.2.3.0");
    assert_eq!(shown(&["ab", "call:a:12", "call:b:", "call:a:3"], true), "1~m.0.4.2.0.0.3.0");
    assert_eq!(shown(&["call:a:12", "call:b:1", "result:b:xyz"], true), "1~m.0.3.0.0.0.2.1-3");
    assert_eq!(shown(&["call:a:12", "result:a:", "so"], true), "1~m.0.3.2.0.1");
    assert_eq!(shown(&["call:a:12", "result:a:", "so"], false), "1~m.0.3.2.0.0.2-0", "a bare stream has one");
    let many: Vec<String> = (0..9).map(|n| format!("call:c{n}:x")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(shown(&many, true), "1~m.0.9.0.0.0.1.1.1.1.1.1.1.1.x");
}
