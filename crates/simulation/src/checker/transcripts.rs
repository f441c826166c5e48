//! Compares what clients saw with the ledger and the store.

use std::collections::{BTreeMap, BTreeSet};

use model::{Chunk, ChunkKind, FollowUpHint, MessageId, MessageKey, TurnId};

use super::turns::full_texts;
use crate::checker::evidence::{DeadLetterRow, Evidence, MessageRow, Rules, SeenEvent, Transcript};
use crate::checker::expected_outcome::ExpectedOutcome;
use crate::checker::invariant::{Invariant, Violation};

/// What a client has of one message.
#[derive(Default)]
struct Shown {
    attempt: Option<u32>,
    next: u32,
    text: String,
    /// Reasoning, and arguments and results of calls by their ids, as far as they have arrived.
    others: BTreeMap<String, String>,
    from_store: bool,
    /// The client was disconnected since the last part arrived.
    was_cut: bool,
    ended: bool,
    /// The position of the message's end, if the client was sent it.
    position: Option<i64>,
}

impl Shown {
    fn add(&mut self, chunk: &Chunk) {
        let call = || chunk.metadata.get("tool_call_id").and_then(|id| id.as_str()).unwrap_or_default();
        let others = match chunk.kind {
            ChunkKind::Content => return self.text.push_str(&chunk.text),
            ChunkKind::Reasoning => "reasoning".to_owned(),
            ChunkKind::ToolCall => format!("call {}", call()),
            ChunkKind::ToolResult => format!("result {}", call()),
            ChunkKind::Metadata | ChunkKind::Error => return,
        };
        self.others.entry(others).or_default().push_str(&chunk.text);
    }
}

/// The stored ends, by key.
pub(super) struct Ends<'a> {
    messages: BTreeMap<&'a MessageKey, &'a MessageRow>,
    dead: BTreeSet<&'a MessageKey>,
    all: &'a [(MessageKey, i64)],
    /// The text that clients see of a message, where that is more than its own text.
    texts: BTreeMap<MessageKey, String>,
}

impl<'a> Ends<'a> {
    pub(super) fn of(evidence: &'a Evidence, failed: &'a BTreeSet<MessageKey>) -> Self {
        let dead = evidence.dead_letters.iter().filter_map(|letter| match letter {
            DeadLetterRow::Message { key, .. } => Some(key),
            DeadLetterRow::Entry { .. } => None,
        });
        let messages = evidence.messages.iter().map(|message| (&message.key, message));
        // If a message is stored twice, the first row counts here.
        Self {
            messages: messages.rev().collect(),
            dead: dead.chain(failed).collect(),
            all: &evidence.ends,
            texts: full_texts(evidence),
        }
    }

    fn text(&self, stored: &'a MessageRow) -> &str {
        self.texts.get(&stored.key).unwrap_or(&stored.content)
    }
}

struct Check<'a> {
    transcript: &'a Transcript,
    rules: &'a Rules,
    ends: &'a Ends<'a>,
    expected_outcomes: &'a BTreeMap<MessageKey, ExpectedOutcome>,
    violations: &'a mut Vec<Violation>,
}

pub(super) fn check(
    transcript: &Transcript,
    rules: &Rules,
    ends: &Ends<'_>,
    expected_outcomes: &BTreeMap<MessageKey, ExpectedOutcome>,
    violations: &mut Vec<Violation>,
) {
    let mut check = Check { transcript, rules, ends, expected_outcomes, violations };
    let mut all: BTreeMap<&MessageId, Shown> = BTreeMap::new();
    for (index, seen) in transcript.seen.iter().enumerate() {
        // Events that a later restart revoked are not compared with the present state.
        let taken_back = check.is_taken_back(index, seen);
        let before = check.violations.len();
        check.event(seen, &mut all);
        if taken_back {
            check.violations.truncate(before);
        }
    }
    for (message, shown) in all {
        check.at_the_end(message, &shown);
    }
    check.ends();
}

