//! Reads and writes the records of tool calls in their stream.

use std::time::Duration;

use bus::{Bus, Disposition};
use bytes::Bytes;
use model::{Seq, Timestamp, WorkflowName};
use runtime::{Backoff, Clock};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use wire::subject;
use wire::tool_calls::ToolCallRecord;

use crate::engine_event::Failure;
use crate::request::TurnAttempt;
use crate::tools::ToolResult;

/// How long one read or write is retried.
const STORE_TIMEOUT: Duration = Duration::from_secs(20);
/// Bytes reserved in a NATS message for the fields beside a result.
const BESIDE_RESULT: usize = 4 << 10;
/// JSON escapes a byte as at most six bytes.
const BYTES_IN_JSON: usize = 6;

/// The records of tool calls of a workflow.
#[derive(Clone)]
pub(crate) struct ToolCalls {
    bus: Bus,
    workflow: WorkflowName,
    clock: Clock,
}

/// A call that a model asks for.
#[derive(Clone, Copy)]
pub(crate) struct WantedCall<'a> {
    pub(crate) turn: &'a TurnAttempt,
    /// An id from `call_ids`.
    pub(crate) id: &'a str,
    pub(crate) tool: &'a str,
    pub(crate) arguments: &'a str,
    /// Whether the call may be repeated when its outcome is unknown.
    pub(crate) is_idempotent: bool,
}

/// The last entry of a subject.
pub(super) struct LastEntry<T> {
    pub(super) seq: Seq,
    pub(super) value: T,
}

impl ToolCalls {
    pub(crate) fn new(bus: Bus, workflow: WorkflowName, clock: Clock) -> Self {
        Self { bus, workflow, clock }
    }

    /// The subject of a call's record.
    pub(super) fn place(&self, call: &WantedCall<'_>) -> String {
        subject::tool_call(&self.workflow, &call.turn.thread, &call.turn.id, call.id)
    }

    /// The subject of a call's incident, where a person decides.
    pub(super) fn incident_place(&self, call: &WantedCall<'_>) -> String {
        subject::tool_incident(&self.workflow, &call.turn.thread, &call.turn.id, call.id)
    }

    pub(super) async fn record(
        &self,
        call: &WantedCall<'_>,
    ) -> Result<Option<LastEntry<ToolCallRecord>>, Failure> {
        self.read(&self.place(call)).await
    }

    /// The record of a call. If the stream has lost the record that this attempt has `known`, it is
    /// stored again: a call without a record would be repeated.
    pub(super) async fn record_or_restored(
        &self,
        call: &WantedCall<'_>,
        known: Option<&ToolCallRecord>,
    ) -> Result<Option<LastEntry<ToolCallRecord>>, Failure> {
        let mut backoff = Backoff::default();
        loop {
            let found = self.record(call).await?;
            let (None, Some(known)) = (&found, known) else { return Ok(found) };
            tracing::warn!(
                tool = call.tool,
                call = call.id,
                "the record of a tool call was lost: storing it again"
            );
            if let Some(seq) = self.replace(&self.place(call), known, Seq(0)).await? {
                return Ok(Some(LastEntry { seq, value: known.clone() }));
            }
            // A record exists by now; the replica that was read lags.
            tokio::time::sleep(backoff.next_delay()).await;
        }
    }

    /// Replaces the start of a call by its end, also if the start was lost meanwhile.
    pub(super) async fn end(
        &self,
        call: &WantedCall<'_>,
        ended: &ToolCallRecord,
        started: Seq,
    ) -> Result<(), Failure> {
        if self.replace(&self.place(call), ended, started).await?.is_none() {
            self.record_or_restored(call, Some(ended)).await?;
        }
        Ok(())
    }

    pub(super) fn now(&self) -> String {
        wire::rfc3339(Timestamp(self.clock.now_ms())).unwrap_or_default()
    }

    /// Shortens a result until it fits into a NATS message with the other fields.
    pub(super) fn that_fits(&self, mut result: ToolResult) -> ToolResult {
        let most = self.bus.max_payload().saturating_sub(BESIDE_RESULT);
        if serde_json::to_string(&result.text).is_ok_and(|json| json.len() > most) {
            result.text.truncate(result.text.floor_char_boundary(most / BYTES_IN_JSON));
            result.text.push_str(&format!("\n[cut off after {} bytes]", result.text.len()));
        }
        result
    }

    pub(super) async fn read<T: DeserializeOwned>(
        &self,
        place: &str,
    ) -> Result<Option<LastEntry<T>>, Failure> {
        let give_up_at = Instant::now() + STORE_TIMEOUT;
        let mut backoff = Backoff::default();
        let entry = loop {
            match self.bus.last_entry(subject::TOOL_CALLS_STREAM, place).await {
                Ok(entry) => break entry,
                Err(error) if error.disposition() == Disposition::Retry && Instant::now() < give_up_at => {
                    tracing::debug!(%error, place, "what is known of a tool call cannot be read yet");
                    tokio::time::sleep(backoff.next_delay()).await;
                }
                Err(error) => return Err(unavailable("read", &error)),
            }
        };
        let Some(entry) = entry else { return Ok(None) };
        let value = serde_json::from_slice(&entry.payload).map_err(|error| unavailable("read", &error))?;
        Ok(Some(LastEntry { seq: entry.seq, value }))
    }

    /// Replaces an entry; `None` if something else was stored meanwhile.
    pub(super) async fn replace<T: Serialize>(
        &self,
        place: &str,
        value: &T,
        replaced: Seq,
    ) -> Result<Option<Seq>, Failure> {
        let payload = serde_json::to_vec(value).map_err(|error| unavailable("written", &error))?;
        let stored = self.bus.replace_entry(place, Bytes::from(payload), replaced, STORE_TIMEOUT).await;
        stored.map_err(|error| unavailable("written", &error))
    }
}

fn unavailable(what: &str, error: &dyn std::fmt::Display) -> Failure {
    tracing::warn!(%error, "the record of a tool call cannot be {what}: the turn fails and is tried again");
    let text = format!("the record of a tool call cannot be {what}; the turn is tried again");
    Failure::transient("tool_calls_unavailable", text)
}

/// Identifies one start of a call.
pub(super) fn new_start() -> String {
    format!("{:016x}", rand::random::<u64>())
}
