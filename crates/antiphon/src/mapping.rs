//! Checks that the NATS account maps plain subjects to the number of partitions of the database.

use std::fmt;

use bus::{Bus, BusError};
use model::{BUCKETS, Bucket, PartitionCount};
use wire::subject::SubjectClass;

/// The account maps the subjects of a kind to another number of partitions, so messages to plain
/// subjects go to wrong partitions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WrongMapping {
    pub(crate) kind: SubjectClass,
    pub(crate) mapped: u16,
    pub(crate) wanted: u16,
}

impl fmt::Display for WrongMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, mapped, wanted } = self;
        write!(
            f,
            "the NATS account maps `{kind}.*` to {mapped} partitions: put {wanted} into all `mappings`, and reload the servers"
        )
    }
}

/// Checks the mappings without storing anything. An account without mappings is valid too: its
/// publishers compute the partition.
///
/// # Errors
/// The user is not allowed to publish or subscribe to these subjects, or the servers do not answer.
pub(crate) async fn check(bus: &Bus, count: PartitionCount) -> Result<Option<WrongMapping>, BusError> {
    let key = key_of_last_bucket();
    for kind in SubjectClass::ALL {
        let Some(last) = bus.mapped_partition(kind.name(), &key).await? else { continue };
        // The last bucket is in the last partition.
        let mapped = last.0 + 1;
        if mapped != count.get() {
            return Ok(Some(WrongMapping { kind, mapped, wanted: count.get() }));
        }
    }
    Ok(None)
}

fn key_of_last_bucket() -> String {
    let mut keys = (0_u32..).map(|number| format!("mapping-check-{number}"));
    keys.find(|key| Bucket::of_key(key).get() == BUCKETS - 1).unwrap_or_default()
}
