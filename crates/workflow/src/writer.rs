//! Publishes the parts of an answer as they come: a frame at once when nothing was sent lately, otherwise one for all that
//! came within some milliseconds; many frames on their way at a time, each tried again until its ack is there.
//!
//! Frames are sent in order and may be stored in another when one had to be tried again: chunks are numbered.

use std::sync::Arc;
use std::time::Duration;

use bus::{Bus, BusError};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};
use model::{Frame, ThreadId, TurnToken};
use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, sleep_until};

use crate::draft::Draft;
use crate::metrics;
use crate::part::{Ended, Part, Trick};
use crate::request::Turn;

/// Text that comes within so long of the last frame is joined.
const COALESCE: Duration = Duration::from_millis(15);
/// Frames of one answer that wait for their acks; beyond, the engine waits.
const IN_FLIGHT: usize = 64;
/// Silence longer than this part of the deadline is broken by a sign of life.
const SIGNS_PER_DEADLINE: u32 = 3;

/// The one that publishes one attempt at an answer.
pub(crate) struct Writer {
    bus: Bus,
    thread: ThreadId,
    token: TurnToken,
    subject: Arc<str>,
    deadline: Duration,
    draft: Draft,
    in_flight: FuturesUnordered<BoxFuture<'static, Result<(), BusError>>>,
    tricks: Tricks,
    started_at: Instant,
    published_at: Option<Instant>,
}

/// What a script does to the frames.
#[derive(Default)]
struct Tricks {
    last: Option<Bytes>,
    reversed: Vec<Bytes>,
    still_to_reverse: usize,
    is_mute: bool,
}

impl Writer {
    pub(crate) fn new(bus: Bus, turn: &Turn) -> Self {
        Self {
            bus,
            draft: Draft::new(turn.message.clone(), turn.attempt, turn.correlation_id.clone()),
            thread: turn.thread.clone(),
            token: turn.token.clone(),
            subject: turn.subject.as_str().into(),
            deadline: turn.deadline,
            in_flight: FuturesUnordered::new(),
            tricks: Tricks::default(),
            started_at: Instant::now(),
            published_at: None,
        }
    }

    /// Publishes until the engine has ended and everything that it said is stored.
    ///
    /// # Errors
    /// A frame could not be stored within the turn's deadline.
    pub(crate) async fn write(mut self, mut parts: Receiver<Part>) -> Result<Ended, BusError> {
        loop {
            let has_room = self.in_flight.len() < IN_FLIGHT;
            let frame_at = self.frame_at();
            let sign_at = self.sign_at();
            tokio::select! {
                biased;
                Some(stored) = self.in_flight.next() => stored?,
                part = parts.recv(), if has_room => match part {
                    Some(Part::Ended(ended)) => return self.end(ended).await,
                    Some(part) => self.take(part),
                    None => return Ok(Ended::Cut),
                },
                () = sleep_until(frame_at), if has_room && !self.draft.is_empty() => self.publish(),
                () = sleep_until(sign_at), if has_room && !self.tricks.is_mute => {
                    metrics::sign_of_life();
                    self.draft.sign_of_life();
                    self.publish();
                }
            }
        }
    }

    /// The first frame goes at once, and one after a pause; what follows closely waits for company.
    fn frame_at(&self) -> Instant {
        self.published_at.map_or(self.started_at, |at| at + COALESCE)
    }

    fn sign_at(&self) -> Instant {
        self.published_at.unwrap_or(self.started_at) + self.deadline / SIGNS_PER_DEADLINE
    }

    fn take(&mut self, part: Part) {
        match part {
            Part::Text(text) => self.draft.text(&text),
            Part::Reasoning(text) => self.draft.reasoning(&text),
            Part::Call(call, arguments) => self.draft.call(&call, &arguments),
            Part::Result { call, text, is_error } => self.draft.result(&call, &text, is_error),
            Part::Break => self.publish(),
            Part::Trick(trick) => self.play(trick),
            Part::Ended(_) => {}
        }
        if self.draft.is_large() {
            self.publish();
        }
    }

    async fn end(mut self, ended: Ended) -> Result<Ended, BusError> {
        match &ended {
            Ended::Complete(metadata) => self.draft.finish(metadata.clone()),
            Ended::Failed(failure) => self.draft.fail(failure),
            Ended::Cut | Ended::HandBack => {}
        }
        self.publish();
        self.tricks.still_to_reverse = 0;
        self.send_reversed();
        while let Some(stored) = self.in_flight.next().await {
            stored?;
        }
        Ok(ended)
    }

    fn publish(&mut self) {
        if self.draft.is_empty() {
            return;
        }
        if self.published_at.is_none() {
            metrics::first_chunk(self.started_at.elapsed());
        }
        self.published_at = Some(Instant::now());
        let chunks = self.draft.take_frame();
        metrics::frame(chunks.len());
        let frame = Frame { thread: self.thread.clone(), chunks, token: Some(self.token.clone()) };
        let payload = wire::encode_frame(&frame);
        self.tricks.last = Some(payload.clone());
        if self.tricks.still_to_reverse == 0 {
            return self.send(payload);
        }
        self.tricks.reversed.push(payload);
        self.tricks.still_to_reverse -= 1;
        self.send_reversed();
    }

    fn send_reversed(&mut self) {
        if self.tricks.still_to_reverse == 0 {
            for payload in std::mem::take(&mut self.tricks.reversed).into_iter().rev() {
                self.send(payload);
            }
        }
    }

    fn play(&mut self, trick: Trick) {
        match trick {
            Trick::Repeat => {
                self.publish();
                self.tricks.last.clone().into_iter().for_each(|payload| self.send(payload));
            }
            Trick::Reverse(frames) => {
                self.publish();
                self.tricks.still_to_reverse = frames;
            }
            Trick::Mute(is_mute) => self.tricks.is_mute = is_mute,
        }
    }

    fn send(&mut self, payload: Bytes) {
        let (bus, subject, patience) = (self.bus.clone(), self.subject.clone(), self.deadline);
        self.in_flight.push(Box::pin(async move {
            let content_type = Some(wire::CONTENT_TYPE_PROTOBUF);
            bus.publish_stored(&subject, payload, content_type, patience).await.map(drop)
        }));
    }
}
