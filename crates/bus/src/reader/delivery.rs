//! The reply subject of a delivered entry.

/// The fields of a delivery's reply subject, `$JS.ACK.…` (ADR-15). It has nine tokens, or eleven or
/// more with the domain and the account before the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Delivery {
    /// Sequence in the stream.
    pub(crate) stream_seq: u64,
    /// Sequence among the deliveries of the consumer, from 1.
    pub(crate) consumer_seq: u64,
    /// When the entry was stored, by the server clock: ns of Unix time.
    pub(crate) stored_at_ns: i64,
    /// Entries that the consumer has not delivered yet.
    pub(crate) unread: u64,
}

impl Delivery {
    /// Parses a reply subject; `None` when it is not that of a delivery. A status of the server has
    /// no such reply, whatever headers a publisher wrote into an entry.
    pub(crate) fn parse(reply: &str) -> Option<Self> {
        let tokens = SubjectTokens::of(reply.strip_prefix("$JS.ACK.")?);
        let first = match tokens.count {
            7 => 3,
            9.. => 5,
            _ => return None,
        };
        let stream_seq = tokens.get(first)?.parse().ok()?;
        let consumer_seq = tokens.get(first + 1)?.parse().ok()?;
        let stored_at_ns = tokens.get(first + 2)?.parse().ok()?;
        let unread = tokens.get(first + 3)?.parse().ok()?;
        Some(Self { stream_seq, consumer_seq, stored_at_ns, unread })
    }
}

/// Number of tokens whose ends are kept.
const KEPT: usize = 9;

/// The tokens of a subject, found in one pass because this runs for every entry that is read.
struct SubjectTokens<'a> {
    text: &'a str,
    /// The ends of the first tokens.
    ends: [usize; KEPT],
    count: usize,
}

impl<'a> SubjectTokens<'a> {
    fn of(text: &'a str) -> Self {
        let mut tokens = Self { text, ends: [text.len(); KEPT], count: 0 };
        for (at, _) in text.bytes().enumerate().filter(|(_, byte)| *byte == b'.') {
            if let Some(end) = tokens.ends.get_mut(tokens.count) {
                *end = at;
            }
            tokens.count += 1;
        }
        tokens.count += 1;
        tokens
    }

    /// The token at index `at`, counted from 0. The token at index 0 is not available.
    fn get(&self, at: usize) -> Option<&'a str> {
        self.text.get(self.ends.get(at - 1)? + 1..*self.ends.get(at)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXPECTED: Delivery =
        Delivery { stream_seq: 42, consumer_seq: 7, stored_at_ns: 1_700_000_000_123_456_789, unread: 5 };

    #[test]
    fn both_forms_are_read() {
        let forms = [
            "$JS.ACK.PARTITION_3.p3-e1-0.1.42.7.1700000000123456789.5",
            "$JS.ACK.hub.ACCHASH.PARTITION_3.p3-e1-0.1.42.7.1700000000123456789.5",
            "$JS.ACK._.ACCHASH.PARTITION_3.p3-e1-0.1.42.7.1700000000123456789.5.random",
        ];
        for form in forms {
            assert_eq!(Delivery::parse(form), Some(EXPECTED), "{form}");
        }
    }

    #[test]
    fn anything_else_is_not_a_delivery() {
        for other in ["", "_INBOX.x.y", "$JS.ACK.", "$JS.ACK.a.b.1.x.7.1.5", "$JS.ACK.a.b.1.2.7.1"] {
            assert_eq!(Delivery::parse(other), None, "{other}");
        }
    }
}
