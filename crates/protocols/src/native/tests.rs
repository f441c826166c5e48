use model::{AnswerReport, ChunkKind, Metadata};
use serde_json::{Value, json};

use super::*;

fn native() -> Native {
    Native::new(ThreadId::parse("t1").unwrap(), Cursor::at(Position::from_stored(7)))
}

fn message() -> MessageId {
    MessageId::parse("m1").unwrap()
}

fn text(event: &Encoded) -> String {
    String::from_utf8(event.bytes().to_vec()).unwrap()
}

fn header(message: &str, attempt: u32, role: Role) -> MessageHeader {
    MessageHeader::new(MessageId::parse(message).unwrap(), attempt, role, BatchType::SystemTrigger)
}

fn chunk(native: &mut Native, header: &MessageHeader, chunk: &Chunk) -> Encoded {
    let seen = native.cursor().seen(&header.message).filter(|seen| seen.attempt == header.attempt);
    let mut seen = seen.cloned().unwrap_or(MessageOffset::nothing(header.attempt));
    (seen.next, seen.bytes) = (chunk.id + 1, seen.bytes + chunk.text.len() as u64);
    native.chunk(header, seen, chunk, false)
}

#[test]
fn a_stream_without_a_cursor_begins_with_one() {
    let native = native();
    let first = String::from_utf8(native.ready().to_vec()).unwrap();
    assert_eq!(first, "id: 7\nevent: ready\ndata: {\"thread_id\":\"t1\",\"after\":\"7\"}\n\n");
    assert_eq!(Cursor::parse("7").unwrap(), *native.cursor());
}

#[test]
fn a_chunk_has_the_names_of_the_wire_in_their_order() {
    let mut native = native();
    let first =
        chunk(&mut native, &header("m1", 0, Role::Assistant), &Chunk::content(0, "Hi \"you\"\n", false));
    assert_eq!(
        text(&first),
        concat!(
            "id: 7~m1.0.1.9\n",
            r#"data: {"session_id":"t1","message_id":"m1","chunk_id":0,"chunk":"Hi \"you\"\n","#,
            r#""chunk_type":"content","is_final":false,"metadata":{},"#,
            r#""role":"assistant","batch_type":"system_trigger"}"#,
            "\n\n"
        )
    );
    let mut last = Chunk::content(1, "", true);
    last.kind = ChunkKind::Metadata;
    last.metadata = Metadata::new(json!({"tokens_used": 15}).as_object().unwrap().clone()).unwrap();
    last.timestamp = Some("2026-01-02T03:04:05Z".into());
    last.correlation_id = Some("c-1".into());
    assert_eq!(
        text(&chunk(&mut native, &header("m1", 0, Role::User), &last)),
        concat!(
            "id: 7~m1.0.2.9\n",
            r#"data: {"session_id":"t1","message_id":"m1","chunk_id":1,"chunk":"","chunk_type":"metadata","#,
            r#""is_final":true,"metadata":{"tokens_used":15},"timestamp":"2026-01-02T03:04:05Z","#,
            r#""correlation_id":"c-1","role":"user","batch_type":"system_trigger"}"#,
            "\n\n"
        )
    );
}

