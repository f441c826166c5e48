//! Shows that each rule can fail, because a check that cannot fail proves nothing. The crate of the
//! shared checker has such tests for its own rules. Here one test of each kind shows that the
//! evidence reaches that checker.

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicUsize, Ordering},
    time::Instant,
};

use model::PartitionCount;
use serde_json::json;
use simulation::checker::{Invariant, Publish};

use super::evidence::apart;
use super::*;
use testkit::{
    acked_publishes::{AckLog, AckedMessage},
    db_snapshot::{DeadLetterRow, EndRow},
    load::PlannedMessage,
    sse::{Received, ReceivedChunk, StreamEnd, StreamEvent, Transcript},
};

struct EvidenceFixture {
    ack_log: BTreeMap<MessageKey, AckedMessage>,
    log: Vec<Publish>,
    messages: Vec<MessageRow>,
    dead_letters: Vec<DeadLetterRow>,
    /// The ends of the messages and dead letters, unless a test sets others.
    ends: Option<Vec<EndRow>>,
    transcripts: Vec<Transcript>,
}

fn chunk(id: u32, text: &str) -> StreamEvent {
    StreamEvent::Chunk(ReceivedChunk {
        message: "m".into(),
        attempt: 0,
        id,
        kind: "content".into(),
        text: text.into(),
        is_final: id == 1,
        is_compacted: false,
    })
}

/// An event with the rest of a message, read from the store. It is final, whatever its number.
fn rest(message: &str, id: u32, text: &str) -> StreamEvent {
    let StreamEvent::Chunk(chunk) = chunk(id, text) else { unreachable!() };
    StreamEvent::Chunk(ReceivedChunk { message: message.into(), is_final: true, is_compacted: true, ..chunk })
}

/// The events of a message that a client first receives when it is persisted.
fn from_store(message: &str, position: &str) -> [StreamEvent; 2] {
    let complete =
        StreamEvent::Complete { message: message.into(), position: Some(position.into()), is_stopped: false };
    [rest(message, 0, "ab"), complete]
}

fn complete() -> StreamEvent {
    StreamEvent::Complete { message: "m".into(), position: Some("5".into()), is_stopped: false }
}

fn failed(message: &str, code: &str) -> StreamEvent {
    let (message, code) = (message.to_owned(), code.into());
    let position = Some(place(&message).to_string());
    StreamEvent::Failed { message, position, code, text: String::new(), metadata: json!(null) }
}

/// The position at which a message ends in the thread.
fn place(message: &str) -> i64 {
    match message {
        "gap" => 4,
        "m" => 5,
        "n" => 6,
        _ => 7,
    }
}

fn stored(message: &str, position: i64, parent_id: Option<i64>) -> MessageRow {
    MessageRow {
        thread_id: "t".into(),
        message_id: message.into(),
        position,
        parent_id,
        number: Some(if parent_id.is_some() { 2 } else { 1 }),
        batch_id: position,
        sequence_num: 0,
        role: "assistant".into(),
        content: "ab".into(),
        metadata: json!({}),
        attempt: 0,
    }
}

fn letter(message: &str, reason: &str, raw: &serde_json::Value) -> DeadLetterRow {
    DeadLetterRow {
        kind: "message".into(),
        stream_seq: 1,
        partition_id: 0,
        subject: None,
        thread_id: Some("t".into()),
        message_id: Some(message.into()),
        attempt: Some(0),
        reason: reason.into(),
        detail: json!({}),
        raw: raw.to_string().into_bytes(),
    }
}

fn entry_letter(seq: i64) -> DeadLetterRow {
    let of_message = letter("m", "malformed", &json!("?"));
    DeadLetterRow { kind: "entry".into(), stream_seq: seq, thread_id: None, message_id: None, ..of_message }
}

