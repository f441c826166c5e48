//! Connections that break anywhere, and clients that resume by the rules of their protocols.

use model::Chunk;
use protocols::responses::Resume;
use protocols::{AnswerEvent, Protocol, StreamAction};

use crate::encoders::{self, NAMES};
use crate::scenarios::{self, encode_all};

/// Texts that only the end of an answer has, in any of the protocols.
const TERMINALS: [&str; 10] = [
    "[DONE]",
    "\"type\":\"finish\"",
    "\"type\":\"abort\"",
    "\"type\":\"error\"",
    "event: response.completed",
    "event: response.incomplete",
    "event: response.failed",
    "RUN_FINISHED",
    "RUN_ERROR",
    "\"error\":{\"message\"",
];

#[test]
fn terminal_event_comes_only_after_the_commit() {
    for name in NAMES {
        for scenario in scenarios::all() {
            let happenings = scenario.events();
            let (end, before) = happenings.split_last().unwrap();
            let mut protocol = encoders::of(name);
            for happening in before {
                let output = protocol.apply(*happening);
                let text = String::from_utf8(output.bytes.to_vec()).unwrap();
                assert_eq!(output.then, StreamAction::Continue);
                assert!(!TERMINALS.iter().any(|terminal| text.contains(terminal)), "{name}: {text}");
            }
            let output = protocol.apply(*end);
            let text = String::from_utf8(output.bytes.to_vec()).unwrap();
            assert_eq!(output.then, StreamAction::Close);
            assert!(TERMINALS.iter().any(|terminal| text.contains(terminal)), "{name}: {text}");
            let after = protocol.apply(*end);
            assert_eq!((after.bytes.len(), after.then), (0, StreamAction::Close), "{name}: only once");
        }
    }
}

#[test]
fn late_client_gets_the_same_bytes() {
    for name in NAMES {
        for scenario in scenarios::all() {
            let whole = encode_all(&mut *encoders::of(name), &scenario.events());
            assert!(encode_all(&mut *encoders::of(name), &scenario.events()[1..]) == whole, "{name}");
        }
    }
}

#[test]
fn a_response_goes_on_after_any_number() {
    for background in [false, true] {
        for scenario in scenarios::all() {
            let happenings = scenario.events();
            let whole = events(&encode_all(&mut encoders::response(background, Resume::Start), &happenings));
            for (at, (number, _)) in whole.iter().enumerate() {
                let mut rest = encoders::response(background, Resume::After(*number));
                let rest = events(&encode_all(&mut rest, &happenings));
                match &whole[at + 1..] {
                    [] => assert_eq!(ends(&rest), [(number + 1, last_of(&whole))], "{}", scenario.name),
                    left => assert_eq!(rest, left, "{}", scenario.name),
                }
            }
            assert!(whole.is_sorted_by(|(a, _), (b, _)| a < b));
        }
    }
}

#[test]
fn response_resumed_from_history_has_only_its_end() {
    let scenarios = scenarios::all();
    let scenario = scenarios.iter().find(|scenario| scenario.name == "steps").unwrap();
    let whole = events(&encode_all(&mut encoders::response(false, Resume::Start), &scenario.events()));
    for after in [0, 4_321] {
        let mut rest = encoders::response(false, Resume::After(after));
        rest.recall();
        let rest = events(&encode_all(&mut rest, &scenario.events()));
        let number = whole.last().unwrap().0.max(after + 1);
        assert_eq!(ends(&rest), [(number, last_of(&whole))]);
    }
    let mut all = encoders::response(false, Resume::Start);
    all.recall();
    assert_eq!(events(&encode_all(&mut all, &scenario.events())), whole);
}

#[test]
fn cursor_beyond_the_response_gets_the_end() {
    for scenario in scenarios::all() {
        let happenings = scenario.events();
        let whole = events(&encode_all(&mut encoders::response(false, Resume::Start), &happenings));
        for (after, number) in [(1 << 40, (1 << 40) + 1), (u64::MAX, u64::MAX)] {
            let mut rest = encoders::response(false, Resume::After(after));
            let rest = events(&encode_all(&mut rest, &happenings));
            assert_eq!(ends(&rest), [(number, last_of(&whole))], "{}", scenario.name);
        }
    }
}

/// The numbers and the final responses of events, each of which is the last one of its stream.
fn ends(events: &[(u64, String)]) -> Vec<(u64, String)> {
    let end =
        |(number, text): &(u64, String)| (*number, text.split_once("\"response\":").unwrap().1.to_owned());
    events.iter().map(end).collect()
}

