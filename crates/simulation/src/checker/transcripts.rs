//! What clients saw, against the ledger and the store.

use std::collections::{BTreeMap, BTreeSet};

use model::{ChunkKind, MessageId, MessageKey};

use super::turns::full_texts;
use super::{Evidence, Fate, Invariant, Seen, StoredDeadLetter, StoredMessage, Transcript, Violation};

/// What a client has of one message.
#[derive(Default)]
struct Shown {
    attempt: Option<u32>,
    next: u32,
    text: String,
    from_store: bool,
    ended: bool,
}

/// What is stored, by key.
pub(super) struct Ends<'a> {
    messages: BTreeMap<&'a MessageKey, &'a StoredMessage>,
    dead: BTreeSet<&'a MessageKey>,
    /// What clients see of a message, where that is more than its own text.
    texts: BTreeMap<MessageKey, String>,
}

impl<'a> Ends<'a> {
    pub(super) fn of(evidence: &'a Evidence, failed: &'a BTreeSet<MessageKey>) -> Self {
        let dead = evidence.dead_letters.iter().filter_map(|letter| match letter {
            StoredDeadLetter::Message { key, .. } => Some(key),
            StoredDeadLetter::Entry { .. } => None,
        });
        let messages = evidence.messages.iter().map(|message| (&message.key, message));
        // Of a message that is stored twice the first one counts here.
        Self {
            messages: messages.rev().collect(),
            dead: dead.chain(failed).collect(),
            texts: full_texts(evidence),
        }
    }

    fn text(&self, stored: &'a StoredMessage) -> &str {
        self.texts.get(&stored.key).unwrap_or(&stored.content)
    }
}

struct Check<'a> {
    transcript: &'a Transcript,
    is_settled: bool,
    ends: &'a Ends<'a>,
    fates: &'a BTreeMap<MessageKey, Fate>,
    violations: &'a mut Vec<Violation>,
}

pub(super) fn check(
    transcript: &Transcript,
    is_settled: bool,
    ends: &Ends<'_>,
    fates: &BTreeMap<MessageKey, Fate>,
    violations: &mut Vec<Violation>,
) {
    let mut check = Check { transcript, is_settled, ends, fates, violations };
    let mut all: BTreeMap<&MessageId, Shown> = BTreeMap::new();
    for seen in &transcript.seen {
        check.event(seen, &mut all);
    }
    for (message, shown) in all {
        check.at_the_end(message, &shown);
    }
}

impl<'a> Check<'a> {
    fn event(&mut self, seen: &'a Seen, all: &mut BTreeMap<&'a MessageId, Shown>) {
        match seen {
            Seen::Cut => {}
            Seen::Chunk { message, attempt, chunk } => {
                let shown = all.entry(message).or_default();
                let in_order = *shown.attempt.get_or_insert(*attempt) == *attempt
                    && shown.next == chunk.id
                    && !shown.ended
                    && !shown.from_store;
                if !in_order {
                    let expected = format!("chunk {} of attempt {:?}", shown.next, shown.attempt);
                    let seen = format!("chunk {} of attempt {attempt}", chunk.id);
                    self.report(Invariant::ClientText, message, expected, seen);
                }
                let accepted = self.fates.get(&self.key(message));
                let accepted = accepted.and_then(|fate| fate.attempts.get(attempt)?.get(&chunk.id));
                if accepted != Some(chunk) {
                    let (expected, seen) = (format!("{accepted:?}"), format!("{chunk:?}"));
                    self.report(Invariant::ClientText, message, expected, seen);
                }
                shown.next = chunk.id + 1;
                if chunk.kind == ChunkKind::Content {
                    shown.text.push_str(&chunk.text);
                }
            }
            Seen::Reset { message, attempt } => {
                let shown = all.entry(message).or_default();
                let is_lower = shown.attempt.is_some_and(|before| before >= *attempt);
                if shown.ended || (is_lower && !self.is_stopped(message)) {
                    let expected = format!("an attempt above {:?}", shown.attempt);
                    self.report(Invariant::ClientText, message, expected, format!("reset to {attempt}"));
                }
                *shown = Shown { attempt: Some(*attempt), ..Shown::default() };
            }
            Seen::Rest { message, text } => {
                let shown = all.entry(message).or_default();
                if shown.ended || shown.from_store {
                    self.report(Invariant::ClientText, message, "no more text", format!("{text:?}"));
                }
                shown.text.push_str(text);
                shown.from_store = true;
            }
            Seen::Complete { message, position } => {
                let shown = all.entry(message).or_default();
                self.complete(message, *position, shown);
                shown.ended = true;
            }
            Seen::Failed { message } => {
                let shown = all.entry(message).or_default();
                self.failed(message, shown);
                shown.ended = true;
            }
        }
    }

    fn complete(&mut self, message: &MessageId, position: Option<i64>, shown: &Shown) {
        if shown.ended {
            self.report(Invariant::OneTerminal, message, "one terminal", "another one: complete");
        }
        match self.stored(message) {
            None => {
                self.report(Invariant::OneTerminal, message, "not complete: it is not stored", "complete")
            }
            Some(stored) if position.is_some_and(|position| position != stored.position) => {
                let (expected, seen) = (stored.position.to_string(), format!("{position:?}"));
                self.report(Invariant::OneTerminal, message, expected, seen);
            }
            Some(stored) if self.is_stopped(message) && shown.text.starts_with(self.ends.text(stored)) => {}
            Some(stored) if self.ends.text(stored) != shown.text => {
                let (expected, seen) = (format!("{:?}", self.ends.text(stored)), format!("{:?}", shown.text));
                self.report(Invariant::ClientText, message, expected, seen);
            }
            Some(_) => {}
        }
    }

    fn failed(&mut self, message: &MessageId, shown: &Shown) {
        if shown.ended {
            self.report(Invariant::OneTerminal, message, "one terminal", "another one: failed");
        }
        let is_dead = self.ends.dead.contains(&self.key(message));
        if !is_dead {
            self.report(Invariant::OneTerminal, message, "not failed: it has no dead letter", "failed");
        }
    }

    fn at_the_end(&mut self, message: &MessageId, shown: &Shown) {
        if shown.ended {
            return;
        }
        if let Some(stored) = self.stored(message)
            && shown.attempt.is_none_or(|attempt| attempt == stored.attempt)
            && !self.ends.text(stored).starts_with(&shown.text)
        {
            let (expected, seen) =
                (format!("a prefix of {:?}", self.ends.text(stored)), format!("{:?}", shown.text));
            self.report(Invariant::ClientText, message, expected, seen);
        }
        if self.is_settled && self.transcript.is_connected {
            self.report(Invariant::OneTerminal, message, "one terminal", "none");
        }
    }

    /// What was stopped may have got further for an owner that did not come to store it.
    fn is_stopped(&self, message: &MessageId) -> bool {
        self.stored(message).is_some_and(|stored| stored.metadata.get("stopped").is_some())
    }

    fn stored(&self, message: &MessageId) -> Option<&'a StoredMessage> {
        self.ends.messages.get(&self.key(message)).copied()
    }

    fn key(&self, message: &MessageId) -> MessageKey {
        MessageKey { thread: self.transcript.thread.clone(), message: message.clone() }
    }

    fn report(
        &mut self,
        invariant: Invariant,
        message: &MessageId,
        expected: impl Into<String>,
        seen: impl Into<String>,
    ) {
        let subject = format!("{} at client {}", self.key(message), self.transcript.client);
        self.violations.push(Violation::new(invariant, subject, expected, seen));
    }
}
