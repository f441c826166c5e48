//! Joins the halves of UTF-16 pairs that a publisher has split between chunks of a message.

use std::sync::Arc;

use model::{Chunk, ChunkKind, Halves};
use serde_json::Value;

/// Texts of a message that currently end with a high half. A text is identified by its kind and,
/// for calls and results, by its call.
#[derive(Debug, Default)]
pub(crate) struct OpenHalves(Vec<OpenHalf>);

#[derive(Debug)]
struct OpenHalf {
    kind: ChunkKind,
    call: Box<str>,
    half: u16,
}

impl OpenHalves {
    /// Returns the chunk as it is sent and stored. A high half at its end waits for the next chunk
    /// of its text, which then begins with the character or with U+FFFD. In the last chunk of the
    /// message it becomes U+FFFD.
    pub(crate) fn join(&mut self, chunk: Arc<Chunk>) -> Arc<Chunk> {
        if self.0.is_empty() && chunk.halves.is_none() {
            return chunk;
        }
        let is_end = chunk.is_final || chunk.kind == ChunkKind::Error;
        if chunk.kind == ChunkKind::Metadata || (chunk.text.is_empty() && chunk.halves.is_none() && !is_end) {
            return chunk;
        }
        let before = self.take(&chunk);
        let joint = match (before, chunk.halves.first()) {
            (None, None) => None,
            (Some(high), Some(low)) => Some(Halves::joined(high, low)),
            (Some(_), None) | (None, Some(_)) => Some(char::REPLACEMENT_CHARACTER),
        };
        let lost = chunk.halves.last().filter(|_| is_end).map(|_| char::REPLACEMENT_CHARACTER);
        let last = chunk.halves.last().filter(|_| !is_end);
        self.open(&chunk, last);
        if joint.is_none() && lost.is_none() && chunk.halves.first().is_none() {
            return chunk;
        }
        let text: String = joint.into_iter().chain(chunk.text.chars()).chain(lost).collect();
        let mut joined = Arc::unwrap_or_clone(chunk);
        joined.text = text.into();
        // The half at the end of the chunk is kept with it, for an owner that resumes from what was
        // saved.
        joined.halves = Halves::new(None, last);
        Arc::new(joined)
    }

    /// Resumes after a chunk that was joined before it was saved.
    pub(crate) fn restore(&mut self, chunk: &Chunk) {
        if chunk.kind == ChunkKind::Metadata || (chunk.text.is_empty() && chunk.halves.is_none()) {
            return;
        }
        self.take(chunk);
        self.open(chunk, chunk.halves.last());
    }

    fn open(&mut self, chunk: &Chunk, last: Option<u16>) {
        self.0.extend(last.map(|half| OpenHalf { kind: chunk.kind, call: call_of(chunk).into(), half }));
    }

    fn take(&mut self, chunk: &Chunk) -> Option<u16> {
        if chunk.kind == ChunkKind::ToolResult {
            // A tool result ends the step, so the next text belongs to another message.
            self.0.retain(|open| !matches!(open.kind, ChunkKind::Content | ChunkKind::Reasoning));
        }
        let call = call_of(chunk);
        let at = self.0.iter().position(|open| open.kind == chunk.kind && *open.call == *call)?;
        Some(self.0.swap_remove(at).half)
    }
}

fn call_of(chunk: &Chunk) -> &str {
    match chunk.kind {
        ChunkKind::ToolCall | ChunkKind::ToolResult => {
            chunk.metadata.get("tool_call_id").and_then(Value::as_str).unwrap_or_default()
        }
        ChunkKind::Content | ChunkKind::Reasoning | ChunkKind::Metadata | ChunkKind::Error => "",
    }
}

#[cfg(test)]
mod tests {
    use model::Metadata;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// Cuts a text of UTF-16 units into chunks, as a publisher does.
    fn cut(kind: ChunkKind, units: &[u16]) -> Chunk {
        let first = units.first().copied().filter(|unit| (0xDC00..=0xDFFF).contains(unit));
        let units = if first.is_some() { &units[1..] } else { units };
        let last = units.last().copied().filter(|unit| (0xD800..=0xDBFF).contains(unit));
        let units = if last.is_some() { &units[..units.len() - 1] } else { units };
        let text = String::from_utf16_lossy(units);
        Chunk { kind, halves: Halves::new(first, last), ..Chunk::content(0, &text, false) }
    }

    fn joined(chunks: Vec<Chunk>) -> Vec<Arc<Chunk>> {
        let count = chunks.len();
        let mut halves = OpenHalves::default();
        let number = |(id, chunk)| Arc::new(Chunk { id: id as u32, is_final: id + 1 == count, ..chunk });
        chunks.into_iter().enumerate().map(number).map(|chunk| halves.join(chunk)).collect()
    }

