//! Whether the account of NATS maps plain subjects to the new number of partitions.

use bus::Bus;
use model::{BUCKETS, Bucket, PartitionCount};

use crate::exit::ExitError;

/// To be asked while the streams are closed. Publishers that use plain subjects would write into wrong partitions else.
///
/// # Errors
/// The account maps to another number.
pub(super) async fn check(bus: &Bus, count: PartitionCount) -> Result<(), ExitError> {
    let key = key_of_last_bucket();
    for kind in ["chunks", "tasks"] {
        match bus.mapped_partition(kind, &key).await {
            Ok(None) => {}
            // The last bucket is in the last partition.
            Ok(Some(last)) if last.0 + 1 == count.get() => {}
            Ok(Some(last)) => {
                return Err(ExitError::Failed(format!(
                    "the NATS account maps `{kind}.*` to {} partitions: put {} into both `mappings`, reload the servers, and run this again",
                    last.0 + 1,
                    count.get()
                )));
            }
            Err(error) => {
                tracing::warn!(kind, %error, "the mapping of the NATS account could not be checked")
            }
        }
    }
    Ok(())
}

fn key_of_last_bucket() -> String {
    let mut keys = (0_u32..).map(|number| format!("mapping-check-{number}"));
    keys.find(|key| Bucket::of_key(key).get() == BUCKETS - 1).unwrap_or_default()
}
