//! Assigns the numbers of events, and selects the events that a client wants.

/// Numbers reserved for one attempt: more than any answer has events.
const ATTEMPT: u64 = 1_000_000_000;

/// First number of the events of an answer from the history: above all numbers sent while it was in
/// progress, and exact in JavaScript.
const RECALLED: u64 = 9_000_000_000_000_000;

/// The events that a client wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Resume {
    /// All events of a new response.
    #[default]
    Start,
    /// All events again, for a client that may drop those it has: OpenAI's helper does not send its
    /// number.
    Again,
    /// Events with a higher number: `starting_after`.
    After(u64),
}

/// Counts the events and returns numbers for the wanted ones.
#[derive(Debug)]
pub(super) struct EventSequence {
    resume: Resume,
    /// The answer comes from the history. A client that has seen part of it gets only the last
    /// event; one that reads it again from the beginning gets whole texts without pieces.
    is_recalled: bool,
    attempt: u64,
    /// Number of events before the first chunk, which are the same in all attempts.
    opening: u64,
    next: u64,
    has_begun: bool,
}

impl EventSequence {
    pub(super) fn new(resume: Resume, opening: u64) -> Self {
        Self { resume, is_recalled: false, attempt: 0, opening, next: opening, has_begun: false }
    }

    pub(super) fn recall(&mut self) {
        self.is_recalled = true;
        if self.resume == Resume::Again {
            self.next = RECALLED;
        }
    }

    pub(super) fn restart(&mut self, attempt: u32) {
        (self.attempt, self.next, self.has_begun) = (attempt.into(), self.opening, false);
    }

    /// Counts an event of the attempt. True if it is the first one and this client has seen part of
    /// an earlier attempt, so that the attempt must be sent from its beginning.
    pub(super) fn begin_attempt(&mut self) -> bool {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        let has_seen_more = |after: u64| after / ATTEMPT < self.attempt && after % ATTEMPT >= self.opening;
        is_first && matches!(self.resume, Resume::After(after) if has_seen_more(after))
    }

    /// The number of an event before the first chunk.
    pub(super) fn opening(&self, slot: u64) -> Option<u64> {
        self.wanted(slot)
    }

    /// The number of an opening event that is repeated in the attempt.
    pub(super) fn opening_again(&self, slot: u64) -> Option<u64> {
        self.wanted(self.attempt * ATTEMPT + slot)
    }

    /// The number of the next event.
    pub(super) fn event(&mut self) -> Option<u64> {
        let number = self.take();
        self.wanted(number)
    }

    /// The number of a piece of text. An answer that is read again from the history has none: a
    /// client that drops what it has would append the whole text to its part.
    pub(super) fn piece(&mut self) -> Option<u64> {
        self.event().filter(|_| !(self.is_recalled && self.resume == Resume::Again))
    }

    /// The number of the last event, which every client gets: it shows that the stream is complete.
    pub(super) fn terminal(&mut self) -> u64 {
        let number = self.take();
        match self.resume {
            Resume::After(after) => number.max(after.saturating_add(1)),
            Resume::Start | Resume::Again => number,
        }
    }

    fn take(&mut self) -> u64 {
        let number = self.attempt * ATTEMPT + self.next;
        self.next += 1;
        number
    }

    fn wanted(&self, number: u64) -> Option<u64> {
        match self.resume {
            Resume::Start | Resume::Again => Some(number),
            Resume::After(after) => (number > after && !self.is_recalled).then_some(number),
        }
    }
}
