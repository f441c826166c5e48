//! Takes turn requests, has each one answered, and acknowledges it, hands it back or terminates it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bus::{ACK_WAIT, Bus, BusError, CancelSubscription, Disposition, WorkItem, WorkOptions};
use model::{Timestamp, TurnId, WorkflowName};
use runtime::traces::{Span, SpanKind, SpanStart, TraceContext};
use runtime::{Backoff, Clock, Health, spawn_named, traces};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use crate::engine::Engine;
use crate::engine_event::{EngineEnd, EngineEvent, EngineSender, TurnSlot};
use crate::metrics::{self, TurnOutcome};
use crate::request::TurnAttempt;
use crate::writer::ChunkWriter;

/// Interval of the progress reports to the server while a request is in progress.
const IN_PROGRESS_EVERY: Duration = Duration::from_secs(10);
/// Interval of the progress reports after a failed one.
const IN_PROGRESS_RETRY: Duration = Duration::from_secs(1);
/// Interval of the loop's heartbeat.
const HEARTBEAT_EVERY: Duration = Duration::from_secs(3);
/// Time after the end of the drain for which sending the outcome of a request is retried.
const SETTLE_AFTER_DRAIN: Duration = Duration::from_secs(5);
/// Delay of the redelivery when the chunks could not be stored.
const PUBLISH_RETRY_DELAY: Duration = Duration::from_secs(1);
/// Delay of the redelivery when a script hands a request back: without it the deliveries would soon
/// be used up.
const SCRIPT_RETRY_DELAY: Duration = Duration::from_millis(200);

/// A redelivery waits this long for a stop before it calls a model: its turn may have ended while
/// no service listened.
const STOP_WAIT: Duration = Duration::from_millis(500);

pub(crate) struct Service {
    bus: Bus,
    engine: Engine,
    clock: Clock,
    in_hand: InHand,
    /// Cancelled when the drain timeout has passed.
    hand_back: CancellationToken,
}

impl Service {
    pub(crate) fn new(bus: Bus, engine: Engine, clock: Clock) -> Arc<Self> {
        let hand_back = CancellationToken::new();
        Arc::new(Self { bus, engine, clock, in_hand: InHand::default(), hand_back })
    }

    /// Takes requests until `drain` is cancelled. Then finishes the turns in progress within
    /// `drain_timeout` and hands back the rest.
    pub(crate) async fn serve(
        self: Arc<Self>,
        workflow: &WorkflowName,
        concurrency: usize,
        drain_timeout: Duration,
        health: &Health,
        drain: CancellationToken,
    ) -> Result<(), BusError> {
        let turns = TaskTracker::new();
        let taking = self.take_until(workflow, concurrency, health, &drain, &turns);
        let taken = taking.await;
        turns.close();
        if tokio::time::timeout(drain_timeout, turns.wait()).await.is_err() {
            tracing::info!(turns = turns.len(), "handing back what is not finished");
            self.hand_back.cancel();
            turns.wait().await;
        }
        taken
    }

    async fn take_until(
        self: &Arc<Self>,
        workflow: &WorkflowName,
        concurrency: usize,
        health: &Health,
        drain: &CancellationToken,
        turns: &TaskTracker,
    ) -> Result<(), BusError> {
        let slots = Arc::new(Semaphore::new(concurrency));
        let mut work = self.bus.work(workflow, WorkOptions::default());
        let heartbeat = health.register_loop("turn requests");
        let mut beat = tokio::time::interval(HEARTBEAT_EVERY);
        let mut slot = None;
        loop {
            // Every branch is cancel-safe.
            tokio::select! {
                biased;
                () = drain.cancelled() => break,
                _ = beat.tick() => {
                    heartbeat.beat();
                    health.set_ready("turn requests", self.bus.is_connected());
                }
                permit = slots.clone().acquire_owned(), if slot.is_none() => slot = permit.ok(),
                item = work.next(), if slot.is_some() => {
                    self.begin(item?, TurnSlot::new(slots.clone(), slot.take()), turns);
                }
            }
        }
        // A request that was in transit when the drain began is answered as well.
        for item in work.end().await {
            self.begin(item, TurnSlot::new(slots.clone(), None), turns);
        }
        Ok(())
    }