#[test]
fn every_event_of_an_answer_names_its_turn() {
    let turn = TurnId::foreground(&ThreadId::parse("t1").unwrap(), "1").unwrap();
    let header = MessageHeader::new(turn.answer(1), 0, Role::Assistant, BatchType::UserRequest);
    let mut native = native();
    let named = format!(r#""batch_type":"user_request","turn_id":"{turn}""#);
    let events = [
        chunk(&mut native, &header, &Chunk::content(0, "a", false)),
        native.complete(&header, Position::from_stored(9), true, &AnswerReport::default()),
        native.failed(&header, Position::from_stored(10), &StreamError::new("stalled", "", true)),
    ];
    for event in &events {
        assert!(text(event).contains(&named), "{}", text(event));
    }
    assert!(text(&events[1]).contains(r#""chunk":"message_complete""#));
    assert!(text(&events[1]).contains(r#""status":"stopped""#));
}

#[test]
fn ends_and_resets() {
    let mut native = native();
    let first = header("m1", 0, Role::Assistant);
    chunk(&mut native, &first, &Chunk::content(0, "a", false));
    assert_eq!(
        native.reset(&message(), 2),
        "id: 7~m1.2.0.0\nevent: reset\ndata: {\"thread_id\":\"t1\",\"message_id\":\"m1\",\"attempt\":2}\n\n"
    );
    let again = chunk(&mut native, &header("m1", 2, Role::Assistant), &Chunk::content(0, "b", true));
    assert!(text(&again).starts_with("id: 7~m1.2.1.1\n") && text(&again).contains(r#""attempt":2,"#));
    assert_eq!(
        text(&native.complete(&first, Position::from_stored(9), false, &AnswerReport::default())),
        concat!(
            "id: 9\n",
            r#"data: {"chunk_type":"system","chunk":"message_complete","session_id":"t1","message_id":"m1","#,
            r#""position":"9","status":"completed","role":"assistant","batch_type":"system_trigger"}"#,
            "\n\n"
        )
    );
    let other = header("m2", 0, Role::Assistant);
    let missing = vec![IdRange { first: 2, last: 4 }];
    let gap = StreamError::from(&MessageFailure::GapTimeout { missing });
    assert_eq!(
        text(&native.failed(&other, Position::from_stored(11), &gap)),
        concat!(
            "id: 11\n",
            r#"data: {"chunk_type":"error","chunk":"chunks never arrived: 2-4","is_final":true,"#,
            r#""session_id":"t1","message_id":"m2","metadata":{"code":"gap_timeout","retryable":true,"#,
            r#""missing":[{"first":2,"last":4}]},"position":"11","role":"assistant","batch_type":"system_trigger"}"#,
            "\n\n"
        )
    );
    let stalled = Position::from_stored(12);
    let stalled = text(&native.failed(&other, stalled, &StreamError::from(&MessageFailure::Stalled)));
    assert!(
        stalled.contains(r#""metadata":{"code":"stalled","retryable":true},"position":"12","role""#),
        "{stalled}"
    );
    let restarted = native.restart(Cursor::at(Position::from_stored(8)));
    assert_eq!(restarted, "id: 8\nevent: restart\ndata: {\"thread_id\":\"t1\",\"after\":\"8\"}\n\n");
    assert_eq!(drain(250), "event: drain\ndata: {}\nretry: 250\n\n");
}

#[test]
fn no_reader_sees_a_line_break_inside_the_data() {
    let nasty = "a\u{2028}b\u{2029}c\u{85}d\r\ne\n\n\u{e9}\u{2030}\u{1F600}\u{0}\"\\";
    let header = header("m1", 0, Role::Assistant);
    let event = chunk(&mut native(), &header, &Chunk::content(0, nasty, false));
    let body = String::from_utf8(event.data().to_vec()).unwrap();
    let data = body.strip_prefix("data: ").unwrap().strip_suffix("\n\n").unwrap();
    assert!(!data.contains(['\u{2028}', '\u{2029}', '\u{85}', '\r', '\n']), "{data:?}");
    let read: Value = serde_json::from_str(data).unwrap();
    assert_eq!(read["chunk"], nasty);
}

#[test]
fn the_data_is_shared_and_only_the_id_is_written_anew() {
    let header = header("m1", 0, Role::Assistant);
    let first = chunk(&mut native(), &header, &Chunk::content(0, "x", false));
    let mut late = Native::new(ThreadId::parse("t1").unwrap(), Cursor::at(Position::from_stored(5)));
    let id = late.replay(&message(), MessageOffset { next: 1, bytes: 1, ..MessageOffset::default() });
    assert_eq!(id, "id: 5~m1.0.1.1\n");
    assert_eq!([b"id: 7~m1.0.1.1\n", &first.data()[..]].concat(), first.bytes());
}
