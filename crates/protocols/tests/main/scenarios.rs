//! Answers as short scripts.

use model::{Chunk, ChunkKind, IdRange, Metadata, Position};
use protocols::{AnswerEvent, Protocol, ProtocolOutput, StreamAction, StreamError};
use serde_json::{Value, json};

/// An answer from its opening to its end.
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) attempt: u32,
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) end: End,
}

pub(crate) enum End {
    Complete,
    Stopped,
    Failed(StreamError),
}

impl Scenario {
    /// The events, in order.
    pub(crate) fn events(&self) -> Vec<AnswerEvent<'_>> {
        let mut happenings = vec![AnswerEvent::Opened];
        happenings.extend(self.chunks.iter().map(|chunk| happening(self.attempt, chunk)));
        happenings.push(self.end());
        happenings
    }

    pub(crate) fn end(&self) -> AnswerEvent<'_> {
        match &self.end {
            End::Complete => AnswerEvent::Complete { position: Position::from_stored(77) },
            End::Stopped => AnswerEvent::Stopped,
            End::Failed(failure) => AnswerEvent::Failed(failure),
        }
    }
}

pub(crate) fn happening(attempt: u32, chunk: &Chunk) -> AnswerEvent<'_> {
    AnswerEvent::Chunk { attempt, chunk }
}

