//! Payloads: texts of the same length that begin with their send time and their number in their
//! thread.

use std::time::Instant;

/// The first byte of a stamp. It also occurs elsewhere, but such digits do not follow it there.
const MARK: u8 = b'@';
/// Length of a stamp: the mark, 16 digits of nanoseconds, 8 digits of the number, in hexadecimal.
pub(super) const STAMP_BYTES: usize = 1 + 16 + 8;

/// The benchmark's own clock, in nanoseconds since its start, so that latency needs no second
/// clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Watch(Instant);

impl Watch {
    pub(super) fn start() -> Self {
        Self(Instant::now())
    }

    pub(super) fn ns(self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// The send time of an event, and its number in its thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) sent_ns: u64,
    pub(super) number: u32,
}

impl Stamp {
    /// The text of an event: the stamp, padded with letters to `bytes`.
    pub(super) fn text(self, bytes: usize) -> String {
        let mut text = format!("@{:016x}{:08x}", self.sent_ns, self.number);
        while text.len() < bytes {
            let rest = bytes - text.len();
            text.push_str(&" twenty-four characters."[..rest.min(24)]);
        }
        text
    }

    /// All complete stamps in the bytes that a client received, in order.
    pub(super) fn all_in(bytes: &[u8]) -> impl Iterator<Item = Self> + '_ {
        let mut rest = bytes;
        std::iter::from_fn(move || {
            while let Some(at) = rest.iter().position(|byte| *byte == MARK) {
                rest = &rest[at + 1..];
                if let Some(stamp) = rest.get(..STAMP_BYTES - 1).and_then(Self::parse) {
                    rest = &rest[STAMP_BYTES - 1..];
                    return Some(stamp);
                }
            }
            None
        })
    }

    fn parse(digits: &[u8]) -> Option<Self> {
        let (sent, number) = digits.split_at_checked(16)?;
        Some(Self { sent_ns: hexadecimal(sent)?, number: u32::try_from(hexadecimal(number)?).ok()? })
    }
}

fn hexadecimal(digits: &[u8]) -> Option<u64> {
    digits.iter().try_fold(0, |value, digit| Some((value << 4) | u64::from(char::from(*digit).to_digit(16)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stamped_is_found_among_other_things() {
        let stamps =
            [Stamp { sent_ns: 7, number: 0 }, Stamp { sent_ns: u64::MAX - 1, number: 4_000_000_000 }];
        let texts = stamps.map(|stamp| stamp.text(100));
        assert_eq!(texts.each_ref().map(String::len), [100, 100]);
        let shown = format!("id: 7@x\ndata: [\"@{}\",\"{}\"] @00", texts[0], texts[1]);
        assert_eq!(Stamp::all_in(shown.as_bytes()).collect::<Vec<_>>(), stamps);
        assert_eq!(Stamp::all_in(&shown.as_bytes()[..shown.len() - 90]).count(), 1);
    }
}
