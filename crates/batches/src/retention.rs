//! Retention: which batches are due to be deleted, whole.

use model::{Position, Timestamp};
use serde::{Deserialize, Serialize};

use crate::Header;

/// How long and how much of a thread is kept. What is absent is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetentionRules {
    /// Since a batch's last message.
    pub max_age_ms: Option<i64>,
    /// Batches of a thread.
    pub max_batches: Option<u64>,
    /// Bytes of a thread.
    pub max_bytes: Option<u64>,
}

impl RetentionRules {
    /// Whether they keep everything.
    pub fn keep_everything(&self) -> bool {
        *self == Self::default()
    }
}

/// Which rule a batch breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Limit {
    /// It is too old.
    Age,
    /// There are too many newer ones.
    Count,
    /// The newer ones take too much.
    Bytes,
}

impl Limit {
    /// For machines.
    pub fn code(self) -> &'static str {
        match self {
            Self::Age => "age",
            Self::Count => "count",
            Self::Bytes => "bytes",
        }
    }
}

/// The batches that are due, oldest first, each with the first rule that it breaks. The active ones are never due, but they count.
/// A batch is due as a whole or not at all, complete or not.
pub fn due(
    batches: &[Header],
    rules: &RetentionRules,
    active: &[Position],
    now: Timestamp,
) -> Vec<(Position, Limit)> {
    let mut newest_first: Vec<&Header> = batches.iter().collect();
    newest_first.sort_by_key(|batch| std::cmp::Reverse(batch.id));
    newest_first.dedup_by_key(|batch| batch.id);
    let (mut count, mut bytes, mut is_full) = (0, 0_u64, false);
    let mut due = Vec::new();
    for batch in newest_first {
        let is_active = active.contains(&batch.id);
        let is_old = rules.max_age_ms.is_some_and(|most| now.since_ms(batch.last_at) > most);
        let is_beyond = rules.max_batches.is_some_and(|most| count >= most);
        // What is older than a batch without room has none: what is kept has no holes for its size.
        is_full |= rules.max_bytes.is_some_and(|most| bytes.saturating_add(batch.bytes) > most);
        let limit = match (is_old, is_beyond, is_full) {
            _ if is_active => None,
            (true, _, _) => Some(Limit::Age),
            (_, true, _) => Some(Limit::Count),
            (_, _, true) => Some(Limit::Bytes),
            (false, false, false) => None,
        };
        match limit {
            Some(limit) => due.push((batch.id, limit)),
            None => {
                count += 1;
                bytes = bytes.saturating_add(batch.bytes);
            }
        }
    }
    due.reverse();
    due
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::{items, position};
    use crate::{Estimate, group};

    /// Batches 10 to 50 of 1,000 bytes each; batch 10 ends at second 11.
    fn headers() -> Vec<Header> {
        let batches = group(items("1.0u 1.1a 2.0u 2.1a 3.0u 3.1A:c 4.0u 4.1a 5.0u 5.1a"));
        let header = |batch| Header { bytes: 1_000, ..Header::of(batch, &Estimate) };
        batches.iter().map(header).collect()
    }

    fn codes(rules: RetentionRules, active: &[i64], now: i64) -> Vec<(i64, &'static str)> {
        let active: Vec<Position> = active.iter().copied().map(position).collect();
        let due = due(&headers(), &rules, &active, Timestamp(now));
        due.into_iter().map(|(batch, limit)| (batch.get(), limit.code())).collect()
    }

    #[test]
    fn without_rules_everything_stays() {
        assert!(RetentionRules::default().keep_everything());
        assert_eq!(codes(RetentionRules::default(), &[], i64::MAX), []);
    }

    #[test]
    fn the_oldest_go_first_by_each_rule() {
        let age = RetentionRules { max_age_ms: Some(10_000), ..RetentionRules::default() };
        assert_eq!(codes(age, &[], 31_000), [(10, "age")]);
        assert_eq!(codes(age, &[], 31_001), [(10, "age"), (20, "age")]);
        let count = RetentionRules { max_batches: Some(3), ..RetentionRules::default() };
        assert_eq!(codes(count, &[], 0), [(10, "count"), (20, "count")]);
        let bytes = RetentionRules { max_bytes: Some(4_999), ..RetentionRules::default() };
        assert_eq!(codes(bytes, &[], 0), [(10, "bytes")]);
        let all = RetentionRules { max_age_ms: Some(10_000), max_batches: Some(2), max_bytes: Some(1_000) };
        assert_eq!(codes(all, &[], 31_000), [(10, "age"), (20, "bytes"), (30, "bytes"), (40, "bytes")]);
    }

    #[test]
    fn an_active_batch_is_never_due_but_counts() {
        let count = RetentionRules { max_batches: Some(2), ..RetentionRules::default() };
        assert_eq!(codes(count, &[10], 0), [(20, "count"), (30, "count")]);
        assert_eq!(codes(count, &[50], 0), [(10, "count"), (20, "count"), (30, "count")]);
        let none = RetentionRules { max_batches: Some(0), ..RetentionRules::default() };
        assert_eq!(codes(none, &[50], 0).len(), 4);
    }

    #[test]
    fn a_batch_larger_than_the_limit_goes_with_what_is_older() {
        let mut batches = headers();
        batches[3].bytes = 9_000;
        let rules = RetentionRules { max_bytes: Some(5_000), ..RetentionRules::default() };
        let due = due(&batches, &rules, &[], Timestamp(0));
        assert_eq!(due.iter().map(|(batch, _)| batch.get()).collect::<Vec<_>>(), [10, 20, 30, 40]);
    }

    #[test]
    fn rules_are_settings() {
        let rules: RetentionRules = serde_json::from_value(json!({"max_batches": 3})).unwrap();
        assert_eq!(rules, RetentionRules { max_batches: Some(3), ..RetentionRules::default() });
        assert!(serde_json::from_value::<RetentionRules>(json!({"max_batch": 3})).is_err());
    }
}
