//! What a request could compress: the ranges, counts and numbers that a refusal names. Each of them would be accepted.

use crate::thread::Pairs;
use crate::{MAX_SUMMARY_NUMBER, ReasoningRole, Runs, Selection, ShownMessage, ShownThread, Valid};

/// Most ranges that a refusal names: the last ones, which an agent compresses as a rule.
const MAX_RANGES: usize = 16;

/// Indices from 0, the first and the last.
type IndexRange = (usize, usize);

impl ShownThread {
    /// What a request of this kind could have named. A single message counts where it is longer than `summary_chars`.
    pub fn valid(&self, selection: &Selection, summary_chars: u64) -> Valid {
        let pairs = self.pairs();
        let ranges = self.compressible(&pairs, summary_chars);
        let entries = |(first, last): &IndexRange| &self.entries[*first..=*last];
        let last_ranges = &ranges[ranges.len().saturating_sub(MAX_RANGES)..];
        match selection {
            Selection::Range(..) => {
                let positions = |(first, last): &IndexRange| (*first as u64 + 1, *last as u64 + 1);
                Valid::Ranges(last_ranges.iter().map(positions).collect())
            }
            Selection::Numbers(_) => {
                let runs = |range| Runs::of(entries(range).iter().map(|entry| entry.number));
                Valid::Numbers(last_ranges.iter().map(runs).collect())
            }
            Selection::Last(_) => Valid::Count(self.valid_count(&pairs, &ranges, summary_chars)),
        }
    }

    /// The longest ranges that could be compressed, in order.
    fn compressible(&self, pairs: &Pairs, summary_chars: u64) -> Vec<IndexRange> {
        if self.last_number >= MAX_SUMMARY_NUMBER {
            return Vec::new();
        }
        let settled = self.settled(pairs);
        let needs_summary = self.is_full_of_summaries();
        let is_compressible = |(first, last): &IndexRange| {
            let chosen = &self.entries[*first..=*last];
            let is_longer = first < last || u64::from(chosen[0].chars) > summary_chars;
            is_longer && (!needs_summary || chosen.iter().any(is_summary))
        };
        let blocked = blocked(pairs, settled);
        let mut ranges = Vec::new();
        let mut first = 0;
        for end in blocked.into_iter().chain([settled]) {
            ranges.extend((first < end).then(|| (first, end - 1)));
            first = end + 1;
        }
        ranges.retain(is_compressible);
        ranges
    }

    fn valid_count(&self, pairs: &Pairs, ranges: &[IndexRange], summary_chars: u64) -> Option<(u64, u64)> {
        let (first, end) = self.temp(pairs);
        let (from, _) = ranges.last().filter(|(_, last)| last + 1 == end)?;
        let most = end - first.max(*from);
        let last = &self.entries[end - 1];
        let is_enough = u64::from(last.chars) > summary_chars || !pairs.partners(end - 1).is_empty();
        let mut least = if is_enough { 1 } else { 2 };
        if self.is_full_of_summaries() {
            least = least.max(end - self.entries[..end].iter().rposition(is_summary)?);
        }
        (least <= most).then_some((least as u64, most as u64))
    }
}

fn is_summary(entry: &ShownMessage) -> bool {
    entry.role == ReasoningRole::Summary
}

/// The entries below `settled` that are in no range that could be compressed, in order: calls without a result, and what belongs to a call
/// or a result on the other side of such an entry.
fn blocked(pairs: &Pairs, settled: usize) -> Vec<usize> {
    let mut is_blocked = vec![false; settled];
    let mut open = pairs.open().iter().filter(|index| **index < settled).peekable();
    if open.peek().is_none() {
        return Vec::new();
    }
    open.for_each(|index| is_blocked[*index] = true);
    loop {
        // Per index, how many blocked ones are before it.
        let before: Vec<usize> = std::iter::once(0)
            .chain(is_blocked.iter().scan(0, |count, blocked| {
                *count += usize::from(*blocked);
                Some(*count)
            }))
            .collect();
        let mut has_changed = false;
        for (call, result) in pairs.pairs().filter(|(_, result)| *result < settled) {
            let is_over_blocked = before[result + 1] > before[call];
            if is_over_blocked && !(is_blocked[call] && is_blocked[result]) {
                (is_blocked[call], is_blocked[result], has_changed) = (true, true, true);
            }
        }
        if !has_changed {
            return (0..settled).filter(|index| is_blocked[*index]).collect();
        }
    }
}
