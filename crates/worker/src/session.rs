//! One partition in this process: the loop that feeds its machine and performs what it decides.

mod attach;
mod limited;
mod perform;
pub(crate) mod report;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use bus::{QueryRequest, QueryServer};
use model::{Mark, Seq, Timestamp};
use partition::{Body, Entry, Input, Partition};
use runtime::Condition;
use store::{Applied, Gone, Grant};
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::Context;
use crate::budget::Share;
use crate::committer::Settled;
use crate::errands::Errands;
use crate::feed::{Fed, Feed};
use crate::lease::Lease;
use crate::metrics::Meter;
use crate::purge::Purge;
use crate::queries::PendingQueries;
use crate::retaining::Retaining;
use attach::attach;

const HOUSEKEEPING: Duration = Duration::from_secs(1);
const PURGE_EVERY: u32 = 5;
/// A drain waits so long for the commits in hand; what is not committed then is read again by the next owner.
const DRAIN: Duration = Duration::from_millis(700);

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Asked to; what was in flight is committed.
    Drained,
    /// The partition belongs to a newer grant.
    Lost,
    /// The store is not what this session thought: start again from it under a new epoch, if the lease is still ours.
    Rebuild,
}

/// The last entry that sessions of one hold have read, with its stream: more than the store may know.
pub(crate) type Seen = Option<(Arc<str>, Mark)>;

/// Runs the partition until it is drained, lost or in doubt. `readable` is met while it can be read.
pub(crate) async fn run(
    context: &Context,
    grant: &Grant,
    lease: Lease,
    seen: &mut Seen,
    readable: &Condition,
) -> Ended {
    let (lost, drain, doubt) = (lease.lost.clone(), lease.drain.clone(), Arc::clone(&lease.doubt));
    let attached = tokio::select! {
        biased;
        () = lost.cancelled() => return Ended::Lost,
        () = drain.cancelled() => return Ended::Drained,
        () = doubt.notified() => return Ended::Rebuild,
        attached = attach(context, grant, lease, seen.clone(), readable) => attached,
    };
    let Some(mut session) = attached else { return Ended::Rebuild };
    let ended = session.run().await;
    *seen = session.read.map(|mark| (session.incarnation, mark));
    ended
}

struct Session<'a> {
    context: &'a Context,
    lease: Lease,
    readable: &'a Condition,
    /// What the store has, as far as it has said.
    applied: Applied,
    machine: Partition,
    feed: Feed,
    errands: Errands,
    questions: QueryServer,
    queries: PendingQueries,
    meter: Meter,
    purge: Purge,
    share: Share<'a>,
    incarnation: Arc<str>,
    /// The highest entry that was read.
    read: Option<Mark>,
    /// What the stream jumped over and no commit has named yet.
    gone: Vec<Gone>,
    in_flight: Option<InFlight>,
    rounds: u32,
    retaining: Retaining,
}

struct InFlight {
    settled: oneshot::Receiver<Settled>,
    checkpoint: Seq,
    submitted: Instant,
}

fn now(context: &Context) -> Timestamp {
    Timestamp(context.clock.now_ms())
}

/// Everything that can happen to a session.
enum Event {
    Lost,
    Drain,
    Doubted,
    Settled(Settled),
    Answered(Option<Box<Input>>),
    Asked(Option<QueryRequest>),
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
                () = self.lease.doubt.notified() => Event::Doubted,
                settled = settled(&mut self.in_flight) => Event::Settled(settled),
                answer = self.errands.next() => Event::Answered(answer.map(Box::new)),
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
            Event::Doubted => return ControlFlow::Break(Ended::Rebuild),
            Event::Settled(settled) => return self.settled(settled).await,
            Event::Answered(Some(answer)) => self.handle(*answer).await,
            Event::Asked(Some(request)) => {
                if let Some(input) = self.queries.accept(request) {
                    self.handle(input).await;
                }
            }
            Event::Fed(Some(Fed::Entries(entries, last))) => self.read(entries, last).await,
            Event::Fed(Some(Fed::CaughtUp(caught_up))) => self.handle(Input::CaughtUp(caught_up)).await,
            Event::Fed(Some(Fed::Trouble(Some(why)))) => self.readable.unmet(why),
            Event::Fed(Some(Fed::Trouble(None))) => self.readable.met(),
            Event::Fed(Some(Fed::StreamChanged) | None) | Event::Asked(None) | Event::Answered(None) => {
                return ControlFlow::Break(Ended::Rebuild);
            }
            Event::Tick => self.handle(Input::Tick).await,
            Event::Housekeeping => self.keep_house().await,
        }
        ControlFlow::Continue(())
    }

    /// Hands entries to the machine with as many new messages and orders as the worker has room for.
    async fn read(&mut self, entries: Vec<Entry>, last: Option<Mark>) {
        self.read = self.read.filter(|read| last.is_none_or(|last| last.seq < read.seq)).or(last);
        let wanted = entries.iter().map(|entry| match &entry.body {
            Body::Frame(frame) => frame.chunks.len(),
            Body::Command(..) => 1,
            Body::Refused { .. } => 0,
        });
        let room = self.share.reserve(wanted.sum());
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

    async fn keep_house(&mut self) {
        self.meter.count(&self.machine.take_counters());
        let stats = self.machine.stats(now(self.context));
        self.meter.show(&stats);
        self.rounds = self.rounds.wrapping_add(1);
        if self.rounds.is_multiple_of(PURGE_EVERY) {
            self.purge.tick(&self.context.bus, self.applied.checkpoint);
        }
        self.retaining.tick(self.context, &self.machine, &self.lease.lost);
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
