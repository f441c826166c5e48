//! The compared data, and the violations.

use std::{collections::BTreeMap, fmt, time::Duration};

use model::{MessageKey, PartitionCount};
use simulation::checker::{self, Publish};

use testkit::{
    acked_publishes::AckedMessage,
    db_snapshot::{DeadLetterRow, EndRow, MessageRow},
    sse::Transcript,
};

/// All compared data. It is read after all processes and clients have had time to finish.
#[derive(Debug)]
pub struct Evidence<'a> {
    pub partitions: PartitionCount,
    /// The chunks that the streams have acknowledged.
    pub ack_log: &'a BTreeMap<MessageKey, AckedMessage>,
    /// The content of the streams; see [`super::read_log`].
    pub log: &'a [Publish],
    /// The table `messages`, by thread and position.
    pub messages: &'a [MessageRow],
    /// The table `dead_letters`.
    pub dead_letters: &'a [DeadLetterRow],
    /// The ends of messages that clients must receive, by thread and position.
    pub ends: &'a [EndRow],
    /// Transcripts by thread, each in the order of a client's connections.
    pub transcripts: &'a [(String, Vec<Transcript>)],
    /// If a message was open with a gap for this time, it may have failed although it is complete.
    pub gap_timeout: Duration,
    /// True if dead letters of entries are expected, because garbage was sent.
    pub allow_entry_letters: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleViolation {
    pub rule: &'static str,
    /// The place of the violation: thread and message, or connection.
    pub place: String,
    /// The facts that contradict the rule.
    pub found: String,
}

impl fmt::Display for RuleViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}: {}", self.rule, self.place, self.found)
    }
}

impl RuleViolation {
    /// Creates a violation: `found` contradicts `rule` at this place.
    pub fn new(rule: &'static str, place: impl ToString, found: impl Into<String>) -> Self {
        Self { rule, place: place.to_string(), found: found.into() }
    }
}

impl From<checker::Violation> for RuleViolation {
    fn from(violation: checker::Violation) -> Self {
        let checker::Violation { invariant, subject, expected, seen } = violation;
        Self { rule: invariant.statement(), place: subject, found: apart(&expected, &seen) }
    }
}

#[derive(Debug, Default)]
pub(crate) struct Findings(pub(super) Vec<RuleViolation>);

impl Findings {
    pub(crate) fn add(&mut self, rule: &'static str, place: impl ToString, found: impl Into<String>) {
        self.0.push(RuleViolation::new(rule, place, found));
    }
}

/// Maximum number of characters of a violation's texts that are shown. They begin where the texts
/// differ.
const SHOWN: usize = 300;

/// Both texts. Long ones are shown from shortly before their difference.
pub(super) fn apart(expected: &str, seen: &str) -> String {
    let same = expected.chars().zip(seen.chars()).take_while(|(a, b)| a == b).count();
    let shown = |text: &str| {
        let skipped = if text.chars().count() > SHOWN { same.saturating_sub(20) } else { 0 };
        let mark = if skipped > 0 { "..." } else { "" };
        format!("{mark}{}", text.chars().skip(skipped).take(SHOWN).collect::<String>())
    };
    format!("expected {}; seen {}", shown(expected), shown(seen))
}
