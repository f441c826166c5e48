//! Performing what the machine decides.

use std::ops::ControlFlow;
use std::sync::Arc;

use model::{Failure, MessageKey, Outcome, TurnId};
use partition::{Action, Commit, Ending, IncidentKind, Input, Release, Report};
use store::Gone;
use tokio::time::Instant;
use wire::out::{End, OutFrame};

use super::{Ended, InFlight, Session, now, report};
use crate::committer::{Settled, Terms, amend};

/// Bytes of chunks in one frame to gateways, well below what NATS takes in one message.
const FRAME_BYTES: usize = 256 << 10;

impl Session<'_> {
    pub(super) async fn perform(&mut self, actions: Vec<Action>) {
        for action in actions {
            self.meter.action(action.name());
            match action {
                Action::Publish(release) => self.publish(release).await,
                Action::Commit(commit) => self.submit(commit).await,
                Action::LookUp(keys) => self.errands.look_up(keys),
                Action::End(ending) => self.end(ending).await,
                Action::Answer(answer) => self.asks.answer(answer).await,
                Action::Explain(explanation) => self.asks.explain(self.applied.epoch, explanation).await,
                Action::Reread(from) => self.feed.restart(from),
                Action::Report(told) => self.report(&told),
                Action::Check(keys) => self.errands.check(keys),
                Action::Start(start) => self.errands.begin(*start),
                Action::Abandon { turn, run } => self.errands.abandon(turn, run),
                Action::LoadTasks { agent, after, limit } => self.errands.load(agent, after, limit),
                Action::Send(batch) => self.errands.send(batch),
            }
        }
    }

    /// What the stream has lost is named in the commit whose checkpoint passes it, which comes after this.
    fn report(&mut self, told: &Report) {
        report::log(told);
        if let Report::Hole { first, last } = *told {
            let kind = IncidentKind::EntriesGone.name();
            metrics::counter!("antiphon_worker_incidents_total", "kind" => kind).increment(1);
            self.gone.push(Gone { first, last });
        }
    }

    async fn submit(&mut self, commit: Commit) {
        self.applied.position_high_water = commit.position_high_water;
        let terms = Terms {
            commits: self.applied.commits,
            checkpoint: self.applied.checkpoint,
            incarnation: Arc::clone(&self.incarnation),
            read: self.read,
            gone: std::mem::take(&mut self.gone),
        };
        let checkpoint = commit.checkpoint;
        let settled = self.context.committers.submit(commit, terms).await;
        self.in_flight = Some(InFlight { settled, checkpoint, submitted: Instant::now() });
    }

    pub(super) async fn settled(&mut self, settled: Settled) -> ControlFlow<Ended> {
        let Some(in_flight) = self.in_flight.take() else { return ControlFlow::Continue(()) };
        metrics::histogram!("antiphon_worker_commit_seconds").record(in_flight.submitted.elapsed());
        match settled {
            Settled::Applied { commits, unstorable, refused } => {
                (self.applied.commits, self.applied.checkpoint) = (commits, in_flight.checkpoint);
                self.lease.standing.set(Some(self.applied));
                let turns: Vec<TurnId> = refused.iter().map(|(turn, _)| turn.clone()).collect();
                let mut actions = self.machine.handle(Input::Committed(refused), now(self.context));
                mark_unstorable(&mut actions, unstorable);
                take_refused_out(&mut actions, &turns);
                self.perform(actions).await;
                let (open, bytes) = self.machine.load();
                self.share.settle(open, bytes);
                ControlFlow::Continue(())
            }
            Settled::Fenced => {
                metrics::counter!("antiphon_worker_fenced_commits_total").increment(1);
                ControlFlow::Break(Ended::Rebuild)
            }
            Settled::Stale => {
                tracing::warn!("the store knew more of a queue than its owner: the partition is rebuilt");
                metrics::counter!("antiphon_worker_stale_commits_total").increment(1);
                ControlFlow::Break(Ended::Rebuild)
            }
            Settled::Unknown => ControlFlow::Break(Ended::Rebuild),
        }
    }

    async fn publish(&self, release: Release) {
        let Release { key, attempt, role, mut chunks } = release;
        loop {
            let rest = chunks.split_off(frame_length(&chunks));
            let frame = OutFrame {
                thread: key.thread.clone(),
                message: key.message.clone(),
                attempt,
                role,
                chunks,
                terminal: None,
            };
            self.send(&frame).await;
            if rest.is_empty() {
                return;
            }
            chunks = rest;
        }
    }

    async fn end(&self, ending: Ending) {
        let frame = OutFrame {
            thread: ending.key.thread,
            message: ending.key.message,
            attempt: ending.attempt,
            role: ending.role,
            chunks: Vec::new(),
            terminal: Some(End { chunks: ending.chunks, outcome: ending.outcome }),
        };
        self.send(&frame).await;
    }

    /// Live frames may be lost; gateways notice and ask.
    async fn send(&self, frame: &OutFrame) {
        if let Err(error) = self.context.bus.publish_out(&frame.thread, wire::out::encode(frame)).await {
            metrics::counter!("antiphon_worker_frames_not_sent_total").increment(1);
            tracing::debug!(thread = %frame.thread, %error, "a frame was not sent");
        }
    }
}

/// How many of these chunks go into one frame: at least one.
fn frame_length(chunks: &[Arc<model::Chunk>]) -> usize {
    let mut bytes = 0;
    let fits = chunks.iter().take_while(|chunk| {
        let first = bytes == 0;
        bytes += chunk.size() + 64;
        first || bytes <= FRAME_BYTES
    });
    fits.count()
}

/// The machine took these for complete; the store knows better.
fn mark_unstorable(actions: &mut [Action], unstorable: Vec<(MessageKey, String)>) {
    for (key, detail) in unstorable {
        for action in actions.iter_mut() {
            if let Action::End(ending) = action
                && ending.key == key
            {
                ending.outcome = Outcome::Failed(Failure::Unstorable { detail: detail.clone() });
            }
        }
    }
}

/// What was to be published of turns that the store has refused is not true any more.
fn take_refused_out(actions: &mut [Action], refused: &[TurnId]) {
    for action in actions {
        if let Action::Send(batch) = action {
            refused.iter().for_each(|turn| amend(batch, turn));
        }
    }
}
