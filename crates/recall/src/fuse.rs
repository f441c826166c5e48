//! Joins two rankings: one by words and one by vectors.

/// Reduces the difference between places, so that a candidate in only one ranking is not lost.
const SMOOTHING: f32 = 60.0;

/// A candidate in the joined ranking, with its places in both, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fused {
    /// Index of the candidate.
    pub number: usize,
    /// Place in the ranking by words.
    pub by_words: Option<u32>,
    /// Place in the ranking by vectors.
    pub by_vector: Option<u32>,
}

/// Joins both rankings with equal weight (reciprocal rank fusion). Places are used because word
/// scores and distances have no common scale.
pub fn fuse(by_words: &[usize], by_vector: &[usize]) -> Vec<Fused> {
    let mut all: Vec<Fused> = (1..)
        .zip(by_words)
        .map(|(place, number)| Fused { number: *number, by_words: Some(place), by_vector: None })
        .collect();
    for (place, number) in (1..).zip(by_vector) {
        match all.iter_mut().find(|fused| fused.number == *number) {
            Some(fused) => fused.by_vector = Some(place),
            None => all.push(Fused { number: *number, by_words: None, by_vector: Some(place) }),
        }
    }
    all.sort_by(|a, b| b.score().total_cmp(&a.score()));
    all
}

impl Fused {
    fn score(&self) -> f32 {
        let share = |place: Option<u32>| place.map_or(0.0, |place| 1.0 / (SMOOTHING + place as f32));
        share(self.by_words) + share(self.by_vector)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_both_orders_have_comes_before_what_one_has_alone() {
        let fused = fuse(&[7, 3], &[9, 3, 8]);
        assert_eq!(fused.iter().map(|fused| fused.number).collect::<Vec<_>>(), [3, 7, 9, 8]);
        assert_eq!(fused[0], Fused { number: 3, by_words: Some(2), by_vector: Some(2) });
        assert_eq!(fused[2], Fused { number: 9, by_words: None, by_vector: Some(1) });
        assert_eq!(fuse(&[], &[]), []);
    }
}
