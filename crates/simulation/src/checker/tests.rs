#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::Arc;

use bytes::Bytes;
use model::{Chunk, MessageId, Metadata, Role, ThreadId};

use super::*;

fn key(message: &str) -> MessageKey {
    MessageKey { thread: ThreadId::parse("t").unwrap(), message: MessageId::parse(message).unwrap() }
}

fn chunk(id: u32, text: &str, is_final: bool) -> Arc<Chunk> {
    Arc::new(Chunk::content(id, text, is_final))
}

fn publish(seq: u64, message: &str, attempt: u32, chunk: Arc<Chunk>) -> Publish {
    let body = Published::Chunk { key: key(message), attempt, chunk };
    Publish { partition: PartitionId(0), seq, at_ms: seq as i64 * 10, body }
}

fn stored(message: &str, position: i64, parent: Option<i64>, content: &str) -> MessageRow {
    MessageRow {
        key: key(message),
        position,
        parent,
        number: if parent.is_some() { 2 } else { 1 },
        role: Role::Assistant,
        content: content.to_owned(),
        metadata: Metadata::EMPTY,
        attempt: 0,
    }
}

fn seen_chunk(message: &str, chunk: Arc<Chunk>) -> SeenEvent {
    SeenEvent::Chunk { message: key(message).message, attempt: 0, chunk }
}

fn complete(message: &str, position: i64) -> SeenEvent {
    SeenEvent::Complete { message: key(message).message, position: Some(position) }
}

/// Two whole messages, one with a gap, one garbage entry, and a client that saw the first two.
fn good() -> Evidence {
    let garbage = Publish {
        partition: PartitionId(0),
        seq: 6,
        at_ms: 60,
        body: Published::Garbage(Bytes::from_static(b"?")),
    };
    Evidence {
        rules: Rules::default(),
        ledger: vec![
            publish(1, "a", 0, chunk(1, "lo", true)),
            publish(2, "b", 0, chunk(0, "whole", true)),
            publish(3, "a", 0, chunk(0, "Hel", false)),
            publish(4, "a", 0, chunk(0, "conflict", false)),
            publish(5, "gap", 0, chunk(1, "x", false)),
            garbage,
        ],
        messages: vec![stored("b", 5, None, "whole"), stored("a", 7, Some(5), "Hello")],
        dead_letters: vec![
            DeadLetterRow::Entry { partition: PartitionId(0), seq: 6, payload: Bytes::from_static(b"?") },
            DeadLetterRow::Message {
                key: key("gap"),
                attempt: 0,
                code: "gap_timeout".to_owned(),
                chunks: vec![chunk(1, "x", false)],
            },
        ],
        transcripts: vec![Transcript {
            client: "c".to_owned(),
            thread: key("a").thread,
            since: None,
            seen: vec![
                seen_chunk("a", chunk(0, "Hel", false)),
                complete_from_store(),
                seen_chunk("b", chunk(0, "whole", true)),
                complete("b", 5),
                SeenEvent::Cut,
                complete("a", 7),
                SeenEvent::Failed { message: key("gap").message, position: None },
            ],
            is_connected: true,
        }],
        ends: Vec::new(),
        grants: vec![(PartitionId(0), 1), (PartitionId(1), 1), (PartitionId(0), 2)],
    }
}

fn complete_from_store() -> SeenEvent {
    SeenEvent::Rest { message: key("a").message, chunk: Arc::new(Chunk::content(9, "lo", true)) }
}

/// The invariants that are violated after `spoil` has changed the evidence.
fn broken(spoil: impl FnOnce(&mut Evidence)) -> Vec<Invariant> {
    let mut evidence = good();
    spoil(&mut evidence);
    let mut broken: Vec<Invariant> = check(&evidence).iter().map(|violation| violation.invariant).collect();
    broken.sort_unstable();
    broken.dedup();
    broken
}

#[test]
fn a_good_run_breaks_nothing() {
    assert_eq!(broken(|_| ()), []);
}

#[test]
fn what_is_stored_is_compared_with_what_was_published() {
    use Invariant::{Content, EndsOnce, Epochs, Numbers, OneTerminal, Positions, RightFailure};
    assert_eq!(broken(|e| drop(e.dead_letters.remove(0))), [EndsOnce]);
    assert_eq!(broken(|e| e.messages[0].content.push('!')), [Content, Invariant::ClientText]);
    assert_eq!(broken(|e| e.messages[1].parent = None), [Positions]);
    assert_eq!(broken(|e| e.messages.swap(0, 1)), [Positions, Numbers]);
    assert_eq!(broken(|e| e.messages[1].number = 1), [Numbers]);
    assert_eq!(broken(|e| e.messages[0].attempt = 1), [Content]);
    assert_eq!(broken(|e| e.ledger.truncate(5)), [EndsOnce]);
    assert_eq!(broken(|e| drop(e.dead_letters.remove(1))), [EndsOnce, OneTerminal]);
    assert_eq!(broken(|e| e.grants.push((PartitionId(1), 1))), [Epochs]);
    let fail = |e: &mut Evidence, code: &str| {
        if let DeadLetterRow::Message { code: stored, .. } = &mut e.dead_letters[1] {
            code.clone_into(stored);
        }
    };
    assert_eq!(broken(|e| fail(e, "final_conflict")), [RightFailure]);
    assert_eq!(broken(|e| fail(e, "stalled")), []);
    // The message has both ends.
    let third = || MessageRow { number: 3, ..stored("gap", 9, Some(7), "x") };
    assert_eq!(broken(|e| e.messages.push(third())), [EndsOnce, Content]);
}

