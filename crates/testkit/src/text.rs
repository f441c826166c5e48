//! A long real text, cut into chunks, and the disorder that networks and several publishers cause.

use rand::{Rng, RngExt, seq::SliceRandom};

/// The licence of this repository: a real text that is always available.
pub const LICENSE: &str = include_str!("../../../LICENSE");

/// Cuts `text` into pieces of `words` words each, with the blanks that follow them; joined they are
/// the text again.
pub fn cut(text: &str, words: usize) -> Vec<String> {
    let mut pieces = Vec::new();
    let mut start = 0;
    let mut seen = 0;
    let mut in_blank = false;
    for (at, character) in text.char_indices() {
        if in_blank && !character.is_whitespace() {
            seen += 1;
            if seen == words.max(1) {
                pieces.push(text[start..at].to_owned());
                (start, seen) = (at, 0);
            }
        }
        in_blank = character.is_whitespace();
    }
    if start < text.len() {
        pieces.push(text[start..].to_owned());
    }
    pieces
}

/// Shuffles each window of `window` neighbours, like several paths to one stream do.
pub fn shuffle_in_windows<T>(items: &mut [T], window: usize, rng: &mut impl Rng) {
    items.chunks_mut(window.max(1)).for_each(|neighbours| neighbours.shuffle(rng));
}

/// Repeats each item with probability `rate`, at most `reach` places later. Returns how many were
/// added.
pub fn duplicate<T: Clone>(items: &mut Vec<T>, rate: f64, reach: usize, rng: &mut impl Rng) -> usize {
    let before = items.len();
    let mut at = 0;
    while at < items.len() {
        if rng.random_bool(rate) {
            let copy = items[at].clone();
            let later = (at + 1 + rng.random_range(0..=reach)).min(items.len());
            items.insert(later, copy);
            at += 1;
        }
        at += 1;
    }
    items.len() - before
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;

    #[test]
    fn pieces_joined_are_the_text() {
        for text in [LICENSE, "", "one", "  lead and  trail \n", "é à"] {
            for words in [1, 4, 1000] {
                assert_eq!(cut(text, words).concat(), text);
            }
        }
        assert_eq!(cut("a b  c d e", 2), ["a b  ", "c d ", "e"]);
    }

    #[test]
    fn disorder_stays_within_its_window_and_follows_the_seed() {
        let shuffled = |seed| {
            let mut items: Vec<usize> = (0..100).collect();
            shuffle_in_windows(&mut items, 16, &mut StdRng::seed_from_u64(seed));
            items
        };
        assert_eq!(shuffled(7), shuffled(7));
        assert_ne!(shuffled(7), shuffled(8));
        assert!(shuffled(7).iter().enumerate().all(|(at, item)| at / 16 == item / 16));
    }

    #[test]
    fn duplicates_are_additions() {
        let mut items: Vec<usize> = (0..10_000).collect();
        let added = duplicate(&mut items, 0.01, 5, &mut StdRng::seed_from_u64(1));
        assert!((50..200).contains(&added), "{added}");
        items.sort_unstable();
        items.dedup();
        assert_eq!(items.len(), 10_000);
    }
}
