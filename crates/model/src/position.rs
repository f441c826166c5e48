//! Snowflake positions: 41 bits of milliseconds, 10 bits of bucket, 12 bits of sequence.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{BUCKETS, Bucket, Timestamp};

/// 2024-01-01T00:00:00Z: 41 bits of milliseconds from here last until 2093.
const EPOCH_MS: i64 = 1_704_067_200_000;
const SEQUENCE_BITS: u32 = 12;
const BUCKET_BITS: u32 = 10;
const SEQUENCES_PER_MS: u16 = 1 << SEQUENCE_BITS;

/// Position of a message: unique across the fleet, increasing within a thread.
///
/// Layout from the high bit: 0, 41 bits ms since 2024-01-01, 10 bits bucket, 12 bits sequence. In
/// JSON it is a string, because it does not fit a double. A bucket has one owner at a time, so no
/// machine id is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position(i64);

impl Position {
    /// Above every position that is ever assigned.
    pub const MAX: Self = Self(i64::MAX);

    pub fn get(self) -> i64 {
        self.0
    }

    pub fn from_stored(value: i64) -> Self {
        Self(value)
    }

    /// Time of its assignment.
    pub fn timestamp(self) -> Timestamp {
        Timestamp((self.0 >> (BUCKET_BITS + SEQUENCE_BITS)) + EPOCH_MS)
    }

    /// The bucket of its thread.
    pub fn bucket(self) -> Bucket {
        Bucket::from_number(((self.0 >> SEQUENCE_BITS) & i64::from(BUCKETS - 1)) as u16)
    }

    /// Lowest position of the same bucket at the time that is `time` before this position.
    #[must_use]
    pub fn before(self, time: Duration) -> Self {
        let ms = i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        Self::compose(Timestamp(self.timestamp().0.saturating_sub(ms)), self.bucket(), 0)
    }

    fn compose(at: Timestamp, bucket: Bucket, sequence: u16) -> Self {
        let ms = (at.0 - EPOCH_MS).max(0);
        Self(
            (ms << (BUCKET_BITS + SEQUENCE_BITS))
                | (i64::from(bucket.get()) << SEQUENCE_BITS)
                | i64::from(sequence),
        )
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Serialize for Position {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Position {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map(Self).map_err(serde::de::Error::custom)
    }
}

/// A point in the sequence of positions of one partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PositionMark {
    at: Timestamp,
    sequence: u16,
}

impl PositionMark {
    /// Highest position of `bucket` that may have been assigned up to this mark; every later
    /// position is above it.
    pub fn of(self, bucket: Bucket) -> Position {
        Position::compose(self.at, bucket, self.sequence)
    }
}

/// Assigns positions for the buckets of one partition.
///
/// Positions increase even if the clock goes back. No position uses a millisecond below the last
/// one, and the next owner starts above [`Positions::high_water`], which every commit stores. When
/// the 4,096 sequences of a millisecond are used up, the next millisecond is used.
#[derive(Debug, Clone)]
pub struct Positions {
    last_ms: Timestamp,
    next_sequence: u16,
    ahead_ms: i64,
}

impl Positions {
    /// Continues strictly above a stored high water (0 for a new partition).
    pub fn above(high_water: Timestamp) -> Self {
        Self { last_ms: high_water, next_sequence: SEQUENCES_PER_MS, ahead_ms: 0 }
    }

    /// Uses another clock than the `now` of [`Positions::next`]: it shows `now` when the caller's
    /// clock shows `own_now`.
    #[must_use]
    pub fn by_clock(self, now: Timestamp, own_now: Timestamp) -> Self {
        Self { ahead_ms: now.0.saturating_sub(own_now.0), ..self }
    }

    pub fn next(&mut self, bucket: Bucket, now: Timestamp) -> Position {
        let now = now.plus_ms(self.ahead_ms);
        if now > self.last_ms {
            (self.last_ms, self.next_sequence) = (now, 0);
        } else if self.next_sequence == SEQUENCES_PER_MS {
            (self.last_ms, self.next_sequence) = (self.last_ms.plus_ms(1), 0);
        }
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        Position::compose(self.last_ms, bucket, sequence)
    }

    /// Highest mark assigned so far, in every bucket.
    pub fn given(&self) -> PositionMark {
        PositionMark { at: self.last_ms, sequence: self.next_sequence.saturating_sub(1) }
    }

    /// Highest millisecond used so far.
    pub fn high_water(&self) -> Timestamp {
        self.last_ms
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const NOW: Timestamp = Timestamp(1_800_000_000_000);

    #[test]
    fn positions_beyond_one_millisecond_are_unique_and_increase() {
        let mut positions = Positions::above(Timestamp(0));
        let given: Vec<_> = (0..4_097).map(|_| positions.next(Bucket::of_key("t"), NOW)).collect();
        assert!(given.is_sorted_by(|a, b| a < b));
        assert_eq!(given[4_095].timestamp(), NOW);
        assert_eq!(given[4_096].timestamp(), NOW.plus_ms(1));
        assert!(given.iter().all(|position| position.bucket() == Bucket::of_key("t")));
    }

    #[test]
    fn another_clock_gives_the_milliseconds() {
        let mut positions = Positions::above(Timestamp(0)).by_clock(NOW, NOW.plus_ms(5_000));
        assert_eq!(positions.next(Bucket::of_key("t"), NOW.plus_ms(5_007)).timestamp(), NOW.plus_ms(7));
    }

    #[test]
    fn a_clock_that_goes_back_and_a_new_owner_still_increase() {
        let bucket = Bucket::of_key("t");
        let mut first = Positions::above(Timestamp(0));
        let before = first.next(bucket, NOW);
        let after_step_back = first.next(bucket, NOW.plus_ms(-3_600_000));
        let mut second = Positions::above(first.high_water());
        let by_new_owner = second.next(bucket, NOW.plus_ms(-7_200_000));
        assert!(before < after_step_back && after_step_back < by_new_owner);
    }

    #[test]
    fn position_mark_splits_given_from_future_in_every_bucket() {
        let (a, b) = (Bucket::of_key("a"), Bucket::of_key("b"));
        let mut positions = Positions::above(NOW);
        let begin = positions.given();
        let first: Vec<_> = (0..5_000).map(|_| positions.next(a, NOW)).collect();
        assert!(first.iter().all(|position| *position > begin.of(a)));
        let mark = positions.given();
        assert_eq!(mark.of(a), first[4_999]);
        assert!(positions.next(b, NOW) > mark.of(b) && positions.next(a, NOW) > mark.of(a));
        assert!(Positions::above(positions.high_water()).given().of(a) > first[4_999]);
    }

    #[test]
    fn buckets_do_not_collide() {
        let all: BTreeSet<_> = ["a", "b", "c"]
            .iter()
            .flat_map(|key| {
                let mut positions = Positions::above(Timestamp(0));
                (0..3).map(move |_| positions.next(Bucket::of_key(key), NOW)).collect::<Vec<_>>()
            })
            .collect();
        assert_eq!(all.len(), 9);
    }

    #[test]
    fn json_is_a_string() {
        let position = Position::from_stored(2_124_241_668_164_038_656);
        assert_eq!(serde_json::to_string(&position).unwrap(), "\"2124241668164038656\"");
    }
}
