//! Test doubles of the stream of turn requests and of the services that answer them.

use std::sync::Arc;

use model::{
    Chunk, ChunkKind, Frame, IncomingChunk, ListedCall, MessageId, Metadata, ModelCall, Role, ThreadId,
    TurnId, TurnToken,
};
use partition::Start;
use serde_json::{Map, Value, json};

use super::World;
use crate::bug::PlantedBug;
use crate::rng::Rng;
use crate::scenario::TurnProfile;
use crate::world::event::{WorkEvent, WorldEvent};
use crate::world::state::workflows::{Manner, PendingRequest, Writing};

impl World {
    /// Stores a request; the stream drops repetitions of an id for a while.
    pub(super) fn store_request(&mut self, start: &Start) {
        let (name, window) = ((start.turn.clone(), start.run), self.scenario.turn_profile.window_ms);
        let is_known = self.workflows.latest.get(&name).is_some_and(|at| self.time - at < window);
        if is_known {
            self.coverage.repeated_requests += 1;
            return;
        }
        self.workflows.latest.insert(name, self.time);
        let number = self.workflows.requests.len();
        self.note(70, [number as u64, u64::from(start.run), 0], || {
            format!("request {number}: {} run {} attempt {}", start.turn, start.run, start.attempt)
        });
        self.workflows.requests.push(PendingRequest {
            turn: start.turn.clone(),
            run: start.run,
            thread: start.thread.clone(),
            attempt: start.attempt,
            token: start.token.clone(),
            deliveries: 0,
            stored_at: self.time,
            is_done: false,
            done_at: None,
            is_stopped: false,
        });
        let is_late = self.workflow_fault(|turn_profile| turn_profile.late);
        let delay = self.workflows.rng.range(1, if is_late { 3_000 } else { 15 });
        self.schedule(delay, WorldEvent::Work(WorkEvent::Deliver(number)));
    }

    fn workflow_fault(&mut self, rate: impl Fn(&TurnProfile) -> f64) -> bool {
        !self.is_quiet && self.workflows.rng.chance(rate(&self.scenario.turn_profile))
    }

    pub(super) fn work(&mut self, event: WorkEvent) {
        match event {
            WorkEvent::Deliver(number) => self.deliver(number),
            WorkEvent::Again(number, delivery) => {
                let request = &self.workflows.requests[number];
                if !request.is_done && request.deliveries == delivery {
                    self.coverage.redeliveries += 1;
                    self.deliver(number);
                }
            }
            WorkEvent::Frame(number, delivery, writing) => self.write(number, delivery, *writing),
            WorkEvent::Ack(number, delivery) => {
                let is_last = self.workflows.requests[number].deliveries == delivery;
                self.done(number, is_last);
            }
            WorkEvent::Stop(turn, run) => self.stop(&turn, run),
        }
    }

    fn done(&mut self, number: usize, is_last: bool) {
        let time = self.time;
        let request = &mut self.workflows.requests[number];
        request.is_done = true;
        if is_last {
            request.done_at.get_or_insert(time);
        }
    }

    /// Cancels the request; a workflow that works on it may miss the notice.
    fn stop(&mut self, turn: &TurnId, run: u32) {
        let is_heard = !self.workflow_fault(|turn_profile| turn_profile.late);
        for number in 0..self.workflows.requests.len() {
            let request = &mut self.workflows.requests[number];
            if request.turn == *turn && request.run == run {
                request.is_stopped |= is_heard;
                self.done(number, true);
            }
        }
    }

    /// Removes requests for turns of the thread from the stream.
    pub(super) fn drop_requests(&mut self, thread: &ThreadId) {
        for number in 0..self.workflows.requests.len() {
            let request = &mut self.workflows.requests[number];
            if request.thread == *thread {
                request.is_stopped = true;
                self.done(number, true);
            }
        }
    }

    fn manner(&mut self) -> Manner {
        if self.workflow_fault(|turn_profile| turn_profile.silent) {
            Manner::Silent
        } else if self.workflow_fault(|turn_profile| turn_profile.error) {
            Manner::Fails
        } else if self.workflow_fault(|turn_profile| turn_profile.dies) {
            Manner::Dies
        } else {
            Manner::Answers
        }
    }

