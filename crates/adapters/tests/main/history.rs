//! What clients are shown agrees with what is in the history, as `batches` folds it.

use std::sync::Arc;

use adapters::chat_completions::ToolCalls;
use adapters::responses::Resume;
use adapters::{Happening, Protocol, StoredAnswer, StoredMessage};
use batches::{Ending, TurnMessage, fold_turn};
use model::{Chunk, Position};
use serde_json::Value;

use crate::protocols::{self, NAMES};
use crate::scenarios::{self, End, Scenario, told};

/// Those whose parts are in the order of the history: it keeps reasoning, text and calls of a step apart, each in one piece.
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
    StoredAnswer::new(messages.iter().map(stored_message), attempt, Position::from_stored(77))
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

fn objects<'a>(happenings: impl IntoIterator<Item = Happening<'a>>) -> [Value; 3] {
    let mut response = protocols::response(false, Resume::Start);
    let mut hosted = protocols::hosted();
    let mut completion = protocols::completion(ToolCalls::Shown);
    for happening in happenings {
        response.apply(happening);
        hosted.apply(happening);
        completion.apply(happening);
    }
    let read = |bytes: &[u8]| serde_json::from_slice(bytes).unwrap();
    [read(&completion.object().unwrap().unwrap()), read(&response.object()), read(&hosted.object())]
}

#[test]
fn from_the_history_comes_the_same_answer() {
    for scenario in scenarios::all() {
        let Some(messages) = folded(&scenario) else { continue };
        let stored = stored(&messages, scenario.attempt);
        // What a producer adds after the end of its arguments is in the history and was not shown.
        if scenario.name == "doubled_arguments" {
            continue;
        }
        let (live, again) = (objects(scenario.happenings()), objects(stored.happenings()));
        assert_eq!(again[0], live[0], "{}", scenario.name);
        if IN_ORDER.contains(&scenario.name) {
            assert_eq!(again[1..], live[1..], "{}", scenario.name);
        }
    }
}

#[test]
fn every_protocol_tells_it_from_the_history() {
    for scenario in scenarios::all() {
        let Some(messages) = folded(&scenario) else { continue };
        let stored = stored(&messages, scenario.attempt);
        let happenings: Vec<Happening<'_>> = stored.happenings().collect();
        for name in NAMES {
            let live = told(&mut *protocols::of(name), &scenario.happenings());
            let again = told(&mut *protocols::of(name), &happenings);
            assert_eq!(last_event(&again), last_event(&live), "{name} {}", scenario.name);
        }
    }
}

/// The terminal, without the number that counts the pieces, and without what orders them.
fn last_event(bytes: &[u8]) -> String {
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let last = text.split_terminator("\n\n").filter(|event| !event.contains("[DONE]")).last().unwrap();
    last.split("\"sequence_number\"").next().unwrap().to_owned()
}
