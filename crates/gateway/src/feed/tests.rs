use std::sync::Arc;

use model::{Chunk, ChunkKind, ErrorClass, Failure, Role};
use wire::out::End;

use super::*;

mod world;

const NOW: Timestamp = Timestamp(1_000_000);

fn id(text: &str) -> MessageId {
    MessageId::parse(text).unwrap()
}

fn feed() -> Feed {
    let mut feed = Feed::new(ThreadId::parse("t").unwrap(), Position::from_stored(10), 1 << 20, NOW);
    assert!(feed.want_ask(NOW).is_some(), "a new feed asks at once");
    feed.on_reply(reply(&[]), NOW);
    feed
}

fn reply(open: &[(&str, u32, u32, &str)]) -> AskReply {
    let text = |(message, attempt, first, text): &(&str, u32, u32, &str)| {
        let chunks = chunks(*first, text);
        let next = first + chunks.len() as u32;
        OpenText { message: id(message), attempt: *attempt, role: Role::Assistant, chunks, next }
    };
    AskReply { epoch: 1, open: open.iter().map(text).collect(), more: false }
}

/// One chunk per letter; `.` after a letter makes it final.
fn chunks(first: u32, text: &str) -> Vec<Arc<Chunk>> {
    let letters: Vec<char> = text.chars().filter(|letter| *letter != '.').collect();
    let is_final = |n: usize| text.ends_with('.') && n + 1 == letters.len();
    let chunk = |(n, letter): (usize, &char)| {
        Arc::new(Chunk::content(first + n as u32, &letter.to_string(), is_final(n)))
    };
    letters.iter().enumerate().map(chunk).collect()
}

fn frame(message: &str, attempt: u32, first: u32, text: &str) -> OutFrame {
    OutFrame {
        thread: ThreadId::parse("t").unwrap(),
        message: id(message),
        attempt,
        role: Role::Assistant,
        chunks: chunks(first, text),
        terminal: None,
    }
}

fn end(message: &str, chunks: u32, position: i64) -> OutFrame {
    let outcome = Outcome::Complete(Position::from_stored(position));
    OutFrame { terminal: Some(End { chunks, outcome }), ..frame(message, 0, 0, "") }
}

fn stored(message: &str, position: i64, content: &str) -> Committed {
    Committed {
        message: id(message),
        position: Position::from_stored(position),
        attempt: 0,
        role: Role::Assistant,
        content: content.to_owned(),
        metadata: model::Metadata::EMPTY,
    }
}

fn view(after: i64, committed: &[Committed], keys: &[&str]) -> View {
    let keys: Vec<_> = keys.iter().map(|key| id(key)).collect();
    let known = committed.iter().filter(|committed| keys.contains(&committed.message));
    View {
        after: Position::from_stored(after),
        known: known
            .map(|committed| (committed.message.clone(), Known::Complete(committed.clone())))
            .collect(),
        committed: committed.to_vec(),
        is_whole: true,
        keys,
    }
}

/// `m:text` for a chunk, `m!` for an end, `m?code` for a failure, `m^attempt` for a reset, `m-` for
/// one that was missed.
fn shown(feed: &mut Feed) -> String {
    let mut parts = Vec::new();
    while let Some(event) = feed.next_event() {
        match event {
            Event::Part(bytes) | Event::End(_, bytes) => parts.push(world::read(&bytes).short()),
            Event::Missed(message) => parts.push(format!("{message}-")),
        }
    }
    parts.join(" ")
}

#[test]
fn frames_in_any_order_are_shown_in_order_once() {
    let mut feed = feed();
    feed.on_frame(frame("a", 0, 3, "de"), NOW);
    feed.on_frame(frame("a", 0, 1, "b"), NOW);
    assert_eq!(shown(&mut feed), "");
    feed.on_frame(frame("a", 0, 0, "ab"), NOW);
    assert_eq!(shown(&mut feed), "a:a a:b");
    feed.on_frame(frame("a", 0, 0, "abc"), NOW);
    feed.on_frame(frame("a", 0, 2, "cdef."), NOW);
    feed.on_frame(end("a", 6, 11), NOW);
    feed.on_frame(end("a", 6, 11), NOW);
    feed.on_frame(frame("a", 0, 0, "abcdef."), NOW);
    assert_eq!(shown(&mut feed), "a:c a:d a:e a:f a!");
    assert_eq!(feed.cursor().to_string(), "10~a");
}