    fn begin(self: &Arc<Self>, item: WorkItem, slot: TurnSlot, turns: &TaskTracker) {
        let service = self.clone();
        let turn = turns.track_future(async move { service.take(item, Arc::new(slot)).await });
        spawn_named("turn", turn);
    }

    async fn take(&self, item: WorkItem, slot: Arc<TurnSlot>) {
        let delivery = Delivery { item: &item, confirmed_at: Mutex::new(Instant::now()) };
        let mut turn = match TurnAttempt::read(&item.payload, item.delivered.into()) {
            Ok(turn) => turn,
            Err(garbage) => {
                metrics::garbage();
                tracing::warn!(seq = item.seq.0, %garbage, "a turn request was given up");
                return self.settle(&delivery, Settle::GiveUp).await;
            }
        };
        let mut traced = trace(&turn, item.trace.as_ref());
        turn.trace = traced.context();
        let span = of_turn(&turn);
        let attended = async {
            let counted = metrics::taken(item.delivered > 1);
            let Attended { outcome, settle, error } = self.attend(&delivery, &turn, slot).await;
            tracing::debug!(outcome = outcome.name(), "turn request ended");
            counted.ended(outcome);
            traced.set("antiphon.turn.outcome", outcome.name());
            if let Some(code) = error {
                traced.fail(code);
            }
            traced.end();
            self.settle(&delivery, settle).await;
        };
        attended.instrument(span).await;
    }

    /// Answers the turn, unless a stop, a later delivery, the loss of the request or the end of the
    /// drain comes first.
    async fn attend(&self, delivery: &Delivery<'_>, turn: &TurnAttempt, slot: Arc<TurnSlot>) -> Attended {
        let ended = |outcome, settle| Attended { outcome, settle, error: None };
        if turn.has_expired(Timestamp(self.clock.now_ms())) {
            tracing::info!("a turn request came after its expires_at: its run has failed, and is not begun");
            return ended(TurnOutcome::Expired, Settle::Done);
        }
        let claim = self.in_hand.claim(turn);
        if claim.superseded.is_cancelled() {
            return ended(TurnOutcome::Lost, Settle::Nothing);
        }
        let stop = self.bus.subscribe_cancel(&turn.id, turn.run).await;
        if let Err(error) = &stop {
            tracing::debug!(%error, "a stop of this turn will not be received");
        }
        tokio::select! {
            written = self.answer(turn, slot) => settled(written),
            () = stopped(stop.ok()) => ended(TurnOutcome::Stopped, Settle::Done),
            () = claim.superseded.cancelled() => ended(TurnOutcome::Lost, Settle::Nothing),
            () = delivery.lost() => ended(TurnOutcome::Lost, Settle::Nothing),
            () = self.hand_back.cancelled() => ended(TurnOutcome::HandedBack, Settle::Retry(Duration::ZERO)),
        }
    }

    /// Dropping the future cancels the engine's calls.
    async fn answer(&self, turn: &TurnAttempt, slot: Arc<TurnSlot>) -> Result<EngineEnd, BusError> {
        let (events, inbox) = EngineSender::channel(slot);
        let answering = async {
            if turn.is_redelivered {
                // An error means that the writer has ended, and the `select!` below with it.
                let _ = events.send(EngineEvent::Alive).await;
                tokio::time::sleep(STOP_WAIT).await;
            }
            let ended = self.engine.answer(turn, &events).await;
            // An error means that the writer has ended, and the `select!` below with it.
            let _ = events.send(EngineEvent::Ended(ended)).await;
            std::future::pending().await
        };
        tokio::select! {
            written = ChunkWriter::new(self.bus.clone(), turn).write(inbox) => written,
            never = answering => never,
        }
    }

