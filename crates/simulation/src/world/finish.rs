//! The end of a run: when everything has settled, and what the checker is shown.

use super::{Report, World};
use crate::checker::{self, Evidence, Invariant, Seen, StoredDeadLetter, Violation};

impl World {
    /// When to give up waiting, ms: messages may have to fail one after the other.
    pub(super) fn time_limit(&self) -> i64 {
        let limits = &self.scenario.limits;
        let last = self.logs.iter().filter_map(|log| log.at(log.len())).max().unwrap_or(0);
        let each = limits.stall_timeout_ms + limits.sweep_ms + limits.gap_timeout_ms;
        last.max(self.scenario.faults_until) + 30_000 + self.scenario.messages as i64 * each
    }

    /// Everything that was published has ended, and every checkpoint stands at the end of its stream.
    pub(super) fn is_settled(&self) -> bool {
        let at_end = |(row, log): (&crate::store::Row, &crate::log::Log)| {
            row.checkpoint == log.len() && log.tail(self.time) == log.len()
        };
        self.store.rows.iter().zip(&self.logs).all(at_end)
            && self.store.ended_messages() >= self.messages
            && !self.has_statements_under_way()
    }

    pub(super) fn violate(&mut self, violation: Violation) {
        self.note(50, [0; 3], || format!("VIOLATION {violation}"));
        if self.violations.len() < 20 {
            self.violations.push(violation);
        }
    }

    pub(super) fn finish(mut self, seed: u64) -> Report {
        if !self.is_settled() {
            self.report_standstill();
        }
        for worker in 0..self.workers.len() {
            for (_, session) in std::mem::take(&mut self.workers[worker].sessions) {
                self.collect(session);
            }
        }
        self.count_unknown();
        let evidence = self.evidence();
        self.violations.append(&mut self.store.violations);
        self.violations.extend(checker::check(&evidence));
        self.coverage.key_conflicts = self.store.key_conflicts;
        Report {
            seed,
            violations: self.violations,
            coverage: self.coverage,
            trace_hash: self.hash,
            scenario: format!("{:#?}", self.scenario),
            trace: self.trace.unwrap_or_default(),
        }
    }

    fn report_standstill(&mut self) {
        for number in 0..self.logs.len() {
            let (checkpoint, end) = (self.store.rows[number].checkpoint, self.logs[number].len());
            if checkpoint < end || self.store.ended_messages() < self.messages {
                let subject = format!("partition {number}");
                let (expected, seen) = (
                    format!("a checkpoint at {end}, {} ends", self.messages),
                    format!("{checkpoint} and {} at {} ms", self.store.ended_messages(), self.time),
                );
                self.violate(Violation::new(Invariant::Liveness, subject, expected, seen));
            }
        }
    }

    fn evidence(&mut self) -> Evidence {
        for index in 0..self.clients.len() {
            let client = &mut self.clients[index];
            if client.connection == 0 {
                continue;
            }
            client.is_connected = true;
            client.look(&self.store, i64::MAX);
            let transcript = client.transcript(index);
            self.transcripts.push(transcript);
        }
        let seen = self.transcripts.iter().flat_map(|transcript| &transcript.seen);
        let terminals = seen.filter(|seen| matches!(seen, Seen::Complete { .. } | Seen::Failed { .. }));
        self.coverage.terminals = terminals.count() as u64;
        let letters = self.store.letters.iter();
        let entries = letters.filter(|letter| matches!(letter, StoredDeadLetter::Entry { .. }));
        self.coverage.entry_letters = entries.count() as u64;
        Evidence {
            rules: self.rules.clone(),
            ledger: std::mem::take(&mut self.ledger),
            messages: std::mem::take(&mut self.store.messages),
            dead_letters: std::mem::take(&mut self.store.letters),
            transcripts: std::mem::take(&mut self.transcripts),
            grants: std::mem::take(&mut self.store.grants),
        }
    }
}