/// All output of the protocol. Exactly the last event must end the stream.
pub(crate) fn encode_all(protocol: &mut dyn Protocol, happenings: &[AnswerEvent<'_>]) -> Vec<u8> {
    let outputs: Vec<ProtocolOutput> =
        happenings.iter().map(|happening| protocol.apply(*happening)).collect();
    let (last, before) = outputs.split_last().unwrap();
    assert_eq!(last.then, StreamAction::Close);
    assert!(before.iter().all(|output| output.then == StreamAction::Continue));
    outputs.iter().flat_map(|output| output.bytes.to_vec()).collect()
}

/// Builds chunks from words: `text`, `think:…`, `call:id:args`, `done:id:args` (the last piece),
/// `result:id:text`, `fault:id:text` (a failed result), `note:json`. A keep-alive is `note:{}`.
fn chunks(script: &[&str], last: Value) -> Vec<Chunk> {
    let mut chunks: Vec<Chunk> = (0..).zip(script).map(|(id, word)| chunk(id, word)).collect();
    if !last.is_null() {
        let id = chunks.len() as u32;
        chunks.push(Chunk { metadata: metadata(last), ..Chunk::content(id, "", true) });
    }
    chunks
}

fn chunk(id: u32, word: &str) -> Chunk {
    let call = |kind, rest: &str, more: Value| {
        let (call, text) = rest.split_once(':').unwrap();
        let mut fields = json!({"tool_call_id": call, "tool_name": format!("tool_{call}")});
        fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Chunk { kind, metadata: metadata(fields), ..Chunk::content(id, text, false) }
    };
    match word.split_once(':') {
        Some(("think", text)) => Chunk { kind: ChunkKind::Reasoning, ..Chunk::content(id, text, false) },
        Some(("call", rest)) => call(ChunkKind::ToolCall, rest, json!({})),
        Some(("done", rest)) => call(ChunkKind::ToolCall, rest, json!({"args_done": true})),
        Some(("result", rest)) => call(ChunkKind::ToolResult, rest, json!({})),
        Some(("fault", rest)) => call(ChunkKind::ToolResult, rest, json!({"is_error": true})),
        Some(("note", text)) => {
            let metadata = metadata(serde_json::from_str(text).unwrap());
            Chunk { kind: ChunkKind::Metadata, metadata, ..Chunk::content(id, "", false) }
        }
        _ => Chunk::content(id, word, false),
    }
}

fn metadata(value: Value) -> Metadata {
    Metadata::new(value.as_object().unwrap().clone()).unwrap()
}

/// Metadata of the reference workflow's last chunk.
fn spent(input: u64, output: u64) -> Value {
    let usage = json!({"prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output});
    json!({"finish_reason": "stop", "model": "m-1", "tokens_used": input + output, "usage": usage})
}

/// An answer of a producer that follows no rule, different for each seed.
pub(crate) fn random(seed: u64) -> Scenario {
    let words = [
        "one ",
        "two ",
        "",
        "think:hm ",
        "think:ah ",
        "call:a:{\"x\":",
        "call:a:1}",
        "call:b:{}",
        "done:c:[",
        "call:d:",
        "call:a:\"",
        "result:a:A",
        "result:b:B",
        "fault:b:no",
        "result:z:Z",
        "note:{}",
        "note:{\"n\":1}",
    ];
    let mut next = dice(seed);
    let script: Vec<&str> = (0..next(30)).map(|_| words[next(words.len())]).collect();
    match next(4) {
        0 => scenario("random", chunks(&script, Value::Null), End::Stopped),
        _ => scenario("random", chunks(&script, spent(1, 2)), End::Complete),
    }
}

/// Two results with alternating pieces.
pub(crate) fn alternating(pieces: usize) -> Scenario {
    let calls = ["call:a:{}", "call:b:{}"].into_iter();
    let results = ["result:a:a piece of some length, ", "result:b:and one of the other, "];
    let script: Vec<&str> = calls.chain(results.into_iter().cycle().take(pieces)).chain(["Done."]).collect();
    scenario("alternating", chunks(&script, json!({})), End::Complete)
}

/// Pseudo-random numbers below the argument (xorshift), reproducible by seed.
pub(crate) fn dice(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = (seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    }
}

fn scenario(name: &'static str, chunks: Vec<Chunk>, end: End) -> Scenario {
    Scenario { name, attempt: 0, chunks, end }
}

pub(crate) fn all() -> Vec<Scenario> {
    let missing = vec![IdRange { first: 2, last: 4 }];
    let gap = StreamError { missing, ..StreamError::new("gap_timeout", "chunks never arrived: 2-4", true) };
    let steps = [
        "Let me ",
        "look.",
        "call:a:{\"city\":",
        "call:b:{}",
        "call:a:\"Bonn\"}",
        "note:{}",
        "result:b:noon",
        "result:a:rain",
        "think:So it",
        "think: rains.",
        "It rains",
        " at noon.",
    ];
    let faults = ["call:a:{}", "call:b:{}", "fault:a:it is ", "fault:a:away", "result:b:noon", "At noon."];
    let bad = ["call:a:{\"city\"", "call:b:[1", "call:c:", "call:d:{}", "done:e:7"];
    let bad_results = [
        "result:c:ok",
        "fault:a:error: the arguments are not a JSON object",
        "result:x:unasked text",
        "Well.",
    ];
    let all = vec![
        scenario("text", chunks(&["Hel", "lo", "", " you"], spent(7, 3)), End::Complete),
        scenario("steps", chunks(&steps, spent(120, 40)), End::Complete),
        scenario("faults", chunks(&faults, spent(12, 4)), End::Complete),
        scenario(
            "reasoning",
            chunks(&["think:Hm.", "think: Yes.", "Yes", "think:Sure?", ", sure."], json!({"tokens_used": 9})),
            End::Complete,
        ),
        scenario("error", chunks(&["Let me", "call:a:{\"q\":"], Value::Null), End::Failed(gap)),
        scenario(
            "refused",
            Vec::new(),
            End::Failed(StreamError::new("busy", "the thread had a turn under way", false)),
        ),
        scenario(
            "stopped",
            chunks(&["I will", "call:a:{}", "call:b:{\"q\":\"never"], Value::Null),
            End::Stopped,
        ),
        scenario("empty", chunks(&[], json!({})), End::Complete),
        scenario(
            "separators",
            chunks(
                &[
                    "a\u{2028}b\u{2029}c\u{85}d\r\ne\n\n\u{1F600}\\",
                    "call:a:{\"q\":\"\u{2028}\n\"}",
                    "result:a:\u{85}",
                    "é",
                ],
                json!({"note": "\u{2029}"}),
            ),
            End::Complete,
        ),
        scenario("bad_arguments", chunks(&[&bad[..], &bad_results].concat(), json!({})), End::Complete),
        scenario(
            "doubled_arguments",
            chunks(&["call:a:{\"n\":", "call:a:1}", "call:a:{\"n\":1}", "result:a:1", "One."], json!({})),
            End::Complete,
        ),
        scenario(
            "long_result",
            chunks(&["call:a:{}", "result:a:one, ", "note:{}", "result:a:two", "Two."], json!({})),
            End::Complete,
        ),
        scenario(
            "mixed_results",
            chunks(
                &["call:a:{}", "call:b:{}", "result:a:one, ", "result:b:B", "result:a:two", "Three."],
                json!({}),
            ),
            End::Complete,
        ),
        scenario(
            "notes",
            chunks(
                &["note:{\"source\":\"x\"}", "Cut of", "note:{\"score\":2}"],
                json!({"finish_reason": "length"}),
            ),
            End::Complete,
        ),
        scenario(
            "same_id",
            chunks(&["call:a:{}", "result:a:1", "call:a:{}", "result:a:2", "Two."], json!({})),
            End::Complete,
        ),
        Scenario { attempt: 2, ..scenario("attempt", chunks(&["Again."], json!({})), End::Complete) },
    ];
    all
}

/// Answers with incomplete batches: the tests check only that they are encoded from the history
/// unchanged.
pub(crate) fn incomplete() -> Vec<Scenario> {
    vec![
        scenario("ends_in_result", chunks(&["Look.", "call:a:{}", "result:a:1"], json!({})), End::Complete),
        scenario("ends_in_call", chunks(&["Look.", "call:a:{}", "call:b:{}"], json!({})), End::Complete),
        scenario(
            "unanswered",
            chunks(&["call:a:{}", "call:b:{}", "result:b:2", "So."], json!({})),
            End::Complete,
        ),
        scenario(
            "orphan",
            chunks(&["result:x:X", "call:a:{}", "result:a:1", "So."], json!({})),
            End::Complete,
        ),
    ]
}
