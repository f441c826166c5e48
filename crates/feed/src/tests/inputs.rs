//! Inputs as subscribers see them, wherever they join.

use model::{OpenInput, TurnId};
use protocols::StoredAnswer;

use super::*;

fn turn(name: &str) -> TurnId {
    TurnId::foreground(&ThreadId::parse("t").unwrap(), name).unwrap()
}

fn open_input(name: &str) -> Arc<OpenInput> {
    let (turn, content) = (turn(name), format!("ask {name}"));
    Arc::new(OpenInput { turn, run: 0, content, metadata: Metadata::EMPTY, accepted_at: NOW })
}

fn asks(name: &str, number: u64, after: u64) -> LiveFrame {
    let answer = turn(name).answer(0);
    LiveFrame { input: Some(open_input(name)), ..frame(answer.as_str(), number, after, &[], None) }
}

fn fails(name: &str, number: u64, after: u64, position: i64) -> LiveFrame {
    let mut frame = frame(turn(name).answer(0).as_str(), number, after, &[], Some(position));
    if let Some(end) = &mut frame.terminal {
        end.outcome = MessageOutcome::Failed(model::MessageFailure::Stalled);
    }
    frame
}

/// The events without their ids and data: name of the event and id of the message.
fn summary(text: &str) -> Vec<String> {
    let mut all = Vec::new();
    for event in text.split("\n\n").filter(|event| !event.trim().is_empty()) {
        let line = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
        let data: serde_json::Value = serde_json::from_str(line("data: ").unwrap()).unwrap();
        let name = line("event: ").unwrap_or("-");
        all.push(format!("{name} {}", data["message_id"].as_str().unwrap_or_default()));
    }
    all
}

fn last_cursor(text: &str) -> Cursor {
    let mut ids = text.lines().filter_map(|line| line.strip_prefix("id: "));
    Cursor::parse(ids.next_back().unwrap()).unwrap()
}

