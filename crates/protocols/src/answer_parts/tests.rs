use std::collections::BTreeMap;

use super::*;
use crate::testing::chunk;

fn outline() -> AnswerParts {
    AnswerParts::new(MessageId::parse("m").unwrap())
}

/// All changes of a script, closed at its end.
fn changes(script: &[&str]) -> String {
    let mut outline = outline();
    let chunks: Vec<Chunk> = (0..).zip(script).map(|(id, word)| chunk(id, word)).collect();
    let mut changes: Vec<PartChange<'_>> = chunks.iter().flat_map(|chunk| outline.chunk(chunk)).collect();
    outline.close(&mut changes);
    changes.iter().map(word).collect::<Vec<_>>().join(" ")
}

fn word(change: &PartChange<'_>) -> String {
    let kind = |span: &Span| if span.is_reasoning { "think" } else { "text" };
    match change {
        PartChange::StepBegan => "{".to_owned(),
        PartChange::StepEnded => "}".to_owned(),
        PartChange::SpanBegan(span) => format!("{}{}.{}(", kind(span), span.step, span.part),
        PartChange::SpanGrew(_, text) => format!("{text:?}"),
        PartChange::SpanEnded(_) => ")".to_owned(),
        PartChange::CallBegan(call) => {
            format!("{}={}{}.{}.{}[", call.id, call.tool, call.step, call.part, call.number)
        }
        PartChange::CallGrew(call, text) => format!("{}+{text}", call.id),
        PartChange::CallEnded(call, arguments) => format!("{}:{arguments}]", call.id),
        PartChange::ResultBegan(call, piece) => format!("{}<{:?}", call.id, piece.text),
        PartChange::ResultEnded(call, whole) => {
            let marks = if whole.is_error { "!" } else { "" };
            let pieces = if whole.pieces == 1 { "" } else { "…" };
            format!("{}{pieces}{marks}>{:?}", call.id, whole.text)
        }
        PartChange::Unanswered(call) => format!("{}?", call.id),
        PartChange::Noted(metadata) => metadata.to_value().to_string(),
    }
}

