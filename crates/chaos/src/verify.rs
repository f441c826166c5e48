//! Compares the outcome with the input, by rules that must hold whatever was killed in between.
//!
//! [`verify`] takes plain data (log, acknowledgements, tables, transcripts) and returns every
//! violation that it finds. The invariants are those of [`simulation::checker`], which also checks
//! the simulation; this module converts the evidence of real processes to its types. Only rules
//! that need a real stream or real connections are checked here.

pub mod client_transcripts;
pub mod evidence;
mod log;
mod rows;
mod transcripts;
pub mod turns;

use std::{collections::BTreeMap, time::Duration};

use model::{Chunk, MessageKey, PartitionId};
use simulation::checker::{self, Published, Rules};

use evidence::{Evidence, Findings, RuleViolation};
use testkit::db_snapshot::MessageRow;

pub use log::read_log;
pub use transcripts::knows_all;

/// The setting of a fleet whose log is read at the end: streams are not purged for an hour.
pub const KEEP_LOG: (&str, u64) = ("ANTIPHON_STREAM_RETAIN_SECONDS", 3_600);
/// Maximum time of a chunk from the stream to its worker, on a busy machine.
const ON_THE_WAY: Duration = Duration::from_secs(6);

/// Checks every rule. An empty result means that all of them hold.
pub fn verify(evidence: &Evidence<'_>) -> Vec<RuleViolation> {
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
    findings.0.extend(checker::check(&shared).into_iter().map(RuleViolation::from));
    findings.0
}

/// The evidence in the types of the shared checker.
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

/// Checks that every failed message is sent to each later client, with its reason.
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

/// Checks that every acknowledged chunk is in the stream, under each sequence that an
/// acknowledgement contained.
fn what_is_acknowledged_is_in_the_log(evidence: &Evidence<'_>, findings: &mut Findings) {
    type ChunkPlace<'a> = (PartitionId, u64, &'a MessageKey, u32, u32);
    let mut log: BTreeMap<ChunkPlace<'_>, &Chunk> = BTreeMap::new();
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

fn batches_begin_before_their_messages(messages: &[MessageRow], findings: &mut Findings) {
    for message in messages.iter().filter(|row| row.batch_id > row.position || row.sequence_num < 0) {
        let place = format!("{}/{}", message.thread_id, message.message_id);
        let found = format!("batch {} number {}", message.batch_id, message.sequence_num);
        findings.add("a batch begins before its messages", place, found);
    }
}

#[cfg(test)]
mod tests;