#[test]
fn a_whole_message_fails_only_when_it_was_slow() {
    let lose = |e: &mut Evidence, gap_safe_ms: i64| {
        e.rules.gap_safe_ms = gap_safe_ms;
        e.messages.truncate(1);
        e.transcripts.clear();
        e.dead_letters.push(DeadLetterRow::Message {
            key: key("a"),
            attempt: 0,
            code: "gap_timeout".to_owned(),
            chunks: vec![chunk(1, "lo", true)],
        });
    };
    assert_eq!(broken(|e| lose(e, 20)), [Invariant::RightFailure]);
    assert_eq!(broken(|e| lose(e, 19)), []);
}

#[test]
fn what_clients_saw_is_compared_with_both() {
    use Invariant::{ClientText, OneTerminal};
    let seen = |e: &mut Evidence, seen: Vec<SeenEvent>| e.transcripts[0].seen = seen;
    let whole = || seen_chunk("b", chunk(0, "whole", true));
    assert_eq!(broken(|e| seen(e, vec![whole(), whole(), complete("b", 5)])), [ClientText]);
    assert_eq!(
        broken(|e| seen(e, vec![seen_chunk("b", chunk(0, "other", true))])),
        [ClientText, OneTerminal]
    );
    assert_eq!(broken(|e| seen(e, vec![complete("b", 5)])), [ClientText]);
    assert_eq!(broken(|e| seen(e, vec![whole(), complete("b", 6)])), [OneTerminal]);
    assert_eq!(broken(|e| seen(e, vec![whole(), complete("b", 5), complete("b", 5)])), [OneTerminal]);
    assert_eq!(
        broken(|e| seen(e, vec![SeenEvent::Failed { message: key("b").message, position: None }])),
        [OneTerminal]
    );
    assert_eq!(broken(|e| seen(e, vec![whole()])), [OneTerminal]);
    assert_eq!(broken(|e| e.transcripts[0].seen.push(complete("gap", 1))), [OneTerminal]);
    assert_eq!(broken(|e| e.transcripts[0].seen.push(complete_from_store())), [ClientText]);
    // The connection was cut within the text from the store, and resumed with chunks of another
    // gateway that does not know the end yet.
    let rest = |text: &str| SeenEvent::Rest { message: key("a").message, chunk: chunk(0, text, false) };
    let on_from = |e: &mut Evidence, text: &str| {
        let last = seen_chunk("a", chunk(1, "lo", true));
        seen(e, vec![whole(), complete("b", 5), rest(text), SeenEvent::Cut, last, complete("a", 7)]);
        e.transcripts[0].is_connected = false;
    };
    assert_eq!(broken(|e| on_from(e, "Hel")), []);
    assert_eq!(broken(|e| on_from(e, "H")), [ClientText], "two letters are missing");
    assert_eq!(broken(|e| on_from(e, "Hello")), [ClientText], "the end comes twice");
    let uncut = |e: &mut Evidence| {
        on_from(e, "Hel");
        e.transcripts[0].seen.retain(|seen| !matches!(seen, SeenEvent::Cut));
    };
    assert_eq!(broken(uncut), [ClientText], "one gateway does not go back to chunks");
    let cut = |e: &mut Evidence| {
        seen(e, vec![whole(), SeenEvent::Cut]);
        e.transcripts[0].is_connected = false;
    };
    assert_eq!(broken(cut), []);
}

#[test]
fn the_fate_follows_the_order_of_the_log() {
    let fate =
        |ledger: Vec<Publish>| expected_outcomes(&ledger, &Rules::default()).remove(&key("a")).unwrap();
    let reset = fate(vec![
        publish(1, "a", 0, chunk(0, "old", false)),
        publish(2, "a", 1, chunk(0, "new", true)),
        publish(3, "a", 2, chunk(0, "too late", true)),
    ]);
    assert_eq!((reset.attempt, &reset.end, reset.text(1)), (1, &ExpectedEnd::Complete, "new".to_owned()));
    let beyond = fate(vec![publish(1, "a", 0, chunk(2, "", true)), publish(2, "a", 0, chunk(3, "", false))]);
    assert_eq!(beyond.end, ExpectedEnd::Failed("final_conflict"));
    let error = Arc::new(Chunk { kind: model::ChunkKind::Error, ..Chunk::content(1, "no", false) });
    let waits = fate(vec![publish(1, "a", 0, Arc::clone(&error))]);
    assert_eq!((waits.end, waits.gap_since_seq), (ExpectedEnd::Open, Some(1)));
    let failed = fate(vec![publish(1, "a", 0, error), publish(5, "a", 0, chunk(0, "x", false))]);
    assert_eq!((failed.end, failed.longest_gap_ms), (ExpectedEnd::Failed("producer_error"), 40));
}

#[test]
fn a_violation_says_what_which_and_why() {
    let violation = Violation::new(Invariant::Content, key("a"), "\"Hello\"", "\"loHel\"");
    assert_eq!(
        violation.to_string(),
        "I2 the content is the chunks in order: t/a: expected \"Hello\"; seen \"loHel\""
    );
}