#[test]
fn text_and_reasoning_are_spans() {
    assert_eq!(changes(&["Hel", "lo"]), r#"{ text0.0( "Hel" "lo" ) }"#);
    assert_eq!(
        changes(&["think:a", "b", "think:c"]),
        r#"{ think0.0( "a" ) text0.1( "b" ) think0.2( "c" ) }"#
    );
    assert_eq!(changes(&["", "think:", "note:{}"]), "", "what says nothing is not shown");
    assert_eq!(changes(&["a", "note:{\"x\":1}", "b"]), r#"{ text0.0( "a" {"x":1} "b" ) }"#);
}

#[test]
fn a_call_ends_with_its_object_or_when_it_is_said() {
    assert_eq!(
        changes(&["call:a:{\"x\"", "call:a::1}", "result:a:r"]),
        r#"{ a=f0.0.0[ a+{"x" a+:1} a:{"x":1}] a<"r" a>"r" }"#
    );
    assert_eq!(changes(&["done:a:7", "result:a:r"]), r#"{ a=f0.0.0[ a+7 a:7] a<"r" a>"r" }"#);
    assert_eq!(changes(&["call:a:", "result:a:r"]), r#"{ a=f0.0.0[ a:] a<"r" a>"r" }"#);
    let added = changes(&["call:a:{}", "call:a:{}", "call:a: ", "result:a:r"]);
    assert_eq!(added, r#"{ a=f0.0.0[ a+{} a:{}] a<"r" a>"r" }"#, "an end is not taken back");
}

#[test]
fn parallel_calls_may_be_written_and_answered_in_any_order() {
    assert_eq!(
        changes(&["x", "call:a:{", "call:b=g:{", "call:a:}", "call:b:}", "result:b:B", "result:a:A", "y"]),
        r#"{ text0.0( "x" ) a=f0.1.0[ a+{ b=g0.2.1[ b+{ a+} a:{}] b+} b:{}] b<"B" a<"A" a>"A" b>"B" } { text1.3( "y" ) }"#
    );
}

#[test]
fn a_result_may_come_in_pieces() {
    assert_eq!(
        changes(&["call:a:{}", "result:a:1", "note:{}", "fault:a:2", "x"]),
        r#"{ a=f0.0.0[ a+{} a:{}] a<"1" a…!>"12" } { text1.1( "x" ) }"#
    );
    assert_eq!(
        changes(&["call:a:{}", "call:b:{}", "result:a:1", "result:b:x", "result:a:2", "result:b:y"]),
        r#"{ a=f0.0.0[ a+{} a:{}] b=f0.1.1[ b+{} b:{}] a<"1" b<"x" a…>"12" b…>"xy" }"#
    );
    assert_eq!(changes(&["result:a:1"]), r#"{ a=f0.0.0[ a:] a<"1" a>"1" }"#, "and without a call");
}

#[test]
fn what_is_open_at_the_end_is_closed() {
    assert_eq!(changes(&["call:a:{}", "call:b:{"]), "{ a=f0.0.0[ a+{} a:{}] b=f0.1.1[ b+{ a? b:{] b? }");
    assert_eq!(
        changes(&["call:a:{}", "call:b:{", "result:a:A", "x"]),
        r#"{ a=f0.0.0[ a+{} a:{}] b=f0.1.1[ b+{ a<"A" a>"A" b:{] b? } { text1.2( "x" ) }"#
    );
    assert_eq!(
        changes(&["result:a:A", "", "result:a:B"]).matches('{').count(),
        2,
        "an empty text begins a step, too"
    );
}

#[test]
fn no_two_calls_are_shown_with_one_id() {
    let ids = changes(&["call:a:{}", "result:a:1", "call:a:{}", "result:a:2", "call::{}", "call:a-c1:{}"]);
    let began: Vec<&str> = ids.split(' ').filter(|word| word.ends_with('[')).collect();
    assert_eq!(began, ["a=f0.0.0[", "a-c1=f1.1.0[", "m-c2=f2.2.0[", "a-c1-c3=f2.3.1["]);
    let nameless = Chunk { kind: ChunkKind::ToolCall, ..Chunk::content(0, "{}", false) };
    let mut outline = outline();
    let shown: Vec<String> = outline.chunk(&nameless).iter().map(word).collect();
    assert_eq!(shown[1], "m-c0=unknown0.0.0[");
}

#[test]
fn the_final_chunk_closes_all_but_not_that_of_an_error() {
    let mut outline = outline();
    let last = chunk(1, "final:{\"tokens_used\":3}");
    assert_eq!(outline.chunk(&chunk(0, "x")).len(), 3);
    assert_eq!(outline.chunk(&last).iter().map(word).collect::<Vec<_>>(), [")", "}"]);
    assert_eq!(outline.metadata().tokens_used(), Ok(Some(3)));
    let mut outline = super::tests::outline();
    let error = Chunk { kind: ChunkKind::Error, ..Chunk::content(1, "no", true) };
    assert_eq!(outline.chunk(&chunk(0, "x")).len(), 3);
    assert_eq!(outline.chunk(&error), []);
}

/// For any chunks: every part that begins ends once, in its step, and no change concerns a closed
/// part.
#[test]
fn the_outline_is_well_formed_whatever_is_said() {
    let words = [
        "x",
        "",
        "think:y",
        "call:a:{",
        "call:a:}",
        "call:b:{}",
        "done:c:[",
        "call::",
        "result:a:A",
        "result:b:B",
        "fault:b:C",
        "result:z:Z",
        "note:{}",
        "note:{\"n\":1}",
        "call:a:\"",
    ];
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    for _ in 0..5_000 {
        let script: Vec<&str> = (0..next(24)).map(|_| words[next(words.len())]).collect();
        let chunks: Vec<Chunk> = (0..).zip(&script).map(|(id, word)| chunk(id, word)).collect();
        let mut outline = outline();
        let mut changes: Vec<PartChange<'_>> = chunks.iter().flat_map(|chunk| outline.chunk(chunk)).collect();
        outline.close(&mut changes);
        Checker::default().check(&changes).unwrap_or_else(|wrong| panic!("{script:?}: {wrong}"));
    }
}

#[derive(Default)]
struct Checker {
    in_step: bool,
    span: Option<Span>,
    writing: BTreeSet<String>,
    waiting: BTreeSet<String>,
    known: BTreeSet<String>,
    /// The first pieces of the results that have not ended.
    begun: BTreeMap<String, String>,
    parts: u32,
}

impl Checker {
    fn check(&mut self, changes: &[PartChange<'_>]) -> Result<(), String> {
        for change in changes {
            self.is_allowed(change).then_some(()).ok_or_else(|| format!("{change:?}"))?;
        }
        let is_closed = !self.in_step && self.span.is_none() && self.begun.is_empty();
        (is_closed && self.writing.is_empty() && self.waiting.is_empty())
            .then_some(())
            .ok_or("left open".to_owned())
    }

    fn is_allowed(&mut self, change: &PartChange<'_>) -> bool {
        match change {
            PartChange::StepBegan => !std::mem::replace(&mut self.in_step, true),
            PartChange::StepEnded => {
                let is_clear = self.span.is_none() && self.writing.is_empty() && self.waiting.is_empty();
                std::mem::take(&mut self.in_step) && is_clear && self.begun.is_empty()
            }
            PartChange::SpanBegan(span) => {
                let is_next = span.part == self.parts && self.in_step;
                self.parts += 1;
                self.span.replace(*span).is_none() && is_next
            }
            PartChange::SpanGrew(span, text) => self.span == Some(*span) && !text.is_empty(),
            PartChange::SpanEnded(span) => self.span.take() == Some(*span),
            PartChange::CallBegan(call) => {
                let is_next = call.part == self.parts && self.in_step;
                self.parts += 1;
                self.waiting.insert(call.id.clone());
                self.writing.insert(call.id.clone()) && self.known.insert(call.id.clone()) && is_next
            }
            PartChange::CallGrew(call, text) => self.writing.contains(&call.id) && !text.is_empty(),
            PartChange::CallEnded(call, _) => self.writing.remove(&call.id),
            PartChange::ResultBegan(call, piece) => {
                let is_first = self.waiting.remove(&call.id);
                let is_new = self.begun.insert(call.id.clone(), piece.text.to_owned()).is_none();
                is_new && is_first && !self.writing.contains(&call.id)
            }
            PartChange::ResultEnded(call, whole) => {
                self.begun.remove(&call.id).is_some_and(|first| whole.text.starts_with(&first))
            }
            PartChange::Unanswered(call) => self.waiting.remove(&call.id) && !self.writing.contains(&call.id),
            PartChange::Noted(metadata) => !metadata.is_empty(),
        }
    }
}
