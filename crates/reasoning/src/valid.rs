//! The ranges, counts and numbers that a refusal offers. Each of them would be accepted.

use crate::thread::Pairs;
use crate::{MAX_SUMMARY_NUMBER, ReasoningRole, Runs, Selection, ShownMessage, ShownThread, Valid};

/// Maximum number of ranges in a refusal. The last ranges are offered, because agents usually
/// compress these.
const MAX_RANGES: usize = 16;

/// First and last index, from 0.
type IndexRange = (usize, usize);

impl ShownThread {
    /// The values that a request of this kind could have. A single message is offered if it is
    /// longer than `summary_chars`.
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

    /// The longest compressible ranges, in order.
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

/// The entries below `settled` that no compressible range contains, in order. These are calls
/// without a result, and pairs of call and result that enclose such an entry.
fn blocked(pairs: &Pairs, settled: usize) -> Vec<usize> {
    let mut next: Vec<usize> = pairs.open().iter().copied().filter(|index| *index < settled).collect();
    if next.is_empty() {
        return Vec::new();
    }
    let mut is_blocked = vec![false; settled];
    let mut spans = Spans::new(settled, pairs.pairs().filter(|(_, result)| *result < settled));
    while let Some(index) = next.pop() {
        if std::mem::replace(&mut is_blocked[index], true) {
            continue;
        }
        while let Some((call, result)) = spans.take_over(index) {
            next.extend([call, result]);
        }
    }
    (0..settled).filter(|index| is_blocked[*index]).collect()
}

/// Calls with their results, to find a pair that encloses an entry. It is a tree over the calls;
/// each node has the last result below it.
struct Spans {
    /// The results of each call; the last one is at the end.
    results: Vec<Vec<usize>>,
    /// The leaves are the second half. A result is stored as its index plus 1; 0 means none.
    last: Vec<usize>,
}

impl Spans {
    fn new(len: usize, pairs: impl Iterator<Item = (usize, usize)>) -> Self {
        let mut results = vec![Vec::new(); len];
        pairs.for_each(|(call, result)| results[call].push(result));
        results.iter_mut().for_each(|results| results.sort_unstable());
        let mut spans = Self { results, last: vec![0; 2 * len.next_power_of_two()] };
        (0..len).for_each(|call| spans.update(call));
        spans
    }

    fn update(&mut self, call: usize) {
        let mut node = self.last.len() / 2 + call;
        self.last[node] = self.results[call].last().map_or(0, |result| result + 1);
        while node > 1 {
            node /= 2;
            self.last[node] = self.last[2 * node].max(self.last[2 * node + 1]);
        }
    }

    /// Removes and returns a call at or before the entry whose result is at or after the entry.
    fn take_over(&mut self, index: usize) -> Option<(usize, usize)> {
        let call = self.find(1, 0, self.last.len() / 2, index)?;
        let result = self.results[call].pop()?;
        self.update(call);
        Some((call, result))
    }

    /// The first call at or before `index` with a result at or after it, below a node that covers
    /// `width` calls from `first` on.
    fn find(&self, node: usize, first: usize, width: usize, index: usize) -> Option<usize> {
        if first > index || self.last[node] <= index {
            return None;
        }
        if width == 1 {
            return Some(first);
        }
        let half = width / 2;
        self.find(2 * node, first, half, index).or_else(|| self.find(2 * node + 1, first + half, half, index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(pairs: &[(usize, usize)], open: &[usize]) -> Pairs {
        let mut made = Pairs::default();
        for (call, result) in pairs {
            made.partners.entry(*call).or_default().push(*result);
            made.partners.entry(*result).or_default().push(*call);
        }
        made.open = open.to_vec();
        made
    }

    #[test]
    fn what_reaches_over_a_blocked_entry_is_blocked() {
        assert_eq!(blocked(&pairs(&[(0, 5), (2, 3)], &[4]), 6), [0, 4, 5], "what is within the call is free");
        assert_eq!(
            blocked(&pairs(&[(0, 2), (0, 5)], &[4]), 6),
            [0, 2, 4, 5],
            "of one message with two calls"
        );
        assert_eq!(blocked(&pairs(&[(0, 2), (3, 7)], &[1]), 6), [0, 1, 2]);
        assert!(blocked(&pairs(&[(0, 2)], &[]), 3).is_empty());
    }

    /// Each call encloses the result of the previous one. A full walk for each step would take
    /// hours.
    #[test]
    fn a_long_chain_is_walked_once() {
        let count = 50_000;
        let chain: Vec<(usize, usize)> = (0..count).map(|at| (2 * at, 2 * at + 3)).collect();
        let found = blocked(&pairs(&chain, &[1]), 2 * count + 2);
        // All entries are blocked except one, the place of the next call.
        assert_eq!(found.len(), 2 * count + 1);
    }
}