#[test]
fn a_hole_is_asked_for_at_once_and_then_with_pauses() {
    let mut feed = feed();
    feed.on_frame(frame("a", 0, 0, "a"), NOW);
    assert_eq!(feed.want_ask(NOW), None);
    feed.on_frame(frame("a", 0, 3, "d"), NOW);
    let ask = feed.want_ask(NOW).unwrap();
    assert_eq!(ask.have, [(id("a"), 0, 1)]);
    feed.on_frame(frame("a", 0, 4, "e"), NOW);
    assert_eq!(feed.want_ask(NOW), None, "one question at a time");
    feed.on_reply(reply(&[("a", 0, 1, "b")]), NOW);
    assert!(feed.want_ask(NOW).is_some(), "it has moved on, but is not closed");
    feed.on_reply(reply(&[("a", 0, 2, "")]), NOW);
    assert_eq!(feed.want_ask(NOW.plus_ms(HOLE_MS - 1)), None);
    assert!(feed.want_ask(NOW.plus_ms(HOLE_MS)).is_some());
    feed.on_reply(reply(&[("a", 0, 2, "cde")]), NOW);
    assert_eq!(shown(&mut feed), "a:a a:b a:c a:d a:e");
    assert_eq!(feed.take_counts().holes_repaired, 1);
}

#[test]
fn a_higher_attempt_begins_again_and_a_lower_one_is_fenced() {
    let mut feed = feed();
    feed.on_frame(frame("a", 0, 0, "ab"), NOW);
    feed.on_frame(frame("a", 2, 0, "x"), NOW);
    feed.on_frame(frame("a", 1, 0, "y"), NOW);
    feed.on_frame(end("a", 2, 11), NOW);
    feed.on_frame(frame("a", 2, 1, "z."), NOW);
    assert_eq!(shown(&mut feed), "a:a a:b a^2 a:x a:z");
}

#[test]
fn a_lost_end_is_found_by_an_audit() {
    let mut feed = feed();
    feed.on_frame(frame("a", 0, 0, "ab."), NOW);
    let later = NOW.plus_ms(AUDIT_MS);
    assert_eq!(feed.want_ask(later.plus_ms(-1)), None);
    assert!(feed.want_ask(later).is_some() && feed.want_store(later).is_none());
    feed.on_reply(reply(&[]), later);
    assert_eq!(feed.want_store(later).unwrap().keys, [id("a")]);
    feed.on_view(&view(10, &[], &["a"]), later);
    assert_eq!(shown(&mut feed), "a:a a:b", "neither has it: another owner may still be reading");
    let again = later.plus_ms(AUDIT_MS);
    assert!(feed.want_ask(again).is_some());
    feed.on_ask_failed(again);
    assert_eq!(feed.want_store(again).unwrap().keys, [id("a")]);
    feed.on_view(&view(10, &[stored("a", 12, "ab")], &["a"]), again);
    assert_eq!(shown(&mut feed), "a!", "nothing is missing but the end");
    assert_eq!(feed.cursor().to_string(), "12");
}

#[test]
fn an_end_waits_for_text_that_only_the_store_still_has() {
    let mut feed = feed();
    feed.on_frame(frame("a", 0, 0, "ab"), NOW);
    feed.on_frame(end("a", 5, 11), NOW);
    assert_eq!(shown(&mut feed), "a:a a:b");
    assert_eq!(feed.want_store(NOW).unwrap().keys, [id("a")]);
    feed.on_view(&view(10, &[stored("a", 11, "abcde")], &["a"]), NOW);
    assert_eq!(shown(&mut feed), "a:cde a!");
}

#[test]
fn another_epoch_makes_the_store_be_compared_and_what_nobody_saw_is_shown() {
    let mut feed = feed();
    feed.on_doubt();
    assert!(feed.want_ask(NOW).is_some());
    feed.on_reply(AskReply { epoch: 2, ..reply(&[]) }, NOW);
    assert!(feed.want_store(NOW).is_some());
    feed.on_view(&view(10, &[stored("lost", 11, "whole text")], &[]), NOW);
    assert_eq!(shown(&mut feed), "lost:whole text lost!");
    feed.on_frame(frame("lost", 0, 0, "whole"), NOW);
    assert_eq!(shown(&mut feed), "");
}

#[test]
fn a_routine_comparison_leaves_a_moment_to_what_is_on_its_way() {
    let mut feed = feed();
    let routine = NOW.plus_ms(ROUTINE_MS);
    feed.want_store(routine).unwrap();
    feed.on_view(&view(10, &[stored("a", 11, "ab")], &[]), routine);
    assert_eq!((shown(&mut feed).as_str(), feed.verified().get()), ("", 10));
    assert_eq!(feed.want_store(routine.plus_ms(GRACE_MS - 1)), None);
    feed.want_store(routine.plus_ms(GRACE_MS)).unwrap();
    feed.on_view(&view(10, &[stored("a", 11, "ab")], &[]), routine.plus_ms(GRACE_MS));
    assert_eq!((shown(&mut feed).as_str(), feed.verified().get()), ("a:ab a!", 11));
}

