//! Clients see the same answer as the history, which `batches` folds.

use std::sync::Arc;

use batches::{Ending, TurnMessage, fold_turn};
use model::{Chunk, ChunkKind, MessageId, Metadata, Position};
use protocols::responses::Resume;
use protocols::{
    AnswerEvent, Cursor, MessageOffset, MessageProgress, Protocol, StoredAnswer, StoredMessage, WithheldCalls,
};
use serde_json::{Value, json};

use crate::encoders::{self, NAMES};
use crate::scenarios::{self, End, Scenario, encode_all};

/// Scenarios whose parts are in the order of the history, which keeps reasoning, text and calls of
/// a step apart, each in one piece.
const IN_ORDER: [&str; 9] =
    ["text", "steps", "stopped", "empty", "separators", "long_result", "mixed_results", "attempt", "faults"];

fn folded(scenario: &Scenario) -> Option<Vec<TurnMessage>> {
    let chunks: Vec<Arc<Chunk>> = scenario.chunks.iter().cloned().map(Arc::new).collect();
    match scenario.end {
        End::Complete => fold_turn(&chunks, Ending::Final).ok(),
        End::Stopped => fold_turn(&chunks, Ending::Stopped).ok(),
        End::Failed(_) => None,
    }
}

fn stored(messages: &[TurnMessage], attempt: u32) -> StoredAnswer {
    StoredAnswer::new(messages.iter().map(stored_message), true, attempt, Position::from_stored(77))
}

fn stored_message(message: &TurnMessage) -> StoredMessage<'_> {
    StoredMessage {
        role: message.role,
        content: &message.content,
        tool_calls: message.tool_calls.as_ref(),
        tool_call_id: message.tool_call_id.as_deref(),
        metadata: &message.metadata,
    }
}

fn objects<'a>(happenings: impl IntoIterator<Item = AnswerEvent<'a>>) -> [Value; 2] {
    let mut response = encoders::response(false, Resume::Start);
    let mut completion = encoders::completion();
    for happening in happenings {
        response.apply(happening);
        completion.apply(happening);
    }
    let read = |bytes: &[u8]| serde_json::from_slice(bytes).unwrap();
    [read(&completion.object().unwrap().unwrap()), read(&response.object())]
}

#[test]
fn from_the_history_comes_the_same_answer() {
    for scenario in scenarios::all().into_iter().chain(scenarios::incomplete()) {
        let Some(messages) = folded(&scenario) else { continue };
        let stored = stored(&messages, scenario.attempt);
        let (live, again) = (objects(scenario.events()), objects(stored.events()));
        assert_eq!(again[0], live[0], "{}", scenario.name);
        if IN_ORDER.contains(&scenario.name) {
            assert_eq!(again[1..], live[1..], "{}", scenario.name);
        }
    }
}

#[test]
fn every_protocol_tells_it_from_the_history() {
    for scenario in scenarios::all().into_iter().chain(scenarios::incomplete()) {
        let Some(messages) = folded(&scenario) else { continue };
        let stored = stored(&messages, scenario.attempt);
        let happenings: Vec<AnswerEvent<'_>> = stored.events().collect();
        for name in NAMES {
            let live = encode_all(&mut *encoders::of(name), &scenario.events());
            let again = encode_all(&mut *encoders::of(name), &happenings);
            assert_eq!(last_event(&again), last_event(&live), "{name} {}", scenario.name);
        }
    }
}

/// The terminal event, without the number that counts the pieces and without the fields that order
/// them.
fn last_event(bytes: &[u8]) -> String {
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let last = text.split_terminator("\n\n").filter(|event| !event.contains("[DONE]")).last().unwrap();
    last.split("\"sequence_number\"").next().unwrap().to_owned()
}

/// The chunks as the history keeps them: joined by kind and step.
fn joined<'a>(chunks: impl Iterator<Item = &'a Chunk>, ending: Ending) -> Vec<TurnMessage> {
    let chunks: Vec<Arc<Chunk>> = chunks.cloned().map(Arc::new).collect();
    fold_turn(&chunks, ending).unwrap()
}

/// The messages without the positions of their chunks, because a history has fewer chunks.
fn without_chunks(messages: &[TurnMessage]) -> Vec<TurnMessage> {
    messages.iter().cloned().map(|message| TurnMessage { chunks: None, ..message }).collect()
}

