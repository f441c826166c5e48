//! One partition in this process: the loop that feeds its machine and performs what it decides.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use bus::{AskRequest, AskServer, Reader};
use model::{Failure, MessageKey, Outcome, Seq, Timestamp};
use partition::{Action, Commit, Ending, Entry, Input, Partition, Release, Report};
use runtime::Backoff;
use store::Grant;
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use wire::out::{End, OutFrame};

use crate::Context;
use crate::asks::Asks;
use crate::budget::Share;
use crate::committer::Settled;
use crate::feed::{Fed, Feed};
use crate::lease::Lease;
use crate::look_ups::LookUps;
use crate::meter::Meter;
use crate::purge::Purge;

/// Bytes of chunks in one frame to gateways, well below what NATS takes in one message.
const FRAME_BYTES: usize = 256 << 10;
const HOUSEKEEPING: Duration = Duration::from_secs(1);
const PURGE_EVERY: u32 = 5;
/// A drain waits so long for the commits in hand; what is not committed then is read again by the next owner.
const DRAIN: Duration = Duration::from_millis(700);

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Asked to; what was in flight is committed.
    Drained,
    /// The partition belongs to somebody else.
    Lost,
    /// Start again from the store under a new epoch.
    Rebuild,
}

/// Runs the partition until it is drained, lost or in doubt.
pub(crate) async fn run(context: &Context, grant: &Grant, lease: Lease) -> Ended {
    let (lost, drain) = (lease.lost.clone(), lease.drain.clone());
    let attached = tokio::select! {
        biased;
        () = lost.cancelled() => return Ended::Lost,
        () = drain.cancelled() => return Ended::Drained,
        attached = attach(context, grant, lease) => attached,
    };
    match attached {
        Some(mut session) => session.run().await,
        None => Ended::Lost,
    }
}

struct Session<'a> {
    context: &'a Context,
    lease: Lease,
    epoch: u64,
    machine: Partition,
    feed: Feed,
    look_ups: LookUps,
    questions: AskServer,
    asks: Asks,
    meter: Meter,
    purge: Purge,
    share: Share<'a>,
    incarnation: Arc<str>,
    in_flight: Option<InFlight>,
    /// The checkpoint that the store has.
    applied: Seq,
    rounds: u32,
}

struct InFlight {
    settled: oneshot::Receiver<Settled>,
    checkpoint: Seq,
    submitted: Instant,
}

/// Loads the partition and opens its stream, for as long as it takes. `None` when the lease is gone.
async fn attach<'a>(context: &'a Context, grant: &Grant, lease: Lease) -> Option<Session<'a>> {
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
    let mut said = false;
    loop {
        match try_attach(context, grant, lease.clone()).await {
            Ok(session) => return session,
            Err(error) if !said => {
                tracing::warn!(partition = %grant.partition, %error, "a partition cannot start yet and keeps trying");
                said = true;
            }
            Err(error) => tracing::debug!(partition = %grant.partition, %error, "still waiting"),
        }
        backoff.wait().await;
    }
}

async fn try_attach<'a>(
    context: &'a Context,
    grant: &Grant,
    lease: Lease,
) -> Result<Option<Session<'a>>, Box<dyn std::error::Error + Send + Sync>> {
    let (config, partition) = (&context.config, grant.partition);
    let stream = context.bus.stream_state(partition).await?;
    let checkpoint = place(grant, &stream);
    if checkpoint != grant.checkpoint || grant.incarnation.as_deref() != Some(stream.incarnation.as_str()) {
        let rebased =
            context.store.rebase(&config.worker_id, partition, grant.epoch, checkpoint, &stream.incarnation);
        if !rebased.await? {
            return Ok(None);
        }
    }
    let takeover = partition::Takeover { checkpoint, ..context.store.load(grant, config.limits.queue_window).await? };
    let questions = context.bus.serve_asks(partition).await?;
    let reader = Reader::open(&context.bus, partition, grant.epoch, checkpoint.next()).await?;
    let limits = wire::DecodeLimits { chunk_bytes: config.chunk_bytes, partitions: config.partitions };
    let (epoch, stragglers) = (grant.epoch, takeover.stragglers.len());
    tracing::info!(%partition, epoch, %checkpoint, stragglers, "partition taken");
    Ok(Some(Session {
        context,
        lease,
        epoch,
        machine: Partition::new(takeover, config.limits, rand::random(), now(context)),
        feed: Feed::start(reader, partition, limits),
        look_ups: LookUps::start(context.store.clone(), config.create_threads),
        questions,
        asks: Asks::default(),
        meter: Meter::new(partition.to_string()),
        purge: Purge::new(partition, config.purge_tail),
        share: context.budget.share(),
        incarnation: stream.incarnation.as_str().into(),
        in_flight: None,
        applied: checkpoint,
        rounds: 0,
    }))
}

