//! The data that is left at the end of a run, and its verification.

use std::{collections::BTreeMap, fmt::Write, path::Path};

use anyhow::Result;
use model::{MessageKey, PartitionCount};
use simulation::checker::Publish;

use crate::{
    options::ChaosSettings,
    verify::{
        self,
        evidence::{Evidence, RuleViolation},
        turns::TurnEvidence,
    },
};
use testkit::{acked_publishes::AckedMessage, db_snapshot, sse::Transcript};

/// The data that is left at the end of a run.
#[derive(Debug)]
pub(super) struct CollectedEvidence {
    pub(super) ack_log: BTreeMap<MessageKey, AckedMessage>,
    pub(super) log: Vec<Publish>,
    /// The messages that belong to no turn.
    pub(super) messages: Vec<db_snapshot::MessageRow>,
    pub(super) commit_times: Vec<db_snapshot::CommitTime>,
    pub(super) turns: TurnEvidence,
    /// The events of turns that clients received, by thread.
    pub(super) views: Vec<(String, Vec<Transcript>)>,
    pub(super) dead_letters: Vec<db_snapshot::DeadLetterRow>,
    pub(super) ends: Vec<db_snapshot::EndRow>,
    pub(super) partitions: Vec<db_snapshot::PartitionRow>,
    pub(super) transcripts: Vec<(String, Vec<Transcript>)>,
}

impl CollectedEvidence {
    pub(super) fn check(&self, settings: &ChaosSettings) -> Result<Vec<RuleViolation>> {
        let mut violations = verify::turns::verify_turns(&self.turns);
        violations.extend(verify::client_transcripts::verify_views(&self.views, &self.turns.messages));
        violations.extend(verify::verify(&Evidence {
            partitions: PartitionCount::new(settings.partitions.into())?,
            ack_log: &self.ack_log,
            log: &self.log,
            messages: &self.messages,
            dead_letters: &self.dead_letters,
            ends: &self.ends,
            transcripts: &self.transcripts,
            gap_timeout: settings.gap_timeout,
            allow_entry_letters: false,
        }));
        Ok(violations)
    }

    /// Writes the events that each client received, connection by connection, to
    /// `clients/<thread>.txt` next to the logs.
    pub(super) fn write_transcripts(&self, log_dir: &Path) -> Result<()> {
        let folder = log_dir.join("clients");
        std::fs::create_dir_all(&folder)?;
        for (thread, transcripts) in self.views.iter().chain(&self.transcripts) {
            let mut text = String::new();
            for transcript in transcripts {
                writeln!(text, "\n{} after {:?}", transcript.gateway, transcript.last_event_id)?;
                for received in &transcript.events {
                    writeln!(text, "  {:?} {:?}: {:?}", received.at, received.id, received.event)?;
                }
                writeln!(text, "  {:?}", transcript.end)?;
            }
            std::fs::write(folder.join(format!("{thread}.txt")), text)?;
        }
        Ok(())
    }
}
