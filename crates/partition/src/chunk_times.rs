//! When the released chunks of a message came: exact at the ends of its steps and of the results of its tools, without an entry for each chunk.

use model::{Chunk, ChunkKind, Timestamp};

/// Chunks that were released one after the other, by the clock of the stream's server.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    /// Index of the first of them.
    first: usize,
    first_at: Timestamp,
    last_at: Timestamp,
}

/// A stretch ends where a result begins or ends, so that no step has a part of one.
#[derive(Debug, Default)]
pub(crate) struct ChunkTimes {
    stretches: Vec<Stretch>,
    ends_in_result: bool,
}

impl ChunkTimes {
    /// The chunk with this index was released.
    pub(crate) fn note(&mut self, index: usize, chunk: &Chunk, at: Timestamp) {
        let is_result = chunk.kind == ChunkKind::ToolResult;
        match self.stretches.last_mut() {
            Some(last) if !is_result && !self.ends_in_result => last.last_at = last.last_at.max(at),
            _ => self.stretches.push(Stretch { first: index, first_at: at, last_at: at }),
        }
        self.ends_in_result = is_result;
    }

    /// When the chunk with this index came: that of the end of its stretch, unless it is the first of it.
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
        // Of the chunks within a step no time is kept: that of its end is given.
        assert_eq!(
            [0, 1, 2, 3, 4, 5, 6, 7].map(at).map(Option::unwrap),
            [0, 200, 200, 300, 400, 500, 700, 700]
        );
        assert_eq!((times.stretches.len(), ChunkTimes::default().at(0)), (4, None));
    }
}
