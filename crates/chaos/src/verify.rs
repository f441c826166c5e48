//! What came out against what went in: the rules that hold whatever was killed in between.
//!
//! [`verify`] takes plain data (log, ack_log, tables, transcripts) and gives back every violation it finds. The
//! invariants are those of [`simulation::checker`], which judges the simulation as well: here the evidence of real
//! processes is put into its terms. Only what needs a real stream or real connections is checked here.

pub mod client_transcripts;
mod log;
mod rows;
mod transcripts;
pub mod turns;

use std::{collections::BTreeMap, fmt, time::Duration};

use model::{Chunk, MessageKey, PartitionCount, PartitionId};
use simulation::checker::{self, Publish, Published, Rules};

use testkit::{
    acked_publishes::Sent,
    db_snapshot::{StoredDeadLetter, StoredEnd, StoredMessage},
    sse::Transcript,
};

pub use log::read_log;
pub use transcripts::knows_all;

/// The setting of a fleet whose log is to be read at the end: nothing is purged for an hour.
pub const KEEP_LOG: (&str, u64) = ("ANTIPHON_STREAM_RETAIN_SECONDS", 3_600);
/// How long a chunk may take from the stream to its worker, on a busy machine.
const ON_THE_WAY: Duration = Duration::from_secs(1);
/// Characters of a violation's texts that are shown, from where they part.
const SHOWN: usize = 300;

/// Everything that is compared. Everybody had the time to see everything.
#[derive(Debug)]
pub struct Evidence<'a> {
    /// Number of partitions.
    pub partitions: PartitionCount,
    /// What the stream has acknowledged.
    pub ack_log: &'a BTreeMap<MessageKey, Sent>,
    /// What the stream holds: see [`read_log`].
    pub log: &'a [Publish],
    /// The table `messages`, by thread and position.
    pub messages: &'a [StoredMessage],
    /// The table `dead_letters`.
    pub dead_letters: &'a [StoredDeadLetter],
    /// How messages ended that clients are told of, by thread and position.
    pub ends: &'a [StoredEnd],
    /// Transcripts by thread, in the order of a client's connections.
    pub transcripts: &'a [(String, Vec<Transcript>)],
    /// A message with a gap that was open for so long may have been given up on although it is whole.
    pub gap_timeout: Duration,
    /// Whether dead letters of entries are expected: garbage was sent.
    pub allow_entry_letters: bool,
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