    /// Sends the outcome to the server while that can avoid another delivery and the drain lasts.
    async fn settle(&self, delivery: &Delivery<'_>, settle: Settle) {
        let give_up_at = match settle {
            // Later, a retry would take the request from another service.
            Settle::Retry(_) => delivery.confirmed_at() + ACK_WAIT,
            _ => Instant::now() + ACK_WAIT,
        };
        let drained = async {
            self.hand_back.cancelled().await;
            tokio::time::sleep(SETTLE_AFTER_DRAIN).await;
        };
        tokio::select! {
            biased;
            () = tokio::time::sleep_until(give_up_at) => delivery.warn_unsettled(),
            () = drained => delivery.warn_unsettled(),
            () = delivery.send(settle) => {}
        }
    }
}

/// The span that adds the turn's fields to every log line. It has level error, so that the log
/// filter never removes it.
fn of_turn(turn: &TurnAttempt) -> tracing::Span {
    tracing::error_span!("turn", turn = %turn.id, run = turn.run, attempt = turn.attempt,
        correlation_id = turn.correlation_id.as_deref(), trace_id = turn.trace.as_ref().map(TraceContext::trace_id))
}

fn trace(turn: &TurnAttempt, parent: Option<&TraceContext>) -> Span {
    if !traces::is_on() {
        return Span::default();
    }
    let name = format!("invoke_agent {}", turn.agent);
    let mut span = Span::start(name, SpanKind::Consumer, parent, SpanStart::Now);
    if span.is_recorded() {
        span.set("gen_ai.operation.name", "invoke_agent");
        span.set("gen_ai.agent.id", turn.agent.clone());
        span.set("gen_ai.conversation.id", turn.thread.as_str().to_owned());
        span.set("antiphon.turn.id", turn.id.as_str().to_owned());
        span.set("antiphon.turn.run", i64::from(turn.run));
        span.set("antiphon.turn.attempt", i64::from(turn.attempt));
    }
    span
}

/// The acknowledgement sent to the NATS server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Settle {
    Done,
    Retry(Duration),
    GiveUp,
    Nothing,
}

/// The outcome of a request.
struct Attended {
    outcome: TurnOutcome,
    settle: Settle,
    /// The error code for its span.
    error: Option<String>,
}

fn settled(written: Result<EngineEnd, BusError>) -> Attended {
    let (outcome, settle, error) = match written {
        Ok(EngineEnd::Complete(_)) => (TurnOutcome::Complete, Settle::Done, None),
        Ok(EngineEnd::Failed(failure)) => {
            metrics::failure(failure.class);
            tracing::warn!(class = failure.class.name(), %failure, "turn failed");
            (TurnOutcome::Failed, Settle::Done, Some(failure.code))
        }
        Ok(EngineEnd::Cut) => (TurnOutcome::Cut, Settle::Nothing, None),
        Ok(EngineEnd::HandBack) => (TurnOutcome::HandedBack, Settle::Retry(SCRIPT_RETRY_DELAY), None),
        Err(error) if error.disposition() == Disposition::Retry => {
            tracing::warn!(%error, "chunks could not be stored: handing the request back");
            (TurnOutcome::Unpublished, Settle::Retry(PUBLISH_RETRY_DELAY), Some(UNPUBLISHED.to_owned()))
        }
        Err(error) => {
            tracing::error!(%error, "chunks are refused: giving the request up");
            (TurnOutcome::Unpublished, Settle::GiveUp, Some(UNPUBLISHED.to_owned()))
        }
    };
    Attended { outcome, settle, error }
}

/// Error code of the span of a request whose chunks were not stored.
const UNPUBLISHED: &str = "unpublished";

async fn stopped(stop: Option<CancelSubscription>) {
    match stop {
        Some(mut stop) => stop.stopped().await,
        None => std::future::pending().await,
    }
}

/// A request that this service holds.
struct Delivery<'a> {
    item: &'a WorkItem,
    /// When the last progress report that the server confirmed was sent, or when the request
    /// arrived.
    confirmed_at: Mutex<Instant>,
}

