//! Turn requests that wait or are in progress: each names the subject of its answer, which contains
//! the partition.

use std::collections::HashSet;
use std::time::Duration;

use bus::{Bus, StoredEntry};
use bytes::Bytes;
use model::{PartitionCount, Seq};
use serde_json::Value;
use wire::subject;

use crate::exit::ExitError;

/// Added to the attempt of a readdressed request. Deliveries of the old request, and requests of a
/// new owner, have lower attempts, so answers to them are fenced.
const LATER_ATTEMPT: u64 = 32;
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(10);

/// Stores each request whose answer would go to another partition again with the right subject, and
/// deletes the old one. Returns the number of these requests.
///
/// # Errors
/// The servers do not answer, or refuse.
pub(super) async fn readdress(bus: &Bus, count: PartitionCount) -> Result<u64, ExitError> {
    // An earlier run may have stored a request again and have ended before it deleted the old one.
    let mut there = HashSet::new();
    let mut from = Seq(1);
    while let Some((entry, request)) = next(bus, &mut from).await? {
        if request.is_some_and(|request| readdressed(count, &request).is_none()) {
            there.insert(run_of(&entry));
        }
    }
    let (mut from, mut readdressed_count) = (Seq(1), 0);
    while let Some((entry, request)) = next(bus, &mut from).await? {
        let Some(request) = request.and_then(|request| readdressed(count, &request)) else { continue };
        if !there.contains(&run_of(&entry)) {
            publish(bus, &entry.subject, &request).await?;
        }
        bus.delete_work(entry.seq).await?;
        readdressed_count += 1;
    }
    Ok(readdressed_count)
}

/// Publishes under the id that a new owner would use, so that the owner's repeated request is
/// dropped as a duplicate. After a quick change back, the id is still taken by an earlier request
/// that no longer exists. In that case the request is published without an id.
async fn publish(bus: &Bus, subject: &str, request: &Value) -> Result<(), ExitError> {
    let payload = Bytes::from(request.to_string());
    let json = Some(wire::CONTENT_TYPE_JSON);
    let run = request["run"].as_u64().and_then(|run| u32::try_from(run).ok()).unwrap_or_default();
    let text = |key: &str| request[key].as_str().unwrap_or_default();
    let id = subject::work_id(text("turn_id"), run, text("subject"));
    let ack = bus.publish_with_id(subject, payload.clone(), json, &id, PUBLISH_TIMEOUT).await?;
    if ack.is_duplicate {
        bus.publish_acked(subject, payload, json, PUBLISH_TIMEOUT).await?;
    }
    Ok(())
}

async fn next(bus: &Bus, from: &mut Seq) -> Result<Option<(StoredEntry, Option<Value>)>, ExitError> {
    let Some(entry) = bus.next_entry(subject::WORK_STREAM, subject::ALL_WORK, *from).await? else {
        return Ok(None);
    };
    *from = entry.seq.next();
    let request = serde_json::from_slice(&entry.payload).ok();
    Ok(Some((entry, request)))
}

/// The turn and run that a request names.
fn run_of(entry: &StoredEntry) -> (String, String) {
    let request: Value = serde_json::from_slice(&entry.payload).unwrap_or_default();
    (request["turn_id"].to_string(), request["run"].to_string())
}

/// The request with the corrected subject and a higher attempt number; `None` if its subject is
/// already right.
fn readdressed(count: PartitionCount, request: &Value) -> Option<Value> {
    let old = request["subject"].as_str()?;
    let (_, new) = subject::in_fleet(count, old).filter(|(_, new)| new != old)?;
    let mut request = request.clone();
    request["attempt"] = (request["attempt"].as_u64().unwrap_or_default() + LATER_ATTEMPT).into();
    request["subject"] = new.into();
    Some(request)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn request_to_another_partition_becomes_a_later_attempt() {
        let count = PartitionCount::new(1).unwrap();
        let request = json!({"turn_id": "t", "subject": "chunks.5.a", "attempt": 16, "later": [1]});
        let expected = json!({"turn_id": "t", "subject": "chunks.0.a", "attempt": 48, "later": [1]});
        assert_eq!(readdressed(count, &request), Some(expected.clone()));
        assert_eq!(readdressed(count, &expected), None);
        assert_eq!(readdressed(count, &json!({"subject": "chunks.a"})), None, "the account maps it");
        assert_eq!(readdressed(count, &json!([])), None);
    }
}