    /// A service takes the request, and plans everything that it will publish.
    fn deliver(&mut self, number: usize) {
        if self.workflows.requests[number].is_done {
            return;
        }
        let manner = self.manner();
        let is_doubled = self.workflow_fault(|turn_profile| turn_profile.doubled);
        let is_unacked = self.workflow_fault(|turn_profile| turn_profile.ack_lost);
        let has_tools = self.workflow_fault_even_late(|turn_profile| turn_profile.tools);
        let continues = self.workflow_fault_even_late(|turn_profile| turn_profile.continues);
        let is_forged = self.workflow_fault(|turn_profile| turn_profile.forged);
        let is_shuffled = self.workflow_fault_even_late(|turn_profile| turn_profile.shuffled);
        let (bug, ack_wait) = (self.bug, self.scenario.turn_profile.ack_wait_ms);
        let request = &mut self.workflows.requests[number];
        request.deliveries += 1;
        let delivery = request.deliveries;
        let again = if bug == Some(PlantedBug::AttemptStays) { 0 } else { delivery - 1 };
        let attempt = request.attempt + again;
        let name = format!("{}.{}.{number}.{delivery}", request.turn, request.run);
        self.note(71, [number as u64, u64::from(delivery), manner as u64], || {
            format!("request {number} delivery {delivery}, attempt {attempt}: {manner:?}")
        });
        self.coverage.deliveries += 1;
        let wishes = self.scenario.follow_ups.as_ref().map(|profile| (profile.hints, profile.empty));
        let hint = wishes.and_then(|(hints, _)| hint(&mut self.follow_ups.rng, hints));
        let is_empty = wishes.is_some_and(|(_, empty)| self.follow_ups.rng.chance(empty));
        let further = self.long_answers.further_texts(self.scenario.limits.chunks_per_message as usize);
        self.coverage.long_answers += u64::from(further > 0 && manner == Manner::Answers);
        let rng = &mut self.workflows.rng;
        let pace = rng.pick([1, 5, 30, 150]);
        let chunks =
            with_hint(answer(&name, manner, (has_tools, continues), further, rng), manner, hint, is_empty);
        let mut frames = frames(with_model_calls(chunks, &name), rng);
        if manner == Manner::Dies || manner == Manner::Silent {
            frames.truncate(rng.index(frames.len()));
        }
        let is_whole = matches!(manner, Manner::Answers | Manner::Fails);
        if is_shuffled && frames.len() > 1 {
            let index = rng.index(frames.len() - 1);
            frames.swap(index, index + 1);
        }
        let (count, mut delay) = (frames.len(), 0);
        let mut writings = Vec::new();
        for (index, chunks) in frames.into_iter().enumerate() {
            delay += rng.range(0, pace);
            if is_forged && rng.chance(0.5) {
                let forged = chunks.iter().map(|chunk| Chunk { text: "forged ".into(), ..chunk.clone() });
                let chunks = forged.collect();
                let (is_forged, is_last) = (true, false);
                writings.push((delay, Writing { chunks, attempt, is_forged, is_last }));
            }
            let is_last = is_whole && index + 1 == count && !is_unacked;
            let repeated = rng.chance(self.scenario.publishing.duplicate / 2.0);
            let writing = |is_last| Writing { chunks: chunks.clone(), attempt, is_forged: false, is_last };
            if repeated {
                writings.push((delay + rng.range(0, 60), writing(false)));
            }
            writings.push((delay, writing(is_last)));
        }
        for (delay, writing) in writings {
            self.schedule(delay, WorldEvent::Work(WorkEvent::Frame(number, delivery, Box::new(writing))));
        }
        // A silent service reports progress, so its request is not redelivered; a dead one does
        // not, and an acknowledgement may be lost.
        if manner == Manner::Dies || is_unacked || is_doubled {
            let missed = if is_doubled { self.workflows.rng.range(0, delay) } else { delay };
            self.schedule(missed + ack_wait, WorldEvent::Work(WorkEvent::Again(number, delivery)));
        }
    }

    /// Like [`World::workflow_fault`], but also in quiet times, for behaviour that is not a fault.
    fn workflow_fault_even_late(&mut self, rate: impl Fn(&TurnProfile) -> f64) -> bool {
        self.workflows.rng.chance(rate(&self.scenario.turn_profile))
    }

    fn write(&mut self, number: usize, delivery: u32, writing: Writing) {
        let request = &self.workflows.requests[number];
        if request.is_stopped {
            return;
        }
        let (thread, turn, run) = (request.thread.clone(), request.turn.clone(), request.run);
        let token = match writing.is_forged {
            true => TurnToken::received("0123456789abcdef0123456789abcdef"),
            false => request.token.clone(),
        };
        let message: MessageId = turn.answer(run);
        let arrival = |chunk: Chunk| IncomingChunk {
            message: message.clone(),
            attempt: writing.attempt,
            step: 0,
            role: Role::Assistant,
            chunk: Arc::new(chunk),
        };
        self.coverage.forged += u64::from(writing.is_forged);
        let chunks = writing.chunks.into_iter().map(arrival).collect();
        self.publish_frame(Frame { thread, chunks, token: Some(token) }, !writing.is_forged);
        if writing.is_last {
            let delay = self.workflows.rng.range(0, 20);
            self.schedule(delay, WorldEvent::Work(WorkEvent::Ack(number, delivery)));
        }
    }
}