/// A chunk as subscribers see it: without the hint of a follow-up.
fn as_shown(chunk: &Chunk) -> Chunk {
    let metadata = FollowUpHint::hidden_in(&chunk.metadata).into_owned();
    Chunk { metadata, ..chunk.clone() }
}

impl<'a> Check<'a> {
    fn event(&mut self, seen: &'a SeenEvent, all: &mut BTreeMap<&'a MessageId, Shown>) {
        match seen {
            SeenEvent::Input { .. } | SeenEvent::InputWithdrawn { .. } => {}
            SeenEvent::Cut => all.values_mut().for_each(|shown| shown.was_cut = true),
            SeenEvent::Chunk { message, attempt, chunk } => {
                let shown = all.entry(message).or_default();
                if shown.next == 0 && shown.attempt.is_some_and(|before| before < *attempt) {
                    // The message's text was reset, and no chunk has arrived after that.
                    shown.attempt = Some(*attempt);
                }
                if shown.from_store
                    && shown.was_cut
                    && self.has_chunks_before(message, *attempt, chunk.id, shown)
                {
                    // The connection was cut within the text that one gateway had from the store,
                    // and another gateway does not know the end yet.
                    (shown.from_store, shown.next) = (false, chunk.id);
                }
                let in_order = *shown.attempt.get_or_insert(*attempt) == *attempt
                    && shown.next == chunk.id
                    && !shown.ended
                    && !shown.from_store;
                if !in_order {
                    let expected = format!("chunk {} of attempt {:?}", shown.next, shown.attempt);
                    let seen = format!("chunk {} of attempt {attempt}", chunk.id);
                    self.report(Invariant::ClientText, message, expected, seen);
                }
                let accepted = self.expected_outcomes.get(&self.key(message));
                let accepted = accepted.and_then(|fate| fate.attempts.get(attempt)?.get(&chunk.id));
                if accepted.map(|accepted| as_shown(accepted)).as_ref() != Some(&**chunk)
                    && !self.is_unsure(message)
                {
                    let (expected, seen) = (format!("{accepted:?}"), format!("{chunk:?}"));
                    self.report(Invariant::ClientText, message, expected, seen);
                }
                shown.next = chunk.id + 1;
                shown.add(chunk);
            }
            SeenEvent::Reset { message, attempt } => {
                let shown = all.entry(message).or_default();
                let is_lower = shown.attempt.is_some_and(|before| before >= *attempt);
                let is_anew = shown.attempt == Some(*attempt);
                // An owner whose store went back in time shows late chunks of a message that it no
                // longer knows to have ended. A reset to attempt 0 is also allowed: the gateway
                // hides a message that the owner's answer has left out, and forgets what it has
                // shown.
                let may_be_lower = (*attempt == 0 && self.rules.left_out.contains(&self.transcript.thread))
                    || is_anew
                    || self.is_stopped(message)
                    || self.is_unsure(message)
                    || self.has_gone_back();
                if shown.ended || (is_lower && !may_be_lower) {
                    let expected = format!("an attempt above {:?}", shown.attempt);
                    self.report(Invariant::ClientText, message, expected, format!("reset to {attempt}"));
                }
                *shown = Shown { attempt: Some(*attempt), ..Shown::default() };
            }
            SeenEvent::Rest { message, chunk } => {
                let shown = all.entry(message).or_default();
                if shown.ended {
                    self.report(
                        Invariant::ClientText,
                        message,
                        "nothing after its end",
                        format!("{chunk:?}"),
                    );
                }
                shown.add(chunk);
                (shown.from_store, shown.was_cut) = (true, false);
            }
            SeenEvent::Complete { message, position } => {
                let shown = all.entry(message).or_default();
                self.complete(message, *position, shown);
                (shown.ended, shown.position) = (true, *position);
            }
            SeenEvent::Failed { message, position } => {
                let shown = all.entry(message).or_default();
                self.failed(message, shown);
                (shown.ended, shown.position) = (true, *position);
            }
            SeenEvent::RepeatedId { id } => {
                let subject = format!("client {}", self.transcript.client);
                let violation = Violation::new(Invariant::EventIds, subject, "an id of its own", id);
                self.violations.push(violation);
            }
            SeenEvent::Restart { after } => {
                // The answer of a dropped task is gone. So are messages that the stream has lost,
                // but these may be published again.
                let may_be_gone =
                    |message: &MessageId| self.stored(message).is_none() || self.is_unsure(message);
                // A gateway restarts all its subscribers, including one that joined before anything
                // of the lost message was shown to it.
                let is_justified = all.iter().any(|(message, shown)| !shown.ended && may_be_gone(message))
                    || self.rules.lost.iter().any(|key| key.thread == self.transcript.thread);
                // A gateway that has followed the thread since before its store went back in time
                // notices this when an owner answers, which may take a long time. A client that
                // joined in the meantime restarts with the others.
                if !is_justified && !self.has_gone_back() {
                    let subject = format!("client {}", self.transcript.client);
                    let seen = "a restart, though nothing was lost";
                    self.violations.push(Violation::new(Invariant::NothingMissed, subject, "to go on", seen));
                }
                all.retain(|_, shown| {
                    shown.ended && shown.position.is_none_or(|position| position <= *after)
                });
            }
        }
    }