/// A connection in which each event has its own id. Ends at position 4 or below are history for the
/// client, unless its first event is such an end.
fn connection(events: Vec<StreamEvent>, end: Option<StreamEnd>) -> Transcript {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let is_gap = events.first().and_then(StreamEvent::terminal) == Some("gap");
    let mut base = place("gap") - i64::from(is_gap);
    let ready = Some(base.to_string());
    let received = |event| {
        if let StreamEvent::Complete { position: Some(position), .. }
        | StreamEvent::Failed { position: Some(position), .. } = &event
        {
            base = position.parse().unwrap_or(base);
        }
        let id = format!("{base}~m.0.{}.0", NUMBER.fetch_add(1, Ordering::Relaxed));
        Received { id: Some(id), at: Instant::now(), event }
    };
    let gateway = SocketAddr::from(([127, 0, 0, 1], 1));
    let events = events.into_iter().map(received).collect();
    Transcript { ready, events, end, ..Transcript::new(gateway, None) }
}

impl EvidenceFixture {
    /// Evidence with two messages and one with a gap. A client received the first one.
    fn good() -> Self {
        let (ack_log, mut log) = (AckLog::default(), Vec::new());
        let mut publish = |message: &str, id: usize| {
            let pieces = ["a".into(), "b".into()];
            let frame = PlannedMessage::of_pieces("t", message, &pieces).unwrap().publication(id).frame;
            let seq = log.len() as u64 + 1;
            ack_log.acked(&frame, seq);
            let body = log::chunks(frame).remove(0);
            log.push(Publish { partition: PartitionId(0), seq, at_ms: seq as i64, body });
        };
        for (message, id) in [("m", 1), ("m", 0), ("n", 0), ("n", 1), ("gap", 1)] {
            publish(message, id);
        }
        let kept =
            json!([{"chunk_id": 1, "chunk": "b", "chunk_type": "content", "is_final": true, "metadata": {}}]);
        let case = Self {
            ack_log: ack_log.snapshot(),
            log,
            messages: vec![stored("m", 5, None), stored("n", 6, Some(5))],
            dead_letters: vec![letter("gap", "gap_timeout", &kept)],
            ends: None,
            transcripts: Vec::new(),
        };
        case.with_events(vec![chunk(0, "a"), chunk(1, "b"), complete()])
    }

    /// One connection with these events, and after them the other message as read from the store.
    fn with_events(self, mut events: Vec<StreamEvent>) -> Self {
        events.extend(from_store("n", "6"));
        self.with_connections(vec![connection(events, Some(StreamEnd::Aborted("cut".into())))])
    }

    fn with_connections(mut self, transcripts: Vec<Transcript>) -> Self {
        self.transcripts = transcripts;
        self
    }

    fn ends(&self) -> Vec<EndRow> {
        let end = |message: &str, code: Option<&str>| EndRow {
            thread_id: "t".into(),
            message_id: message.into(),
            position: place(message),
            code: code.map(str::to_owned),
        };
        let messages = self.messages.iter().map(|message| end(&message.message_id, None));
        let letters =
            self.dead_letters.iter().filter_map(|letter| Some((letter.message_id.as_ref()?, letter)));
        messages.chain(letters.map(|(message, letter)| end(message, Some(&letter.reason)))).collect()
    }

    fn rules(&self) -> Vec<&'static str> {
        let ends = self.ends.clone().unwrap_or_else(|| self.ends());
        let evidence = Evidence {
            partitions: PartitionCount::new(1).unwrap(),
            ack_log: &self.ack_log,
            log: &self.log,
            messages: &self.messages,
            dead_letters: &self.dead_letters,
            ends: &ends,
            transcripts: &[("t".to_owned(), self.transcripts.clone())],
            gap_timeout: Duration::from_secs(10),
            allow_entry_letters: false,
        };
        let mut rules: Vec<_> = verify(&evidence).into_iter().map(|violation| violation.rule).collect();
        rules.dedup();
        rules
    }
}

#[test]
fn a_good_run_has_no_violations() {
    assert_eq!(EvidenceFixture::good().rules(), Vec::<&str>::new());
    // The connection is cut in the middle, and the rest comes from the store.
    let connections = vec![
        connection(vec![chunk(0, "a")], None),
        connection([vec![rest("m", 1, "b"), complete()], from_store("n", "6").to_vec()].concat(), None),
    ];
    assert_eq!(EvidenceFixture::good().with_connections(connections).rules(), Vec::<&str>::new());
}

