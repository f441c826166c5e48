mod inputs;

use std::sync::Arc;

use model::{
    BatchType, Chunk, ChunkKind, Cut, FrameNumber, LiveFrame, MessageEnd, MessageId, MessageOutcome,
    Metadata, PartialText, Position, Role, ThreadId, Timestamp,
};
use protocols::native::NativeEvent;
use protocols::{Cursor, MessageHeader, Native, StreamError};
use wire::query::SnapshotReply;

use super::*;
use crate::join::JUDGE_AGAIN_MS;

const NOW: Timestamp = Timestamp(1_000_000);
const EPOCH: u64 = 7;

fn at(position: i64) -> Position {
    Position::from_stored(position)
}

fn frame(message: &str, number: u64, after: u64, chunks: &[(u32, &str)], ends_at: Option<i64>) -> LiveFrame {
    let chunks: Vec<Arc<Chunk>> =
        chunks.iter().map(|(id, text)| Arc::new(Chunk::content(*id, text, false))).collect();
    LiveFrame {
        thread: ThreadId::parse("t").unwrap(),
        message: MessageId::parse(message).unwrap(),
        attempt: 0,
        role: Role::Assistant,
        batch_type: BatchType::UserRequest,
        number: FrameNumber { epoch: EPOCH, number, after },
        chunks: if ends_at.is_none() { chunks } else { Vec::new() },
        terminal: ends_at.map(|position| MessageEnd {
            position: at(position),
            chunks: 2,
            outcome: MessageOutcome::Complete,
            report: model::AnswerReport::default(),
        }),
        input: None,
    }
}

fn reply(epoch: u64, number: u64, committed: i64) -> SnapshotReply {
    let cut = Cut { epoch, number, committed: at(committed), is_current: true };
    SnapshotReply { cut, open: Vec::new(), left_out: false, more: false }
}

/// A feed of a thread that has ended up to `base`, and whose owner has sent no frame.
fn begun(base: i64) -> Feed {
    let mut feed = Feed::new(ThreadId::parse("t").unwrap(), 1 << 20);
    assert!(
        feed.poll_snapshot_request(NOW).is_some() && feed.poll_snapshot_request(NOW).is_none(),
        "one query at a time"
    );
    feed.on_reply(reply(EPOCH, 0, base), NOW);
    assert_eq!(feed.poll_store_read(NOW), Some(StoreRead::Last(at(base))));
    feed.on_last(at(base), NOW);
    assert!(feed.has_begun() && feed.poll_timeout().is_none());
    feed
}

fn ends(after: i64, through: i64, is_checked: bool) -> StoreRead {
    StoreRead::Ends { after: at(after), through: at(through), is_checked }
}

/// A page of all ends up to 9.
fn page(after: i64, back_to: Option<i64>, ends: Vec<EndedMessage>) -> StorePage {
    StorePage { after: at(after), back_to: back_to.map(at), ends, through: at(9) }
}

/// A message that failed at this position.
fn ended(message: &str, position: i64) -> EndedMessage {
    let message = MessageId::parse(message).unwrap();
    let header = MessageHeader::new(message, 0, Role::Assistant, BatchType::UserRequest);
    let failure = StreamError::new("stalled", "no more", true);
    EndedMessage { header, position: at(position), how: EndKind::Failed(failure), input: None }
}

fn text(parts: &[StreamPart]) -> String {
    parts.iter().map(|part| std::str::from_utf8(part.bytes()).unwrap()).collect()
}

fn shown(feed: &mut Feed) -> String {
    let mut all = String::new();
    while let Some(event) = feed.next_event() {
        all.push_str(std::str::from_utf8(&event.bytes).unwrap());
    }
    all
}

#[test]
fn frames_are_shown_in_order_and_gaps_are_queried() {
    let mut feed = begun(5);
    feed.on_frame(frame("m", 2, 1, &[(1, "two")], None), NOW);
    assert_eq!(shown(&mut feed), "", "the one before it has not come");
    assert!(feed.poll_snapshot_request(NOW).is_some());
    // The frame was only late.
    feed.on_frame(frame("m", 1, 0, &[(0, "one")], None), NOW);
    feed.on_reply(reply(EPOCH, 0, 5), NOW);
    let text = shown(&mut feed);
    assert!(text.find("one").unwrap() < text.find("two").unwrap(), "{text}");
    feed.on_frame(frame("m", 3, 2, &[], Some(9)), NOW);
    assert!(shown(&mut feed).contains("message_complete") && feed.cursor().base() == at(9));
    feed.on_frame(frame("m", 3, 2, &[], Some(9)), NOW);
    assert_eq!(shown(&mut feed), "", "an end is shown once");
}

