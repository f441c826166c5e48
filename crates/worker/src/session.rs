//! One partition in this process: the loop that feeds its machine and performs the actions.

mod attach;
mod log_throttle;
mod perform;
pub(crate) mod reader_task;
mod remembered;
mod report;
mod state;
mod turn_log;
mod turn_traces;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use bus::QueryRequest;
use model::Mark;
use partition::{EntryBody, Input, StreamEntry};
use runtime::Condition;
use store::Grant;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use self::reader_task::ReadEvent;
use crate::committer::CommitOutcome;
use crate::context::Context;
use crate::gauges::PartitionGauges;
use crate::lease::Lease;
pub(crate) use state::SessionEnd;

use attach::attach;
use state::{InFlight, LastRead, PartitionSession, now};

const HOUSEKEEPING: Duration = Duration::from_secs(1);
const PURGE_EVERY: u32 = 5;
/// Interval of loading timers again, in housekeeping rounds. Gateways store schedules and delayed
/// tasks and send a command about each; loading finds them even if the command was lost.
const READ_TIMERS_EVERY: u32 = 60;
/// Maximum time that a drain waits for commits in flight. The next owner reads again what is not
/// committed by the end of this time.
const DRAIN: Duration = Duration::from_millis(700);

/// Runs the partition until it is drained, lost or in doubt. `readable` counts as met while the
/// partition can be read.
pub(crate) async fn run(
    context: &Context,
    grant: &Grant,
    lease: Lease,
    last_read: &mut LastRead,
    readable: &Condition,
) -> SessionEnd {
    let (lost, drain, doubt) = (lease.lost.clone(), lease.drain.clone(), Arc::clone(&lease.doubt));
    let attached = tokio::select! {
        biased;
        () = lost.cancelled() => return SessionEnd::Lost,
        () = drain.cancelled() => return SessionEnd::Drained,
        () = doubt.notified() => return SessionEnd::Rebuild,
        attached = attach(context, grant, lease, last_read.clone(), readable) => attached,
    };
    let Some(mut session) = attached else { return SessionEnd::Rebuild };
    let ended = session.run().await;
    session.release_turns();
    context.limiter.hand_over(grant.partition);
    *last_read = session.read.map(|mark| (Arc::clone(&session.incarnation), mark));
    // Ends the session's tasks first: they could still report requests, which would then be watched
    // again.
    drop(session);
    context.requests.retain(grant.partition, |_| false);
    ended
}

/// Everything that can happen to a session.
enum SessionInput {
    Lost,
    Drain,
    Doubted,
    CommitOutcome(CommitOutcome),
    Answered(Option<Box<Input>>),
    Asked(Option<QueryRequest>),
    Read(Option<ReadEvent>),
    Tick,
    Housekeeping,
}