#[test]
fn an_acknowledged_publication_must_be_in_the_log() {
    let rule = "what is acknowledged is in the log";
    // The text is complete, because the entry is in the log twice. But it was acknowledged with a
    // sequence that is missing.
    let mut case = EvidenceFixture::good();
    case.log.push(Publish { seq: 9, ..case.log[3].clone() });
    assert_eq!(case.rules(), Vec::<&str>::new());
    case.log.remove(3);
    assert_eq!(case.rules(), [rule]);
    let mut case = EvidenceFixture::good();
    let Published::Chunk { chunk, .. } = &mut case.log[4].body else { unreachable!() };
    *chunk = std::sync::Arc::new(Chunk::content(1, "x", true));
    assert!(case.rules().contains(&rule));
}

#[test]
fn entries_are_refused_only_where_garbage_was_sent() {
    let mut case = EvidenceFixture::good();
    case.dead_letters.push(entry_letter(7));
    assert_eq!(case.rules(), ["no entry is refused", Invariant::EndsOnce.statement()]);
    let garbage = Published::Garbage("\"?\"".into());
    case.log.push(Publish { partition: PartitionId(0), seq: 7, at_ms: 7, body: garbage });
    assert_eq!(case.rules(), ["no entry is refused"]);
    case.dead_letters.pop();
    assert_eq!(case.rules(), [Invariant::EndsOnce.statement()]);
}

#[test]
fn batches_and_rows_must_make_sense() {
    let mut case = EvidenceFixture::good();
    case.messages[0].batch_id = 6;
    assert_eq!(case.rules(), ["a batch begins before its messages"]);
    let mut case = EvidenceFixture::good();
    case.dead_letters[0].raw = b"?".to_vec();
    assert_eq!(case.rules(), ["a row makes sense", Invariant::EndsOnce.statement()]);
    let mut case = EvidenceFixture::good();
    case.messages[1].role = "stranger".into();
    assert!(case.rules().contains(&"a row makes sense"));
}

#[test]
fn connections_end_and_failures_are_named_as_they_must_be() {
    let clean = |events| {
        EvidenceFixture::good().with_connections(vec![connection(events, Some(StreamEnd::Clean))]).rules()
    };
    assert!(clean(vec![chunk(0, "a")]).contains(&"no clean end without a terminal"));
    let events = |events| EvidenceFixture::good().with_events(events).rules();
    let after = |failure| [vec![failure], vec![chunk(0, "a"), chunk(1, "b"), complete()]].concat();
    assert_eq!(events(after(failed("gap", "gap_timeout"))), Vec::<&str>::new());
    assert_eq!(events(after(failed("gap", "stalled"))), ["a failure names its reason"]);
    let odd = StreamEvent::Complete { message: "m".into(), position: Some("five".into()), is_stopped: false };
    assert!(events(vec![chunk(0, "a"), chunk(1, "b"), odd]).contains(&"an event makes sense"));
    let connections = vec![connection(vec![chunk(0, "a"), chunk(1, "b"), complete()], None)];
    assert_eq!(
        EvidenceFixture::good().with_connections(connections).rules(),
        [Invariant::NothingMissed.statement()]
    );
}

