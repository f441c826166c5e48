//! Retention: selects whole batches to delete.

use std::collections::BTreeMap;

use model::{Position, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Limits on the age and size of a thread; `None` means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetentionRules {
    /// Maximum time since a batch's last message.
    pub max_age_ms: Option<i64>,
    /// Maximum number of batches in a thread.
    pub max_batches: Option<u64>,
    /// Maximum bytes of a thread.
    pub max_bytes: Option<u64>,
}

/// The rule that a batch violates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Limit {
    /// The batch is too old.
    Age,
    /// The batch exceeds the maximum number, counted from the newest.
    Count,
    /// The batch and newer batches exceed the maximum size.
    Bytes,
}

impl Limit {
    /// The code in metrics.
    pub fn code(self) -> &'static str {
        match self {
            Self::Age => "age",
            Self::Count => "count",
            Self::Bytes => "bytes",
        }
    }
}

/// The size and age of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchSize {
    /// Position of the first message.
    pub id: Position,
    /// Position of the last message.
    pub last: Position,
    /// Number of messages.
    pub messages: u64,
    /// Approximate bytes in storage.
    pub bytes: u64,
    /// Time of the newest message.
    pub last_at: Timestamp,
}

/// Evaluates the batches of a thread one by one, newest first. A batch is due as a whole or not at
/// all, even if it is incomplete.
#[derive(Debug)]
pub struct RetentionEvaluator {
    rules: RetentionRules,
    now: Timestamp,
    count: u64,
    bytes: u64,
    is_full: bool,
}

impl RetentionEvaluator {
    /// An evaluator that has seen no batch.
    pub fn new(rules: RetentionRules, now: Timestamp) -> Self {
        Self { rules, now, count: 0, bytes: 0, is_full: false }
    }

    /// The first rule that the batch violates. An active batch is never due but counts towards the
    /// limits.
    pub fn evaluate(&mut self, batch: &BatchSize, is_active: bool) -> Option<Limit> {
        let (rules, bytes) = (&self.rules, self.bytes.saturating_add(batch.bytes));
        let is_old = rules.max_age_ms.is_some_and(|most| self.now.since_ms(batch.last_at) > most);
        let is_beyond = rules.max_batches.is_some_and(|most| self.count >= most);
        // If a batch does not fit, no older one is kept: size limits leave no holes in the history.
        self.is_full |= rules.max_bytes.is_some_and(|most| bytes > most);
        let limit = match (is_old, is_beyond, self.is_full) {
            _ if is_active => None,
            (true, _, _) => Some(Limit::Age),
            (_, true, _) => Some(Limit::Count),
            (_, _, true) => Some(Limit::Bytes),
            (false, false, false) => None,
        };
        if limit.is_none() {
            self.count += 1;
            self.bytes = bytes;
        }
        limit
    }
}

/// A message's position and size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageInfo {
    pub position: Position,
    pub batch: Position,
    /// Size in bytes.
    pub bytes: u64,
    /// Time of writing.
    pub at: Timestamp,
}

/// Assembles batches from the messages of a thread, read newest first. Holds only batches whose
/// first message has not been read yet.
#[derive(Debug, Default)]
pub struct BatchAssembler {
    open: BTreeMap<Position, BatchSize>,
}

impl BatchAssembler {
    /// Adds the next older message. Returns the batches that are complete with it, newest first.
    pub fn push(&mut self, place: MessageInfo) -> Vec<BatchSize> {
        let new =
            BatchSize { id: place.batch, last: place.position, messages: 0, bytes: 0, last_at: place.at };
        let extent = self.open.entry(place.batch).or_insert(new);
        extent.messages += 1;
        extent.bytes = extent.bytes.saturating_add(place.bytes);
        extent.last_at = extent.last_at.max(place.at);
        // The id of a batch is the position of its first message, so older messages do not belong
        // to it.
        self.open.split_off(&place.position).into_values().rev().collect()
    }

    /// Ends the input and returns the remaining batches, newest first.
    pub fn finish(self) -> Vec<BatchSize> {
        self.open.into_values().rev().collect()
    }
}

