//! The report of a chaos run, as a table.

use std::{collections::BTreeMap, fmt, path::PathBuf, sync::atomic::Ordering, time::Duration};

use crate::{
    environment::ChaosEnvironment,
    evidence::CollectedEvidence,
    fault::Fault,
    faults::Injector,
    load::LoadStats,
    options::ChaosSettings,
    recovery::{self, Waits},
    verify::evidence::RuleViolation,
};
use testkit::{db_snapshot::PartitionRow, sse::StreamEnd};

/// Maximum number of violations that are printed.
const SHOWN: usize = 20;

/// The outcome of a run.
#[derive(Debug)]
pub struct ChaosReport {
    /// The seed with which the run can be repeated.
    pub seed: u64,
    /// Lines of the table: name and value.
    pub rows: Vec<(String, String)>,
    pub violations: Vec<RuleViolation>,
    /// Reasons why the run does not prove enough.
    pub shortcomings: Vec<String>,
    /// The folder of the logs, which is kept if the run is not good.
    pub log_dir: PathBuf,
}

impl ChaosReport {
    pub(super) fn new(
        settings: &ChaosSettings,
        elapsed: Duration,
        environment: &ChaosEnvironment,
        faults: &Injector,
        stats: &LoadStats,
        collected: CollectedEvidence,
        violations: Vec<RuleViolation>,
    ) -> Self {
        let mut table = ReportTable::default();
        table.row("time", format!("{:.0} s", elapsed.as_secs_f64()));
        table.row(
            "fault: how often",
            "longest wait of an entry to be stored / of a stored message to be committed",
        );
        let possible = Fault::possible(settings.nats_servers);
        let waits = recovery::waits(faults.begins(), &collected.log, &collected.commit_times);
        for &fault in &possible {
            let Waits { store, commit } = waits.get(&fault).copied().unwrap_or_default();
            let waits = format!("{:.1} s / {:.1} s", store.as_secs_f64(), commit.as_secs_f64());
            table.row(fault.name(), format!("{:<4} {waits}", faults.made(fault)));
        }
        if settings.nats_servers > 1 {
            table.row("times that NATS left a replica behind for a minute", faults.replicas_left_behind());
        }
        if let Some(started) = faults.started_other() {
            table.row("processes of the other build started", started);
        }
        let cuts = environment.proxy.cuts();
        let unknown = cuts.after + cuts.late;
        table.row(
            "commits cut, outcome known only to us",
            format!("{} ({unknown} of them committed)", cuts.total()),
        );
        let is_taken =
            |partition: &&PartitionRow| {
                environment.workload.granted.iter().any(|first| {
                    first.partition_id == partition.partition_id && first.epoch != partition.epoch
                })
            };
        let takeovers = collected.partitions.iter().filter(is_taken).count();
        table.row("partitions taken over", takeovers);
        table.row("payloads acknowledged", stats.payloads.load(Ordering::Relaxed));
        table.row("payloads sent again", stats.retries.load(Ordering::Relaxed));
        table.row("chunks acknowledged", environment.workload.ack_log.stored_chunks());
        table.row("messages acknowledged", collected.ack_log.len());
        table.row("messages persisted", collected.messages.len());
        table.row("messages with a lost chunk", stats.lost.load(Ordering::Relaxed));
        table.row("messages that took one to two minutes", stats.long.load(Ordering::Relaxed));
        table.row("messages begun again (attempt 1)", stats.second_attempts.load(Ordering::Relaxed));
        turns(environment, &collected, &mut table);
        for (reason, count) in reasons(&collected) {
            table.row(&format!("dead letters: {reason}"), count);
        }
        streams(&collected, &mut table);
        let mut shortcomings: Vec<String> = possible
            .into_iter()
            .filter(|fault| faults.made(*fault) == 0 && !faults.is_excused(*fault))
            .map(|fault| format!("never happened: {}", fault.name()))
            .collect();
        let needed = [
            ("persisted messages", collected.messages.len()),
            ("unknown commits", unknown),
            ("completed tasks", tasks(&collected, "completed")),
            ("failed tasks", tasks(&collected, "failed")),
            ("failed turns", collected.turns.failed_turns.len()),
        ];
        shortcomings
            .extend(needed.iter().filter(|(_, count)| *count == 0).map(|(what, _)| format!("no {what}")));
        if faults.started_other() == Some(0) {
            shortcomings.push("no process of the other build".to_owned());
        }
        if takeovers == 0 {
            shortcomings.push("no takeovers".to_owned());
        }
        Self {
            seed: settings.seed,
            rows: table.0,
            violations,
            shortcomings,
            log_dir: settings.log_dir.clone(),
        }
    }

