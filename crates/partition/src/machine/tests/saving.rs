//! What is saved, when, and what the checkpoint may pass then.

use super::*;

/// Limits at which a replay of two entries is too long.
pub(super) fn soon() -> PartitionLimits {
    PartitionLimits { replay_entries: 2, checkpoint_ms: 0, ..PartitionLimits::default() }
}

fn within(replay_entries: u64) -> ChunkScript {
    ChunkScript::with(PartitionLimits { replay_entries, ..soon() }, takeover())
}

fn parts(script: &ChunkScript) -> Vec<SpilledMessage> {
    script.saves.iter().flat_map(|save| save.messages.clone()).collect()
}

#[test]
fn age_alone_saves_nothing() {
    let mut script = ChunkScript::new();
    for id in 0..50 {
        script.run(&format!("{id}x +100s"));
    }
    assert_eq!(script.run("50y!").matches("commit").count(), 1);
    assert!(script.saves.is_empty());
}

#[test]
fn what_makes_a_replay_long_is_saved_and_passed() {
    let mut script = within(2);
    assert_eq!(script.run("0a 2c +20s b:0x"), "a | - | - | b:x save(0,2)");
    let saved = parts(&script);
    assert_eq!((saved[0].gap_ms, saved[0].open_ms, saved[0].first_chunk), (Some(20_000), 20_000, 0));
    assert_eq!(script.run("saved ok"), "commit(@2) | -");
    let takeover = Takeover { epoch: 2, checkpoint: Seq(2), spilled_messages: saved, ..takeover() };
    let mut second = ChunkScript::with(PartitionLimits::default(), takeover);
    assert_eq!(second.first, "a", "what had been released is sent again");
    assert_eq!(second.run("b:0x! 3d 1b"), "b:x commit(b:\"x\" @3) | - | b,c,d");
    assert_eq!(second.run("ok 4e! ok"), r#"b:complete | e commit("abcde" @6) | complete"#);
    assert_eq!(second.last_commit().ended_spills, [key("a")]);
}

#[test]
fn what_is_needed_for_the_first_half_is_saved_at_once() {
    let mut script = within(4);
    assert_eq!(script.run("a:0x b:0x c:0x d:0x"), "x | b:x | c:x | d:x");
    assert_eq!(script.run("e:0x"), "e:x save(0 b:0 c:0)");
    assert_eq!(script.run("f:0x g:0x"), "f:x | g:x", "one save at a time");
    assert_eq!(script.run("saved"), "save(d:0 e:0) commit(@3)");
    assert_eq!(script.run("saved ok"), "- | commit(@5)");
}

#[test]
fn bytes_count_like_entries() {
    let limits = PartitionLimits { replay_bytes: 1_000, replay_entries: u64::MAX, ..soon() };
    let mut script = ChunkScript::with(limits, takeover());
    let long = "y".repeat(900);
    assert_eq!(script.run("0x"), "x");
    assert!(!script.run(&format!("b:0{long}")).contains("save"), "966 bytes");
    assert!(
        script.run("b:1z").ends_with("save(0)"),
        "1,033 bytes, and what b needs is less than half of them"
    );
}

#[test]
fn a_message_is_saved_again_when_it_has_doubled() {
    let mut script = within(2);
    script.run("a:0xx b:0y! c:0z! saved ok");
    assert_eq!(parts(&script).len(), 1);
    // The message grew from 2 to 3 bytes. It is not saved again before a replay is twice as long as
    // allowed.
    script.run("a:1x d:0y! ok e:0z! ok f:0z! ok");
    assert_eq!(parts(&script).len(), 1);
    script.run("g:0z! ok +1s");
    let again = parts(&script);
    assert_eq!((again.len(), again[1].first_chunk, again[1].chunks.len()), (2, 1, 1), "only what is new");
    script.run("saved ok a:2xxx h:0y! ok i:0z! ok saved");
    assert_eq!(parts(&script).len(), 3, "it has doubled");
}

#[test]
fn what_comes_during_a_save_is_kept_by_the_stream() {
    let mut script = within(2);
    assert_eq!(script.run("0a b:0y! c:0z!").matches("save(0)").count(), 1);
    script.run("1b ok ok");
    assert_eq!(script.last_commit().checkpoint, Seq(0), "the save is not stored");
    script.run("saved ok");
    assert_eq!(script.last_commit().checkpoint, Seq(3), "chunk 1 stands at 4");
}

#[test]
fn the_end_of_a_message_waits_for_its_save() {
    let mut script = within(2);
    script.run("0a b:0y! ok c:0z! ok");
    assert_eq!(script.run("1b!"), "b", "its rows would come after the commit that deletes them");
    assert_eq!(script.run("d:0x!"), r#"d:x commit(d:"x" @0)"#, "everything else is committed meanwhile");
    assert_eq!(script.run("ok saved"), r#"d:complete | commit("ab" @5)"#);
    assert_eq!(script.last_commit().ended_spills, [key("a")]);
}

#[test]
fn what_the_store_refuses_to_save_fails_alone() {
    let mut script = within(4);
    assert!(script.run("a:0x b:0x c:0x d:0x e:0x").ends_with("save(0 b:0 c:0)"));
    let refused = vec![(SavedItem::Message(key("b")), "no".to_owned())];
    let said = script.handle(Input::Saved(refused));
    assert_eq!(said, "given-up commit(b:dead:rejected_by_database/1 @3)", "it holds up nothing");
}

#[test]
fn a_long_message_is_saved_in_parts() {
    let limits = PartitionLimits { save_bytes: 150, ..soon() };
    let mut script = ChunkScript::with(limits, takeover());
    assert_eq!(script.run("0aaaa 1bbbb 2cccc"), "aaaa | bbbb | cccc save(0,1)");
    assert_eq!(script.run("4e"), "-");
    assert_eq!(script.run("saved"), "save(2,4)", "the stream still has all of it");
    assert_eq!(script.run("saved ok"), "commit(@4) | -");
    let starts: Vec<u32> = parts(&script).iter().map(|part| part.first_chunk).collect();
    assert_eq!(starts, [0, 2]);
}

#[test]
fn a_message_reset_during_its_save_is_saved_from_its_begin() {
    let mut script = within(2);
    assert!(script.run("0aa b:0y! c:0z!").ends_with("save(0)"));
    assert_eq!(script.run("ok 0b^1"), "b:complete commit(c:\"z\" @0) | ^1 b");
    assert_eq!(script.run("saved ok"), "- | c:complete commit(@3)", "the new attempt begins at 4");
    script.run("ok d:0y! ok e:0z! ok");
    let last = parts(&script).pop().unwrap();
    assert_eq!((last.attempt, last.first_chunk, last.chunks.len()), (1, 0, 1));
}

#[test]
fn a_failed_answer_that_waits_is_restored_as_it_failed() {
    let chunks = |ids: &[u32]| -> Vec<Arc<Chunk>> {
        let chunk = |id: &u32| match id {
            2 => Arc::new(Chunk { kind: ChunkKind::Error, ..Chunk::content(2, "broken", false) }),
            id => Arc::new(Chunk::content(*id, "x", false)),
        };
        ids.iter().map(chunk).collect()
    };
    let arrival = |chunk: &Arc<Chunk>| IncomingChunk {
        message: MessageId::parse("a").unwrap(),
        attempt: 0,
        step: 0,
        role: Role::Assistant,
        chunk: Arc::clone(chunk),
    };
    let (limits, now) = (PartitionLimits::default(), Timestamp(0));
    let arrivals: Vec<_> = chunks(&[0, 3, 4, 1, 2]).iter().map(arrival).collect();
    let mut open = crate::open::OpenMessage::new(key("a"), &arrivals[0], Seq(1), &limits, now);
    for arrival in &arrivals {
        open.take(arrival, None, &limits, now, now);
    }
    let part = open.save_part(usize::MAX, now);
    let restored = crate::open::OpenMessage::restore(&part, &limits, now, now);
    assert_eq!(restored.failure, open.failure);
    assert_eq!(restored.chunks_by_id(), open.chunks_by_id());
    assert_eq!((restored.received(), restored.bytes()), (open.received(), open.bytes()));
}