    /// True if, because the store went back in time, the client was later restarted from before
    /// this event, or was sent the message again.
    fn is_taken_back(&self, index: usize, seen: &SeenEvent) -> bool {
        let (SeenEvent::Chunk { message, .. }
        | SeenEvent::Reset { message, .. }
        | SeenEvent::Rest { message, .. }
        | SeenEvent::Complete { message, .. }
        | SeenEvent::Failed { message, .. }) = seen
        else {
            return false;
        };
        if !self.has_gone_back() {
            return false;
        }
        let shown_in = match seen {
            SeenEvent::Chunk { attempt, .. } | SeenEvent::Reset { attempt, .. } => Some(*attempt),
            _ => None,
        };
        // The event can belong to a message that ended here, or to one that had not ended before
        // the restart.
        let mut end = None;
        for later in &self.transcript.seen[index..] {
            match later {
                SeenEvent::Complete { message: ended, position }
                | SeenEvent::Failed { message: ended, position }
                    if ended == message =>
                {
                    end = end.or(*position);
                }
                SeenEvent::Restart { after } if end.is_none_or(|end| end > *after) => return true,
                // The reset must be to the same attempt or an earlier one: a later attempt does not
                // undo a wrong event.
                SeenEvent::Reset { message: anew, attempt }
                    if anew == message
                        && end.is_none()
                        && !std::ptr::eq(later, seen)
                        && shown_in.is_some_and(|shown| *attempt <= shown) =>
                {
                    return true;
                }
                _ => {}
            }
        }
        false
    }