/// The chunks of an answer, in order. Each text contains the name of the delivery, and so does each
/// step.
fn answer(
    name: &str,
    manner: Manner,
    (has_tools, continues): (bool, bool),
    further: i64,
    rng: &mut Rng,
) -> Vec<Chunk> {
    let mut chunks: Vec<Chunk> = Vec::new();
    let mut say = |kind: ChunkKind, text: String, metadata: Value| {
        let map: Map<String, Value> = metadata.as_object().cloned().unwrap_or_default();
        let base = Chunk::content(chunks.len() as u32, &text, false);
        let metadata = Metadata::new(map).unwrap_or_default();
        chunks.push(Chunk { kind, metadata, correlation_id: Some(name.into()), ..base });
    };
    let steps = if has_tools { rng.range(1, 2) } else { 0 };
    for step in 0..steps {
        if rng.chance(0.5) {
            say(ChunkKind::Content, format!("{name} thinks {step} "), Value::Null);
        }
        let calls = rng.range(1, 2);
        let id = |call: i64| json!({ "tool_call_id": format!("c{step}.{call}"), "tool_name": "tool" });
        for call in 0..calls {
            say(ChunkKind::ToolCall, format!("{name} asks"), id(call));
        }
        for call in (0..calls).rev() {
            say(ChunkKind::ToolResult, format!("{name} {step}.{call} "), id(call));
        }
    }
    for part in 0..rng.range(1, 4) + further {
        say(ChunkKind::Content, format!("{name} says {part} "), Value::Null);
    }
    if manner == Manner::Fails {
        let hint = match rng.below(5) {
            0 => json!({ "class": "auth" }),
            1 => json!({ "retryable": false }),
            2 => json!({ "class": "transient", "retry_after": 1.5 }),
            _ => json!({}),
        };
        say(ChunkKind::Error, format!("{name} fails"), hint);
    } else if let Some(last) = chunks.last_mut() {
        last.is_final = true;
        if continues {
            let map = Map::from_iter([("continuation".to_owned(), json!(true))]);
            last.metadata = Metadata::new(map).unwrap_or_default();
        }
    }
    chunks
}

/// A follow-up hint for the last chunk of an answer; some are invalid.
fn hint(rng: &mut Rng, chance: f64) -> Option<Value> {
    let is_wanted = rng.chance(chance);
    let (trigger, seconds) = match rng.below(12) {
        0 => ("check_in", 29),
        1 => ("summary", 60),
        _ => ("check_in", rng.pick([30, 45, 600, 3_600])),
    };
    is_wanted.then(|| json!({ "trigger_type": trigger, "after_seconds": seconds, "reason": "planted" }))
}

/// Adds the hint to a complete answer, or makes the answer empty.
fn with_hint(mut chunks: Vec<Chunk>, manner: Manner, hint: Option<Value>, is_empty: bool) -> Vec<Chunk> {
    let is_said = |chunk: &Chunk| chunk.kind == ChunkKind::Content;
    if is_empty && manner != Manner::Fails && chunks.iter().all(is_said) {
        chunks.iter_mut().for_each(|chunk| chunk.text = "".into());
    }
    if let (Some(last), Some(hint)) = (chunks.last_mut().filter(|last| last.is_final), hint) {
        let mut map = last.metadata.as_map().cloned().unwrap_or_default();
        map.insert("follow_up".to_owned(), hint);
        last.metadata = Metadata::new(map).unwrap_or_default();
    }
    chunks
}

/// Makes some chunks list model calls. The counts are drawn from the delivery's name, so that no
/// two calls of a history are equal.
fn with_model_calls(mut chunks: Vec<Chunk>, name: &str) -> Vec<Chunk> {
    let seed = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut rng = Rng::new(seed);
    let lists = rng.chance(0.5);
    let mut begun: Option<Box<str>> = None;
    for chunk in &mut chunks {
        let is_listing = lists && rng.chance(0.4);
        if !is_listing && !chunk.is_final {
            continue;
        }
        let mut map = chunk.metadata.as_map().cloned().unwrap_or_default();
        let (input, output) = (rng.below(ModelCall::MOST_TOKENS), rng.below(ModelCall::MOST_TOKENS));
        if is_listing {
            let call = ModelCall { input_tokens: input, output_tokens: output, ..ModelCall::default() };
            // Some calls are listed when they begin, and some of these get their counts later.
            let is_estimated = begun.is_none() && rng.chance(0.4);
            let id = begun.take().or_else(|| is_estimated.then(|| Box::from(format!("c{}", chunk.id))));
            begun = id.clone().filter(|_| is_estimated);
            let listed = ListedCall { id, call: ModelCall { is_estimated, ..call } };
            map.insert(ModelCall::KEY.to_owned(), json!([listed.to_value()]));
        } else if rng.chance(0.7) {
            map.insert("usage".to_owned(), json!({ "prompt_tokens": input, "completion_tokens": output }));
        }
        chunk.metadata = Metadata::new(map).unwrap_or_default();
    }
    chunks
}

/// Splits chunks into frames of one to three.
fn frames(chunks: Vec<Chunk>, rng: &mut Rng) -> Vec<Vec<Chunk>> {
    let mut frames: Vec<Vec<Chunk>> = Vec::new();
    for chunk in chunks {
        match frames.last_mut() {
            Some(last) if last.len() < 3 && rng.chance(0.4) => last.push(chunk),
            _ => frames.push(vec![chunk]),
        }
    }
    frames
}