fn join(feed: &mut Feed, cursor: Option<&Cursor>) -> String {
    let asked = feed.asked();
    match feed.join(cursor, &Subscription::Thread, asked, NOW) {
        JoinResult::Joined(parts) => text(&parts),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_question_is_shown_once_to_everyone_wherever_they_join() {
    let (x, y) = (turn("x"), turn("y"));
    let mut feed = begun(5);
    feed.on_frame(asks("y", 1, 0), NOW);
    let first = shown(&mut feed);
    assert_eq!(summary(&first), [format!("input {}", y.input().as_str())]);
    feed.on_frame(asks("x", 2, 1), NOW);
    feed.on_frame(frame(y.answer(0).as_str(), 3, 2, &[(0, "one")], None), NOW);
    let rest = shown(&mut feed);
    let input_x = format!("input {}", x.input().as_str());
    let chunk_y = format!("- {}", y.answer(0).as_str());
    assert_eq!(summary(&rest), [input_x.clone(), chunk_y.clone()]);
    // A client that comes late gets the questions in the order in which they came.
    let late = join(&mut feed, None);
    assert_eq!(summary(&late)[1..], [summary(&first), vec![input_x.clone(), chunk_y.clone()]].concat());
    // A client that was cut after the first question gets what it lacks, and nothing again.
    assert_eq!(summary(&join(&mut feed, Some(&last_cursor(&first)))), [input_x, chunk_y]);
    assert_eq!(summary(&join(&mut feed, Some(&last_cursor(&rest)))), [""; 0]);
    // The cut of a new owner names the questions again.
    let named = |name: &str, chunks: &[(u32, &str)]| PartialText {
        message: turn(name).answer(0),
        attempt: 0,
        role: Role::Assistant,
        batch_type: BatchType::UserRequest,
        chunks: chunks.iter().map(|(id, text)| Arc::new(Chunk::content(*id, text, false))).collect(),
        next: chunks.len() as u32,
        input: Some(open_input(name)),
    };
    feed.on_owner(EPOCH + 1);
    let ask = feed.poll_snapshot_request(NOW).unwrap();
    assert!(ask.known.iter().all(|known| known.has_input), "{ask:?}");
    let open = vec![named("x", &[]), named("y", &[(0, "one")])];
    feed.on_reply(SnapshotReply { open, ..reply(EPOCH + 1, 0, 5) }, NOW);
    feed.poll_store_read(NOW);
    feed.on_page(&StorePage { through: at(5), ..page(5, None, Vec::new()) }, NOW);
    assert_eq!(summary(&shown(&mut feed)), [""; 0]);
}

#[test]
fn a_question_of_a_failed_turn_is_withdrawn_before_the_failure() {
    let x = turn("x");
    let mut feed = begun(5);
    feed.on_frame(asks("x", 1, 0), NOW);
    let first = shown(&mut feed);
    feed.on_frame(fails("x", 2, 1, 7), NOW);
    let rest = shown(&mut feed);
    let expected = [format!("input_withdrawn {}", x.input().as_str()), format!("- {}", x.answer(0).as_str())];
    assert_eq!(summary(&rest), expected);
    // A client that was cut in between reads the failure from the store.
    let withdrawn = rest.split_once("\n\n").unwrap().0;
    let mut ids: Vec<&str> = [&*first, &*rest].iter().flat_map(|text| text.lines()).collect();
    ids.retain(|line| line.starts_with("id: "));
    assert_eq!(ids.iter().collect::<std::collections::BTreeSet<_>>().len(), ids.len(), "{ids:?}");
    for (cursor, lacks) in [(last_cursor(&first), &expected[..]), (last_cursor(withdrawn), &expected[1..])] {
        let mut native = Native::new(ThreadId::parse("t").unwrap(), cursor);
        let page = page(5, None, vec![ended(x.answer(0).as_str(), 7)]);
        let CatchUp::Events(parts) = catch_up(&mut native, &page, &Subscription::Thread) else { panic!() };
        assert_eq!(summary(&text(&parts)), lacks);
    }
}

#[test]
fn a_stored_answer_comes_with_its_question_once() {
    let x = turn("x");
    let stored = || {
        let message = protocols::StoredMessage {
            role: Role::Assistant,
            content: "one",
            tool_calls: None,
            tool_call_id: None,
            metadata: &Metadata::EMPTY,
        };
        let header = MessageHeader::new(x.answer(0), 0, Role::Assistant, BatchType::UserRequest);
        let how = EndKind::Stored(StoredAnswer::new([message], true, 0, at(7)));
        EndedMessage { header, position: at(7), how, input: Some(open_input("x")) }
    };
    let mut feed = begun(5);
    feed.on_frame(asks("x", 1, 0), NOW);
    let seen = last_cursor(&shown(&mut feed));
    let answer = format!("- {}", x.answer(0).as_str());
    let whole = [format!("input {}", x.input().as_str()), answer.clone(), answer.clone(), answer];
    for (cursor, lacks) in [(Cursor::at(at(5)), &whole[..]), (seen, &whole[1..])] {
        let mut native = Native::new(ThreadId::parse("t").unwrap(), cursor);
        let page = page(5, None, vec![stored()]);
        let CatchUp::Events(parts) = catch_up(&mut native, &page, &Subscription::Thread) else { panic!() };
        assert_eq!(summary(&text(&parts)), lacks);
    }
}

/// A gateway that leaves the message out has not shown its question, and a subscriber has it from
/// another gateway.
#[test]
fn a_question_seen_elsewhere_is_not_shown_again() {
    let x = turn("x");
    for is_live in [false, true] {
        let mut feed = begun(5);
        feed.on_frame(asks("x", 1, 0), NOW);
        let seen = last_cursor(&shown(&mut feed));
        let mut feed = begun(5);
        let asked = feed.asked();
        feed.on_resync();
        assert!(feed.poll_snapshot_request(NOW).is_some());
        feed.on_reply(SnapshotReply { left_out: true, ..reply(EPOCH, 0, 5) }, NOW);
        let joined = feed.join(Some(&seen), &Subscription::Thread, asked, NOW);
        assert_eq!(joined, JoinResult::Joined(Vec::new()));
        match is_live {
            true => feed.on_frame(asks("x", 1, 0), NOW),
            false => feed.on_frame(fails("x", 1, 0, 7), NOW),
        }
        let expected = match is_live {
            true => vec![],
            // It is withdrawn here as well.
            false => {
                vec![format!("input_withdrawn {}", x.input().as_str()), format!("- {}", x.answer(0).as_str())]
            }
        };
        assert_eq!(summary(&shown(&mut feed)), expected);
    }
}
