//! The report of a run with pods, as a table.

use std::{
    collections::BTreeMap,
    fmt,
    time::{Duration, Instant},
};

use anyhow::Result;

use super::{
    faults::{FaultOutcome, PodFault, peak_memory},
    fleet::PodFleet,
    pod::{Pod, PodEnd},
    silence::{self, RunPhase, Silences},
};
use crate::{
    evidence::CollectedEvidence, options::ChaosSettings, verify::evidence::RuleViolation, workload::Workload,
};
use testkit::sse::StreamEvent;

/// Maximum number of violations that are printed.
const SHOWN: usize = 20;

/// Findings that are collected during the run.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) violations: Vec<RuleViolation>,
    phases: Vec<RunPhase>,
    rows: Vec<(String, String)>,
    /// Number of intended restarts, by pod.
    restarts: BTreeMap<String, u64>,
}

/// The outcome of a run.
#[derive(Debug)]
pub struct PodsReport {
    /// Lines of the table: name and value.
    pub rows: Vec<(String, String)>,
    pub violations: Vec<RuleViolation>,
}

impl Findings {
    /// Begins the next phase.
    pub(super) fn begin(&mut self, name: impl Into<String>) {
        let name = name.into();
        println!("{name}");
        self.phases.push(RunPhase { name, began: Instant::now() });
    }

    pub(super) fn note_fault(&mut self, fault: PodFault, pod: &Pod, outcome: FaultOutcome) {
        if outcome.restarted {
            *self.restarts.entry(pod.name.clone()).or_default() += 1;
        }
        let is_meant = matches!(fault, PodFault::Kill | PodFault::Memory);
        if outcome.restarted && !is_meant {
            let found = format!("started again while {}", fault.name());
            self.violations.push(RuleViolation::new(
                "a pod lives on when it is slow or cut off",
                &pod.name,
                found,
            ));
        }
        if !outcome.note.is_empty() {
            self.rows.push((format!("{} {}", pod.template.role, fault.name()), outcome.note));
        }
    }

    /// Records containers that ended by themselves, or that a kubelet would have restarted.
    pub(super) async fn note_restarts(&mut self, fleet: &PodFleet) -> Result<()> {
        for pod in fleet.pods() {
            let meant = self.restarts.get(&pod.name).copied().unwrap_or_default();
            let state = pod.state().await?;
            if state.restarts > meant || !state.is_running || pod.deaths() > 0 {
                let found = format!("{state:?}, liveness lost {} times", pod.deaths());
                self.violations.push(RuleViolation::new("a pod never ends by itself", &pod.name, found));
            }
        }
        Ok(())
    }

    /// Checks that each replaced pod ended within its grace period.
    pub(super) fn note_ends(&mut self, ends: &[PodEnd]) {
        let mut longest: BTreeMap<&str, (usize, Duration, Duration)> = BTreeMap::new();
        for PodEnd { name, role, took, grace, exit_code } in ends {
            if *exit_code != 0 {
                let found = format!("code {exit_code} after {took:?} of {grace:?}");
                self.violations.push(RuleViolation::new(
                    "a pod ends in order within its grace period",
                    name,
                    found,
                ));
            }
            let row = longest.entry(role).or_insert((0, Duration::ZERO, *grace));
            (row.0, row.1) = (row.0 + 1, row.1.max(*took));
        }
        for (role, (count, longest, grace)) in longest {
            let value = format!("{count:<4} longest {:.1} s of {} s", longest.as_secs_f64(), grace.as_secs());
            self.rows.push((format!("pods replaced: {role}"), value));
        }
    }

    pub(super) async fn note_memory(&mut self, fleet: &PodFleet) -> Result<()> {
        self.note_restarts(fleet).await?;
        for deployment in &fleet.deployments {
            let mut most = 0;
            for pod in &deployment.pods {
                most = most.max(peak_memory(pod).await?);
            }
            let limit = deployment.pods.first().map_or("none", |pod| pod.template.memory_limit());
            self.rows.push((
                format!("memory at most: {}", deployment.role),
                format!("{} MiB of {limit}", most >> 20),
            ));
        }
        Ok(())
    }
}

impl PodsReport {
    pub(super) fn new(
        chaos: &ChaosSettings,
        under_load: Duration,
        workload: &Workload,
        findings: Findings,
        collected: &CollectedEvidence,
    ) -> Self {
        let awaited = workload.turns.promised.awaited();
        let silences = silence::by_phase(&findings.phases, &awaited, &collected.views);
        let mut rows = vec![(
            "phase".to_owned(),
            format!("longest silence / silences of more than {} s", silence::LIMIT.as_secs()),
        )];
        for (phase, silences) in findings.phases.iter().zip(silences) {
            rows.push((phase.name.clone(), shown(phase, &silences)));
        }
        let rate = awaited.len() as f64 / under_load.as_secs_f64();
        let (turns, tasks) = workload.turns.promised.count();
        let ends = collected.views.iter().flat_map(|(_, transcripts)| transcripts);
        let ends = ends.flat_map(|transcript| &transcript.events);
        let ends = ends.filter(|received| matches!(received.event, StreamEvent::Complete { .. })).count();
        let connections: usize = collected.views.iter().map(|(_, transcripts)| transcripts.len()).sum();
        rows.extend([
            (
                "subscribers".to_owned(),
                format!("{} of {} threads", collected.views.len(), chaos.talks.people),
            ),
            ("connections of them".to_owned(), connections.to_string()),
            ("turns accepted, of them a second".to_owned(), format!("{turns}, {rate:.1}")),
            ("tasks accepted".to_owned(), tasks.to_string()),
            ("ends of turns seen by subscribers".to_owned(), ends.to_string()),
            ("bare messages acknowledged".to_owned(), collected.ack_log.len().to_string()),
        ]);
        rows.extend(findings.rows);
        Self { rows, violations: findings.violations }
    }

    pub fn is_good(&self) -> bool {
        self.violations.is_empty()
    }
}

fn shown(phase: &RunPhase, silences: &Silences) -> String {
    let place = silences.place.as_ref().map(|(thread, began)| {
        format!(" ({thread}, {:.1} s on)", began.saturating_duration_since(phase.began).as_secs_f64())
    });
    let Silences { longest, too_long, .. } = silences;
    format!("{:.2} s / {too_long:<4}{}", longest.as_secs_f64(), place.unwrap_or_default())
}

impl fmt::Display for PodsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, value) in &self.rows {
            writeln!(f, "  {what:<46} {value}")?;
        }
        for violation in self.violations.iter().take(SHOWN) {
            writeln!(f, "    {violation}")?;
        }
        write!(f, "  {:<46} {}", "violations: lost, repeated, torn, restarted", self.violations.len())
    }
}
