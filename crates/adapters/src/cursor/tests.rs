use super::*;

fn id(text: &str) -> MessageId {
    MessageId::parse(text).unwrap()
}

#[test]
fn text_and_value_are_the_same() {
    for text in ["0", "7263004410880000", "5~a.0.3.12", "5~a.0.3.12~b-2.1.0.0~old", "9223372036854775807~x"] {
        assert_eq!(Cursor::parse(text).unwrap().to_string(), text);
    }
}

#[test]
fn whatever_else_is_refused_with_its_place() {
    for bad in ["", "-1", "+1", "9223372036854775808", "x", " 1", "1 ", "now", "1.5", "0x1", "'; --", "1\0"] {
        assert_eq!(Cursor::parse(bad), Err(InvalidCursor::Base), "{bad:?}");
    }
    let entries =
        ["", "a.1", "a.1.2", "a.1.2.3.4", "a.-1.0.0", "a.0.4294967296.0", "a.0..0", "é", "a b", "%"];
    for bad in entries {
        assert_eq!(Cursor::parse(&format!("1~ok~{bad}")), Err(InvalidCursor::Entry(2)), "{bad:?}");
    }
    assert_eq!(Cursor::parse("1~a~a.0.1.1"), Err(InvalidCursor::Entries));
    let many = (0..100).fold("1".to_owned(), |text, n| format!("{text}~m{n}.0.1.1"));
    assert_eq!(Cursor::parse(&many), Err(InvalidCursor::Entries));
    assert_eq!(Cursor::parse(&"1".repeat(MAX_LEN + 1)), Err(InvalidCursor::TooLong(MAX_LEN + 1)));
}

#[test]
fn an_ended_message_is_named_until_the_base_passes_it() {
    let mut cursor = Cursor::at(Position::from_stored(10));
    cursor.set(&id("a"), Seen { attempt: 0, next: 2, bytes: 5 });
    cursor.set(&id("b"), Seen { attempt: 0, next: 1, bytes: 1 });
    cursor.end(&id("b"), Some(Position::from_stored(12)));
    assert_eq!(cursor.to_string(), "10~a.0.2.5~b");
    cursor.advance(Position::from_stored(11));
    assert_eq!(cursor.to_string(), "11~a.0.2.5~b");
    cursor.advance(Position::from_stored(12));
    assert_eq!(cursor.to_string(), "12~a.0.2.5");
    cursor.end(&id("a"), Some(Position::from_stored(12)));
    assert_eq!(cursor.to_string(), "12");
}

#[test]
fn the_largest_cursor_that_is_written_can_be_read() {
    let mut cursor = Cursor::at(Position::from_stored(1 << 62));
    for n in 0..MAX_OPEN {
        cursor.set(&id(&format!("{n:0>128}")), Seen { attempt: u32::MAX, next: u32::MAX, bytes: 4 << 20 });
    }
    for n in 0..MAX_ENDED + 5 {
        let position = Position::from_stored(i64::MAX - 100 + n as i64);
        cursor.end(&id(&format!("e{n:0>127}")), Some(position));
    }
    let text = cursor.to_string();
    assert!(text.len() <= MAX_LEN, "{}", text.len());
    assert_eq!(Cursor::parse(&text).unwrap().to_string(), text);
}

#[test]
fn only_the_latest_failures_are_named() {
    let mut cursor = Cursor::at(Position::from_stored(1));
    (0..9).for_each(|n| cursor.end(&id(&format!("f{n}")), None));
    assert_eq!(cursor.to_string(), "1~f5~f6~f7~f8");
}
