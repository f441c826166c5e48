//! Lists of numbers in the order in which they are shown.

use crate::Number;

/// Numbers in the order in which they are shown, as runs of consecutive numbers: `(first, last)`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Runs(Vec<(Number, Number)>);

impl Runs {
    /// The runs of these numbers.
    pub fn of(numbers: impl IntoIterator<Item = Number>) -> Self {
        let mut runs: Vec<(Number, Number)> = Vec::new();
        for number in numbers {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == number => *last = number,
                _ => runs.push((number, number)),
            }
        }
        Self(runs)
    }

    /// Wraps runs that were stored.
    pub fn from_stored(runs: Vec<(Number, Number)>) -> Self {
        Self(runs)
    }

    /// The runs, in order.
    pub fn runs(&self) -> &[(Number, Number)] {
        &self.0
    }

    /// All numbers, in order.
    pub fn numbers(&self) -> impl Iterator<Item = Number> {
        self.0.iter().flat_map(|(first, last)| *first..=*last)
    }
}

/// Formats numbers in their order, with consecutive ones joined: `1-2, 8, 5-7`.
pub fn numbers_text(numbers: impl IntoIterator<Item = Number>) -> String {
    let shown = |(first, last): &(Number, Number)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    Runs::of(numbers).runs().iter().map(shown).collect::<Vec<_>>().join(", ")
}