#[test]
fn client_with_a_part_gets_the_rest_and_nothing_twice() {
    let (mut exact, mut anew) = (0, 0);
    for scenario in scenarios::all().into_iter().chain(scenarios::incomplete()) {
        let Some(messages) = folded(&scenario) else { continue };
        let ending = if matches!(scenario.end, End::Complete) { Ending::Final } else { Ending::Stopped };
        let stored = stored(&messages, scenario.attempt);
        let mut progress = MessageProgress::new(scenario.attempt, true);
        for count in 0..=scenario.chunks.len() {
            if let Some(last) = count.checked_sub(1) {
                progress.advance(&scenario.chunks[last]);
            }
            assert!(stored.has(progress.seen()));
            // The offset passes through the text of an event id.
            let message = MessageId::parse("m").unwrap();
            let mut cursor = Cursor::at(Position::from_stored(1));
            cursor.set(&message, progress.seen().clone());
            let cursor = Cursor::parse(&cursor.to_string()).unwrap();
            let rest = stored.rest(cursor.seen(&message).unwrap());
            let had = if rest.is_anew { &[][..] } else { &scenario.chunks[..count] };
            (exact, anew) = (exact + u32::from(!rest.is_anew), anew + u32::from(rest.is_anew));
            let all = joined(had.iter().chain(rest.chunks.iter().map(|chunk| &**chunk)), ending);
            assert_eq!(
                without_chunks(&all),
                without_chunks(&messages),
                "{} after {count} chunks",
                scenario.name
            );
            let first = rest.progress.seen().next;
            let ids: Vec<u32> = rest.chunks.iter().map(|chunk| chunk.id).collect();
            assert_eq!(ids, (first..).take(ids.len()).collect::<Vec<_>>(), "{}", scenario.name);
        }
    }
    assert!(exact > 20 * anew, "{exact} continued, {anew} sent anew");
}

#[test]
fn offset_that_no_client_can_have_is_rejected() {
    let scenario = scenarios::all().into_iter().find(|scenario| scenario.name == "text").unwrap();
    let stored = stored(&folded(&scenario).unwrap(), 0);
    let text: usize = scenario.chunks.iter().map(|chunk| chunk.text.len()).sum();
    let seen = |next, bytes| MessageOffset { next, bytes, ..MessageOffset::default() };
    assert!(stored.has(&seen(2, text as u64)));
    assert!(!stored.has(&seen(2, text as u64 + 1)));
    assert!(!stored.has(&seen(4_000_000_000, 1)));
    assert!(stored.rest(&seen(2, 1 << 40)).is_anew);
}

/// An answer that calls a reasoning tool and another one.
fn with_reasoning_tool() -> Vec<Arc<Chunk>> {
    let piece = |kind, text: &str, metadata: Value| {
        let metadata = Metadata::new(metadata.as_object().unwrap().clone()).unwrap();
        Chunk { kind, metadata, ..Chunk::content(0, text, false) }
    };
    let (a, b) = (json!({ "tool_call_id": "a" }), json!({ "tool_call_id": "b" }));
    let chunks = [
        Chunk::content(0, "Let me see.", false),
        piece(
            ChunkKind::ToolCall,
            "{\"SECRET\":",
            json!({ "tool_call_id": "a", "tool_name": "mcp__frs_view_thread" }),
        ),
        piece(ChunkKind::ToolCall, "[3]}", a.clone()),
        piece(ChunkKind::ToolCall, "{\"q\":1}", json!({ "tool_call_id": "b", "tool_name": "search" })),
        piece(ChunkKind::ToolResult, "[1] User: SECRET", a.clone()),
        piece(ChunkKind::ToolResult, "found", b),
        piece(ChunkKind::ToolResult, " [2] User: SECRET", a),
        Chunk::content(0, "Done.", false),
        Chunk::content(0, "", true),
    ];
    (0..).zip(chunks).map(|(id, chunk)| Arc::new(Chunk { id, ..chunk })).collect()
}

#[test]
fn reasoning_tools_are_withheld_wherever_a_client_is_cut() {
    let chunks = with_reasoning_tool();
    let mut withheld = WithheldCalls::default();
    let shown: Vec<Arc<Chunk>> = chunks.iter().map(|chunk| withheld.shown(chunk).into_owned()).collect();
    let events = |chunks: &[Arc<Chunk>]| {
        let chunks = chunks.to_vec();
        let [first, rest] =
            [AnswerEvent::Opened, AnswerEvent::Complete { position: Position::from_stored(77) }];
        let mut response = encoders::response(false, Resume::Start);
        response.apply(first);
        for chunk in &chunks {
            response.apply(AnswerEvent::Chunk { attempt: 0, chunk });
        }
        response.apply(rest);
        serde_json::from_slice::<Value>(&response.object()).unwrap()
    };
    let live = events(&shown);
    let text = live.to_string();
    assert!(!text.contains("SECRET") && text.contains("found") && text.contains("Done."), "{text}");
    assert_eq!(text.matches("(not shown: the agent's reasoning thread)").count(), 1, "{text}");
    let messages = fold_turn(&chunks, Ending::Final).unwrap();
    assert!(messages.iter().any(|message| message.content.contains("SECRET")), "the history keeps it");
    let stored = stored(&messages, 0);
    for count in 0..=chunks.len() {
        let mut progress = MessageProgress::new(0, true);
        chunks[..count].iter().for_each(|chunk| progress.advance(chunk));
        let rest = stored.rest(progress.seen());
        assert!(!rest.is_anew, "{count}");
        let all = [&shown[..count], &rest.chunks].concat();
        assert_eq!(events(&all), live, "cut after {count}");
    }
}