/// The checkpoint for the stream as it is. A stream that was made anew or that lost its end is never skipped over:
/// it is read from where it may hold something new, and what is read twice meets its unique key.
fn place(grant: &Grant, stream: &bus::StreamState) -> Seq {
    let partition = grant.partition;
    let renewed = grant.incarnation.as_ref().is_some_and(|known| *known != stream.incarnation);
    if renewed {
        tracing::error!(%partition, "the stream was made anew: reading it from its beginning");
        metrics::counter!("antiphon_worker_stream_incidents_total").increment(1);
        return stream.first_seq.before();
    }
    if stream.last_seq < grant.checkpoint {
        let (last, checkpoint) = (stream.last_seq, grant.checkpoint);
        tracing::error!(%partition, %last, %checkpoint, "the stream has lost its end: reading on from what is left");
        metrics::counter!("antiphon_worker_stream_incidents_total").increment(1);
        return stream.last_seq;
    }
    grant.checkpoint
}

fn now(context: &Context) -> Timestamp {
    Timestamp(context.clock.now_ms())
}

/// Everything that can happen to a session.
enum Event {
    Lost,
    Drain,
    Settled(Settled),
    Found(Vec<(MessageKey, partition::Known)>),
    Asked(Option<AskRequest>),
    Fed(Option<Fed>),
    Tick,
    Housekeeping,
}

