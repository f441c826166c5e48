//! What is compared, and what is found.

use std::{collections::BTreeMap, fmt, time::Duration};

use model::{MessageKey, PartitionCount};
use simulation::checker::{self, Publish};

use testkit::{
    acked_publishes::AckedMessage,
    db_snapshot::{DeadLetterRow, EndRow, MessageRow},
    sse::Transcript,
};

/// Everything that is compared, from after all processes and clients had the time to finish.
#[derive(Debug)]
pub struct Evidence<'a> {
    /// Number of partitions.
    pub partitions: PartitionCount,
    /// What the stream has acknowledged.
    pub ack_log: &'a BTreeMap<MessageKey, AckedMessage>,
    /// What the stream holds: see [`super::read_log`].
    pub log: &'a [Publish],
    /// The table `messages`, by thread and position.
    pub messages: &'a [MessageRow],
    /// The table `dead_letters`.
    pub dead_letters: &'a [DeadLetterRow],
    /// The ends of messages that clients are sent, by thread and position.
    pub ends: &'a [EndRow],
    /// Transcripts by thread, in the order of a client's connections.
    pub transcripts: &'a [(String, Vec<Transcript>)],
    /// A message with a gap that was open for so long may have been given up on although it is whole.
    pub gap_timeout: Duration,
    /// Whether dead letters of entries are expected: garbage was sent.
    pub allow_entry_letters: bool,
}

/// A rule that does not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleViolation {
    /// The rule's name.
    pub rule: &'static str,
    /// Thread and message, or connection.
    pub place: String,
    /// What was found.
    pub found: String,
}

impl fmt::Display for RuleViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}: {}", self.rule, self.place, self.found)
    }
}

impl RuleViolation {
    /// `found` where `rule` does not hold.
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

/// Collects violations.
#[derive(Debug, Default)]
pub(crate) struct Findings(pub(super) Vec<RuleViolation>);

impl Findings {
    pub(crate) fn add(&mut self, rule: &'static str, place: impl ToString, found: impl Into<String>) {
        self.0.push(RuleViolation::new(rule, place, found));
    }
}

/// Characters of a violation's texts that are shown, from where they differ.
const SHOWN: usize = 300;

/// Both texts; long ones from shortly before they differ.
pub(super) fn apart(expected: &str, seen: &str) -> String {
    let same = expected.chars().zip(seen.chars()).take_while(|(a, b)| a == b).count();
    let shown = |text: &str| {
        let skipped = if text.chars().count() > SHOWN { same.saturating_sub(20) } else { 0 };
        let mark = if skipped > 0 { "..." } else { "" };
        format!("{mark}{}", text.chars().skip(skipped).take(SHOWN).collect::<String>())
    };
    format!("expected {}; seen {}", shown(expected), shown(seen))
}
