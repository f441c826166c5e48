//! Keeps the results of tools, so that a retried turn does not call them again.
//!
//! Entry: [`ToolCalls::run`]. The stream of tool calls records the start of a call, and later its
//! result. The answer's own chunks cannot serve for this: a workflow service is not allowed to read
//! the streams of partitions, and a failed run has no answer.
//!
//! Invariants: a call whose result is kept is never repeated. A call of a tool that is not
//! idempotent is repeated only if the tool was not reached, or if a person decided so. A record
//! that the stream loses while a turn needs it is stored again.

mod call_id;
mod records;
mod waiting;

use model::Seq;
use wire::tool_calls::{KeptResult, ToolCallRecord, ToolCallState, ToolDecision};

use crate::engine_event::{EngineSender, Failure};
use crate::metrics;
use crate::tools::{ToolOutcome, ToolResult};
pub(crate) use call_id::call_ids;
use records::{LastEntry, new_start};
pub(crate) use records::{ToolCalls, WantedCall};
use waiting::Waited;

impl ToolCalls {
    /// Returns the kept result of a call, or calls `perform`.
    ///
    /// # Errors
    /// The call's record cannot be read or written. If that happens before the start is stored, the
    /// tool is not called.
    pub(crate) async fn run<F>(
        &self,
        call: WantedCall<'_>,
        sender: &EngineSender,
        perform: impl Fn() -> F,
    ) -> Result<ToolResult, Failure>
    where
        F: Future<Output = ToolOutcome>,
    {
        // The record that this attempt last saw or stored.
        let mut known: Option<ToolCallRecord> = None;
        loop {
            let replaced = match self.record_or_restored(&call, known.as_ref()).await? {
                None => match self.known_by_incident(&call).await? {
                    None => Seq(0),
                    lost => {
                        known = lost;
                        continue;
                    }
                },
                Some(LastEntry {
                    value: ToolCallRecord { state: ToolCallState::Done(kept), .. }, ..
                }) => {
                    metrics::kept_tool_call();
                    return Ok(ToolResult { text: kept.text, is_error: kept.is_error });
                }
                Some(LastEntry { seq, value })
                    if call.is_idempotent || value.state == ToolCallState::NotRun =>
                {
                    seq
                }
                Some(kept) => {
                    known = Some(kept.value.clone());
                    match self.wait_for_decision(&call, &kept, sender).await? {
                        Waited::Changed => continue,
                        Waited::Decided(seq, ToolDecision::RunAgain) => seq,
                        Waited::Decided(seq, ToolDecision::Result(result)) => {
                            let done = ToolCallRecord { state: ToolCallState::Done(result), ..kept.value };
                            self.end(&call, &done, seq).await?;
                            continue;
                        }
                    }
                }
            };
            let Some((seq, record)) = self.start(&call, replaced).await? else { continue };
            known = Some(record.clone());
            let ended = |state| ToolCallRecord { state, ..record.clone() };
            match perform().await {
                ToolOutcome::Answered(result) => {
                    let result = self.that_fits(result);
                    let kept = KeptResult { text: result.text.clone(), is_error: result.is_error };
                    self.end(&call, &ended(ToolCallState::Done(kept)), seq).await?;
                    return Ok(result);
                }
                ToolOutcome::NotRun(result) => {
                    self.end(&call, &ended(ToolCallState::NotRun), seq).await?;
                    return Ok(result);
                }
                ToolOutcome::Unknown(result) if call.is_idempotent => return Ok(result),
                // The next iteration waits for a person's decision.
                ToolOutcome::Unknown(_) => {}
            }
        }
    }

    /// Stores that the call starts. `None`: another attempt has stored something meanwhile.
    async fn start(
        &self,
        call: &WantedCall<'_>,
        replaced: Seq,
    ) -> Result<Option<(Seq, ToolCallRecord)>, Failure> {
        let record = ToolCallRecord {
            start: new_start(),
            tool: call.tool.to_owned(),
            state: ToolCallState::Started,
            started_at: self.now(),
        };
        if let Some(seq) = self.replace(&self.place(call), &record, replaced).await? {
            return Ok(Some((seq, record)));
        }
        // The stored record may be this attempt's own, if its acknowledgement was lost.
        let kept = self.record(call).await?.filter(|kept| kept.value.start == record.start);
        Ok(kept.map(|kept| (kept.seq, record)))
    }
}
