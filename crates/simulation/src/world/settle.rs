//! The end of a run: when everything has settled, and the evidence for the checker.

use std::collections::BTreeSet;

use model::ThreadId;

use super::{SeedReport, World};
use crate::checker::turns::{TurnRules, Turns};
use crate::checker::{self, DeadLetterRow, Evidence, Invariant, SeenEvent, Transcript, Violation};
use crate::scenario::FollowUpProfile;
use crate::store::turns::Tables;

impl World {
    /// When to give up waiting, ms: messages may have to fail one after the other.
    pub(super) fn time_limit(&self) -> i64 {
        let limits = &self.scenario.limits;
        let last = self.planned.first().map_or(0, |planned| planned.at);
        let turn_profile = &self.scenario.turn_profile;
        let rules = &turn_profile.rules;
        // A task may fail once more because of something that began before the faults stopped, and
        // each input may have two tasks.
        let each_turn =
            rules.deadline_ms + rules.backoff_cap_ms + turn_profile.ack_wait_ms + limits.gap_timeout_ms;
        let follow_ups = self.scenario.follow_ups.as_ref().map_or(0, |profile| {
            (profile.persons + turn_profile.inputs) * 4 + (profile.schedules + profile.delayed_tasks) * 4
        });
        // Some turns request a further step, and that step may request another.
        let turns = (turn_profile.inputs * 5 + turn_profile.tasks * 2 + follow_ups) as i64;
        let each = limits.stall_timeout_ms + limits.sweep_ms + limits.gap_timeout_ms;
        last.max(self.scenario.faults_until)
            + 30_000
            + self.scenario.messages as i64 * each
            + turns * each_turn
    }

    /// True if everything published has ended, and every checkpoint is at the end of its stream.
    pub(super) fn is_settled(&self) -> bool {
        let at_end = |(row, log): (&crate::store::Row, &crate::log::Log)| row.checkpoint == log.len();
        self.planned.is_empty()
            && self.store.tables.iter().all(Tables::is_idle)
            && self.store.rows.iter().zip(&self.logs).all(at_end)
            && self.have_messages_ended()
            && self.erasing.is_over()
            && self.are_timers_over()
            && !self.has_statements_under_way()
            // A paused worker may still be queried, and does not answer.
            && self.workers.iter().all(|worker| !(worker.is_up && worker.is_paused))
    }

    pub(super) fn violate(&mut self, violation: Violation) {
        self.note(50, [0; 3], || format!("VIOLATION {violation}"));
        if self.violations.len() < 20 {
            self.violations.push(violation);
        }
    }

    pub(super) fn finish(mut self, seed: u64) -> SeedReport {
        if !self.is_settled() {
            self.report_standstill();
        }
        for worker in 0..self.workers.len() {
            for (_, session) in std::mem::take(&mut self.workers[worker].sessions) {
                self.collect(session);
            }
        }
        self.count_unknown();
        self.count_timers();
        self.check_gone();
        self.store.check_erased(true);
        let erased = &self.rules.erased;
        let is_erased = |owner: &str| erased.iter().any(|thread| thread.as_str() == owner);
        let garbage = std::mem::take(&mut self.garbage).into_iter();
        let garbage = garbage.filter(|(owner, _)| is_erased(owner)).map(|(_, payload)| payload);
        self.rules.erased_garbage = garbage.collect();
        self.rules.lost = std::mem::take(&mut self.going_back.lost);
        let turns = self.turns();
        self.coverage.model_calls = turns.usage.len() as u64;
        self.coverage.partial_calls = turns.usage.iter().filter(|row| row.is_partial).count() as u64;
        let evidence = self.evidence();
        self.violations.append(&mut self.store.violations);
        self.violations.extend(checker::check_with_turns(&evidence, &turns));
        self.coverage.key_conflicts = self.store.key_conflicts;
        self.coverage.turn_conflicts = self.store.turn_conflicts;
        // The scenario is written only if someone reads it: it costs as much as a short history.
        let is_read = self.trace.is_some() || !self.violations.is_empty();
        SeedReport {
            seed,
            violations: self.violations,
            coverage: self.coverage,
            trace_hash: self.hash,
            scenario: if is_read { format!("{:#?}", self.scenario) } else { String::new() },
            trace: self.trace.unwrap_or_default(),
        }
    }

