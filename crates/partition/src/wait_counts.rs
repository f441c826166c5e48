//! Counts of waiting turns or agents by reason.

use model::WaitReason;

/// Counts by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WaitCounts([usize; WaitReason::ALL.len()]);

impl WaitCounts {
    /// Count for this reason, ignoring its time.
    pub fn of(&self, reason: WaitReason) -> usize {
        self.0[Self::index(reason)]
    }

    pub fn total(&self) -> usize {
        self.0.iter().sum()
    }

    fn index(reason: WaitReason) -> usize {
        let is_same = |other: &WaitReason| other.name() == reason.name();
        WaitReason::ALL.iter().position(is_same).unwrap_or(0)
    }
}

impl FromIterator<WaitReason> for WaitCounts {
    fn from_iter<I: IntoIterator<Item = WaitReason>>(reasons: I) -> Self {
        reasons.into_iter().fold(Self::default(), |mut counts, reason| {
            counts.0[Self::index(reason)] += 1;
            counts
        })
    }
}
