//! What came out against what went in: the rules that hold whatever was killed in between.
//!
//! [`audit`] takes plain data (ledger, tables, transcripts) and gives back every violation it finds. It knows nothing
//! of how the data came about.

mod transcripts;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use model::MessageKey;

use crate::{
    ledger::Sent,
    sse::Transcript,
    tables::{StoredDeadLetter, StoredMessage},
};

/// Everything that is compared.
#[derive(Debug)]
pub struct Evidence<'a> {
    /// What the stream has acknowledged.
    pub ledger: &'a BTreeMap<MessageKey, Sent>,
    /// The table `messages`, by thread and position.
    pub messages: &'a [StoredMessage],
    /// The table `dead_letters`.
    pub dead_letters: &'a [StoredDeadLetter],
    /// Transcripts by thread, in the order of a client's connections.
    pub transcripts: &'a [(String, Vec<Transcript>)],
    /// A message whose publication took longer than this may have been given up on although it is whole.
    pub gap_timeout: Duration,
    /// Whether dead letters of entries are expected.
    pub allow_entry_letters: bool,
    /// Everybody had the time to see everything: clients must have seen every end.
    pub is_settled: bool,
}

/// A rule that does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The rule's name.
    pub rule: &'static str,
    /// Thread and message, or connection.
    pub place: String,
    /// What was found.
    pub found: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}: {}", self.rule, self.place, self.found)
    }
}

/// How a message ended, by the tables.
#[derive(Debug, Clone)]
pub(crate) enum Ending<'a> {
    Persisted(&'a StoredMessage),
    GivenUp(&'a StoredDeadLetter),
}

/// Collects violations.
#[derive(Debug, Default)]
pub(crate) struct Findings(Vec<Violation>);

impl Findings {
    pub(crate) fn add(&mut self, rule: &'static str, place: impl ToString, found: impl Into<String>) {
        self.0.push(Violation { rule, place: place.to_string(), found: found.into() });
    }
}

/// Checks every rule. An empty answer means that all of them hold.
pub fn audit(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut findings = Findings::default();
    let endings = endings(evidence, &mut findings);
    each_acknowledged_message_ended_rightly(evidence, &endings, &mut findings);
    nothing_came_from_nowhere(evidence, &endings, &mut findings);
    threads_are_chains(evidence.messages, &mut findings);
    for (thread, transcripts) in evidence.transcripts {
        transcripts::check(thread, transcripts, &endings, &mut findings);
        if evidence.is_settled {
            transcripts::check_settled(thread, transcripts, evidence.messages, &mut findings);
        }
    }
    findings.0
}

type Endings<'a> = BTreeMap<(String, String), Ending<'a>>;

/// Each message once in the tables.
fn endings<'a>(evidence: &Evidence<'a>, findings: &mut Findings) -> Endings<'a> {
    let mut endings = Endings::new();
    let mut end = |thread: &str, message: &str, ending: Ending<'a>| {
        if let Some(earlier) = endings.insert((thread.to_owned(), message.to_owned()), ending.clone()) {
            let found = format!("{} and {}", earlier.describe(), ending.describe());
            findings.add("a message ends once", format!("{thread}/{message}"), found);
        }
    };
    for message in evidence.messages {
        end(&message.thread_id, &message.message_id, Ending::Persisted(message));
    }
    for letter in evidence.dead_letters {
        if let (Some(thread), Some(message)) = (&letter.thread_id, &letter.message_id) {
            end(thread, message, Ending::GivenUp(letter));
        }
    }
    if !evidence.allow_entry_letters {
        for letter in evidence.dead_letters.iter().filter(|letter| letter.kind == "entry") {
            let place = format!("partition {} sequence {}", letter.partition_id, letter.stream_seq);
            findings.add("no entry is refused", place, format!("{}: {}", letter.reason, letter.detail));
        }
    }
    endings
}

impl Ending<'_> {
    fn describe(&self) -> String {
        match self {
            Self::Persisted(message) => format!("persisted at {}", message.position),
            Self::GivenUp(letter) => format!("dead letter {}", letter.reason),
        }
    }
}