    fn report_standstill(&mut self) {
        for number in 0..self.logs.len() {
            let (checkpoint, end) = (self.store.rows[number].checkpoint, self.logs[number].len());
            let is_idle = self.store.tables[number].is_idle() && self.are_timers_over();
            if checkpoint != end || !self.have_messages_ended() || !is_idle {
                let subject = format!("partition {number}");
                let (expected, seen) = (
                    format!("a checkpoint at {end}, {} ends, nothing pending", self.messages),
                    format!(
                        "{checkpoint} and {} at {} ms, idle: {is_idle}",
                        self.store.ended_messages(),
                        self.time
                    ),
                );
                self.violate(Violation::new(Invariant::Liveness, subject, expected, seen));
            }
        }
    }

    fn turns(&mut self) -> Turns {
        let turn_profile = &self.scenario.turn_profile;
        let rules = TurnRules {
            // The margin is the same as for gaps.
            deadline_safe_ms: turn_profile.rules.deadline_ms * 7 / 10,
            backoff_base_ms: turn_profile.rules.backoff_base_ms,
            backoff_cap_ms: turn_profile.rules.backoff_cap_ms,
            max_attempts: turn_profile.rules.max_attempts,
            follow_ups: self.scenario.follow_ups.as_ref().map(FollowUpProfile::limits),
            missing: self.missing.iter().map(model::ThreadId::agent).collect(),
            refused_turns: self.refused.turns.clone(),
            refused_tasks: self.refused.tasks.clone(),
            ..TurnRules::default()
        };
        let tables = self.store.tables.iter();
        let left = tables.clone().flat_map(|tables| {
            let open = tables.open_turns.keys().map(|(_, turn)| format!("the saved input of {turn}"));
            open.chain(tables.outbox.keys().map(|id| format!("batch {id} of the outbox")))
        });
        Turns {
            rules,
            left: left.collect(),
            audit: tables.clone().flat_map(Tables::audited).collect(),
            usage: tables.clone().flat_map(|tables| tables.usage.values().cloned()).collect(),
            failed_turns: tables
                .flat_map(|tables| &tables.failed_turns)
                .map(|((thread, turn), failed)| (thread.clone(), turn.clone(), failed.opened.run))
                .collect(),
            ledger: {
                let mut ledger = std::mem::take(&mut self.commands);
                ledger.append(&mut self.store.own_work);
                ledger
            },
            rows: std::mem::take(&mut self.store.rows_of_turns),
            history: std::mem::take(&mut self.store.history),
            timers: std::mem::take(&mut self.store.timers.events),
            published: std::mem::take(&mut self.turn_events),
            requests: self.workflows.requests(),
            refused: std::mem::take(&mut self.workflows.refused),
            dead: std::mem::take(&mut self.store.failed_answers),
        }
    }

    fn evidence(&mut self) -> Evidence {
        for index in 0..self.clients.len() {
            if self.clients[index].connection != 0 {
                self.keep_transcript(index);
            }
        }
        let mut transcripts = std::mem::take(&mut self.transcripts);
        let all = transcripts.len();
        transcripts.retain(|(partition, begun_at, transcript)| {
            transcript.is_connected || !self.may_be_undone(*partition, *begun_at)
        });
        // The part that a client has of a message deleted within seconds of its end depends on
        // timing.
        let retired: BTreeSet<&ThreadId> = self.rules.retired.iter().map(|(thread, _)| thread).collect();
        transcripts.retain(|(.., transcript)| {
            !self.rules.erased.contains(&transcript.thread) && !retired.contains(&transcript.thread)
        });
        self.coverage.undone_transcripts += (all - transcripts.len()) as u64;
        let transcripts: Vec<Transcript> =
            transcripts.into_iter().map(|(_, _, transcript)| transcript).collect();
        self.coverage.taken_back = transcripts.iter().map(Transcript::restarts_of_ends).sum();
        let seen = transcripts.iter().flat_map(|transcript| &transcript.seen);
        let terminals =
            seen.filter(|seen| matches!(seen, SeenEvent::Complete { .. } | SeenEvent::Failed { .. }));
        self.coverage.terminals = terminals.count() as u64;
        let letters = self.store.letters.iter();
        let entries = letters.filter(|letter| matches!(letter, DeadLetterRow::Entry { .. }));
        self.coverage.entry_letters = entries.count() as u64;
        Evidence {
            rules: self.rules.clone(),
            ledger: std::mem::take(&mut self.ledger),
            messages: std::mem::take(&mut self.store.messages),
            dead_letters: std::mem::take(&mut self.store.letters),
            transcripts,
            grants: std::mem::take(&mut self.store.grants),
            ends: self.store.ends_of_threads(),
        }
    }
}
