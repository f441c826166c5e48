use model::{ChunkKind, Metadata};
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

#[test]
fn a_chunk_has_the_names_of_the_wire_in_their_order() {
    let mut native = native();
    let first = native.chunk(&message(), 0, Role::Assistant, &Chunk::content(0, "Hi \"you\"\n", false));
    assert_eq!(
        text(&first),
        concat!(
            "id: 7~m1.0.1.9\n",
            r#"data: {"session_id":"t1","message_id":"m1","chunk_id":0,"chunk":"Hi \"you\"\n","#,
            r#""chunk_type":"content","is_final":false,"metadata":{}}"#,
            "\n\n"
        )
    );
    let mut last = Chunk::content(1, "", true);
    last.kind = ChunkKind::Metadata;
    last.metadata = Metadata::new(json!({"tokens_used": 15}).as_object().unwrap().clone()).unwrap();
    last.timestamp = Some("2026-01-02T03:04:05Z".into());
    last.correlation_id = Some("c-1".into());
    assert_eq!(
        text(&native.chunk(&message(), 0, Role::User, &last)),
        concat!(
            "id: 7~m1.0.2.9\n",
            r#"data: {"session_id":"t1","message_id":"m1","chunk_id":1,"chunk":"","chunk_type":"metadata","#,
            r#""is_final":true,"metadata":{"tokens_used":15},"timestamp":"2026-01-02T03:04:05Z","#,
            r#""correlation_id":"c-1","role":"user"}"#,
            "\n\n"
        )
    );
}

#[test]
fn ends_and_resets() {
    let mut native = native();
    native.chunk(&message(), 0, Role::Assistant, &Chunk::content(0, "a", false));
    assert_eq!(
        native.reset(&message(), 2),
        "id: 7~m1.2.0.0\nevent: reset\ndata: {\"session_id\":\"t1\",\"message_id\":\"m1\",\"attempt\":2}\n\n"
    );
    let again = native.chunk(&message(), 2, Role::Assistant, &Chunk::content(0, "b", true));
    assert!(
        text(&again).starts_with("id: 7~m1.2.1.1\n")
            && text(&again).contains(r#""metadata":{},"attempt":2}"#)
    );
    assert_eq!(
        text(&native.complete(&message(), Position::from_stored(9))),
        concat!(
            "id: 7~m1\n",
            r#"data: {"chunk_type":"system","chunk":"message_complete","session_id":"t1","message_id":"m1","#,
            r#""position":"9"}"#,
            "\n\n"
        )
    );
    let other = MessageId::parse("m2").unwrap();
    let missing = vec![IdRange { first: 2, last: 4 }];
    assert_eq!(
        text(&native.failed(&other, &FailureNote::from(&Failure::GapTimeout { missing }))),
        concat!(
            "id: 7~m1~m2\n",
            r#"data: {"chunk_type":"error","chunk":"chunks never arrived: 2-4","is_final":true,"#,
            r#""session_id":"t1","message_id":"m2","metadata":{"code":"gap_timeout","retryable":true,"missing":[{"first":2,"last":4}]}}"#,
            "\n\n"
        )
    );
    assert!(
        text(&native.failed(&other, &FailureNote::from(&Failure::Stalled)))
            .ends_with("\"metadata\":{\"code\":\"stalled\",\"retryable\":true}}\n\n")
    );
    assert_eq!(drain(250), "event: drain\ndata: {}\nretry: 250\n\n");
}

#[test]
fn no_reader_sees_a_line_break_inside_the_data() {
    let nasty = "a\u{2028}b\u{2029}c\u{85}d\r\ne\n\n\u{e9}\u{2030}\u{1F600}\u{0}\"\\";
    let event = native().chunk(&message(), 0, Role::Assistant, &Chunk::content(0, nasty, false));
    let body = String::from_utf8(event.data().to_vec()).unwrap();
    let data = body.strip_prefix("data: ").unwrap().strip_suffix("\n\n").unwrap();
    assert!(!data.contains(['\u{2028}', '\u{2029}', '\u{85}', '\r', '\n']), "{data:?}");
    let read: Value = serde_json::from_str(data).unwrap();
    assert_eq!(read["chunk"], nasty);
}

#[test]
fn the_data_is_shared_and_only_the_id_is_written_anew() {
    let first = native().chunk(&message(), 0, Role::Assistant, &Chunk::content(0, "x", false));
    let mut late = Native::new(ThreadId::parse("t1").unwrap(), Cursor::at(Position::from_stored(5)));
    let id = late.again(&message(), Seen { attempt: 0, next: 1, bytes: 1 });
    assert_eq!(id, "id: 5~m1.0.1.1\n");
    assert_eq!([b"id: 7~m1.0.1.1\n", &first.data()[..]].concat(), first.bytes());
}
