//! Answers of many chunks, and streams that are read again slowly: takeovers come in the middle of both.

use crate::rng::Rng;

/// Which answers are long, and which reads are slow. In most histories none is.
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

    /// How many pieces of text an answer has beyond those of a short one. `chunks`: how many a message may have.
    pub(crate) fn further_texts(&mut self, chunks: usize) -> i64 {
        /// What a short answer with tools may have, and a margin.
        const SHORT: i64 = 16;
        match self.rng.chance(self.long) {
            true => self.rng.range(4, (chunks as i64 - SHORT).max(5)),
            false => 0,
        }
    }

    /// How long the stream lets a reader wait that has not come to its end yet, ms.
    pub(crate) fn read_delay(&mut self) -> Option<i64> {
        self.rng.chance(self.slow).then(|| self.rng.range(30, 600))
    }
}
