//! Memory limits: which messages wait, are shed, and are read again.

use super::*;

#[test]
fn frame_of_many_messages_opens_as_many_as_fit() {
    let limits = PartitionLimits { remembered_bytes: 0, ..PartitionLimits::default() };
    let mut script = ChunkScript::with(limits, takeover());
    let frames = ["m0:0a!", "m1:0b!", "m2:0c!", "m3:0d!"].map(body).map(|body| match body {
        EntryBody::Frame(frame) => frame,
        other => panic!("{other:?}"),
    });
    let chunks = frames.iter().flat_map(|frame| frame.chunks.clone()).collect();
    let frame = Frame { chunks, ..frames[0].clone() };
    let entry = StreamEntry { seq: Seq(1), stored_at: script.now, bytes: 1, body: EntryBody::Frame(frame) };
    script.room = 1;
    for message in ["m0", "m1", "m2", "m3"] {
        script.entries(vec![entry.clone()]);
        script.run("ok room");
        let written = script.last_commit().messages.iter().map(|message| message.key.message.to_string());
        assert_eq!(written.collect::<Vec<_>>(), [message]);
    }
    assert_eq!(script.last_commit().checkpoint, Seq(1));
}

#[test]
fn shed_message_is_read_again_from_inside_its_frame() {
    let mut script = ChunkScript::new();
    let (EntryBody::Frame(one), EntryBody::Frame(two)) = (body("m0:0a"), body("m1:0b!")) else { panic!() };
    let chunks = [one.chunks.clone(), two.chunks].concat();
    let frame = Frame { chunks, ..one };
    let entry = StreamEntry { seq: Seq(1), stored_at: script.now, bytes: 1, body: EntryBody::Frame(frame) };
    script.room = 1;
    assert_eq!(script.entries(vec![entry.clone()]), "deferring(1) m0:a");
    // The reader is set back for the second message, and the first one is forgotten before the
    // reader reaches it.
    script.room = 2;
    assert_eq!(script.run("room"), "reread(1)");
    script.handle(Input::Shed(1));
    assert_eq!(script.machine.load().0, 0);
    assert_eq!(script.entries(vec![entry]), r#"m0:a m1:b commit(m1:"b" @0)"#);
}

#[test]
fn at_capacity_new_messages_wait_in_stream() {
    let mut script = ChunkScript::new();
    script.run("a:0x");
    script.room = 0;
    assert_eq!(
        script.run("b:0y a:1z c:0w a:2v! ok"),
        r#"deferring(2) | z | - | v commit("xzv" @1) | complete"#
    );
    assert!(!script.machine.wants_entries(), "nothing that could get on");
    script.room = 10;
    assert_eq!(script.run("room"), "reread(2)");
    let log = script.log[1..].to_vec();
    assert_eq!(script.entries(log), "b:y c:w", "chunks of the message that has ended meanwhile are late");
    assert_eq!(script.machine.take_counters().deferred, 2);
}

#[test]
fn memory_pressure_sheds_largest_message_and_rereads_it() {
    let mut script = ChunkScript::new();
    script.run("a:0x b:0yyyy a:1z!");
    assert_eq!(script.machine.load().1, 6);
    assert_eq!(script.handle(Input::Shed(1)), "-");
    assert_eq!(script.run("ok"), "complete");
    assert_eq!(script.run("room"), "reread(2)");
    let log = script.log[1..].to_vec();
    assert_eq!(script.entries(log), "b:yyyy");
}

fn one_message_a_commit() -> PartitionLimits {
    PartitionLimits { commit_turns: 1, checkpoint_ms: i64::MAX, ..PartitionLimits::default() }
}

#[test]
fn reading_pauses_at_a_few_commits_of_what_has_ended() {
    let mut script = ChunkScript::with(one_message_a_commit(), takeover());
    script.run("m0:0a! m1:0b! m2:0c!");
    assert!(script.machine.wants_entries(), "three have ended");
    script.run("m3:0d!");
    assert!(!script.machine.wants_entries(), "four have");
    script.run("ok");
    assert!(script.machine.wants_entries(), "one is committed");
    let limits = PartitionLimits { commit_bytes: 10, ..one_message_a_commit() };
    let mut script = ChunkScript::with(limits, takeover());
    script.run(&format!("m0:0{}!", "x".repeat(39)));
    assert!(script.machine.wants_entries());
    script.run(&format!("ok m1:0{}!", "x".repeat(40)));
    assert!(!script.machine.wants_entries(), "it fills four commits by its bytes");
    script.run("ok");
    assert!(script.machine.wants_entries());
}

#[test]
fn reading_pauses_while_the_store_is_asked_about_much() {
    let mut script = ChunkScript::with(one_message_a_commit(), takeover());
    script.auto_found = false;
    script.run("m0:0a m1:0b m2:0c");
    assert!(script.machine.wants_entries());
    script.run("m3:0d");
    assert!(!script.machine.wants_entries());
    script.run("found");
    assert!(script.machine.wants_entries(), "open messages end by what is read alone");
}

#[test]
fn while_reading_pauses_no_gap_grows_older() {
    let mut script = ChunkScript::with(one_message_a_commit(), takeover());
    script.run("gap:1x m0:0a! m1:0b! m2:0c! m3:0d!");
    assert_eq!(script.run("+100s"), "-", "what closes it may be the next entry");
    let ended = script.run("ok ok ok ok +100s");
    assert!(ended.contains("gap:dead:gap_timeout"), "{ended}");
}
