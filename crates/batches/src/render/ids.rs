//! Call ids and tool names that every provider accepts. They are unique over all rounds.

use std::collections::BTreeSet;

/// Number of hexadecimal digits that distinguish shortened ids.
const DIGITS: usize = 8;

/// Assigns ids, each once.
#[derive(Debug, Default)]
pub(super) struct Ids(BTreeSet<String>);

impl Ids {
    /// The shown id of the next call with this stored id. It is the stored id if that is allowed
    /// and free. It depends only on earlier calls.
    pub(super) fn next(&mut self, stored: &str, most: usize, is_narrow: bool) -> String {
        let first = fitting(stored, "call", most, is_narrow);
        let mut id = first.clone();
        let mut number = 2_usize;
        while !self.0.insert(id.clone()) {
            let suffix = format!("_{number}");
            id = format!("{}{suffix}", shortened(&first, most.saturating_sub(suffix.len())));
            number += 1;
        }
        id
    }
}

/// The text itself if it is allowed. Otherwise its allowed characters plus a digest, so that two
/// texts stay distinct.
pub(super) fn fitting(text: &str, empty: &str, most: usize, is_narrow: bool) -> String {
    if text.is_empty() {
        return empty.to_owned();
    }
    let is_allowed = |c: char| !is_narrow || c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if text.len() <= most && text.chars().all(is_allowed) {
        return text.to_owned();
    }
    let clean: String = text.chars().map(|c| if is_allowed(c) { c } else { '_' }).collect();
    format!("{}_{:0DIGITS$x}", shortened(&clean, most - DIGITS - 1), digest(text))
}

fn shortened(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    &text[..end]
}

/// FNV-1a, 32 bits. It must never change, because providers' caches depend on it.
fn digest(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_stays_what_it_is_where_it_may() {
        let mut ids = Ids::default();
        assert_eq!(ids.next("call_1", 64, true), "call_1");
        assert_eq!(ids.next("call_1", 64, true), "call_1_2");
        assert_eq!(ids.next("call_1", 64, true), "call_1_3");
        assert_eq!(ids.next("call_1_2", 64, true), "call_1_2_2", "taken by the second call_1");
        assert_eq!(ids.next("", 64, true), "call");
        assert_eq!(ids.next("", 64, true), "call_2");
        assert_eq!(ids.next("functions.f:0", 40, false), "functions.f:0");
    }

    #[test]
    fn what_is_not_allowed_is_replaced_and_two_stay_two() {
        let (dot, bar) = (fitting("a.b", "call", 64, true), fitting("a|b", "call", 64, true));
        assert_eq!((dot.len(), &dot[..4], dot == bar), (12, "a_b_", false));
        let long = |end: &str| fitting(&format!("{}{end}", "x".repeat(80)), "call", 40, false);
        assert_eq!((long("1").len(), long("2").len(), long("1") == long("2")), (40, 40, false));
        assert_eq!(fitting(&"é".repeat(40), "call", 40, false).len(), 39, "cut between characters");
        let mut ids = Ids::default();
        let full = "x".repeat(40);
        assert_eq!(ids.next(&full, 40, false), full);
        assert_eq!(ids.next(&full, 40, false), format!("{}_2", "x".repeat(38)));
    }
}