#[test]
fn an_owner_of_a_lower_epoch_is_not_heard() {
    let mut feed = begun(5);
    feed.on_owner(EPOCH + 1);
    assert!(feed.poll_snapshot_request(NOW).is_some(), "the new one is asked");
    feed.on_reply(reply(EPOCH, 4, 50), NOW);
    assert_eq!(feed.poll_store_read(NOW), None, "the answer of the old one counts for nothing");
    let later = NOW.plus_ms(10_000);
    assert!(feed.poll_snapshot_request(later).is_some());
    feed.on_reply(reply(EPOCH + 1, 0, 6), later);
    assert_eq!(feed.poll_store_read(later), Some(ends(5, 6, true)));
}

#[test]
fn a_new_owner_is_queried_at_once() {
    let mut feed = Feed::new(ThreadId::parse("t").unwrap(), 1_000);
    assert!(feed.poll_snapshot_request(NOW).is_some());
    feed.on_owner(EPOCH);
    assert!(feed.poll_snapshot_request(NOW).is_some(), "the query may have gone to the owner before");
    feed.on_owner(EPOCH);
    assert_eq!(feed.poll_snapshot_request(NOW), None, "it is no news");
    feed.on_snapshot_failed(NOW);
    assert_eq!(feed.poll_snapshot_request(NOW), None);
    feed.on_owner(EPOCH + 1);
    assert!(feed.poll_snapshot_request(NOW).is_some(), "the pause was for the owner before");
    feed.on_reply(reply(EPOCH + 1, 0, 5), NOW);
    feed.on_owner(EPOCH + 1);
    assert_eq!(feed.poll_snapshot_request(NOW), None, "it has answered");
}

#[test]
fn feed_restarts_its_subscribers_when_shown_ends_are_undone() {
    let mut feed = begun(3);
    feed.on_frame(frame("m", 1, 0, &[(0, "one"), (1, "two")], None), NOW);
    feed.on_frame(frame("m", 2, 1, &[], Some(5)), NOW);
    feed.on_frame(frame("n", 3, 2, &[(0, "one")], None), NOW);
    shown(&mut feed);
    feed.on_resync();
    assert!(feed.poll_snapshot_request(NOW).is_some());
    // The positions of a new owner are above all assigned ones, whatever the store has forgotten.
    feed.on_reply(reply(EPOCH + 1, 0, 9), NOW);
    assert_eq!(feed.poll_store_read(NOW), Some(ends(5, 9, true)));
    feed.on_page(&page(5, Some(3), vec![ended("m", 8)]), NOW);
    let text = shown(&mut feed);
    assert!(text.contains("event: restart") && text.contains("\"after\":\"3\""), "{text}");
    assert!(!text.contains("stalled"), "what is between has not been read");
    assert_eq!((feed.cursor().base(), feed.cursor().open().count()), (at(3), 0));
    assert!(feed.poll_snapshot_request(NOW).is_some(), "what is open is shown from its beginning");
    feed.on_reply(reply(EPOCH + 1, 0, 9), NOW);
    // Messages that were shown may end again.
    assert_eq!(feed.poll_store_read(NOW), Some(ends(3, 9, false)));
    feed.on_page(&page(3, None, vec![ended("m", 8)]), NOW);
    assert!(shown(&mut feed).contains("stalled") && feed.cursor().base() == at(8));
}

#[test]
fn a_page_from_before_a_takeover_does_not_count() {
    let mut feed = begun(5);
    feed.on_frame(frame("m", 1, 0, &[], Some(9)), NOW);
    assert_eq!(feed.poll_store_read(NOW), Some(ends(5, 9, false)), "it was left out");
    feed.on_owner(EPOCH + 1);
    assert!(feed.poll_snapshot_request(NOW).is_some());
    feed.on_reply(reply(EPOCH + 1, 0, 9), NOW);
    feed.on_page(&page(5, None, vec![ended("m", 9)]), NOW);
    assert_eq!(shown(&mut feed), "", "the store may have gone back since it was read");
    assert_eq!(feed.poll_store_read(NOW), Some(ends(5, 9, true)));
    feed.on_page(&page(5, None, Vec::new()), NOW);
    assert_eq!((shown(&mut feed).as_str(), feed.cursor().base()), ("", at(5)));
}

