//! Arrival times of a message's released chunks: exact at the ends of its steps and tool results,
//! without an entry per chunk.

use model::{Chunk, ChunkKind, Timestamp};

/// Consecutively released chunks, by the clock of the stream's server.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    /// Index of the first chunk.
    first: usize,
    first_at: Timestamp,
    last_at: Timestamp,
}

/// Arrival times by stretch. A stretch ends where a result begins or ends, so that no step contains
/// part of a result.
#[derive(Debug, Default)]
pub(crate) struct ChunkTimes {
    stretches: Vec<Stretch>,
    ends_in_result: bool,
}

impl ChunkTimes {
    /// Notes the release of the chunk with this index.
    pub(crate) fn note(&mut self, index: usize, chunk: &Chunk, at: Timestamp) {
        let is_result = chunk.kind == ChunkKind::ToolResult;
        match self.stretches.last_mut() {
            Some(last) if !is_result && !self.ends_in_result => last.last_at = last.last_at.max(at),
            _ => self.stretches.push(Stretch { first: index, first_at: at, last_at: at }),
        }
        self.ends_in_result = is_result;
    }

    /// Arrival of the chunk with this index: the end of its stretch, or the start if the chunk is
    /// the first of the stretch.
    pub(crate) fn at(&self, index: usize) -> Option<Timestamp> {
        let behind = self.stretches.partition_point(|stretch| stretch.first <= index);
        let stretch = self.stretches.get(behind.checked_sub(1)?)?;
        Some(if stretch.first == index { stretch.first_at } else { stretch.last_at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_results_begin_and_end_when_their_chunks_came() {
        let mut times = ChunkTimes::default();
        let kinds = [
            ChunkKind::Reasoning,
            ChunkKind::Content,
            ChunkKind::ToolCall,
            ChunkKind::ToolResult,
            ChunkKind::ToolResult,
            ChunkKind::Content,
            ChunkKind::Content,
            ChunkKind::Content,
        ];
        for (index, kind) in kinds.into_iter().enumerate() {
            let chunk = Chunk { kind, ..Chunk::content(index as u32, "", false) };
            times.note(index, &chunk, Timestamp(100 * index as i64));
        }
        let at = |index| times.at(index).map(|at| at.0);
        // Within a step only the time of its end is known.
        assert_eq!(
            [0, 1, 2, 3, 4, 5, 6, 7].map(at).map(Option::unwrap),
            [0, 200, 200, 300, 400, 500, 700, 700]
        );
        assert_eq!((times.stretches.len(), ChunkTimes::default().at(0)), (4, None));
    }
}
