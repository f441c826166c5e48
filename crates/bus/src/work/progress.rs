//! The server's view of the progress of turn requests at the services of a workflow.
//!
//! The state of a consumer shows up to which sequence requests were delivered; the stream shows
//! which ones are still stored. Services publish acknowledgements in core NATS, so workers receive
//! them as well (ADR-15: `$JS.ACK.<stream>.<consumer>.<deliveries>.<sequence>.…`). Missed
//! acknowledgements are not repeated.

use std::collections::BTreeSet;
use std::time::Duration;

use async_nats::Subscriber;
use async_nats::jetstream::consumer::{Consumer, pull};
use async_nats::jetstream::stream::InfoError;
use futures_util::StreamExt;
use model::{Seq, WorkflowName};
use serde::Deserialize;
use wire::subject;

use crate::connection::Bus;
use crate::error::BusError;

/// Maximum number of deleted sequences that one answer of the server lists: about 160 KB.
const MOST_DELETED: u64 = 20_000;

/// The progress of the services of a workflow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorkProgress {
    /// Requests up to this sequence were delivered.
    pub delivered: Seq,
    /// Requests up to this sequence were acknowledged.
    pub acknowledged: Seq,
    /// Maximum deliveries of a request; `None`: unlimited.
    pub max_deliveries: Option<u32>,
}

/// The stored turn requests, which are neither acknowledged nor deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredWork {
    first: Seq,
    last: Seq,
    /// Deleted sequences between the first and the last; `None`: too many to list.
    deleted: Option<BTreeSet<Seq>>,
}

impl StoredWork {
    /// Creates the value from the first and last sequence, and the deleted ones between them, if
    /// known.
    pub fn of(first: u64, last: u64, deleted: Option<Vec<u64>>) -> Self {
        let deleted = deleted.map(|deleted| deleted.into_iter().map(Seq).collect());
        Self { first: Seq(first), last: Seq(last), deleted }
    }

    /// True if the request is no longer stored; `None`: not known.
    pub fn is_gone(&self, seq: Seq) -> Option<bool> {
        match &self.deleted {
            _ if seq < self.first => Some(true),
            // The request was stored after the server had answered.
            _ if seq > self.last => Some(false),
            Some(deleted) => Some(deleted.contains(&seq)),
            None => None,
        }
    }
}

/// An acknowledgement by a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkAck {
    /// The workflow whose consumer has delivered the request. A service can acknowledge only for
    /// its own workflow, whatever sequence it sends.
    pub workflow: WorkflowName,
    /// The sequence of the request.
    pub seq: Seq,
    /// Number of deliveries of the request so far.
    pub deliveries: u32,
    pub kind: WorkAckKind,
}

/// The kind of a [`WorkAck`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkAckKind {
    /// The request is finished, or refused for good (`+TERM`).
    Done,
    /// The service works on the request.
    InProgress,
    /// The service returned the request, to be redelivered after this delay.
    HandedBack(Duration),
}

impl WorkAck {
    /// Parses the subject and the payload of an acknowledgement; `None` for any other message.
    fn parse(subject: &str, payload: &[u8]) -> Option<Self> {
        let tokens: Vec<&str> = subject.split('.').collect();
        // With eleven or more tokens, the domain and the hash of an account come before the
        // stream's name, and further tokens may follow at the end.
        let place = if tokens.len() < 11 { 4 } else { 6 };
        let workflow = subject::workflow_of_consumer(tokens.get(place - 1)?)?;
        let workflow = WorkflowName::parse(workflow).ok()?;
        let (deliveries, seq) = (tokens.get(place)?.parse().ok()?, tokens.get(place + 1)?.parse().ok()?);
        let kind = match payload.split(|byte| byte.is_ascii_whitespace()).next().unwrap_or_default() {
            b"" | b"+ACK" | b"+OK" | b"+NXT" | b"+TERM" => WorkAckKind::Done,
            b"+WPI" => WorkAckKind::InProgress,
            b"-NAK" => WorkAckKind::HandedBack(delay(&payload[4..])),
            _ => return None,
        };
        Some(Self { workflow, seq: Seq(seq), deliveries, kind })
    }
}

/// The delay before a returned request is redelivered: nanoseconds in an object. A duration in Go's
/// format is not parsed.
fn delay(options: &[u8]) -> Duration {
    #[derive(Deserialize)]
    struct NakOptions {
        #[serde(default)]
        delay: i64,
    }
    let options = serde_json::from_slice::<NakOptions>(options);
    Duration::from_nanos(options.map_or(0, |options| options.delay.unsigned_abs()))
}

/// The acknowledgements of turn requests. Dropping it ends the subscriptions.
#[derive(Debug)]
pub struct WorkAcks {
    acks: Subscriber,
    acks_of_domain: Subscriber,
}