fn each_acknowledged_message_ended_rightly(
    evidence: &Evidence<'_>,
    endings: &Endings<'_>,
    findings: &mut Findings,
) {
    for (key, sent) in evidence.ledger {
        let ending = endings.get(&(key.thread.to_string(), key.message.to_string()));
        match ending {
            None => findings.add("an acknowledged message ends", key, "neither persisted nor a dead letter"),
            Some(Ending::Persisted(message)) => check_content(key, sent, message, findings),
            Some(Ending::GivenUp(letter)) => check_letter(key, sent, letter, evidence.gap_timeout, findings),
        }
    }
}

/// The content is that of an attempt which was sent whole; a higher attempt that is whole may not have been passed over,
/// unless it came after the end.
fn check_content(key: &MessageKey, sent: &Sent, message: &StoredMessage, findings: &mut Findings) {
    let attempt = u32::try_from(message.attempt).unwrap_or(u32::MAX);
    match sent.whole_text(attempt) {
        None => findings.add(
            "only whole messages are persisted",
            key,
            format!("attempt {attempt} was persisted with {} bytes", message.content.len()),
        ),
        Some(text) if text != message.content => {
            findings.add("content is the chunks in order", key, first_difference(&text, &message.content));
        }
        Some(_) => {}
    }
}

fn check_letter(
    key: &MessageKey,
    sent: &Sent,
    letter: &StoredDeadLetter,
    gap_timeout: Duration,
    findings: &mut Findings,
) {
    let whole = sent.whole_text(sent.highest_attempt()).is_some();
    if whole && sent.spread() < gap_timeout {
        let found = format!("dead letter {} {}", letter.reason, letter.detail);
        findings.add("a whole message is persisted", key, found);
    }
    if !whole && letter.reason != "gap_timeout" && letter.reason != "stalled" {
        findings.add("a message with a gap times out", key, format!("dead letter {}", letter.reason));
    }
}

fn nothing_came_from_nowhere(evidence: &Evidence<'_>, endings: &Endings<'_>, findings: &mut Findings) {
    let sent: BTreeSet<(&str, &str)> =
        evidence.ledger.keys().map(|key| (key.thread.as_str(), key.message.as_str())).collect();
    for (key, ending) in endings {
        if !sent.contains(&(key.0.as_str(), key.1.as_str())) {
            findings.add("what ended was sent", format!("{}/{}", key.0, key.1), ending.describe());
        }
    }
}

/// Positions rise, each message names its predecessor, batches are numbered.
fn threads_are_chains(messages: &[StoredMessage], findings: &mut Findings) {
    let mut previous: Option<&StoredMessage> = None;
    for message in messages {
        let place = format!("{}/{}", message.thread_id, message.message_id);
        let parent = previous.filter(|previous| previous.thread_id == message.thread_id);
        if parent.is_some_and(|parent| parent.position >= message.position) {
            findings.add("positions rise in a thread", &place, message.position.to_string());
        }
        if message.parent_id != parent.map(|parent| parent.position) {
            let expected = parent.map(|parent| parent.position);
            let found = format!("parent {:?}, the predecessor is {expected:?}", message.parent_id);
            findings.add("a message names its predecessor", &place, found);
        }
        if message.batch_id > message.position || message.sequence_num < 0 {
            let found = format!("batch {} number {}", message.batch_id, message.sequence_num);
            findings.add("a batch begins before its messages", &place, found);
        }
        previous = Some(message);
    }
}

/// Whether a client has learned all that it must in the end: see [`Evidence::is_settled`].
pub fn knows_all(thread: &str, transcripts: &[Transcript], messages: &[StoredMessage]) -> bool {
    let mut findings = Findings::default();
    transcripts::check_settled(thread, transcripts, messages, &mut findings);
    findings.0.is_empty()
}

/// Where two texts part.
pub(crate) fn first_difference(expected: &str, found: &str) -> String {
    let same = expected.bytes().zip(found.bytes()).take_while(|(a, b)| a == b).count();
    let near = |text: &str| {
        let bytes = &text.as_bytes()[same.min(text.len())..];
        String::from_utf8_lossy(&bytes[..bytes.len().min(24)]).into_owned()
    };
    format!(
        "{} bytes expected, {} found, different from byte {same} on: {:?} became {:?}",
        expected.len(),
        found.len(),
        near(expected),
        near(found)
    )
}

#[cfg(test)]
mod tests;
