//! The cost of a thread's event at a gateway, in this process. It is measured from an owner's frame
//! to the bytes for native clients, and also for each further subscriber with another protocol.

use std::{hint::black_box, sync::Arc, time::Instant};

use anyhow::Result;
use bytes::Bytes;
use feed::Feed;
use model::{
    BatchType, Chunk, Cut, FrameNumber, LiveFrame, MessageEnd, MessageId, MessageOutcome, Position, Role,
    ThreadId, Timestamp,
};
use protocols::{AnswerEvent, Protocol, UiMessage, native::NativeEvent};
use wire::query::SnapshotReply;

const THREAD: &str = "thread-of-the-bench";
const MESSAGES: u64 = 20;
const CHUNKS: u32 = 300;
const NOW: Timestamp = Timestamp(1);
const BEGIN: i64 = 5;
/// Bytes of open text that a feed keeps for late subscribers.
const LOG_BYTES: usize = 8 << 20;

/// The cost of an event.
#[derive(Debug, Clone, Copy)]
pub(super) struct EventCost {
    /// Nanoseconds per event.
    pub(super) ns: f64,
    pub(super) allocations: f64,
}

/// Runs the answers of one thread, one frame per chunk, through a feed and through the encoders of
/// `subscribers` AI SDK subscribers.
pub(super) fn encode(subscribers: usize, allocations: fn() -> u64) -> Result<EventCost> {
    let mut feed = begun()?;
    let (mut ns, mut allocated) = (0, 0);
    for number in 0..MESSAGES {
        let message = MessageId::parse(&format!("u01f3-0198c4d2e5f57a60b1d3c8a94e27f{number:03}-a"))?;
        let frames = frames(&message, number * u64::from(CHUNKS + 1))?;
        let mut encoders: Vec<_> = (0..subscribers).map(|_| UiMessage::new(message.clone())).collect();
        let (before, started) = (allocations(), Instant::now());
        for frame in &frames {
            wire::live::decode(frame)?.into_frame().into_iter().for_each(|frame| feed.on_frame(frame, NOW));
            while let Some(event) = feed.next_event() {
                let event = black_box(event);
                for encoder in &mut encoders {
                    let bytes = encoder.apply(answer_event(&event.event)).bytes;
                    assert!(!black_box(bytes).is_empty(), "every event has bytes in this protocol");
                }
            }
        }
        (ns, allocated) = (ns + started.elapsed().as_nanos(), allocated + allocations() - before);
    }
    let events = (MESSAGES * u64::from(CHUNKS + 1)) as f64;
    Ok(EventCost { ns: ns as f64 / events, allocations: allocated as f64 / events })
}

fn begun() -> Result<Feed> {
    let mut feed = Feed::new(ThreadId::parse(THREAD)?, LOG_BYTES);
    feed.poll_snapshot_request(NOW);
    let begin = Position::from_stored(BEGIN);
    let cut = Cut { epoch: 1, number: 0, committed: begin, is_current: true };
    feed.on_reply(SnapshotReply { cut, open: Vec::new(), left_out: false, more: false }, NOW);
    feed.poll_store_read(NOW);
    feed.on_last(begin, NOW);
    Ok(feed)
}

/// The frames of an answer, after `after` earlier frames.
fn frames(message: &MessageId, after: u64) -> Result<Vec<Bytes>> {
    let thread = ThreadId::parse(THREAD)?;
    let frame = |number: u64, chunks, terminal| {
        wire::live::encode(&LiveFrame {
            thread: thread.clone(),
            message: message.clone(),
            attempt: 0,
            role: Role::Assistant,
            batch_type: BatchType::UserRequest,
            number: FrameNumber { epoch: 1, number: number + 1, after: number },
            chunks,
            terminal,
            input: None,
        })
    };
    let chunk = |id| vec![Arc::new(Chunk::content(id, "a few words of ", id + 1 == CHUNKS))];
    let last = after + u64::from(CHUNKS);
    let position = Position::from_stored(BEGIN + last as i64 + 1);
    let (outcome, report) = (MessageOutcome::Complete, model::AnswerReport::default());
    let end = MessageEnd { position, chunks: CHUNKS, outcome, report };
    let chunks = (0..CHUNKS).map(|id| frame(after + u64::from(id), chunk(id), None));
    Ok(chunks.chain([frame(last, Vec::new(), Some(end))]).collect())
}

fn answer_event(event: &NativeEvent) -> AnswerEvent<'_> {
    match event {
        NativeEvent::Chunk { attempt, chunk, .. } => AnswerEvent::Chunk { attempt: *attempt, chunk },
        NativeEvent::Complete { position, .. } => AnswerEvent::Complete { position: *position },
        other => unreachable!("{other:?}"),
    }
}