impl Session<'_> {
    async fn run(&mut self) -> Ended {
        let mut housekeeping = interval(HOUSEKEEPING);
        housekeeping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if !self.lease.hold().await {
                return Ended::Lost;
            }
            let tick_at = self.tick_at();
            let event = tokio::select! {
                biased;
                () = self.lease.lost.cancelled() => Event::Lost,
                () = self.lease.drain.cancelled() => Event::Drain,
                settled = settled(&mut self.in_flight) => Event::Settled(settled),
                found = self.look_ups.next() => Event::Found(found),
                () = sleep_until(tick_at) => Event::Tick,
                _ = housekeeping.tick() => Event::Housekeeping,
                asked = self.questions.next() => Event::Asked(asked),
                fed = self.feed.next(), if self.machine.wants_entries() => Event::Fed(fed),
            };
            if let ControlFlow::Break(ended) = self.on(event).await {
                return ended;
            }
        }
    }

    fn tick_at(&self) -> Instant {
        let wait = self.machine.poll_timeout().map_or(60_000, |at| at.since_ms(now(self.context)));
        Instant::now() + Duration::from_millis(wait.unsigned_abs())
    }

    async fn on(&mut self, event: Event) -> ControlFlow<Ended> {
        match event {
            Event::Lost => return ControlFlow::Break(Ended::Lost),
            Event::Drain => return ControlFlow::Break(self.drain().await),
            Event::Settled(settled) => return self.settled(settled).await,
            Event::Found(found) => self.handle(Input::Found(found)).await,
            Event::Asked(Some(request)) => {
                if let Some(input) = self.asks.accept(request) {
                    self.handle(input).await;
                }
            }
            Event::Fed(Some(Fed::Entries(entries))) => self.read(entries).await,
            Event::Fed(Some(Fed::CaughtUp(caught_up))) => self.handle(Input::CaughtUp(caught_up)).await,
            Event::Fed(Some(Fed::StreamChanged) | None) | Event::Asked(None) => {
                return ControlFlow::Break(Ended::Rebuild);
            }
            Event::Tick => self.handle(Input::Tick).await,
            Event::Housekeeping => self.keep_house().await,
        }
        ControlFlow::Continue(())
    }

    /// Hands entries to the machine with as many new messages as the worker has room for.
    async fn read(&mut self, entries: Vec<Entry>) {
        let chunks = entries.iter().map(|entry| match &entry.body {
            partition::Body::Frame(frame) => frame.chunks.len(),
            partition::Body::Order(..) | partition::Body::Refused { .. } => 0,
        });
        let room = self.share.reserve(chunks.sum());
        self.handle(Input::Entries { entries, room }).await;
    }

    async fn handle(&mut self, input: Input) {
        let actions = self.machine.handle(input, now(self.context));
        self.perform(actions).await;
        let (open, bytes) = self.machine.load();
        self.share.settle(open, bytes);
        if let Some(excess) = self.share.excess() {
            let actions = self.machine.handle(Input::Shed(excess), now(self.context));
            self.perform(actions).await;
        } else if self.machine.is_deferring() && (self.share.has_room() || open == 0) {
            let actions = self.machine.handle(Input::Room, now(self.context));
            self.perform(actions).await;
        }
    }

    async fn perform(&mut self, actions: Vec<Action>) {
        for action in actions {
            self.meter.action(action.name());
            match action {
                Action::Publish(release) => self.publish(release).await,
                Action::Commit(commit) => self.submit(commit).await,
                Action::LookUp(keys) => self.look_ups.ask(keys),
                Action::End(ending) => self.end(ending).await,
                Action::Answer(answer) => self.asks.answer(answer).await,
                Action::Explain(explanation) => self.asks.explain(self.epoch, explanation).await,
                Action::Reread(from) => self.feed.restart(from),
                Action::Report(report) => log(&report),
                Action::Check(_)
                | Action::Start(_)
                | Action::Abandon { .. }
                | Action::LoadTasks { .. }
                | Action::Send(_) => {}
            }
        }
    }

    async fn submit(&mut self, commit: Commit) {
        let checkpoint = commit.checkpoint;
        let settled = self.context.committers.submit(commit, Arc::clone(&self.incarnation)).await;
        self.in_flight = Some(InFlight { settled, checkpoint, submitted: Instant::now() });
    }

    async fn settled(&mut self, settled: Settled) -> ControlFlow<Ended> {
        let Some(in_flight) = self.in_flight.take() else { return ControlFlow::Continue(()) };
        metrics::histogram!("antiphon_worker_commit_seconds").record(in_flight.submitted.elapsed());
        match settled {
            Settled::Applied { unstorable } => {
                self.applied = self.applied.max(in_flight.checkpoint);
                let mut actions = self.machine.handle(Input::Committed(Vec::new()), now(self.context));
                mark_unstorable(&mut actions, unstorable);
                self.perform(actions).await;
                let (open, bytes) = self.machine.load();
                self.share.settle(open, bytes);
                ControlFlow::Continue(())
            }
            Settled::Fenced => {
                metrics::counter!("antiphon_worker_fenced_commits_total").increment(1);
                ControlFlow::Break(Ended::Lost)
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

    async fn keep_house(&mut self) {
        self.meter.count(&self.machine.take_counters());
        let stats = self.machine.stats(now(self.context));
        self.meter.show(&stats);
        self.rounds = self.rounds.wrapping_add(1);
        if self.rounds.is_multiple_of(PURGE_EVERY) {
            self.purge.tick(&self.context.bus, self.applied);
        }
        if stats.deferring {
            // What the other partitions freed is not seen by this one's own inputs.
            self.handle(Input::Tick).await;
        }
    }

    /// Takes nothing new and waits for what is in flight.
    async fn drain(&mut self) -> Ended {
        let deadline = Instant::now() + DRAIN;
        while self.in_flight.is_some() {
            let settled = tokio::select! {
                settled = settled(&mut self.in_flight) => settled,
                () = self.lease.lost.cancelled() => return Ended::Lost,
                () = sleep_until(deadline) => break,
            };
            if let ControlFlow::Break(ended) = self.settled(settled).await {
                return match ended {
                    Ended::Lost => Ended::Lost,
                    // The next owner's epoch waits for the doubtful statement just as ours would.
                    Ended::Rebuild | Ended::Drained => Ended::Drained,
                };
            }
        }
        self.meter.count(&self.machine.take_counters());
        Ended::Drained
    }
}

/// The outcome of the commit in flight; pends while there is none. A committer that is gone is a stopping process.
async fn settled(in_flight: &mut Option<InFlight>) -> Settled {
    match in_flight {
        Some(in_flight) => (&mut in_flight.settled).await.unwrap_or(Settled::Unknown),
        None => std::future::pending().await,
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

fn log(report: &Report) {
    match report {
        Report::Conflict { key, chunk_id, kept, dropped } => tracing::warn!(
            key = %key, chunk_id, kept = format!("{kept:016x}"), dropped = format!("{dropped:016x}"),
            "two chunks with one id and different content: the first stays"
        ),
        Report::GivenUp { key, failure, expected, received, released, idle_ms } => tracing::warn!(
            key = %key, code = failure.code(), %failure, expected, received, released, idle_ms,
            "a message was given up"
        ),
        Report::TurnFailed { turn, run, code, text, backoff_ms } => {
            tracing::warn!(%turn, run, code, text, backoff_ms, "a run of a turn failed");
        }
        Report::Hole { first, last } => tracing::error!(%first, %last, "the stream has lost entries"),
        Report::Deferring(from) => tracing::warn!(%from, "at capacity: new messages wait in the stream"),
    }
}