fn last_of(events: &[(u64, String)]) -> String {
    ends(&events[events.len() - 1..])[0].1.clone()
}

#[test]
fn another_attempt_cuts_what_was_shown() {
    for name in NAMES {
        let scenarios = scenarios::all();
        let scenario = scenarios.iter().find(|scenario| scenario.name == "attempt").unwrap();
        let mut protocol = encoders::of(name);
        protocol.apply(AnswerEvent::Opened);
        let unseen = protocol.apply(AnswerEvent::Reset { attempt: 1 });
        assert_eq!(
            (unseen.bytes.len(), unseen.then),
            (0, StreamAction::Continue),
            "{name}: nothing was shown"
        );
        let first = Chunk::content(0, "Once", false);
        assert!(
            !protocol.apply(scenarios::happening(0, &first)).bytes.starts_with(b"data"),
            "{name}: too old"
        );
        protocol.apply(scenarios::happening(1, &first));
        let cut = protocol.apply(AnswerEvent::Reset { attempt: 2 });
        let has_no_resume = name.starts_with("chat");
        assert_eq!(cut.then, if has_no_resume { StreamAction::Close } else { StreamAction::Abort }, "{name}");
        assert_eq!(cut.bytes.starts_with(b"data: {\"error\":"), has_no_resume, "{name}");
        assert_eq!(cut.bytes.is_empty(), !has_no_resume, "{name}");
        // The encoder continues for a client that waits for the whole answer. A client that
        // reconnects gets the same bytes.
        let again = encode_all(&mut *protocol, &scenario.events());
        assert!(again == encode_all(&mut *encoders::of(name), &scenario.events()), "{name}");
    }
}

#[test]
fn a_chunk_of_another_attempt_is_a_reset_too() {
    let [first, second] = ["Once", "Again."].map(|text| Chunk::content(0, text, false));
    let mut response = encoders::response(false, Resume::Start);
    response.apply(scenarios::happening(0, &first));
    assert_eq!(response.apply(scenarios::happening(1, &second)).then, StreamAction::Abort);
    let object = String::from_utf8(response.object().to_vec()).unwrap();
    assert!(object.contains("Again.") && !object.contains("Once"), "{object}");
    let mut completion = encoders::completion();
    completion.apply(scenarios::happening(0, &first));
    completion.apply(scenarios::happening(1, &second));
    completion.apply(AnswerEvent::Stopped);
    let object = String::from_utf8(completion.object().unwrap().unwrap().to_vec()).unwrap();
    assert!(object.contains("\"content\":\"Again.\""), "{object}");
}

#[test]
fn next_attempt_begins_anew_for_a_client_of_the_last() {
    let [first, second] = ["Once", "Again."].map(|text| Chunk::content(0, text, false));
    let mut before = encoders::response(false, Resume::Start);
    before.apply(AnswerEvent::Opened);
    let seen = events(&before.apply(scenarios::happening(0, &first)).bytes).last().unwrap().0;
    let names = |resume| {
        let mut response = encoders::response(false, resume);
        let happenings =
            [AnswerEvent::Opened, AnswerEvent::Reset { attempt: 1 }, scenarios::happening(1, &second)];
        let outputs = happenings.map(|happening| response.apply(happening).bytes.to_vec());
        let name = |(number, text): (u64, String)| {
            let name = text.lines().next().unwrap().trim_start_matches("event: response.").to_owned();
            format!("{number} {name}")
        };
        events(&outputs.concat()).into_iter().map(name).collect::<Vec<_>>()
    };
    let events_of_next =
        ["1000000002 output_item.added", "1000000003 content_part.added", "1000000004 output_text.delta"];
    let again = ["1000000000 created", "1000000001 in_progress"];
    assert_eq!(names(Resume::After(seen)), [&again[..], &events_of_next].concat());
    // A client that has seen only the opening has nothing to discard.
    assert_eq!(names(Resume::After(1)), events_of_next);
    assert_eq!(names(Resume::Start), [&["0 created", "1 in_progress"][..], &events_of_next].concat());
}

/// The events with their numbers.
fn events(bytes: &[u8]) -> Vec<(u64, String)> {
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let event = |event: &str| {
        let (_, rest) = event.split_once("\"sequence_number\":").unwrap();
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        (digits.parse().unwrap(), event.to_owned())
    };
    text.split_terminator("\n\n").map(event).collect()
}