    /// Compares the ends that the client was sent with all ends above its start position, in order.
    /// The comparison stops at the last end that the client was sent, or covers all ends if it was
    /// connected.
    fn ends(&mut self) {
        let Some(since) = self.transcript.since else { return };
        let position = |seen: &'a SeenEvent| match seen {
            SeenEvent::Complete { message, position } | SeenEvent::Failed { message, position, .. } => {
                position.map(|position| (position, message))
            }
            _ => None,
        };
        let (mut since, mut shown) = (since, Vec::<(i64, &MessageId)>::new());
        for seen in &self.transcript.seen {
            match seen {
                SeenEvent::Restart { after } => {
                    since = since.min(*after);
                    shown.retain(|(position, _)| position <= after);
                }
                seen => shown.extend(position(seen)),
            }
        }
        let is_last = self.rules.is_settled && self.transcript.is_connected;
        let heard = shown.last().map_or(since, |(position, _)| *position);
        let until = if is_last { i64::MAX } else { heard };
        // A message that lost a chunk with its stream may end after everything else has settled.
        let may_be_open = |key: &MessageKey, position: i64| position > heard && self.rules.lost.contains(key);
        let is_wanted = |(key, position): &&(MessageKey, i64)| {
            key.thread == self.transcript.thread
                && *position > since
                && *position <= until
                && !may_be_open(key, *position)
        };
        let wanted = self.ends.all.iter().filter(is_wanted).map(|(key, position)| (*position, &key.message));
        let mut wanted: Vec<(i64, &MessageId)> = wanted.collect();
        wanted.sort_unstable();
        if shown != wanted {
            let subject = format!("{} at client {}", self.transcript.thread, self.transcript.client);
            let (expected, seen) = (format!("after {since}: {wanted:?}"), format!("{shown:?}"));
            self.violations.push(Violation::new(Invariant::NothingMissed, subject, expected, seen));
        }
    }

    /// True if the client has the content of the chunks below this one, however it was split.
    fn has_chunks_before(&self, message: &MessageId, attempt: u32, id: u32, shown: &Shown) -> bool {
        let outcome = self.expected_outcomes.get(&self.key(message));
        let Some(chunks) = outcome.and_then(|outcome| outcome.attempts.get(&attempt)) else { return false };
        let mut before = Shown::default();
        if chunks.range(..id).map(|(known, _)| *known).ne(0..id) {
            return false;
        }
        chunks.range(..id).for_each(|(_, chunk)| before.add(chunk));
        before.others.retain(|_, text| !text.is_empty());
        let others = shown.others.iter().filter(|(_, text)| !text.is_empty());
        before.text == shown.text && before.others.iter().eq(others)
    }

    /// Reasoning, calls and results of the stored attempt, according to the log.
    fn others(&self, message: &MessageId, attempt: u32) -> Option<BTreeMap<String, String>> {
        let fate = self.expected_outcomes.get(&self.key(message))?;
        let mut whole = Shown::default();
        fate.attempts.get(&attempt)?.values().for_each(|chunk| whole.add(chunk));
        Some(whole.others)
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
            // The message's stream has lost a chunk, and another chunk took its place.
            Some(_) if self.has_lost_chunks(message) => {}
            Some(stored) if self.ends.text(stored) != shown.text => {
                let (expected, seen) = (format!("{:?}", self.ends.text(stored)), format!("{:?}", shown.text));
                self.report(Invariant::ClientText, message, expected, seen);
            }
            Some(stored) if !self.is_stopped(message) && !self.is_unsure(message) => {
                let wanted = self.others(message, stored.attempt).filter(|wanted| *wanted != shown.others);
                if let Some(wanted) = wanted {
                    let (expected, seen) = (format!("{wanted:?}"), format!("{:?}", shown.others));
                    self.report(Invariant::ClientText, message, expected, seen);
                }
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
            && !(self.is_stopped(message) && shown.text.starts_with(self.ends.text(stored)))
        {
            let (expected, seen) =
                (format!("a prefix of {:?}", self.ends.text(stored)), format!("{:?}", shown.text));
            self.report(Invariant::ClientText, message, expected, seen);
        }
        // A message that lost a chunk with its stream may be open for longer.
        let is_lost = self.rules.lost.contains(&self.key(message));
        if self.rules.is_settled && self.transcript.is_connected && !is_lost {
            self.report(Invariant::OneTerminal, message, "one terminal", "none");
        }
    }

    /// True if it is not certain which chunks of the message are accepted: its stream has lost
    /// some, or a store that went back in time led to a second request.
    fn is_unsure(&self, message: &MessageId) -> bool {
        self.has_lost_chunks(message) || (self.has_gone_back() && TurnId::of_answer(message).is_some())
    }

    fn has_gone_back(&self) -> bool {
        !self.rules.stepped_back.is_empty()
    }

    fn has_lost_chunks(&self, message: &MessageId) -> bool {
        self.rules.lost.contains(&self.key(message))
    }

    /// True for a stopped answer. An owner that could not store the answer may have shown more of
    /// it.
    fn is_stopped(&self, message: &MessageId) -> bool {
        self.stored(message).is_some_and(|stored| stored.metadata.get("stopped").is_some())
    }

    fn stored(&self, message: &MessageId) -> Option<&'a MessageRow> {
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