#[test]
fn a_waiting_subscriber_goes_back_with_the_store() {
    let mut feed = begun(5);
    let mut waiting = WaitingSubscribers::new(ThreadId::parse("t").unwrap());
    let mut sent = Vec::new();
    // Three positions: one that is not an end, such as an input; one that no longer exists; and one
    // before both.
    for (subscriber, base) in [("above", 7), ("gone", 6), ("behind", 3)] {
        waiting.push(subscriber, Some(Cursor::at(at(base))), Subscription::Thread, &feed);
    }
    feed.on_resync();
    assert!(feed.poll_snapshot_request(NOW).is_some());
    feed.on_reply(reply(EPOCH, 1, 9), NOW);
    assert_eq!(feed.poll_store_read(NOW), Some(ends(5, 9, false)));
    feed.on_page(&page(5, None, Vec::new()), NOW);
    assert_eq!(waiting.admit_waiting(&mut feed, NOW), Vec::new(), "the store is asked about each");
    for (read, page) in [
        (ends(7, 7, true), StorePage { through: at(7), ..page(7, None, Vec::new()) }),
        (ends(6, 6, true), StorePage { through: at(6), ..page(6, Some(3), Vec::new()) }),
        (ends(3, 5, true), StorePage { through: at(5), ..page(3, None, vec![ended("m", 5)]) }),
    ] {
        assert_eq!(waiting.poll_store_read(&feed, NOW), Some(read));
        let send =
            |subscriber: &&'static str, events: Vec<StreamPart>| sent.push((*subscriber, text(&events)));
        assert_eq!(waiting.on_page(&page, &feed, send), Vec::new());
    }
    let texts = |subscriber: &str| {
        sent.iter().filter(|(to, _)| *to == subscriber).map(|(_, text)| &**text).collect::<String>()
    };
    assert_eq!(texts("above"), "");
    assert!(texts("gone").contains("\"after\":\"3\"") && texts("gone").contains("stalled"), "{sent:?}");
    assert!(!texts("behind").contains("restart") && texts("behind").contains("stalled"), "{sent:?}");
    let joined: Vec<&str> =
        waiting.admit_waiting(&mut feed, NOW).into_iter().map(|(subscriber, _)| subscriber).collect();
    assert_eq!(joined, ["above", "gone", "behind"]);
}

#[test]
fn feed_goes_on_after_a_takeover_that_lost_nothing() {
    let mut feed = begun(5);
    feed.on_frame(frame("m", 1, 0, &[(0, "one"), (1, "two")], None), NOW);
    feed.on_frame(frame("m", 2, 1, &[], Some(6)), NOW);
    shown(&mut feed);
    feed.on_owner(EPOCH + 1);
    assert!(feed.poll_snapshot_request(NOW).is_some());
    feed.on_reply(reply(EPOCH + 1, 0, 9), NOW);
    assert_eq!(feed.poll_store_read(NOW), Some(ends(6, 9, true)));
    feed.on_page(&StorePage { after: at(6), back_to: None, ends: vec![ended("n", 8)], through: at(9) }, NOW);
    let text = shown(&mut feed);
    assert!(text.contains("stalled") && !text.contains("restart"), "{text}");
    assert_eq!(feed.poll_store_read(NOW), None);
}

#[test]
fn frames_of_a_new_owner_say_that_there_is_one() {
    let mut feed = begun(5);
    feed.on_resync();
    assert!(feed.poll_snapshot_request(NOW).is_some());
    let mut first = frame("m", 1, 0, &[(0, "one")], None);
    first.number.epoch = EPOCH + 1;
    feed.on_frame(first, NOW);
    assert!(feed.poll_snapshot_request(NOW).is_some(), "the new one is queried");
    feed.on_reply(reply(EPOCH, 0, 5), NOW);
    assert_eq!(feed.poll_snapshot_request(NOW), None, "the one before is not queried again at once");
}

