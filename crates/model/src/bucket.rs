//! Maps keys to buckets and partitions.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Number of buckets in every key space; it can never change, because stored rows contain the
/// bucket.
pub const BUCKETS: u16 = 1024;

/// FNV-1a 32 of the key mod [`BUCKETS`]: first column of every primary key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Bucket(u16);

impl Bucket {
    /// Bucket of any key (<http://www.isthe.com/chongo/tech/comp/fnv/>; same hash as NATS's
    /// `partition()`).
    pub fn of_key(key: &str) -> Self {
        let hash = key
            .bytes()
            .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
        Self((hash % u32::from(BUCKETS)) as u16)
    }

    /// Bucket number mod [`BUCKETS`].
    pub fn from_number(number: u16) -> Self {
        Self(number % BUCKETS)
    }

    /// Bucket number, 0 to 1,023.
    pub fn get(self) -> u16 {
        self.0
    }

    /// Partition of this bucket in a fleet of `count` partitions.
    pub fn partition(self, count: PartitionCount) -> PartitionId {
        PartitionId(self.0 % count.0)
    }
}

/// Number of partitions of a fleet: a power of two from 1 to 1,024, so that bucket mod N equals
/// hash mod N.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PartitionCount(u16);

/// A partition count that is not a power of two from 1 to 1,024.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the number of partitions is {0}; it must be a power of two from 1 to {BUCKETS}")]
pub struct InvalidPartitionCount(pub u64);

impl PartitionCount {
    /// Checks that `count` is a power of two from 1 to 1,024.
    pub fn new(count: u64) -> Result<Self, InvalidPartitionCount> {
        match u16::try_from(count) {
            Ok(n) if n.is_power_of_two() && n <= BUCKETS => Ok(Self(n)),
            _ => Err(InvalidPartitionCount(count)),
        }
    }

    pub fn get(self) -> u16 {
        self.0
    }

    /// All partitions in order.
    pub fn all(self) -> impl Iterator<Item = PartitionId> + Clone {
        (0..self.0).map(PartitionId)
    }
}

/// Number of a partition: one stream, one lease, one state machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PartitionId(pub u16);

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_fnv1a_32() {
        // Published test vectors of FNV-1a 32: "" 811c9dc5, "a" e40c292c, "foobar" bf9cf968.
        assert_eq!(Bucket::of_key("").get(), (0x811c_9dc5_u32 % 1024) as u16);
        assert_eq!(Bucket::of_key("a").get(), (0xe40c_292c_u32 % 1024) as u16);
        assert_eq!(Bucket::of_key("foobar").get(), (0xbf9c_f968_u32 % 1024) as u16);
    }

    #[test]
    fn partition_counts_are_powers_of_two() {
        for good in [1, 2, 8, 1024] {
            assert!(PartitionCount::new(good).is_ok());
        }
        for bad in [0, 3, 6, 2048, u64::MAX] {
            assert_eq!(PartitionCount::new(bad), Err(InvalidPartitionCount(bad)));
        }
    }
}