impl Delivery<'_> {
    fn confirmed_at(&self) -> Instant {
        *self.confirmed_at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports to the server that the request is in progress. Returns when no report has succeeded
    /// for the time after which the server delivers the request again.
    async fn lost(&self) {
        let (seq, mut pause) = (self.item.seq.0, IN_PROGRESS_EVERY);
        while self.confirmed_at().elapsed() < ACK_WAIT {
            tokio::time::sleep(pause).await;
            let reported_at = Instant::now();
            pause = match self.item.in_progress().await {
                Ok(()) => {
                    *self.confirmed_at.lock().unwrap_or_else(PoisonError::into_inner) = reported_at;
                    IN_PROGRESS_EVERY
                }
                Err(error) => {
                    tracing::debug!(seq, %error, "the server was not informed that the request is in progress");
                    IN_PROGRESS_RETRY
                }
            };
        }
    }

    /// Sends the outcome. Returns once the server has confirmed it.
    async fn send(&self, settle: Settle) {
        let mut backoff = Backoff::default();
        loop {
            let sent = match settle {
                Settle::Done => self.item.ack().await,
                Settle::Retry(delay) => self.item.nak(delay).await,
                Settle::GiveUp => self.item.term().await,
                Settle::Nothing => return,
            };
            match sent {
                Ok(()) => return,
                Err(error) => {
                    tracing::debug!(seq = self.item.seq.0, %error, "the outcome was not sent to the server")
                }
            }
            backoff.wait().await;
        }
    }

    fn warn_unsettled(&self) {
        tracing::warn!(
            seq = self.item.seq.0,
            "a turn request will be delivered again: its outcome could not be sent to the server"
        );
    }
}

/// The runs that this process answers.
#[derive(Default)]
struct InHand {
    claims: Mutex<HashMap<(TurnId, u32), (u32, CancellationToken)>>,
}

/// One delivery's right to answer a run, until a later delivery comes.
struct Claim<'a> {
    in_hand: &'a InHand,
    key: (TurnId, u32),
    attempt: u32,
    is_granted: bool,
    superseded: CancellationToken,
}

impl InHand {
    /// A redelivery fences the delivery before it: continuing that one would cost money, and its
    /// chunks would be dropped. Redeliveries happen when the server misses our progress reports.
    ///
    /// A server that was killed may have forgotten a delivery and repeat it under the same number.
    /// Then the answer in progress is the only one of its attempt: two would be mixed.
    fn claim(&self, turn: &TurnAttempt) -> Claim<'_> {
        let (key, attempt) = ((turn.id.clone(), turn.run), turn.attempt);
        let superseded = CancellationToken::new();
        let mut claims = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        let is_granted = claims.get(&key).is_none_or(|(known, _)| *known < attempt);
        if is_granted {
            if let Some((_, earlier)) = claims.insert(key.clone(), (attempt, superseded.clone())) {
                earlier.cancel();
            }
        } else {
            superseded.cancel();
        }
        drop(claims);
        Claim { in_hand: self, key, attempt, is_granted, superseded }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut claims = self.in_hand.claims.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_granted && claims.get(&self.key).is_some_and(|(attempt, _)| *attempt == self.attempt) {
            claims.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::tests::turn;

    #[test]
    fn a_later_delivery_takes_a_run_from_an_earlier_one() {
        let in_hand = InHand::default();
        let first = in_hand.claim(&turn());
        assert!(!first.superseded.is_cancelled());
        let second = in_hand.claim(&TurnAttempt { attempt: 1, ..turn() });
        assert!(first.superseded.is_cancelled() && !second.superseded.is_cancelled());
        drop(first);
        let late = in_hand.claim(&turn());
        assert!(late.superseded.is_cancelled() && !second.superseded.is_cancelled());
        let other = in_hand.claim(&TurnAttempt { run: 9, ..turn() });
        assert!(!other.superseded.is_cancelled() && !second.superseded.is_cancelled());
        drop((second, late, other));
        assert!(in_hand.claims.lock().unwrap().is_empty());
    }

    #[test]
    fn a_delivery_that_the_server_forgot_goes_on() {
        let in_hand = InHand::default();
        let first = in_hand.claim(&turn());
        let again = in_hand.claim(&turn());
        assert!(!first.superseded.is_cancelled() && again.superseded.is_cancelled());
        drop(again);
        let third = in_hand.claim(&turn());
        assert!(!first.superseded.is_cancelled() && third.superseded.is_cancelled());
        drop((first, third));
        assert!(!in_hand.claim(&turn()).superseded.is_cancelled());
    }
}