#[test]
fn text_unknown_to_the_owner_restarts_the_subscribers() {
    let mut feed = begun(5);
    feed.on_frame(frame("gone", 1, 0, &[(0, "one")], None), NOW);
    feed.on_frame(frame("open", 2, 1, &[(0, "two")], None), NOW);
    shown(&mut feed);
    let open = |from: u32, text: &[(u32, &str)]| PartialText {
        message: MessageId::parse("open").unwrap(),
        attempt: 0,
        role: Role::Assistant,
        batch_type: BatchType::UserRequest,
        chunks: text.iter().map(|(id, text)| Arc::new(Chunk::content(*id, text, false))).collect(),
        next: from,
        input: None,
    };
    let mut now = NOW;
    let mut ask = |feed: &mut Feed, text: &[(u32, &str)]| {
        now = now.plus_ms(2_000);
        let ask = feed.poll_snapshot_request(now).unwrap();
        feed.on_reply(SnapshotReply { open: vec![open(1, text)], ..reply(EPOCH, 2, 5) }, now);
        (ask.known.len(), shown(feed))
    };
    feed.on_resync();
    assert_eq!(ask(&mut feed, &[]), (2, String::new()), "it may be named by the next answer");
    let (_, text) = ask(&mut feed, &[]);
    assert!(text.contains("event: restart") && text.contains("\"after\":\"5\""), "{text}");
    assert!(!text.contains("\"error\""), "what is lost has not ended: {text}");
    // Open messages are requested and shown from their beginning.
    let (known, text) = ask(&mut feed, &[(0, "two")]);
    assert!(known == 0 && text.contains("two") && !text.contains("gone"), "{text}");
    assert_eq!(feed.cursor().open().count(), 1);
}

/// The first event for a subscriber without a cursor.
fn ready(position: i64) -> StreamPart {
    let thread = ThreadId::parse("t").unwrap();
    StreamPart::Encoded(Native::new(thread, Cursor::at(at(position))).ready())
}

#[test]
fn subscriber_without_an_owner_begins_at_the_stored_end() {
    let mut feed = Feed::new(ThreadId::parse("t").unwrap(), 1 << 20);
    let mut waiting: WaitingSubscribers<&str> = WaitingSubscribers::new(ThreadId::parse("t").unwrap());
    waiting.push("early", None, Subscription::Thread, &feed);
    assert_eq!(waiting.poll_store_read(&feed, NOW), Some(StoreRead::Last(Position::MAX)));
    let mut placed = Vec::new();
    waiting.on_last(at(5), &feed, NOW, |subscriber, first| placed.push((*subscriber, first)));
    assert_eq!(placed, [("early", Some(ready(5)))], "its request may be answered");
    // The next subscriber does not have to wait for the first one.
    waiting.push("next", None, Subscription::Thread, &feed);
    assert_eq!(waiting.poll_store_read(&feed, NOW), Some(StoreRead::Last(Position::MAX)));
    waiting.on_last(at(8), &feed, NOW, |subscriber, first| placed.push((*subscriber, first)));
    assert_eq!(placed[1..], [("next", Some(ready(8)))]);
    assert_eq!(
        waiting.poll_store_read(&feed, NOW),
        Some(StoreRead::Ends { after: at(5), through: Position::MAX, is_checked: true })
    );
    waiting.on_read_failed(NOW);
    // A message ended between the two reads: it is shown to the first subscriber and not to the
    // second.
    feed.poll_snapshot_request(NOW);
    feed.on_reply(reply(EPOCH, 0, 8), NOW);
    feed.poll_store_read(NOW);
    feed.on_last(at(8), NOW);
    let admitted = waiting.admit_waiting(&mut feed, NOW);
    assert_eq!(admitted, [("next", WaitOutcome::Joined(Vec::new()))]);
    let later = waiting.poll_timeout(&feed).unwrap();
    assert_eq!((later, waiting.poll_store_read(&feed, NOW)), (NOW.plus_ms(500), None));
    assert_eq!(waiting.poll_store_read(&feed, later), Some(ends(5, 8, true)));
    assert_eq!(waiting.poll_timeout(&feed), None, "it is being read");
    let page = StorePage { after: at(5), back_to: None, ends: Vec::new(), through: at(8) };
    waiting.on_page(&page, &feed, |_, _: Vec<StreamPart>| ());
    assert_eq!(waiting.subscribers().count(), 1);
}

#[test]
fn cursor_is_judged_by_a_reply_requested_after_it_came() {
    let mut feed = begun(5);
    let ahead = Cursor::at(at(99));
    let asked = feed.asked();
    assert_eq!(feed.join(Some(&ahead), &Subscription::Thread, asked, NOW), JoinResult::Wait);
    assert!(feed.poll_snapshot_request(NOW).is_some());
    feed.on_reply(reply(EPOCH, 0, 5), NOW);
    assert_eq!(
        feed.join(Some(&ahead), &Subscription::Thread, asked, NOW),
        JoinResult::Beyond,
        "the store decides"
    );
    assert_eq!(feed.join(Some(&Cursor::at(at(4))), &Subscription::Thread, asked, NOW), JoinResult::Behind);
    assert_eq!(
        feed.join(Some(&Cursor::at(at(5))), &Subscription::Thread, asked, NOW),
        JoinResult::Joined(Vec::new())
    );
    assert_eq!(feed.join(None, &Subscription::Thread, asked, NOW), JoinResult::Joined(vec![ready(5)]));
    let until = Subscription::Until(MessageId::parse("m").unwrap());
    assert_eq!(feed.join(None, &until, asked, NOW), JoinResult::Joined(Vec::new()));
}

