//! Logs one line for each run of a turn that ends: agent, duration and usage.

use model::{FinishReason, MessageOutcome, TaskKind, TurnId};
use partition::{MessageEnded, Start};
use tokio::time::Instant;

use super::remembered::Remembered;

/// Active runs. The line of a forgotten run, or of one started by a previous owner, has fewer
/// fields.
#[derive(Default)]
pub(super) struct TurnLog {
    runs: Remembered<(TurnId, u32), RunInfo>,
}

struct RunInfo {
    agent: String,
    /// `message`, or the kind of the task.
    kind: &'static str,
    correlation_id: Option<Box<str>>,
    trace_id: Option<String>,
    waited_ms: Option<i64>,
    began: Instant,
}

impl RunInfo {
    fn ran_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

/// A run that has failed.
pub(super) struct FailedRun {
    /// Time from the acceptance of its input to its start, ms; `None`: a previous owner started it.
    pub(super) waited_ms: Option<i64>,
    /// Time that it ran under this owner, ms.
    pub(super) ran_ms: u64,
    /// Id of its trace.
    pub(super) trace_id: Option<String>,
}

impl TurnLog {
    /// Notes a run that starts, or continues under this owner.
    pub(super) fn began(&mut self, start: &Start, trace_id: Option<String>) {
        let info = RunInfo {
            agent: start.agent.to_string(),
            kind: start.cause.task_kind().map_or("message", TaskKind::name),
            correlation_id: start.options.correlation_id.clone(),
            trace_id,
            waited_ms: start.waited_ms,
            began: Instant::now(),
        };
        self.runs.set((start.turn.clone(), start.run), info);
    }

    /// Notes a failed run; `None`: this owner has not started it.
    pub(super) fn failed(&mut self, turn: &TurnId, run: u32) -> Option<FailedRun> {
        let info = self.runs.take(&(turn.clone(), run))?;
        Some(FailedRun { waited_ms: info.waited_ms, ran_ms: info.ran_ms(), trace_id: info.trace_id })
    }

    /// Logs the stored end of a run's answer. Failed runs have been logged already.
    pub(super) fn ended(&mut self, ending: &MessageEnded) {
        let Some((turn, run)) = TurnId::of_answer(&ending.key.message) else { return };
        let info = self.runs.take(&(turn.clone(), run));
        let what = match &ending.outcome {
            MessageOutcome::Complete => "a turn has finished",
            MessageOutcome::Stopped => "a turn was stopped",
            MessageOutcome::Failed(_) => return,
        };
        let info = info.as_ref();
        let usage = ending.report.usage.as_deref();
        tracing::info!(
            %turn, run, thread = %ending.key.thread,
            agent = info.map(|info| info.agent.as_str()), kind = info.map(|info| info.kind),
            trace_id = info.and_then(|info| info.trace_id.as_deref()),
            correlation_id = info.and_then(|info| info.correlation_id.as_deref()),
            waited_ms = info.and_then(|info| info.waited_ms), ran_ms = info.map(RunInfo::ran_ms), chunks = ending.chunks,
            input_tokens = usage.map(|call| call.input_tokens), output_tokens = usage.map(|call| call.output_tokens),
            finish_reason = ending.report.finish_reason.map(FinishReason::name),
            "{what}"
        );
    }
}