#[test]
fn what_is_stored_reaches_the_shared_checker() {
    use Invariant::{Content, EndsOnce, Numbers, Positions, RightFailure};
    let broken = |spoil: fn(&mut EvidenceFixture)| {
        let mut case = EvidenceFixture::good().with_connections(Vec::new());
        spoil(&mut case);
        case.rules()
    };
    assert_eq!(broken(|case| drop(case.messages.pop())), [EndsOnce.statement()]);
    assert_eq!(broken(|case| drop(case.dead_letters.pop())), [EndsOnce.statement()]);
    let third = |case: &mut EvidenceFixture| {
        case.messages.push(MessageRow { number: Some(3), ..stored("x", 7, Some(6)) });
    };
    assert_eq!(broken(third), [EndsOnce.statement()]);
    assert_eq!(broken(|case| case.messages[1].number = Some(3)), [Numbers.statement()]);
    assert_eq!(broken(|case| case.messages[1].content = "ba".into()), [Content.statement()]);
    assert_eq!(broken(|case| case.messages[1].metadata = json!({"a": 1})), [Content.statement()]);
    assert_eq!(broken(|case| case.messages[1].attempt = 1), [Content.statement()]);
    assert_eq!(broken(|case| case.messages[1].parent_id = None), [Positions.statement()]);
    assert_eq!(
        broken(|case| case.dead_letters[0].reason = "final_conflict".into()),
        [RightFailure.statement()]
    );
    let give_up = |case: &mut EvidenceFixture| {
        case.messages.pop();
        case.dead_letters.push(letter("n", "gap_timeout", &json!([])));
    };
    assert_eq!(broken(give_up), [RightFailure.statement()]);
    let slowly = |case: &mut EvidenceFixture| {
        case.messages.remove(0);
        (case.messages[0].parent_id, case.messages[0].number) = (None, Some(1));
        case.dead_letters.push(letter("m", "gap_timeout", &json!([])));
        case.log[1..].iter_mut().for_each(|publish| publish.at_ms += 4_001);
    };
    assert_eq!(broken(slowly), Vec::<&str>::new());
}

#[test]
fn what_clients_saw_reaches_the_shared_checker() {
    let (text, terminal) = (Invariant::ClientText.statement(), Invariant::OneTerminal.statement());
    let missed = Invariant::NothingMissed.statement();
    let rules = |events| EvidenceFixture::good().with_events(events).rules();
    assert_eq!(rules(vec![chunk(1, "b"), chunk(0, "a"), complete()]), [text]);
    assert_eq!(rules(vec![chunk(0, "a"), chunk(0, "a"), chunk(1, "b"), complete()]), [text]);
    assert_eq!(rules(vec![chunk(0, "a"), chunk(1, "b"), complete(), complete()]), [terminal, missed]);
    assert_eq!(rules(vec![chunk(0, "a"), complete()]), [text]);
    assert_eq!(rules(vec![chunk(0, "a"), rest("m", 1, "c"), complete()]), [text]);
    // The chunk is not in the log and is not marked as a rest.
    assert_eq!(rules(vec![chunk(0, "a"), chunk(2, "b"), complete()]), [text]);
    assert_eq!(rules(vec![failed("m", "stalled")]), [terminal]);
    assert_eq!(rules(vec![chunk(0, "a"), chunk(1, "b"), complete(), chunk(2, "c")]), [text]);
    let mut never_ended = rules(vec![chunk(0, "a")]);
    never_ended.sort_unstable();
    assert_eq!(never_ended, [missed, terminal]);
    let connections = vec![connection(vec![chunk(0, "a")], None), connection(vec![chunk(0, "a")], None)];
    assert!(EvidenceFixture::good().with_connections(connections).rules().contains(&text));
    let lost = vec![chunk(0, "a"), failed("m", "stalled"), chunk(1, "b"), complete()];
    assert!(rules(lost).contains(&terminal));
}

#[test]
fn every_end_is_sent_once_and_in_order() {
    let missed = Invariant::NothingMissed.statement();
    let whole = || vec![chunk(0, "a"), chunk(1, "b"), complete()];
    // A failure after the client connected must be sent as well. Here the last end that the client
    // received is not the last one.
    let late = |mut case: EvidenceFixture| {
        let mut ends = case.ends();
        ends.iter_mut().filter(|end| end.message_id == "gap").for_each(|end| end.position = 7);
        case.ends = Some(ends);
        case
    };
    assert_eq!(late(EvidenceFixture::good()).rules(), [missed]);
    let gap = StreamEvent::Failed {
        message: "gap".into(),
        position: Some("7".into()),
        code: "gap_timeout".into(),
        text: String::new(),
        metadata: json!(null),
    };
    let connection = |events: Vec<StreamEvent>| vec![connection(events, None)];
    let connected = [whole(), from_store("n", "6").to_vec(), vec![gap.clone()]].concat();
    assert_eq!(
        late(EvidenceFixture::good()).with_connections(connection(connected)).rules(),
        Vec::<&str>::new()
    );
    let swapped = [whole(), vec![gap], from_store("n", "6").to_vec()].concat();
    assert_eq!(late(EvidenceFixture::good()).with_connections(connection(swapped)).rules(), [missed]);
    // A client that has not received the start of the message must not get a restart.
    let anew = [vec![StreamEvent::Restart { after: "4".into() }], whole()].concat();
    assert_eq!(EvidenceFixture::good().with_events(anew).rules(), [missed]);
    let mut case = EvidenceFixture::good();
    let id = case.transcripts[0].events[0].id.clone();
    case.transcripts[0].events[1].id = id;
    assert_eq!(case.rules(), [Invariant::EventIds.statement()]);
}

