//! One order of two: by words and by vectors.

/// A place of none counts as far behind: what one order alone has is not lost.
const SMOOTHING: f32 = 60.0;

/// A candidate in the common order, with its places in both, 1 for the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fused {
    /// Its number.
    pub number: usize,
    /// In the order by words.
    pub by_words: Option<u32>,
    /// In the order by vectors.
    pub by_vector: Option<u32>,
}

/// The candidates of both orders, which count the same (reciprocal rank fusion): ranks by words and distances have no common measure, places have.
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
