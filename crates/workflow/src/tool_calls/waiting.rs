//! A call of unknown outcome waits for a person: its incident, its notice and the decision.

use std::time::Duration;

use model::Seq;
use serde_json::{Map, Value, json};
use tokio::time::{Instant, sleep};
use wire::tool_calls::{ToolCallRecord, ToolCallState, ToolDecision, ToolIncident};

use super::records::{LastEntry, ToolCalls, WantedCall, new_start};
use crate::engine_event::{EngineEvent, EngineSender, Failure};
use crate::metrics;

/// Interval between two checks for a decision.
const DECISION_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which a waiting call is stored again, so that neither age nor a full stream removes
/// it.
const RENEW_EVERY: Duration = Duration::from_secs(300);
/// Maximum bytes of the arguments that an incident shows.
const MAX_SHOWN_ARGUMENTS: usize = 16 << 10;
/// Key of the notice in a chunk's metadata.
const NOTICE: &str = "tool_call_undecided";

/// The event that ends the wait.
pub(super) enum Waited {
    /// Another attempt has stored something meanwhile.
    Changed,
    /// The sequence of the call's record, and the decision of a person.
    Decided(Seq, ToolDecision),
}

impl ToolCalls {
    /// Stores an incident for a call of unknown outcome, notifies clients, and waits for a person's
    /// decision. The turn stays alive meanwhile and frees its slot for other turns.
    pub(super) async fn wait_for_decision(
        &self,
        call: &WantedCall<'_>,
        kept: &LastEntry<ToolCallRecord>,
        sender: &EngineSender,
    ) -> Result<Waited, Failure> {
        let place = self.incident_place(call);
        let (mut renewed_at, mut waiting) = (Instant::now(), None);
        loop {
            let now = self.record_or_restored(call, Some(&kept.value)).await?;
            let incident = self.read::<ToolIncident>(&place).await?;
            let seq = match now {
                Some(now) if now.value == kept.value => now.seq,
                now => {
                    self.close(&place, kept, now, incident).await?;
                    if waiting.is_some() {
                        sender.regain_slot();
                    }
                    return Ok(Waited::Changed);
                }
            };
            let (incident_seq, ours) = match incident {
                Some(incident) => {
                    (incident.seq, Some(incident.value).filter(|ours| ours.start == kept.value.start))
                }
                None => (Seq(0), None),
            };
            match ours {
                Some(ToolIncident { decision: Some(decision), .. }) => {
                    sender.regain_slot();
                    return Ok(Waited::Decided(seq, decision));
                }
                Some(known) if renewed_at.elapsed() > RENEW_EVERY => {
                    self.replace(&self.place(call), &kept.value, seq).await?;
                    self.replace(&place, &known, incident_seq).await?;
                    renewed_at = Instant::now();
                }
                Some(_) => {}
                None => {
                    let incident = self.incident(call, &kept.value);
                    self.replace(&place, &incident, incident_seq).await?;
                    tracing::warn!(
                        tool = call.tool,
                        call = call.id,
                        "it is not known whether a tool that must not be called twice has run: \
                         a person decides (`antiphon incidents tool-calls`)"
                    );
                }
            }
            if waiting.is_none() {
                waiting = Some(metrics::undecided_tool_call());
                sender.send(EngineEvent::Notice(notice(call))).await?;
                sender.release_slot();
            }
            sleep(DECISION_CHECK_INTERVAL).await;
        }
    }

    /// Rebuilds the record of a call, which the stream has lost, from the call's younger incident.
    /// If a person had decided to repeat the call, it is unknown whether that happened. The
    /// repetition then counts as a new start, about which a person decides.
    pub(super) async fn known_by_incident(
        &self,
        call: &WantedCall<'_>,
    ) -> Result<Option<ToolCallRecord>, Failure> {
        if call.is_idempotent {
            return Ok(None);
        }
        let incident = self.read::<ToolIncident>(&self.incident_place(call)).await?;
        Ok(incident.map(|LastEntry { value, .. }| ToolCallRecord {
            start: match value.decision {
                Some(ToolDecision::RunAgain) => new_start(),
                Some(ToolDecision::Result(_)) | None => value.start,
            },
            tool: value.tool,
            state: ToolCallState::Started,
            started_at: value.started_at,
        }))
    }

    /// Closes the incident once its call has a result: the attempt that made the call was still
    /// alive.
    async fn close(
        &self,
        place: &str,
        kept: &LastEntry<ToolCallRecord>,
        now: Option<LastEntry<ToolCallRecord>>,
        incident: Option<LastEntry<ToolIncident>>,
    ) -> Result<(), Failure> {
        let (Some(now), Some(incident)) = (now, incident) else { return Ok(()) };
        let is_ours = |start: &str| start == kept.value.start;
        let is_open = incident.value.decision.is_none() && is_ours(&incident.value.start);
        if let ToolCallState::Done(result) = now.value.state
            && is_open
            && is_ours(&now.value.start)
        {
            let decision = Some(ToolDecision::Result(result));
            let closed = ToolIncident { decision, ..incident.value };
            self.replace(place, &closed, incident.seq).await?;
        }
        Ok(())
    }

    fn incident(&self, call: &WantedCall<'_>, record: &ToolCallRecord) -> ToolIncident {
        let mut arguments = call.arguments.to_owned();
        arguments.truncate(arguments.floor_char_boundary(MAX_SHOWN_ARGUMENTS));
        ToolIncident {
            start: record.start.clone(),
            agent_id: call.turn.agent.clone(),
            tool: call.tool.to_owned(),
            arguments,
            started_at: record.started_at.clone(),
            detected_at: self.now(),
            decision: None,
            decided_by: None,
        }
    }
}

/// The metadata for clients: the turn waits for an operator, not for the reader.
fn notice(call: &WantedCall<'_>) -> Map<String, Value> {
    let text = format!(
        "It is not known whether the tool {} has done what it was asked for. It is not called again before an operator has decided.",
        call.tool
    );
    let notice =
        json!({"tool": call.tool, "turn_id": call.turn.id.as_str(), "call": call.id, "message": text});
    Map::from_iter([(NOTICE.to_owned(), notice)])
}