impl Bus {
    /// The progress of a workflow's services; `None`: no service of the workflow has ever run.
    ///
    /// # Errors
    /// The servers do not answer, or refuse.
    pub async fn work_progress(&self, workflow: &WorkflowName) -> Result<Option<WorkProgress>, BusError> {
        let name = subject::work_consumer(workflow);
        let found: Result<Consumer<pull::Config>, _> =
            self.shared.api.get_consumer_from_stream(&name, subject::WORK_STREAM).await;
        let consumer = match found.map_err(BusError::from) {
            Ok(consumer) => consumer,
            Err(BusError::JetStream { code: 10014, .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let info = consumer.cached_info();
        Ok(Some(WorkProgress {
            delivered: Seq(info.delivered.stream_sequence),
            acknowledged: Seq(info.ack_floor.stream_sequence),
            max_deliveries: u32::try_from(info.config.max_deliver).ok().filter(|most| *most > 0),
        }))
    }

    /// The turn requests that are still stored.
    ///
    /// # Errors
    /// The servers do not answer, or refuse.
    pub async fn stored_work(&self) -> Result<StoredWork, BusError> {
        let stream = self.named_stream(subject::WORK_STREAM.to_owned()).await?;
        let unexpected = |error: InfoError| BusError::Unexpected(error.to_string());
        let mut state = stream.get_info().await.map_err(unexpected)?.state;
        let has_few = state.deleted_count.unwrap_or(0) <= MOST_DELETED;
        if has_few {
            state = stream.info_builder().with_deleted(true).fetch().await.map_err(unexpected)?.info.state;
        }
        let deleted = has_few.then(|| state.deleted.unwrap_or_default());
        Ok(StoredWork::of(state.first_sequence, state.last_sequence, deleted))
    }

    /// Subscribes to acknowledgements of requests. Earlier ones are not received.
    ///
    /// # Errors
    /// There is no connection.
    pub async fn work_acks(&self) -> Result<WorkAcks, BusError> {
        let link = &self.shared.control;
        if !link.is_connected() {
            return Err(BusError::Away);
        }
        Ok(WorkAcks {
            acks: link.client.subscribe(subject::WORK_ACKS).await?,
            acks_of_domain: link.client.subscribe(subject::WORK_ACKS_OF_DOMAIN).await?,
        })
    }
}

impl WorkAcks {
    /// The next acknowledgement; `None` when the connection has ended for good. Cancel-safe.
    pub async fn next(&mut self) -> Option<WorkAck> {
        loop {
            let message = tokio::select! {
                message = self.acks.next() => message?,
                message = self.acks_of_domain.next() => message?,
            };
            if let Some(ack) = WorkAck::parse(&message.subject, &message.payload) {
                return Some(ack);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_services_are_read_in_both_forms_of_the_subject() {
        let (short, long) = (
            "$JS.ACK.WORK.WORKFLOW_w.2.17.3.1700000000.0",
            "$JS.ACK._.Bx3.WORK.WORKFLOW_w.2.17.3.1700000000.0.tok",
        );
        let back = |ms| WorkAckKind::HandedBack(Duration::from_millis(ms));
        for (payload, kind) in [
            ("", WorkAckKind::Done),
            ("+ACK", WorkAckKind::Done),
            ("+TERM no such agent", WorkAckKind::Done),
            ("+WPI", WorkAckKind::InProgress),
            ("-NAK", back(0)),
            ("-NAK {\"delay\": 1500000000}", back(1_500)),
            ("-NAK 5s", back(0)),
        ] {
            for subject in [short, long] {
                let ack = WorkAck::parse(subject, payload.as_bytes());
                let workflow = WorkflowName::parse("w").unwrap();
                assert_eq!(
                    ack,
                    Some(WorkAck { workflow, seq: Seq(17), deliveries: 2, kind }),
                    "{subject} {payload}"
                );
            }
        }
        for (subject, payload) in [
            (short, "no"),
            ("$JS.ACK.WORK.WORKFLOW_w", ""),
            ("$JS.ACK.WORK.WORKFLOW_w.a.b", ""),
            ("$JS.ACK.WORK.other.2.17.3.1700000000.0", ""),
        ] {
            assert_eq!(WorkAck::parse(subject, payload.as_bytes()), None, "{subject} {payload}");
        }
    }

    #[test]
    fn what_is_gone_is_before_the_first_or_named() {
        let few = StoredWork::of(3, 9, Some(vec![5]));
        let gone = |work: &StoredWork| [2, 3, 5, 9, 10].map(|seq| work.is_gone(Seq(seq)));
        assert_eq!(gone(&few), [Some(true), Some(false), Some(true), Some(false), Some(false)]);
        let many = StoredWork { deleted: None, ..few };
        assert_eq!(gone(&many), [Some(true), None, None, None, Some(false)]);
    }
}