impl PartitionSession<'_> {
    async fn run(&mut self) -> SessionEnd {
        let mut housekeeping = interval(HOUSEKEEPING);
        housekeeping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if !self.lease.hold().await {
                return SessionEnd::Lost;
            }
            let tick_at = self.tick_at();
            let event = tokio::select! {
                biased;
                () = self.lease.lost.cancelled() => SessionInput::Lost,
                () = self.lease.drain.cancelled() => SessionInput::Drain,
                () = self.lease.doubt.notified() => SessionInput::Doubted,
                settled = settled(&mut self.in_flight) => SessionInput::CommitOutcome(settled),
                answer = self.background.next() => SessionInput::Answered(answer.map(Box::new)),
                () = sleep_until(tick_at) => SessionInput::Tick,
                _ = housekeeping.tick() => SessionInput::Housekeeping,
                asked = self.query_server.next() => SessionInput::Asked(asked),
                fed = self.reader.next(), if self.machine.wants_entries() => SessionInput::Read(fed),
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

    async fn on(&mut self, event: SessionInput) -> ControlFlow<SessionEnd> {
        match event {
            SessionInput::Lost => return ControlFlow::Break(SessionEnd::Lost),
            SessionInput::Drain => return ControlFlow::Break(self.drain().await),
            SessionInput::Doubted => return ControlFlow::Break(SessionEnd::Rebuild),
            SessionInput::CommitOutcome(settled) => return self.settled(settled).await,
            SessionInput::Answered(Some(answer)) => {
                if let (Some(traces), Input::Started { turn, run, .. }) = (&mut self.traces, &*answer) {
                    traces.requested(turn, *run);
                }
                if let Input::Saved(_) = &*answer {
                    // Set before the machine decides a commit that relies on the saves.
                    self.applied.saves = self.background.acknowledged_saves();
                    self.lease.confirmed.set(Some(self.applied));
                }
                self.handle(*answer).await;
            }
            SessionInput::Asked(Some(request)) => {
                if let Some(input) = self.queries.accept(request, self.context.bus.page_bytes()) {
                    self.handle(input).await;
                }
            }
            SessionInput::Read(Some(ReadEvent::Entries(entries, last, traced))) => {
                self.reached = last.map_or(self.reached, |last| last.seq);
                if let Some(traces) = &mut self.traces {
                    traces.read(traced);
                }
                self.read(entries, last).await;
            }
            SessionInput::Read(Some(ReadEvent::CaughtUp(caught_up))) => {
                self.handle(Input::CaughtUp(caught_up)).await
            }
            SessionInput::Read(Some(ReadEvent::Trouble(Some(why)))) => self.readable.unmet(why),
            SessionInput::Read(Some(ReadEvent::Trouble(None))) => self.readable.met(),
            SessionInput::Read(Some(ReadEvent::StreamChanged) | None)
            | SessionInput::Asked(None)
            | SessionInput::Answered(None) => {
                return ControlFlow::Break(SessionEnd::Rebuild);
            }
            SessionInput::Tick => self.handle(Input::Tick).await,
            SessionInput::Housekeeping => self.housekeeping().await,
        }
        ControlFlow::Continue(())
    }

    /// Passes entries to the machine, with the number of new messages and commands that the worker
    /// has room for.
    async fn read(&mut self, entries: Vec<StreamEntry>, last: Option<Mark>) {
        self.read = self.read.filter(|read| last.is_none_or(|last| last.seq < read.seq)).or(last);
        let wanted = entries.iter().map(|entry| match &entry.body {
            EntryBody::Frame(frame) => frame.chunks.len(),
            EntryBody::Command(..) => 1,
            EntryBody::Refused { .. } => 0,
        });
        let room = self.reservation.reserve(wanted.sum());
        self.handle(Input::Entries { entries, room }).await;
    }

    async fn handle(&mut self, input: Input) {
        let actions = self.machine.handle(input, now(self.context));
        self.perform(actions).await;
        let (open, bytes) = self.machine.load();
        self.reservation.settle(open, bytes);
        if let Some(excess) = self.reservation.excess() {
            let actions = self.machine.handle(Input::Shed(excess), now(self.context));
            self.perform(actions).await;
        } else if self.machine.is_deferring() && (self.reservation.has_room() || open == 0) {
            let actions = self.machine.handle(Input::Room, now(self.context));
            self.perform(actions).await;
        }
    }

    async fn housekeeping(&mut self) {
        report::log_left_out();
        // The NATS server may have been reloaded with another maximum message size.
        self.machine.limit_frames(self.frame_bytes.min(self.context.bus.page_bytes()));
        self.metrics.add_counters(&self.machine.take_counters());
        let stats = self.machine.stats(now(self.context));
        let unread = self.reader.end().0.saturating_sub(self.reached.0);
        let last_stored_at = self.read.filter(|_| unread > 0);
        let lag_ms = last_stored_at
            .map_or(0, |last| (self.context.clock.now_ms() - last.stored_at_ns / 1_000_000).max(0));
        self.metrics.set_gauges(PartitionGauges { stats, unread, lag_ms });
        self.metrics.add_turn_times(&self.machine.take_turn_times());
        self.rounds = self.rounds.wrapping_add(1);
        if self.rounds.is_multiple_of(PURGE_EVERY) {
            self.purge.tick(&self.context.bus, self.applied.checkpoint);
        }
        self.release_turns();
        self.report_waiting_turns().await;
        self.retention.tick(self.context, &self.machine, &self.lease.lost);
        if let Some(keys) = self.context.token_keys.other_than(self.token_keys.as_ref()) {
            self.token_keys = Some(keys.clone());
            self.handle(Input::TokenKeys(keys)).await;
        }
        if self.rounds.is_multiple_of(READ_TIMERS_EVERY) {
            self.handle(Input::TimersChanged).await;
        }
        if stats.deferring {
            // Other partitions may have freed room, which no input of this partition reports.
            self.handle(Input::Tick).await;
        }
    }

    /// Queries the state of silent turns' requests, and sends notices to subscribers.
    async fn report_waiting_turns(&mut self) {
        let (partition, now) = (self.applied.partition, now(self.context));
        let news = self.context.requests.take_news(partition);
        if !news.is_empty() {
            self.handle(Input::Requests(news)).await;
        }
        self.context.requests.ask(partition, self.machine.silent_turns(now));
        for (notice, gateways) in self.machine.wait_notices(now) {
            self.context.live.push_encoded(&gateways, &wire::live::encode_notice(&notice)).await;
        }
        self.context.live.send().await;
    }

    /// Makes room under limits by releasing turns that are not active any more.
    fn release_turns(&self) {
        let partition = self.applied.partition;
        self.context.limiter.retain(partition, |turn| self.machine.is_active(turn));
        self.context.requests.retain(partition, |turn| self.machine.is_active(turn));
    }

    /// Accepts no new work and waits for the work in flight.
    async fn drain(&mut self) -> SessionEnd {
        let deadline = Instant::now() + DRAIN;
        while self.in_flight.is_some() {
            let settled = tokio::select! {
                settled = settled(&mut self.in_flight) => settled,
                () = self.lease.lost.cancelled() => return SessionEnd::Lost,
                () = sleep_until(deadline) => break,
            };
            if let ControlFlow::Break(ended) = self.settled(settled).await {
                return match ended {
                    SessionEnd::Lost => SessionEnd::Lost,
                    // The next owner's epoch waits for the statement with an unknown result just as
                    // ours would.
                    SessionEnd::Rebuild | SessionEnd::Drained => SessionEnd::Drained,
                };
            }
        }
        self.metrics.add_counters(&self.machine.take_counters());
        SessionEnd::Drained
    }
}

/// Outcome of the commit in flight; pending while there is none. A dropped committer means that the
/// process is stopping.
async fn settled(in_flight: &mut Option<InFlight>) -> CommitOutcome {
    match in_flight {
        Some(in_flight) => (&mut in_flight.settled).await.unwrap_or(CommitOutcome::Unknown),
        None => std::future::pending().await,
    }
}
