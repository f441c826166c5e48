//! The fence of the double: what a write of an owner expects, and a store that goes back in time.

use model::{Mark, PartitionId, Seq, Timestamp};
use partition::{Commit, Incident, IncidentKind, StreamPlace};

use super::{Grant, Store};
use crate::bug::PlantedBug;

/// What the store has acknowledged to an owner of its partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct AcknowledgedState {
    pub(crate) epoch: u64,
    pub(crate) commits: u64,
    pub(crate) saves: u64,
    pub(crate) checkpoint: u64,
    pub(crate) high_water: i64,
}

impl From<&Grant> for AcknowledgedState {
    fn from(grant: &Grant) -> Self {
        let Grant { epoch, commits, saves, checkpoint, high_water, .. } = *grant;
        Self { epoch, commits, saves, checkpoint, high_water }
    }
}

/// A commit, and the state from which it was decided.
#[derive(Debug, Clone)]
pub(crate) struct Decided {
    pub(crate) commit: Commit,
    pub(crate) commits: u64,
    pub(crate) saves: u64,
    pub(crate) incarnation: String,
    pub(crate) read: Option<Mark>,
    pub(crate) gone: Vec<(Seq, Seq)>,
}

impl Store {
    /// True if a commit may be applied: its owner holds the lease, and knows all earlier commits.
    pub(crate) fn expects(&self, owner: u64, decided: &Decided) -> bool {
        let row = &self.rows[usize::from(decided.commit.partition.0)];
        // The last three bugs would be harmless with the counter, which detects them. They show
        // what the counter prevents.
        let is_blind = matches!(
            self.bug,
            Some(
                PlantedBug::EpochAlone
                    | PlantedBug::LookWithoutLock
                    | PlantedBug::FreedBeforeCommit
                    | PlantedBug::UnknownIsApplied
            )
        );
        self.is_held(decided.commit.partition, owner, decided.commit.epoch)
            && (is_blind || row.commits == decided.commits)
            && (self.bug == Some(PlantedBug::SavesUncounted) || row.saves >= decided.saves)
    }

    /// Writes the part of a commit that does not concern messages: the counter, the mark, and the
    /// holes of the stream.
    pub(crate) fn count(&mut self, decided: &Decided) {
        let partition = decided.commit.partition;
        let row = self.row(partition);
        (row.commits, row.read) = (row.commits + 1, decided.read);
        if matches!(self.bug, Some(PlantedBug::HolePassed | PlantedBug::IncidentForgotten)) {
            return;
        }
        for (first, last) in &decided.gone {
            let incarnation = decided.incarnation.clone();
            let kind = IncidentKind::EntriesGone;
            self.note_incident(partition, Incident { kind, incarnation, first: *first, last: Some(*last) });
        }
    }

    /// True if the lease may be renewed.
    pub(crate) fn confirms(&self, partition: PartitionId, owner: u64, known: &AcknowledgedState) -> bool {
        let row = &self.rows[usize::from(partition.0)];
        self.is_held(partition, owner, known.epoch)
            && (self.bug == Some(PlantedBug::RenewalBlind) || row.commits >= known.commits)
            && (self.bug == Some(PlantedBug::SavesUncounted) || row.saves >= known.saves)
    }

    /// Renews the owner's lease under an epoch above `seen_epoch`. Also returns whether the store
    /// knows less than its owner and gateways do.
    pub(crate) fn reclaim(
        &mut self,
        partition: PartitionId,
        owner: u64,
        known: &AcknowledgedState,
        seen_epoch: u64,
        lease_until: i64,
        now_us: i64,
    ) -> Option<(Grant, bool)> {
        let row = self.row(partition);
        let is_ours = row.epoch == known.epoch && row.owner == Some(owner);
        if !is_ours && row.epoch >= known.epoch {
            return None;
        }
        let highest = known.epoch.max(seen_epoch);
        let has_stepped_back = row.epoch < highest || row.commits < known.commits || row.saves < known.saves;
        let (epoch, high_water) = (row.epoch.max(highest), row.high_water.max(known.high_water));
        (row.epoch, row.high_water) = (epoch, high_water);
        let incident = Incident {
            kind: IncidentKind::StoreSteppedBack,
            incarnation: row.incarnation.clone().unwrap_or_default(),
            first: Seq(row.checkpoint + 1),
            last: (seen_epoch <= known.epoch).then_some(Seq(known.checkpoint.max(row.checkpoint))),
        };
        if has_stepped_back {
            self.note_incident(partition, incident);
        }
        Some((self.grant(partition, owner, lease_until, now_us), has_stepped_back))
    }

    /// Moves the checkpoint for a stream that is not the one in the store; `None` if the lease is
    /// gone or the store itself has gone back in time.
    pub(crate) fn rebase(
        &mut self,
        partition: PartitionId,
        owner: u64,
        grant: &Grant,
        place: &StreamPlace,
        incarnation: &str,
    ) -> Option<Grant> {
        if !self.is_held(partition, owner, grant.epoch) || self.row(partition).commits != grant.commits {
            return None;
        }
        for incident in &place.incidents {
            self.note_incident(partition, incident.clone());
        }
        let row = self.row(partition);
        (row.commits, row.checkpoint) = (row.commits + 1, place.checkpoint.0);
        (row.incarnation, row.read) = (Some(incarnation.to_owned()), place.read);
        Some(row.grant())
    }

    fn note_incident(&mut self, partition: PartitionId, incident: Incident) {
        let is_planted = self.bug == Some(PlantedBug::IncidentForgotten);
        if !is_planted && !self.incidents.contains(&(partition, incident.clone())) {
            self.incidents.push((partition, incident));
        }
    }

    /// Restores the state of the copy, except for the simulation's own counters.
    pub(crate) fn step_back(&mut self, to: &Self) {
        let mut back = to.clone();
        back.grants = std::mem::take(&mut self.grants);
        back.violations = std::mem::take(&mut self.violations);
        back.once_erased = std::mem::take(&mut self.once_erased);
        (back.key_conflicts, back.turn_conflicts) = (self.key_conflicts, self.turn_conflicts);
        back.commits = self.commits;
        // The clock does not go back with the store.
        back.timers.ahead_ms = self.timers.ahead_ms;
        for row in &mut back.rows {
            row.locked_by = None;
            row.queue.clear();
        }
        *self = back;
    }
}

impl AcknowledgedState {
    /// The state after a commit was applied.
    pub(crate) fn after(self, commit: &Commit, count: u64) -> Self {
        let Timestamp(high_water) = commit.position_high_water;
        Self { commits: count, checkpoint: commit.checkpoint.0, high_water, ..self }
    }
}
