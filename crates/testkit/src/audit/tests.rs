//! Each rule is shown to fail: a check that cannot fail proves nothing.

use std::{net::SocketAddr, time::Instant};

use super::*;
use crate::{
    ledger::Ledger,
    load::PlannedMessage,
    sse::{ChunkEvent, End, Event, Received},
};

struct Case {
    ledger: BTreeMap<MessageKey, Sent>,
    messages: Vec<StoredMessage>,
    dead_letters: Vec<StoredDeadLetter>,
    transcript: Transcript,
    is_settled: bool,
}

fn chunk(id: u32, text: &str) -> Event {
    Event::Chunk(ChunkEvent {
        message: "m".into(),
        attempt: 0,
        id,
        kind: "content".into(),
        text: text.into(),
        is_final: id == 1,
    })
}

fn stored(message: &str, position: i64, parent_id: Option<i64>) -> StoredMessage {
    StoredMessage {
        thread_id: "t".into(),
        message_id: message.into(),
        position,
        parent_id,
        batch_id: position,
        sequence_num: 0,
        content: "ab".into(),
        attempt: 0,
    }
}

fn letter(reason: &str) -> StoredDeadLetter {
    StoredDeadLetter {
        kind: "message".into(),
        stream_seq: 1,
        partition_id: 0,
        subject: None,
        thread_id: Some("t".into()),
        message_id: Some("m".into()),
        attempt: Some(0),
        reason: reason.into(),
        detail: serde_json::json!({}),
        raw: Vec::new(),
    }
}

impl Case {
    /// Two messages, the first one followed by a client.
    fn good() -> Self {
        let ledger = Ledger::default();
        for message in ["m", "n"] {
            let planned = PlannedMessage::of_pieces("t", message, &["a".into(), "b".into()]).unwrap();
            (0..2).for_each(|id| ledger.acked(&planned.publication(id).frame, Instant::now(), 1 + id as u64));
        }
        let complete = Event::Complete { message: "m".into(), position: Some("5".into()) };
        let transcript = Transcript {
            gateway: SocketAddr::from(([127, 0, 0, 1], 1)),
            last_event_id: None,
            began_at: Instant::now(),
            events: Vec::new(),
            comments: Vec::new(),
            end: Some(End::Clean),
        };
        let messages = vec![stored("m", 5, None), stored("n", 6, Some(5))];
        let case = Self {
            ledger: ledger.snapshot(),
            messages,
            dead_letters: Vec::new(),
            transcript,
            is_settled: false,
        };
        case.with_events(vec![chunk(0, "a"), chunk(1, "b"), complete])
    }

    fn with_events(mut self, events: Vec<Event>) -> Self {
        let received = |event| Received { id: None, at: Instant::now(), event };
        self.transcript.events = events.into_iter().map(received).collect();
        self
    }

    fn rules(&self) -> Vec<&'static str> {
        let evidence = Evidence {
            ledger: &self.ledger,
            messages: &self.messages,
            dead_letters: &self.dead_letters,
            transcripts: &[("t".to_owned(), vec![self.transcript.clone()])],
            gap_timeout: Duration::from_secs(5),
            allow_entry_letters: false,
            is_settled: self.is_settled,
        };
        audit(&evidence).into_iter().map(|violation| violation.rule).collect()
    }
}

fn complete() -> Event {
    Event::Complete { message: "m".into(), position: Some("5".into()) }
}

#[test]
fn a_good_run_has_no_violations() {
    assert_eq!(Case::good().rules(), Vec::<&str>::new());
}

#[test]
fn losses_and_doubles_in_the_tables_are_found() {
    let mut case = Case::good();
    case.messages.pop();
    assert_eq!(case.rules(), ["an acknowledged message ends"]);
    let mut case = Case::good();
    case.dead_letters.push(letter("gap_timeout"));
    assert!(case.rules().contains(&"a message ends once"));
    let mut case = Case::good();
    case.messages.push(stored("x", 7, Some(6)));
    assert_eq!(case.rules(), ["what ended was sent"]);
}

#[test]
fn wrong_contents_and_chains_are_found() {
    let mut case = Case::good();
    case.messages[1].content = "ba".into();
    assert_eq!(case.rules(), ["content is the chunks in order"]);
    let mut case = Case::good();
    case.messages[1].attempt = 1;
    assert_eq!(case.rules(), ["only whole messages are persisted"]);
    let mut case = Case::good();
    case.messages[1].parent_id = None;
    assert_eq!(case.rules(), ["a message names its predecessor"]);
    let mut case = Case::good();
    case.messages[1].position = 5;
    assert!(case.rules().contains(&"positions rise in a thread"));
}

#[test]
fn wrong_dead_letters_are_found() {
    let mut case = Case::good();
    case.messages.remove(0);
    case.messages[0].parent_id = None;
    case.dead_letters.push(letter("gap_timeout"));
    let case = case.with_events(vec![]);
    assert_eq!(case.rules(), ["a whole message is persisted"]);
}

#[test]
fn wrong_streams_are_found() {
    let rules = |events| Case::good().with_events(events).rules();
    assert_eq!(rules(vec![chunk(1, "b"), chunk(0, "a")]).first(), Some(&"each chunk once and in order"));
    assert_eq!(
        rules(vec![chunk(0, "a"), chunk(0, "a"), chunk(1, "b"), complete()])[0],
        "each chunk once and in order"
    );
    let cut = rules(vec![chunk(0, "a")]);
    assert_eq!(cut, ["no clean end without a terminal"]);
    let drain = Event::Other { name: Some("drain".into()), data: "{}".into() };
    assert_eq!(rules(vec![chunk(0, "a"), drain]), ["no clean end without a terminal"]);
    let twice = rules(vec![chunk(0, "a"), chunk(1, "b"), complete(), complete()]);
    assert_eq!(twice, ["one terminal per message"]);
    let short = rules(vec![chunk(0, "a"), complete()]);
    assert_eq!(short, ["a complete text is the persisted one"]);
    let other = rules(vec![chunk(0, "x"), chunk(1, "b")]);
    assert!(other.contains(&"what a client received is a prefix"), "{other:?}");
    let failed = Event::Failed {
        message: "m".into(),
        code: "stalled".into(),
        text: String::new(),
        metadata: serde_json::Value::Null,
    };
    assert_eq!(rules(vec![failed]), ["a terminal is true"]);
    let late = rules(vec![chunk(0, "a"), chunk(1, "b"), complete(), chunk(2, "c")]);
    assert!(late.contains(&"nothing follows a terminal"), "{late:?}");
}

#[test]
fn what_a_client_never_learned_is_found_in_the_end() {
    let mut case = Case::good();
    case.is_settled = true;
    assert_eq!(case.rules(), ["a client misses no message"]);
    let mut case = Case::good().with_events(vec![chunk(0, "a")]);
    case.is_settled = true;
    case.transcript.end = None;
    assert_eq!(case.rules(), ["what a client saw begin it sees end"]);
}