/// An owner that was frozen and has lost its partition replies once before it notices.
#[test]
fn a_message_is_unknown_after_two_answers_of_one_owner() {
    let mut feed = begun(5);
    let cursor = Cursor::parse("5~m.0.1.4").unwrap();
    let asked = feed.asked();
    let answered = |feed: &mut Feed, epoch: u64, now: Timestamp| {
        assert!(feed.poll_snapshot_request(now).is_some());
        feed.on_reply(reply(epoch, 0, 5), now);
        if feed.poll_store_read(now).is_some() {
            feed.on_page(&StorePage { after: at(5), back_to: None, ends: Vec::new(), through: at(5) }, now);
        }
        feed.join(Some(&cursor), &Subscription::Thread, asked, now)
    };
    assert_eq!(feed.join(Some(&cursor), &Subscription::Thread, asked, NOW), JoinResult::Wait);
    assert_eq!(answered(&mut feed, EPOCH, NOW), JoinResult::Wait);
    assert_eq!(feed.poll_snapshot_request(NOW.plus_ms(JUDGE_AGAIN_MS - 1)), None, "it is given time");
    let later = NOW.plus_ms(JUDGE_AGAIN_MS);
    assert_eq!(answered(&mut feed, EPOCH + 1, later), JoinResult::Wait, "that was another one");
    let unknown = JoinResult::Unknown(MessageId::parse("m").unwrap());
    assert_eq!(answered(&mut feed, EPOCH + 1, later.plus_ms(JUDGE_AGAIN_MS)), unknown);
}

#[test]
fn subscriber_cut_off_within_an_open_message_gets_it_again() {
    let mut feed = begun(5);
    feed.on_frame(frame("m", 1, 0, &[(0, "one "), (1, "two "), (2, "three")], None), NOW);
    shown(&mut feed);
    let mut join = |cursor: &str| {
        let joined =
            feed.join(Some(&Cursor::parse(cursor).unwrap()), &Subscription::Thread, feed.asked(), NOW);
        let JoinResult::Joined(events) = joined else { panic!("{joined:?}") };
        text(&events)
    };
    // The subscriber has the first chunk of the original, or all of the text as the store's first
    // chunk.
    let (live, stored) = (join("5~m.0.1.4"), join("5~m.0.1.13"));
    assert!(!live.contains("one ") && live.contains("two ") && !live.contains("reset"), "{live}");
    assert!(
        stored.contains("event: reset") && stored.contains("one ") && stored.contains("three"),
        "{stored}"
    );
    assert_eq!(join("5~m.0.3.13"), "", "it has everything");
}

/// The owner's reply has no room for the message. Later an earlier attempt is shown, because the
/// owner's stream has lost its end.
#[test]
fn a_message_left_out_may_come_back_in_an_earlier_attempt() {
    let mut feed = begun(5);
    let asked = feed.asked();
    feed.on_resync();
    assert!(feed.poll_snapshot_request(NOW).is_some());
    feed.on_reply(SnapshotReply { left_out: true, ..reply(EPOCH, 0, 5) }, NOW);
    let mut join = |cursor: &str| {
        let joined = feed.join(Some(&Cursor::parse(cursor).unwrap()), &Subscription::Thread, asked, NOW);
        let JoinResult::Joined(events) = joined else { panic!("{joined:?}") };
        text(&events)
    };
    for cursor in ["5~m.2.8.40", "5~m.2.0.0"] {
        let events = join(cursor);
        assert!(events.contains("event: reset") && events.contains("\"attempt\":0"), "{cursor}: {events}");
        assert!(!events.contains("id: 5~m.2"), "{events}");
    }
    assert_eq!(join("5~m.0.0.0"), "", "there is nothing to forget");
    let chunks = LiveFrame { attempt: 1, ..frame("m", 1, 0, &[(0, "one ")], None) };
    feed.on_frame(chunks, NOW);
    assert!(shown(&mut feed).contains("one "));
}

