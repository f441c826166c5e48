//! Answers of many chunks, and slow re-reads of streams, so that takeovers happen during both.

use crate::rng::Rng;

/// Which answers are long, and which reads are slow. Most histories have neither.
#[derive(Debug)]
pub(crate) struct LongAnswers {
    rng: Rng,
    long: f64,
    slow: f64,
}

impl LongAnswers {
    pub(crate) fn new(mut rng: Rng) -> Self {
        let mut rate = |often| if rng.chance(often) { rng.pick([0.1, 0.3, 0.7]) } else { 0.0 };
        let (long, slow) = (rate(0.3), rate(0.3));
        Self { rng, long, slow }
    }

    /// The number of text pieces of an answer beyond those of a short one. `chunks`: the limit of
    /// chunks per message.
    pub(crate) fn further_texts(&mut self, chunks: usize) -> i64 {
        /// Maximum number of chunks of a short answer with tools, plus a margin.
        const SHORT: i64 = 16;
        match self.rng.chance(self.long) {
            true => self.rng.range(4, (chunks as i64 - SHORT).max(5)),
            false => 0,
        }
    }

    /// How long the stream delays a reader that is behind its end, ms.
    pub(crate) fn read_delay(&mut self) -> Option<i64> {
        self.rng.chance(self.slow).then(|| self.rng.range(30, 600))
    }
}