impl From<checker::Violation> for Violation {
    fn from(violation: checker::Violation) -> Self {
        let checker::Violation { invariant, subject, expected, seen } = violation;
        Self { rule: invariant.statement(), place: subject, found: apart(&expected, &seen) }
    }
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
pub fn verify(evidence: &Evidence<'_>) -> Vec<Violation> {
    let mut findings = Findings::default();
    what_is_acknowledged_is_in_the_log(evidence, &mut findings);
    entries_are_refused_only_with_garbage(evidence, &mut findings);
    batches_begin_before_their_messages(evidence.messages, &mut findings);
    failures_have_a_place(evidence, &mut findings);
    for (thread, transcripts) in evidence.transcripts {
        transcripts::check_ends(thread, transcripts, &mut findings);
        transcripts::check_reasons(thread, transcripts, evidence.dead_letters, &mut findings);
    }
    let shared = shared(evidence, &mut findings);
    findings.0.extend(checker::check(&shared).into_iter().map(Violation::from));
    findings.0
}

/// The evidence in the terms of the shared checker.
fn shared(evidence: &Evidence<'_>, findings: &mut Findings) -> checker::Evidence {
    let gap_safe = evidence.gap_timeout.saturating_sub(ON_THE_WAY);
    let rules = Rules { gap_safe_ms: gap_safe.as_millis() as i64, ..Rules::default() };
    let messages = rows::messages(evidence.messages, findings);
    let ends = rows::ends(evidence.ends, findings);
    let transcripts = evidence
        .transcripts
        .iter()
        .enumerate()
        .filter_map(|(number, (thread, seen))| transcripts::translate(number, thread, seen, findings));
    let transcripts = transcripts.collect();
    checker::Evidence {
        rules,
        ledger: evidence.log.to_vec(),
        dead_letters: rows::dead_letters(evidence.dead_letters, findings),
        messages,
        ends,
        transcripts,
        grants: Vec::new(),
    }
}

/// What was given up on is sent to each client that comes later, with the reason for which it was.
fn failures_have_a_place(evidence: &Evidence<'_>, findings: &mut Findings) {
    for letter in evidence.dead_letters.iter().filter(|letter| letter.kind == "message") {
        let (Some(thread), Some(message)) = (&letter.thread_id, &letter.message_id) else { continue };
        let end = evidence.ends.iter().find(|end| end.thread_id == *thread && end.message_id == *message);
        if end.and_then(|end| end.code.as_ref()) != Some(&letter.reason) {
            let found = format!("{end:?}, but the dead letter says {}", letter.reason);
            findings.add("a failure has its place among the ends", format!("{thread}/{message}"), found);
        }
    }
}

/// Every acknowledged chunk stands in the stream under each sequence with which it was acknowledged.
fn what_is_acknowledged_is_in_the_log(evidence: &Evidence<'_>, findings: &mut Findings) {
    type Place<'a> = (PartitionId, u64, &'a MessageKey, u32, u32);
    let mut log: BTreeMap<Place<'_>, &Chunk> = BTreeMap::new();
    for publish in evidence.log {
        if let Published::Chunk { key, attempt, chunk } = &publish.body {
            log.insert((publish.partition, publish.seq, key, *attempt, chunk.id), chunk);
        }
    }
    for (key, sent) in evidence.ack_log {
        let partition = key.thread.bucket().partition(evidence.partitions);
        let all = sent
            .attempts
            .iter()
            .flat_map(|(attempt, chunks)| chunks.values().map(move |acked| (attempt, acked)));
        for (attempt, acked) in all {
            for seq in &acked.seqs {
                let found = log.get(&(partition, *seq, key, *attempt, acked.chunk.id));
                if found.is_none_or(|found| **found != *acked.chunk) {
                    let place = format!("{key}, partition {partition} sequence {seq}");
                    let found = format!("{:?} was acknowledged, the log has {found:?}", acked.chunk);
                    findings.add("what is acknowledged is in the log", place, found);
                }
            }
        }
    }
}

fn entries_are_refused_only_with_garbage(evidence: &Evidence<'_>, findings: &mut Findings) {
    let refused = evidence.dead_letters.iter().filter(|letter| letter.kind == "entry");
    for letter in refused.filter(|_| !evidence.allow_entry_letters) {
        let place = format!("partition {} sequence {}", letter.partition_id, letter.stream_seq);
        findings.add("no entry is refused", place, format!("{}: {}", letter.reason, letter.detail));
    }
}

fn batches_begin_before_their_messages(messages: &[StoredMessage], findings: &mut Findings) {
    for message in messages.iter().filter(|row| row.batch_id > row.position || row.sequence_num < 0) {
        let place = format!("{}/{}", message.thread_id, message.message_id);
        let found = format!("batch {} number {}", message.batch_id, message.sequence_num);
        findings.add("a batch begins before its messages", place, found);
    }
}

/// Both, long ones from shortly before they part.
fn apart(expected: &str, seen: &str) -> String {
    let same = expected.chars().zip(seen.chars()).take_while(|(a, b)| a == b).count();
    let shown = |text: &str| {
        let skipped = if text.chars().count() > SHOWN { same.saturating_sub(20) } else { 0 };
        let mark = if skipped > 0 { "..." } else { "" };
        format!("{mark}{}", text.chars().skip(skipped).take(SHOWN).collect::<String>())
    };
    format!("expected {}; seen {}", shown(expected), shown(seen))
}

#[cfg(test)]
mod tests;