#[test]
fn reset_message_is_not_let_go_by_an_owner_that_still_reads() {
    let mut feed = begun(5);
    // The first attempt was discarded, and the second one has no chunk yet: only an earlier
    // subscriber knows of it.
    let mut reset = frame("m", 1, 0, &[], None);
    reset.attempt = 1;
    feed.on_frame(reset, NOW);
    let cursor = Cursor::parse("5~m.1.0.0").unwrap();
    let asked = feed.asked();
    assert_eq!(feed.join(Some(&cursor), &Subscription::Thread, asked, NOW), JoinResult::Joined(Vec::new()));
    // The next owner reads the stream again from before the first attempt.
    let mut reading = reply(EPOCH + 1, 0, 5);
    reading.cut.is_current = false;
    feed.on_reply(reading, NOW);
    let mut first = frame("m", 1, 0, &[(0, "first")], None);
    first.number.epoch = EPOCH + 1;
    feed.on_frame(first, NOW);
    assert_eq!(shown(&mut feed), "", "the first attempt is over");
}

/// An answer from the store may have the same number of chunks, with other calls in them.
#[test]
fn subscriber_cut_in_a_stored_answer_gets_the_open_one_anew() {
    let mut feed = begun(5);
    let mut calls = frame("m", 1, 0, &[], None);
    let chunk = |(id, kind, call): (u32, ChunkKind, &str)| {
        let map = [("tool_call_id".to_owned(), call.into()), ("tool_name".to_owned(), "tool".into())];
        let metadata = Metadata::new(map.into_iter().collect()).unwrap();
        Arc::new(Chunk { kind, metadata, ..Chunk::content(id, "text", false) })
    };
    let live = [
        (0, ChunkKind::ToolCall, "a"),
        (1, ChunkKind::ToolCall, "b"),
        (2, ChunkKind::ToolResult, "b"),
        (3, ChunkKind::ToolResult, "a"),
    ];
    calls.chunks = live.into_iter().map(chunk).collect();
    feed.on_frame(calls, NOW);
    // The subscriber has seen an empty text, two calls and the result of the first one.
    let stored = Cursor::parse("5~m.0.4.0.0.0.4-4.4").unwrap();
    let JoinResult::Joined(events) = feed.join(Some(&stored), &Subscription::Thread, feed.asked(), NOW)
    else {
        panic!("it joins")
    };
    let text = text(&events);
    assert!(text.contains("event: reset") && text.contains(r#""chunk_id":0"#), "{text}");
    // A subscriber at the feed's position gets nothing twice.
    let live = Cursor::parse("5~m.0.4.0.0.0.4-4.4-4").unwrap();
    let JoinResult::Joined(events) = feed.join(Some(&live), &Subscription::Thread, feed.asked(), NOW) else {
        panic!("it joins")
    };
    assert!(events.is_empty(), "{events:?}");
}

#[test]
fn subscriber_of_a_message_gets_its_values_and_nothing_else() {
    let mut feed = begun(5);
    feed.on_frame(frame("other", 1, 0, &[(0, "no")], None), NOW);
    feed.on_frame(frame("m", 2, 1, &[(0, "one "), (1, "two")], None), NOW);
    let subscription = Subscription::Message(MessageId::parse("m").unwrap());
    let joined = feed.join(Some(&Cursor::at(at(5))), &subscription, feed.asked(), NOW);
    let JoinResult::Joined(parts) = joined else { panic!("it joins") };
    let values = |parts: Vec<StreamPart>| -> Vec<NativeEvent> {
        parts.into_iter().map(|part| part.into_value().unwrap().event.clone()).collect()
    };
    let texts = values(parts).into_iter().map(|event| match event {
        NativeEvent::Chunk { chunk, .. } => chunk.text.to_string(),
        other => panic!("{other:?}"),
    });
    assert_eq!(texts.collect::<Vec<_>>(), ["one ", "two"]);
    // The message has ended before its subscriber could join.
    let failure = StreamError::new("stalled", "no more", true);
    let page = StorePage {
        after: at(5),
        back_to: None,
        ends: vec![ended("other", 6), ended("m", 7)],
        through: at(7),
    };
    let mut native = Native::new(ThreadId::parse("t").unwrap(), Cursor::at(at(5)));
    let CatchUp::Last(parts) = catch_up(&mut native, &page, &subscription) else { panic!("it has ended") };
    let message = MessageId::parse("m").unwrap();
    let end = NativeEvent::Failed { message, position: at(7), failure: Box::new(failure.clone()) };
    assert_eq!(values(parts), [end]);
}