    fn texts(chunks: Vec<Chunk>) -> String {
        joined(chunks).iter().map(|chunk| &*chunk.text).collect::<Vec<_>>().join("|")
    }

    fn content(units: &[u16]) -> Chunk {
        cut(ChunkKind::Content, units)
    }

    fn call(id: &str, units: &[u16]) -> Chunk {
        let metadata = json!({ "tool_call_id": id }).as_object().cloned().unwrap();
        Chunk { metadata: Metadata::new(metadata).unwrap(), ..cut(ChunkKind::ToolCall, units) }
    }

    const HIGH: u16 = 0xD83D;
    const LOW: u16 = 0xDEA4;

    #[test]
    fn halves_that_meet_are_the_character_and_others_are_replaced() {
        let a = 0x61;
        for (chunks, found) in [
            (vec![content(&[a, HIGH]), content(&[LOW, a])], "a|🚤a"),
            (vec![content(&[HIGH]), content(&[LOW])], "|🚤"),
            (vec![content(&[HIGH]), content(&[]), content(&[LOW, HIGH]), content(&[LOW])], "||🚤|🚤"),
            (vec![content(&[a, HIGH]), content(&[a])], "a|\u{fffd}a"),
            (vec![content(&[LOW]), content(&[a, HIGH])], "\u{fffd}|a\u{fffd}"),
            (vec![content(&[HIGH]), content(&[HIGH]), content(&[LOW])], "|\u{fffd}|🚤"),
            (vec![content(&[a, HIGH]), content(&[])], "a|\u{fffd}"),
            // Chunks of other texts between the two halves do not matter.
            (vec![content(&[HIGH]), cut(ChunkKind::Metadata, &[]), content(&[LOW])], "||🚤"),
            (vec![call("c", &[HIGH]), call("d", &[HIGH]), call("c", &[LOW]), call("d", &[LOW])], "||🚤|🚤"),
            (vec![content(&[HIGH]), cut(ChunkKind::Reasoning, &[LOW]), content(&[LOW])], "|\u{fffd}|🚤"),
            // A result ends the step, and with it the text.
            (vec![content(&[HIGH]), cut(ChunkKind::ToolResult, &[a]), content(&[LOW])], "|a|\u{fffd}"),
        ] {
            assert_eq!(texts(chunks.clone()), found, "{chunks:?}");
        }
        let failed = Chunk { kind: ChunkKind::Error, ..content(&[a, HIGH]) };
        assert_eq!(texts(vec![failed, content(&[])]), "a\u{fffd}|");
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same_text(text in "(🚤|ß|a|𝄞){0,12}", cuts in prop::collection::vec(0_usize..24, 0..8), saved in 0_usize..9) {
            let units: Vec<u16> = text.encode_utf16().collect();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|at| at.min(units.len())).collect();
            cuts.extend([0, units.len()]);
            cuts.sort_unstable();
            let chunks: Vec<Chunk> = cuts.windows(2).map(|ends| content(&units[ends[0]..ends[1]])).collect();
            let whole: String = joined(chunks.clone()).iter().map(|chunk| &*chunk.text).collect();
            prop_assert_eq!(&whole, &text);
            // Another owner may resume after any chunk.
            let saved = saved.min(chunks.len());
            let before = joined(chunks.iter().cloned().chain([content(&[])]).collect());
            let mut halves = OpenHalves::default();
            before[..saved].iter().for_each(|chunk| halves.restore(chunk));
            let after = chunks[saved..].iter().map(|chunk| halves.join(Arc::new(chunk.clone())));
            let went_on: String = before[..saved].iter().cloned().chain(after).map(|chunk| chunk.text.to_string()).collect();
            prop_assert_eq!(&went_on, &text);
        }

        #[test]
        fn halves_alone_are_replaced_one_by_one(units in prop::collection::vec(prop::sample::select(vec![0x61_u16, HIGH, LOW]), 0..16), cuts in prop::collection::vec(0_usize..16, 0..8)) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|at| at.min(units.len())).collect();
            cuts.extend([0, units.len()]);
            cuts.sort_unstable();
            let chunks: Vec<Chunk> = cuts.windows(2).map(|ends| content(&units[ends[0]..ends[1]])).collect();
            let whole: String = joined(chunks).iter().map(|chunk| &*chunk.text).collect();
            prop_assert_eq!(whole, String::from_utf16_lossy(&units));
        }
    }
}
