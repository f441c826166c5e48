//! Performs the actions of the machine.

use std::ops::ControlFlow;
use std::sync::Arc;

use model::{LiveFrame, MessageKey, TurnId, WaitNotice, WaitReason};
use partition::{
    Action, Commit, IncidentKind, Input, MachineReport, MessageEnded, Outgoing, ReadyChunks, TurnWrite,
    UsageWrite, isolate,
};
use store::StreamGap;
use tokio::time::Instant;

use super::report;
use super::state::{InFlight, PartitionSession, SessionEnd, now};
use crate::committer::{CommitOutcome, CommitPrecondition};
use crate::model_usage::ModelUsage;

/// Maximum number of answers with contradicting chunks to remember. The subscribers of a remembered
/// answer are not notified again.
const MOST_CONFLICTS: usize = 64;

/// The answer for which facts were remembered, if the turn is that of a memory task.
fn answer_with_facts(write: &TurnWrite) -> Option<MessageKey> {
    let noted = write.noted_facts().ok()??;
    (!noted.facts.is_empty()).then_some(MessageKey { thread: noted.thread, message: noted.answer })
}

impl PartitionSession<'_> {
    pub(super) async fn perform(&mut self, actions: Vec<Action>) {
        for action in actions {
            self.metrics.action(action.name());
            match action {
                Action::Publish(release) => self.publish(release).await,
                Action::Commit(commit) => self.submit(commit).await,
                Action::Save(save) => self.background.save(self.applied, save),
                Action::Lookup(keys) => self.background.lookup(keys),
                Action::End(ending) => self.end(ending).await,
                Action::Snapshot(reply) => self.queries.send_snapshot(reply).await,
                Action::ChangedThreads(changed) => {
                    // The reply must follow the frames that it counts.
                    self.context.live.flush().await;
                    self.queries.send_changed_threads(changed).await;
                }
                Action::CheckLease(seen_epoch) => self.lease.check(seen_epoch),
                Action::Status(reply) => self.queries.send_status(self.applied.epoch, *reply).await,
                Action::Reread(from) => self.reader.restart(from),
                Action::Report(report) => self.report(&report).await,
                Action::Check(keys) => self.background.check(keys),
                Action::Start(start) => {
                    let trace = self.traces.as_mut().and_then(|traces| traces.begin(&start));
                    let trace_id = self.traces.as_mut().and_then(|traces| traces.trace_id(&start.turn));
                    self.turn_log.began(&start, trace_id);
                    self.background.begin(*start, trace);
                }
                Action::Abandon { turn, run } => {
                    if let Some(traces) = &mut self.traces {
                        traces.abandoned(&turn, run);
                    }
                    self.background.abandon(turn, run);
                }
                Action::LoadTasks { agent, after, limit } => self.background.load(agent, after, limit),
                Action::DecideTimers(due) => self.background.decide_timers(due),
                Action::LoadTimers { from_ms, limit } => self.background.load_timers(from_ms, limit),
                Action::DelayTask { seq, delayed } => self.background.delay_task(seq, *delayed),
                Action::Send(batch) => self.background.send(batch),
            }
        }
        self.context.live.send().await;
        if let Some(traces) = &mut self.traces {
            traces.forget_abandoned();
        }
    }

    /// Logs and counts a report. Lost stream entries are recorded later, in the commit whose
    /// checkpoint passes them.
    async fn report(&mut self, report: &MachineReport) {
        match report {
            MachineReport::TurnFailed { turn, run, .. } => {
                let failed = self.turn_log.failed(turn, *run);
                report::log_failed_run(report, failed.as_ref());
            }
            _ => report::log(report),
        }
        if let MachineReport::Conflict { key, .. } = report {
            self.report_conflict(key).await;
        }
        if let MachineReport::Timer { timer, outcome, by } = report {
            let (kind, by) = (timer.kind().name(), by.clone().unwrap_or_default());
            metrics::counter!(crate::metrics::TIMERS, "kind" => kind, "outcome" => outcome.name(), "by" => by)
                .increment(1);
        }
        if let (Some(traces), MachineReport::TurnFailed { turn, run, code, .. }) = (&mut self.traces, report)
        {
            traces.failed(turn, *run, code);
        }
        if let MachineReport::Hole { first, last } = *report {
            let kind = IncidentKind::EntriesGone.name();
            metrics::counter!(crate::metrics::INCIDENTS, "kind" => kind).increment(1);
            self.gone.push(StreamGap { first, last });
        }
    }

    /// Notifies the subscribers of an answer, only once, that one of its chunks was dropped.
    async fn report_conflict(&mut self, key: &MessageKey) {
        if TurnId::of_answer(&key.message).is_none() || self.conflicts.contains(key) {
            return;
        }
        self.conflicts.truncate(MOST_CONFLICTS - 1);
        self.conflicts.push_front(key.clone());
        let MessageKey { thread, message } = key.clone();
        let notice = WaitNotice { thread, message, reason: WaitReason::ChunkConflict };
        let gateways = self.machine.followers(&key.thread);
        self.context.live.push_encoded(gateways, &wire::live::encode_notice(&notice)).await;
    }

    async fn submit(&mut self, commit: Commit) {
        self.applied.position_high_water = commit.position_high_water;
        let terms = CommitPrecondition {
            commits: self.applied.commits,
            saves: self.applied.saves,
            checkpoint: self.applied.checkpoint,
            incarnation: Arc::clone(&self.incarnation),
            read: self.read,
            gone: std::mem::take(&mut self.gone),
        };
        let (checkpoint, usage) = (commit.checkpoint, ModelUsage::of(&commit.usage));
        let tokens = |usage: &UsageWrite| {
            (usage.turn.clone(), usage.call.input_tokens.saturating_add(usage.call.output_tokens))
        };
        let tokens = commit.usage.iter().map(tokens).collect();
        let outgoing = commit.outbox.iter().flat_map(|batch| &batch.outgoing);
        let finished = outgoing.filter_map(|outgoing| match outgoing {
            Outgoing::TurnEnded(ended) => Some(ended.turn.clone()),
            _ => None,
        });
        let finished = finished.collect();
        let remembered = commit.turns.iter().filter_map(answer_with_facts).collect();
        let settled = self.context.committers.submit(commit, terms).await;
        let submitted = Instant::now();
        self.in_flight =
            Some(InFlight { settled, checkpoint, submitted, usage, tokens, finished, remembered });
    }

    pub(super) async fn settled(&mut self, settled: CommitOutcome) -> ControlFlow<SessionEnd> {
        let Some(in_flight) = self.in_flight.take() else { return ControlFlow::Continue(()) };
        metrics::histogram!(crate::metrics::COMMIT_SECONDS).record(in_flight.submitted.elapsed());
        match settled {
            CommitOutcome::Applied { commits, unstorable, refused, messages } => {
                (self.applied.commits, self.applied.checkpoint) = (commits, in_flight.checkpoint);
                self.lease.confirmed.set(Some(self.applied));
                in_flight.usage.count();
                let InFlight { tokens, finished, remembered, .. } = in_flight;
                self.context.live.announce_remembered(&remembered).await;
                self.context.limiter.finish(self.applied.partition, tokens, finished);
                if let Some(traces) = &mut self.traces {
                    traces.committed(in_flight.submitted.elapsed());
                }
                // The messages must be cached before the next turns of these threads start.
                self.background.written(messages);
                let turns: Vec<TurnId> = refused.iter().map(|(turn, _)| turn.clone()).collect();
                let mut actions = self.machine.handle(Input::Committed(refused), now(self.context));
                isolate::apply_refusals(&mut actions, &unstorable, &turns);
                self.perform(actions).await;
                self.release_turns();
                let (open, bytes) = self.machine.load();
                self.reservation.settle(open, bytes);
                ControlFlow::Continue(())
            }
            CommitOutcome::Fenced => {
                metrics::counter!(crate::metrics::FENCED_COMMITS).increment(1);
                ControlFlow::Break(SessionEnd::Rebuild)
            }
            CommitOutcome::Stale => {
                tracing::warn!("the store knew more of a queue than its owner: the partition is rebuilt");
                metrics::counter!(crate::metrics::STALE_COMMITS).increment(1);
                ControlFlow::Break(SessionEnd::Rebuild)
            }
            CommitOutcome::Unknown => ControlFlow::Break(SessionEnd::Rebuild),
        }
    }

    async fn publish(&mut self, release: ReadyChunks) {
        tracing::debug!(
            "streaming {} chunks for message {} (session {})",
            release.chunks.len(),
            release.key.message,
            release.key.thread
        );
        let has_first = release.chunks.first().is_some_and(|chunk| chunk.id == 0);
        let first_of = self.traces.as_ref().filter(|_| has_first).map(|_| release.key.message.clone());
        self.send(release.into()).await;
        if let (Some(traces), Some(message)) = (&mut self.traces, first_of) {
            traces.first_chunk(&message);
        }
    }

    async fn end(&mut self, ending: MessageEnded) {
        self.turn_log.ended(&ending);
        if let Some(traces) = &mut self.traces {
            traces.ended(&ending);
        }
        self.send(ending.into()).await;
    }

    /// Live frames may be lost. Gateways notice the gap in the frame numbers and ask for what they
    /// missed.
    async fn send(&self, frame: LiveFrame) {
        self.context.live.push(self.machine.followers(&frame.thread), &frame).await;
    }
}
