//! Notes of the fleet and of publishers.

use super::*;

fn noted(change: impl FnOnce(&mut pb::Note)) -> Vec<u8> {
    let mut note = pb::Note {
        message_id: "n1".to_owned(),
        session_id: "t1".to_owned(),
        content: "paid".to_owned(),
        author: "ann".to_owned(),
        hidden: true,
    };
    change(&mut note);
    command_of(|entry| entry.note = Some(note))
}

#[test]
fn a_note_is_a_whole_message_of_the_fleet() {
    let decoded =
        |payload: Vec<u8>| decode_entry(PartitionId(0), "commands.0.t1", None, &payload.into(), &limits());
    let Decoded::Frame(frame) = decoded(noted(|_| {})).unwrap() else { panic!("a frame is expected") };
    let note = Note {
        thread: thread(),
        message: MessageId::parse("n1").unwrap(),
        content: "paid".to_owned(),
        author: "ann".into(),
        is_hidden: true,
    };
    assert_eq!(encode_note(&note), noted(|_| {}));
    assert_eq!(frame, note.into_frame().unwrap());
    let code = |payload: Vec<u8>| decoded(payload).unwrap_err().code;
    assert_eq!(code(noted(|note| note.content.clear())), "empty_input");
    assert_eq!(code(noted(|note| note.content = "x".repeat(MAX_INPUT_BYTES + 1))), "input_too_large");
    assert_eq!(code(noted(|note| note.author = "x".repeat(257))), "invalid_command");
    assert_eq!(code(noted(|note| note.message_id = turn().answer(0).as_str().to_owned())), "invalid_command");
    assert_eq!(code(noted(|note| note.session_id = "t2".to_owned())), "session_mismatch");
    for subject in ["chunks.0.t1", "messages.0.t1", "tasks.0.t1"] {
        let refused =
            decode_entry(PartitionId(0), subject, None, &noted(|_| {}).into(), &limits()).unwrap_err();
        assert_eq!(refused.code, RejectedEntry::WRONG_SUBJECT, "{subject}");
    }
}

#[test]
fn a_publisher_of_messages_may_hide_a_note_and_others_may_not() {
    let said = |class: &str, role: &str, id: u32, metadata: serde_json::Value| {
        let chunk = json!({"session_id": "t1", "message_id": "n1", "chunk_id": id, "chunk": "x", "is_final": true, "role": role,
            "metadata": metadata});
        let subject = format!("{class}.0.t1");
        match decode_entry(PartitionId(0), &subject, None, &chunk.to_string().into(), &limits()) {
            Ok(Decoded::Frame(frame)) => frame.chunks[0].chunk.metadata.is_synthetic().to_string(),
            Ok(other) => panic!("{other:?}"),
            Err(refused) => refused.code.to_owned(),
        }
    };
    let hidden = || json!({"note": true, "hidden": true});
    assert_eq!(said("messages", "system", 0, hidden()), "true");
    // If a note cannot be hidden, it is refused, because it would be shown.
    assert_eq!(said("messages", "system", 1, hidden()), "invalid_chunk", "it is not whole");
    assert_eq!(said("messages", "user", 0, hidden()), "invalid_chunk");
    assert_eq!(said("messages", "assistant", 0, hidden()), "invalid_chunk");
    assert_eq!(said("chunks", "assistant", 0, hidden()), "invalid_chunk");
    assert_eq!(said("messages", "system", 0, json!({"note": true})), "false", "people see it");
    assert_eq!(said("chunks", "system", 0, hidden()), RejectedEntry::ROLE_NOT_ALLOWED);
    assert_eq!(said("messages", "system", 0, json!({"note": true, "synthetic": true})), "metadata_error");
}
