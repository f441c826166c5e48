//! Roles of bare messages: subjects decide which role a publisher may use, and a message keeps its
//! role.

use super::*;

/// The word's chunk with another role.
fn as_role(role: Role, word: &str) -> EntryBody {
    let EntryBody::Frame(mut frame) = body(word) else { panic!("{word}") };
    frame.chunks.iter_mut().for_each(|arrival| arrival.role = role);
    EntryBody::Frame(frame)
}

fn say(script: &mut ChunkScript, role: Role, word: &str) -> String {
    script.seq += 1;
    let entry =
        StreamEntry { seq: Seq(script.seq), stored_at: script.now, bytes: 1, body: as_role(role, word) };
    script.entries(vec![entry])
}

#[test]
fn a_publisher_in_another_role_does_not_write_into_a_message() {
    let mut script = ChunkScript::new();
    assert_eq!(say(&mut script, Role::User, "0pay"), "pay");
    for foreign in ["1mallory!", "1mallory^1", "0mallory^7"] {
        assert_eq!(say(&mut script, Role::Assistant, foreign), "report", "{foreign}");
    }
    assert_eq!(script.machine.take_counters().other_roles, 3);
    assert_eq!(say(&mut script, Role::User, "1bob!"), r#"bob commit("paybob" @5)"#);
    let commit = script.last_commit();
    assert_eq!(commit.messages[0].role, Role::User);
}

#[test]
fn message_of_an_assistant_is_not_taken_over() {
    let mut script = ChunkScript::new();
    say(&mut script, Role::Assistant, "0a");
    say(&mut script, Role::User, "1b!");
    say(&mut script, Role::System, "1b!^1");
    assert_eq!(script.machine.take_counters().other_roles, 2);
    assert_eq!(say(&mut script, Role::Assistant, "1c!"), r#"c commit("ac" @4)"#);
    assert_eq!(script.last_commit().messages[0].role, Role::Assistant);
}

#[test]
fn entries_beyond_their_subject_are_counted() {
    let mut script = ChunkScript::new();
    for (seq, code) in
        [(1, RejectedEntry::WRONG_SUBJECT), (2, RejectedEntry::ROLE_NOT_ALLOWED), (3, "malformed")]
    {
        let refusal = RejectedEntry { code, detail: String::new() };
        let (subject, payload) = ("chunks.0.t".to_owned(), Bytes::from_static(b"?"));
        let body = EntryBody::Refused { subject, payload, refusal, answer: None };
        script.entries(vec![StreamEntry { seq: Seq(seq), stored_at: script.now, bytes: 1, body }]);
    }
    let counters = script.machine.take_counters();
    assert_eq!((counters.refused, counters.forbidden), (3, 2));
}

#[test]
fn a_hidden_note_is_stored_and_shown_to_no_client() {
    let mut script = ChunkScript::new();
    script.run("0x");
    let mut put = |name: &str, is_hidden| {
        let (thread, message) = (key(name).thread, key(name).message);
        let note = Note { thread, message, content: "mind".to_owned(), author: "ann".into(), is_hidden };
        script.seq += 1;
        let body = EntryBody::Frame(note.into_frame().unwrap());
        let said = script.entries(vec![StreamEntry {
            seq: Seq(script.seq),
            stored_at: script.now,
            bytes: 100,
            body,
        }]);
        (said, script.run("ok"))
    };
    let hidden = put("h", true);
    assert_eq!(hidden, (r#"commit(h:"mind" @0)"#.to_owned(), "-".to_owned()));
    let shown = put("s", false);
    assert_eq!(shown, (r#"s:mind commit(s:"mind" @0)"#.to_owned(), "s:complete".to_owned()));
    let message = &script.last_commit().messages[0];
    assert_eq!((message.role, message.placement.batch_type), (Role::System, BatchType::SystemTrigger));
    assert_eq!(script.run("1y! ok"), r#"y commit("xy" @4) | complete"#, "the open message goes on");
}