#[test]
fn what_was_committed_before_the_feed_began_is_history() {
    let mut feed = feed();
    feed.on_frame(end("old", 3, 9), NOW);
    feed.on_frame(frame("older", 0, 2, "c."), NOW);
    feed.want_ask(NOW).unwrap();
    feed.on_reply(reply(&[]), NOW);
    feed.want_store(NOW).unwrap();
    let mut view = view(10, &[], &["older"]);
    view.known.insert(id("older"), Known::Complete(stored("older", 8, "abc")));
    feed.on_view(&view, NOW);
    assert_eq!(shown(&mut feed), "");
    assert!(feed.open.is_empty());
}

#[test]
fn a_failure_is_told_once_without_its_rest() {
    let mut feed = feed();
    feed.on_frame(frame("a", 0, 0, "a"), NOW);
    let outcome = Outcome::Failed(Failure::Stalled);
    let failed = OutFrame { terminal: Some(End { chunks: 3, outcome }), ..frame("a", 0, 0, "") };
    feed.on_frame(failed.clone(), NOW);
    feed.on_frame(failed, NOW);
    assert_eq!(shown(&mut feed), "a:a a?stalled");
}

#[test]
fn a_late_viewer_gets_the_prefix_and_a_cursor_gets_the_rest() {
    let mut feed = feed();
    feed.on_frame(frame("a", 0, 0, "abc"), NOW);
    feed.on_frame(frame("b", 0, 0, "x"), NOW);
    shown(&mut feed);
    let late = world::read_all(feed.join(None, None));
    assert_eq!(late.iter().map(world::Read::short).collect::<Vec<_>>().join(" "), "a:a a:b a:c b:x");
    assert_eq!(late.last().unwrap().id.as_deref(), Some(feed.cursor().to_string().as_str()));
    let cursor = Cursor::parse("10~a.0.2.2").unwrap();
    assert_eq!(feed.join(Some(&cursor), None), Join::ReadAgain);
    let rest = world::read_all(feed.join(Some(&cursor), Some(&view(10, &[], &["a"]))));
    assert_eq!(rest.iter().map(world::Read::short).collect::<Vec<_>>().join(" "), "a:c b:x");
}

#[test]
fn a_cursor_that_is_ahead_waits() {
    let mut feed = feed();
    feed.on_frame(frame("a", 0, 0, "abc"), NOW);
    for ahead in ["10~a.0.4.4", "10~a.1.0.0", "10~unknown.0.1.1", "10~unknown.1.0.0", "10~a"] {
        let cursor = Cursor::parse(ahead).unwrap();
        let keys = ["a", "unknown"];
        assert_eq!(feed.join(Some(&cursor), Some(&view(10, &[], &keys))), Join::Ahead, "{ahead}");
    }
}

#[test]
fn a_message_that_has_not_begun_can_be_waited_for() {
    let mut feed = feed();
    let cursor = Cursor::parse("10~a.0.0.0").unwrap();
    assert_eq!(feed.join(Some(&cursor), Some(&view(10, &[], &["a"]))), Join::Joined(Vec::new()));
    feed.expect(&id("a"), NOW);
    assert_eq!(feed.want_ask(NOW), None, "what is on its way is given time");
    let later = NOW.plus_ms(AUDIT_MS);
    assert_eq!(feed.want_ask(later).unwrap().have, [(id("a"), 0, 0)]);
    feed.on_reply(reply(&[]), later);
    assert_eq!(feed.want_store(later).unwrap().keys, [id("a")]);
    let mut failed = view(10, &[], &["a"]);
    failed.known.insert(id("a"), Known::Failed(FailureNote::new("busy", "text", true)));
    feed.on_view(&failed, later);
    assert_eq!(shown(&mut feed), "a?busy", "its end was lost, and it never began");
    assert_eq!(feed.join(Some(&cursor), Some(&view(10, &[], &["a"]))), Join::Ahead, "the store will know it");
}

