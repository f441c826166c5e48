//! Publishes the parts of an answer as they arrive. A frame is sent at once if nothing was sent
//! lately; otherwise the parts of some milliseconds form one frame. Many frames are in flight, and
//! each one is retried until it is acknowledged.
//!
//! Frames are sent in order. A retried one may be stored out of order, but chunks are numbered.

use std::sync::Arc;
use std::time::Duration;

use bus::{Bus, BusError};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use model::{Frame, ThreadId, TurnToken};
use runtime::traces::TraceContext;
use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, sleep_until};

use crate::engine_event::{EngineEnd, EngineEvent, InjectedFault};
use crate::frame_builder::FrameBuilder;
use crate::metrics;
use crate::request::TurnAttempt;

/// Text that arrives within this time of the last frame is joined.
const COALESCE: Duration = Duration::from_millis(15);
/// Maximum number of unacknowledged frames of one answer; beyond it the engine waits.
const IN_FLIGHT: usize = 64;
/// Keep-alive chunks in a silence as long as the turn's deadline.
const KEEPALIVES_PER_DEADLINE: u32 = 3;

/// Publishes one attempt at an answer.
pub(crate) struct ChunkWriter {
    bus: Bus,
    thread: ThreadId,
    token: TurnToken,
    subject: Arc<str>,
    deadline: Duration,
    builder: FrameBuilder,
    in_flight: FuturesUnordered<BoxFuture<'static, Result<(), BusError>>>,
    faults: FrameFaults,
    started_at: Instant,
    published_at: Option<Instant>,
    /// Trace of the first frame; later frames do not name it.
    trace: Option<TraceContext>,
}

/// Faults that a script injects into the frames.
#[derive(Default)]
struct FrameFaults {
    last: Option<Bytes>,
    reversed: Vec<Bytes>,
    still_to_reverse: usize,
    is_mute: bool,
}

impl ChunkWriter {
    pub(crate) fn new(bus: Bus, turn: &TurnAttempt) -> Self {
        Self {
            bus,
            builder: FrameBuilder::new(turn.message.clone(), turn.attempt, turn.correlation_id.clone()),
            thread: turn.thread.clone(),
            token: turn.token.clone().of_delivery(&format!("{:016x}", rand::random::<u64>())),
            subject: turn.subject.as_str().into(),
            deadline: turn.deadline,
            in_flight: FuturesUnordered::new(),
            faults: FrameFaults::default(),
            started_at: Instant::now(),
            published_at: None,
            trace: turn.trace.clone(),
        }
    }

    /// Publishes until the engine has ended and all its output is stored.
    ///
    /// # Errors
    /// A frame could not be stored within the turn's deadline.
    pub(crate) async fn write(mut self, mut events: Receiver<EngineEvent>) -> Result<EngineEnd, BusError> {
        loop {
            let has_room = self.in_flight.len() < IN_FLIGHT;
            let frame_at = self.frame_at();
            let keepalive_at = self.keepalive_at();
            tokio::select! {
                biased;
                Some(stored) = self.in_flight.next() => stored?,
                part = events.recv(), if has_room => match part {
                    Some(EngineEvent::Ended(ended)) => return self.end(ended).await,
                    Some(part) => self.take(part),
                    None => return Ok(EngineEnd::Cut),
                },
                () = sleep_until(frame_at), if has_room && !self.builder.is_empty() => self.publish(),
                () = sleep_until(keepalive_at), if has_room && !self.faults.is_mute => {
                    metrics::keepalive();
                    self.builder.keepalive();
                    self.publish();
                }
            }
        }
    }

    /// The first frame, and one after a pause, is sent at once; closely following text is joined.
    fn frame_at(&self) -> Instant {
        self.published_at.map_or(self.started_at, |at| at + COALESCE)
    }

    fn keepalive_at(&self) -> Instant {
        self.published_at.unwrap_or(self.started_at) + self.deadline / KEEPALIVES_PER_DEADLINE
    }

    fn take(&mut self, part: EngineEvent) {
        match part {
            EngineEvent::Text(text) => self.builder.text(&text),
            EngineEvent::Reasoning(text) => self.builder.reasoning(&text),
            EngineEvent::Call(call, arguments) => self.builder.call(&call, &arguments),
            EngineEvent::Result { call, text, is_error } => self.builder.result(&call, &text, is_error),
            EngineEvent::ModelCall(call) => self.builder.model_call(&call),
            EngineEvent::Alive => {
                self.builder.keepalive();
                self.publish();
            }
            EngineEvent::Notice(metadata) => {
                self.builder.notice(metadata);
                self.publish();
            }
            EngineEvent::CallStarted(trace) if self.published_at.is_none() => self.trace = Some(trace),
            EngineEvent::CallStarted(_) => {}
            EngineEvent::Break => self.publish(),
            EngineEvent::InjectedFault(trick) => self.play(trick),
            EngineEvent::Ended(_) => {}
        }
        if self.builder.is_large() {
            self.publish();
        }
    }

    async fn end(mut self, ended: EngineEnd) -> Result<EngineEnd, BusError> {
        match &ended {
            EngineEnd::Complete(metadata) => self.builder.finish(metadata.clone()),
            EngineEnd::Failed(failure) => self.builder.fail(failure),
            EngineEnd::Cut | EngineEnd::HandBack => {}
        }
        self.publish();
        self.faults.still_to_reverse = 0;
        self.send_reversed();
        while let Some(stored) = self.in_flight.next().await {
            stored?;
        }
        Ok(ended)
    }

    fn publish(&mut self) {
        if self.builder.is_empty() {
            return;
        }
        if self.published_at.is_none() {
            metrics::first_chunk(self.started_at.elapsed());
        }
        self.published_at = Some(Instant::now());
        let chunks = self.builder.take_frame();
        metrics::frame(chunks.len());
        let frame = Frame { thread: self.thread.clone(), chunks, token: Some(self.token.clone()) };
        let payload = wire::encode_frame(&frame);
        self.faults.last = Some(payload.clone());
        if self.faults.still_to_reverse == 0 {
            return self.send(payload);
        }
        self.faults.reversed.push(payload);
        self.faults.still_to_reverse -= 1;
        self.send_reversed();
    }

    fn send_reversed(&mut self) {
        if self.faults.still_to_reverse == 0 {
            for payload in std::mem::take(&mut self.faults.reversed).into_iter().rev() {
                self.send(payload);
            }
        }
    }

    fn play(&mut self, trick: InjectedFault) {
        match trick {
            InjectedFault::Repeat => {
                self.publish();
                self.faults.last.clone().into_iter().for_each(|payload| self.send(payload));
            }
            InjectedFault::Reverse(frames) => {
                self.publish();
                self.faults.still_to_reverse = frames;
            }
            InjectedFault::Mute(is_mute) => self.faults.is_mute = is_mute,
        }
    }

    fn send(&mut self, payload: Bytes) {
        let (bus, subject, ack_timeout) = (self.bus.clone(), self.subject.clone(), self.deadline);
        let trace = self.trace.take();
        self.in_flight.push(Box::pin(async move {
            let content_type = Some(wire::CONTENT_TYPE_PROTOBUF);
            let published =
                bus.publish_traced(&subject, payload, content_type, None, trace.as_ref(), ack_timeout);
            published.await.map(drop)
        }));
    }
}