/// Parses the retention rules of an agent's settings.
///
/// # Errors
/// The rules do not match [`RetentionRules`], or `max_age_ms` is not positive.
pub fn rules(value: &Value) -> Result<RetentionRules, String> {
    let rules: RetentionRules =
        serde_json::from_value(value.clone()).map_err(|error| format!("retention: {error}"))?;
    match rules.max_age_ms {
        Some(..=0) => Err("retention: max_age_ms must be above 0".to_owned()),
        _ => Ok(rules),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::testing::position;

    /// Batches 10 to 50 of 1,000 bytes each, which end at seconds 11 to 51; newest first.
    fn extents() -> Vec<BatchSize> {
        let extent = |id: i64| BatchSize {
            id: position(id),
            last: position(id + 1),
            messages: 2,
            bytes: 1_000,
            last_at: Timestamp((id + 1) * 1_000),
        };
        (1..=5).rev().map(|number| extent(number * 10)).collect()
    }

    fn due(
        batches: &[BatchSize],
        rules: RetentionRules,
        active: &[i64],
        now: i64,
    ) -> Vec<(i64, &'static str)> {
        let mut evaluator = RetentionEvaluator::new(rules, Timestamp(now));
        let mut due: Vec<_> = batches
            .iter()
            .filter_map(|batch| {
                Some((batch.id.get(), evaluator.evaluate(batch, active.contains(&batch.id.get()))?.code()))
            })
            .collect();
        due.reverse();
        due
    }

    fn codes(rules: RetentionRules, active: &[i64], now: i64) -> Vec<(i64, &'static str)> {
        due(&extents(), rules, active, now)
    }

    #[test]
    fn without_rules_everything_stays() {
        assert_eq!(codes(RetentionRules::default(), &[], i64::MAX), []);
    }

    #[test]
    fn the_oldest_go_first_by_each_rule() {
        let age = RetentionRules { max_age_ms: Some(20_000), ..RetentionRules::default() };
        assert_eq!(codes(age, &[], 41_000), [(10, "age")]);
        assert_eq!(codes(age, &[], 41_001), [(10, "age"), (20, "age")]);
        let count = RetentionRules { max_batches: Some(3), ..RetentionRules::default() };
        assert_eq!(codes(count, &[], 0), [(10, "count"), (20, "count")]);
        let bytes = RetentionRules { max_bytes: Some(4_999), ..RetentionRules::default() };
        assert_eq!(codes(bytes, &[], 0), [(10, "bytes")]);
        let all = RetentionRules { max_age_ms: Some(20_000), max_batches: Some(2), max_bytes: Some(1_000) };
        assert_eq!(codes(all, &[], 41_000), [(10, "age"), (20, "bytes"), (30, "bytes"), (40, "bytes")]);
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
        let mut batches = extents();
        batches[1].bytes = 9_000;
        let rules = RetentionRules { max_bytes: Some(5_000), ..RetentionRules::default() };
        let due = due(&batches, rules, &[], 0);
        assert_eq!(due.iter().map(|(batch, _)| *batch).collect::<Vec<_>>(), [10, 20, 30, 40]);
    }

    #[test]
    fn batches_are_gathered_whole_however_they_are_mixed() {
        // Batch 10 continues after 20 has begun, and the first messages of batch 5 are missing.
        let places = [(23, 20), (22, 10), (21, 20), (20, 20), (11, 10), (10, 10), (7, 5)];
        let (mut assembler, mut said) = (BatchAssembler::default(), Vec::new());
        for (at, batch) in places {
            let place = MessageInfo {
                position: position(at),
                batch: position(batch),
                bytes: 100,
                at: Timestamp(at * 1_000),
            };
            let whole = assembler.push(place);
            said.push(whole.iter().map(|extent| (extent.id.get(), extent.messages)).collect::<Vec<_>>());
        }
        assert_eq!(said, [vec![], vec![], vec![], vec![(20, 3)], vec![], vec![(10, 3)], vec![]]);
        let [rest] = assembler.finish()[..] else { panic!() };
        assert_eq!((rest.id, rest.last, rest.bytes), (position(5), position(7), 100));
    }

    #[test]
    fn rules_are_settings() {
        let said = RetentionRules { max_batches: Some(3), ..RetentionRules::default() };
        assert_eq!(rules(&json!({"max_batches": 3})), Ok(said));
        assert!(rules(&json!({"max_batch": 3})).unwrap_err().contains("unknown field `max_batch`"));
        assert!(rules(&json!({"max_age_ms": 0})).unwrap_err().contains("above 0"));
        assert!(rules(&json!(5)).is_err());
    }
}