#[test]
fn what_is_expected_begins_as_usual_and_is_forgotten_with_the_last_who_waits() {
    let mut feed = feed();
    ["a", "b"].map(id).iter().for_each(|message| feed.expect(message, NOW));
    feed.on_frame(frame("a", 0, 0, "x"), NOW);
    feed.expect_only(|_| false);
    assert_eq!(feed.open.keys().collect::<Vec<_>>(), [&id("a")], "it has begun, and others see it");
    assert_eq!(feed.cursor().to_string(), "10~a.0.1.1");
    feed.on_frame(end("a", 1, 11), NOW);
    feed.expect(&id("a"), NOW);
    assert!(feed.open.is_empty());
    assert_eq!(shown(&mut feed), "a:x a!");
}

#[test]
fn what_was_expected_and_had_ended_before_is_not_shown_to_everyone() {
    let mut feed = feed();
    feed.expect(&id("old"), NOW);
    let later = NOW.plus_ms(AUDIT_MS);
    feed.want_ask(later).unwrap();
    feed.on_reply(reply(&[]), later);
    let mut view = view(10, &[], &["old"]);
    view.known.insert(id("old"), Known::Complete(stored("old", 8, "abc")));
    feed.on_view(&view, later);
    assert_eq!(shown(&mut feed), "old-");
}

#[test]
fn the_class_of_an_error_comes_with_its_end() {
    let classes = [(ErrorClass::Permanent, false), (ErrorClass::Transient, true), (ErrorClass::Auth, true)];
    for (class, retryable) in classes {
        let mut feed = feed();
        let chunk = Chunk { kind: ChunkKind::Error, ..Chunk::content(0, "went wrong", true) };
        feed.on_frame(OutFrame { chunks: vec![chunk.into()], ..frame("a", 0, 0, "") }, NOW);
        let hint = model::ErrorHint { class, retry_after_ms: None };
        let failure = Failure::ProducerError { text: "went wrong".into(), hint };
        let end = End { chunks: 1, outcome: Outcome::Failed(failure) };
        feed.on_frame(OutFrame { terminal: Some(end), ..frame("a", 0, 0, "") }, NOW);
        let Some(Event::End(_, bytes)) = feed.next_event() else { panic!("no end") };
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        assert!(text.contains(&format!(r#""code":"producer_error","retryable":{retryable}"#)), "{text}");
    }
}

#[test]
fn too_much_open_text_is_let_go_and_nobody_joins_in_the_middle() {
    let mut feed = Feed::new(ThreadId::parse("t").unwrap(), Position::from_stored(10), 500, NOW);
    feed.on_frame(frame("a", 0, 0, "abcd"), NOW);
    assert_eq!(shown(&mut feed), "a:a a:b a:c a:d", "those who are there lose nothing");
    assert_eq!(feed.join(None, None), Join::OverBudget);
    feed.on_frame(end("a", 4, 11), NOW);
    assert_eq!(feed.join(None, None), Join::Joined(Vec::new()));
}

#[test]
fn more_open_messages_than_a_cursor_names_wait_for_their_turn() {
    let mut feed = feed();
    (0..=cursor::MAX_OPEN).for_each(|n| feed.on_frame(frame(&format!("m{n}"), 0, 0, "a"), NOW));
    assert_eq!(feed.open.len(), cursor::MAX_OPEN);
    assert_eq!(feed.want_ask(NOW), None);
    feed.on_frame(end("m0", 1, 11), NOW);
    assert!(feed.want_ask(NOW).is_some());
    feed.on_reply(reply(&[("m64", 0, 0, "a")]), NOW);
    assert!(shown(&mut feed).ends_with("m0! m64:a"));
}

#[test]
fn a_feed_is_calm_only_when_nothing_can_become_due() {
    let asking = Feed::new(ThreadId::parse("t").unwrap(), Position::from_stored(10), 1 << 20, NOW);
    assert!(!asking.is_calm(), "it has a question to ask");
    let mut feed = feed();
    assert!(feed.is_calm());
    feed.on_frame(frame("m", 0, 0, "ab."), NOW);
    assert!(!feed.is_calm(), "a message is open");
    feed.on_frame(end("m", 2, 11), NOW);
    assert!(feed.is_calm());
    feed.on_doubt();
    assert!(!feed.is_calm());
    assert!(feed.want_ask(NOW).is_some() && feed.want_store(NOW).is_some());
    feed.on_ask_failed(NOW);
    feed.on_store_failed(NOW);
    assert!(!feed.is_calm(), "both are tried again");
    assert!(feed.want_ask(NOW.plus_ms(2_000)).is_some() && feed.want_store(NOW.plus_ms(2_000)).is_some());
    feed.on_reply(reply(&[]), NOW);
    assert!(!feed.is_calm(), "the store has not answered yet");
    feed.on_view(&view(10, &[stored("m", 11, "ab")], &[]), NOW);
    assert!(feed.is_calm());
}