#[test]
fn what_is_given_up_on_has_its_place_among_the_ends() {
    let rule = "a failure has its place among the ends";
    let mut case = EvidenceFixture::good();
    let mut ends = case.ends();
    let gap = ends.pop().unwrap();
    case.ends = Some(ends.clone());
    assert_eq!(case.rules(), [rule]);
    ends.push(EndRow { code: Some("stalled".into()), ..gap });
    case.ends = Some(ends);
    assert_eq!(case.rules(), [rule]);
}

#[test]
fn client_gets_the_ends_after_its_first_cursor() {
    let since = |transcripts: &[Transcript]| transcripts::since(transcripts);
    let begun = connection(vec![chunk(0, "a"), complete()], None);
    assert_eq!(since(std::slice::from_ref(&begun)), Some(4));
    let refused = Transcript { ready: None, ..connection(Vec::new(), None) };
    assert_eq!(since(&[refused.clone(), begun.clone()]), Some(4));
    assert_eq!(since(std::slice::from_ref(&refused)), None);
    let resumed = Transcript { last_event_id: Some("3~m.0.1.1".into()), ..refused };
    assert_eq!(since(&[resumed, begun]), Some(3));
}

#[test]
fn a_client_knows_all_when_nothing_is_open_or_missed() {
    let knows = |events: Vec<StreamEvent>| {
        knows_all("t", &[connection(events, None)], &EvidenceFixture::good().ends())
    };
    let refused = Transcript { ready: None, ..connection(vec![], None) };
    assert!(knows_all("t", &[refused], &EvidenceFixture::good().ends()));
    assert!(!knows(vec![]), "it was to see every end");
    assert!(!knows(vec![chunk(0, "a")]));
    assert!(!knows(vec![chunk(0, "a"), complete()]));
    let all = || [vec![complete()], from_store("n", "6").to_vec()].concat();
    assert!(knows(all()));
    let restart = |after: &str| vec![StreamEvent::Restart { after: after.into() }];
    assert!(!knows([all(), restart("5")].concat()), "the last end was taken back");
    assert!(knows([vec![chunk(0, "a")], restart("0"), all()].concat()));
}

#[test]
fn places_come_again_after_a_reset_and_after_a_restart() {
    let ids = |between: StreamEvent| {
        let events = vec![chunk(0, "a"), between, chunk(0, "a"), chunk(1, "b"), complete()];
        let mut case = EvidenceFixture::good().with_events(events);
        let events = &mut case.transcripts[0].events;
        events[0].id = Some("3~m.0.1.1".into());
        (events[1].id, events[2].id) = (None, events[0].id.clone());
        let repeated = Invariant::EventIds.statement();
        case.rules().into_iter().filter(|rule| *rule == repeated).count()
    };
    assert_eq!(ids(StreamEvent::Other { name: None, data: String::new() }), 1);
    assert_eq!(ids(StreamEvent::Reset { message: "m".into(), attempt: 0 }), 0);
    assert_eq!(ids(StreamEvent::Restart { after: "3".into() }), 0);
}

#[test]
fn long_texts_are_shown_from_where_they_part() {
    let long = "x".repeat(1_000);
    let found = apart(&format!("{long}a"), &format!("{long}b"));
    assert!(found.len() < 100 && found.contains("xa; seen ...") && found.ends_with("xb"), "{found}");
    assert_eq!(apart("1", "2"), "expected 1; seen 2");
}