    /// True if no rule is violated, and the run had enough events for that to be significant.
    pub fn is_good(&self) -> bool {
        self.violations.is_empty() && self.shortcomings.is_empty()
    }
}

#[derive(Default)]
struct ReportTable(Vec<(String, String)>);

impl ReportTable {
    fn row(&mut self, what: &str, value: impl ToString) {
        self.0.push((what.to_owned(), value.to_string()));
    }
}

fn reasons(collected: &CollectedEvidence) -> BTreeMap<&str, usize> {
    let mut reasons = BTreeMap::new();
    for letter in &collected.dead_letters {
        *reasons.entry(letter.reason.as_str()).or_default() += 1;
    }
    reasons
}

fn tasks(collected: &CollectedEvidence, status: &str) -> usize {
    collected.turns.stored_tasks.iter().filter(|task| task.status == status).count()
}

fn turns(environment: &ChaosEnvironment, collected: &CollectedEvidence, table: &mut ReportTable) {
    let evidence = &collected.turns;
    let (said, sent) = environment.workload.turns.promised.count();
    let inputs = evidence.messages.iter().filter(|row| row.message_id.ends_with("-q"));
    let stopped =
        evidence.messages.iter().filter(|row| row.role == "assistant" && row.metadata["stopped"] == true);
    let again = evidence.messages.iter().filter(|row| row.attempt > 0);
    table.row("messages of people accepted", said);
    table.row("  turns persisted", inputs.filter(|row| row.message_id.starts_with('u')).count());
    let mut codes: BTreeMap<&str, usize> = BTreeMap::new();
    for failed in &evidence.failed_turns {
        *codes.entry(&failed.code).or_default() += 1;
    }
    for (code, count) in codes {
        table.row(&format!("  turns failed at the end: {code}"), count);
    }
    table.row("  answers stopped", stopped.count());
    table.row("answers of a later attempt", again.count());
    table.row("tasks accepted", sent);
    table.row("  tasks completed, with those that follow turns", tasks(collected, "completed"));
    table.row("  tasks failed", tasks(collected, "failed"));
    table.row("acts of operators and people", evidence.acts);
    table.row("calls of models in the ledger", evidence.usage.len());
    table.row("ends of turns published", evidence.ends.len());
}

fn streams(collected: &CollectedEvidence, table: &mut ReportTable) {
    let all = || collected.transcripts.iter().flat_map(|(_, transcripts)| transcripts);
    let ended = |wanted: fn(&StreamEnd) -> bool| {
        all().filter(|transcript| transcript.end.as_ref().is_some_and(wanted)).count()
    };
    table.row("connections of clients", all().count());
    table.row("  ended by the server in order", ended(|end| *end == StreamEnd::Clean));
    table.row("  broken", ended(|end| matches!(end, StreamEnd::Aborted(_))));
    table.row("  refused", ended(|end| matches!(end, StreamEnd::Refused(..))));
    table.row("events received", all().map(|transcript| transcript.events.len()).sum::<usize>());
}

impl fmt::Display for ChaosReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, value) in &self.rows {
            writeln!(f, "  {what:<46} {value}")?;
        }
        writeln!(f, "  {:<46} {}", "violations", self.violations.len())?;
        for violation in self.violations.iter().take(SHOWN) {
            writeln!(f, "    {violation}")?;
        }
        if self.violations.len() > SHOWN {
            writeln!(f, "    and {} more", self.violations.len() - SHOWN)?;
        }
        for shortcoming in &self.shortcomings {
            writeln!(f, "  proves too little: {shortcoming}")?;
        }
        match self.is_good() {
            true => write!(f, "  seed {}: every rule holds", self.seed),
            false => write!(f, "  seed {}: FAILED; logs are in {}", self.seed, self.log_dir.display()),
        }
    }
}
