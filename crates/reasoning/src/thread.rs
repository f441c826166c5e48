//! What is shown of a session: enough of each message to decide on compressions.

use std::collections::HashMap;

use model::ReasoningSessionId;

use crate::message::SessionMessage;
use crate::{MAX_SUMMARIES_SHOWN, Number, ReasoningRole, SessionCall, SnapshotToken};

/// A message that is shown, without its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownMessage {
    /// Its number.
    pub number: Number,
    /// Whether it is of the temp layer.
    pub in_temp: bool,
    /// Who speaks.
    pub role: ReasoningRole,
    /// Characters of its text.
    pub chars: u32,
    /// Of an assistant message, but those whose result stands beside them.
    pub calls: Vec<SessionCall>,
    /// Of a tool message: the call that it answers.
    pub answers: Option<String>,
}

impl From<&SessionMessage> for ShownMessage {
    fn from(message: &SessionMessage) -> Self {
        Self {
            number: message.number,
            in_temp: message.in_temp,
            role: message.role,
            chars: message.chars(),
            calls: message.calls.iter().map(|call| SessionCall::new(&call.id, &call.name)).collect(),
            answers: message.answers.clone(),
        }
    }
}

/// What is shown of a session, in order. Position 1 is the first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownThread {
    /// The session.
    pub session: ReasoningSessionId,
    /// What is shown.
    pub entries: Vec<ShownMessage>,
    /// The highest number that was given, shown or not.
    pub last_number: Number,
}

/// Which entries belong together: indices from 0.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    /// Per entry that calls or answers: the entries on the other side.
    pub(crate) partners: HashMap<usize, Vec<usize>>,
    /// Entries of the temp layer with a call whose result has not come, in order.
    pub(crate) open: Vec<usize>,
}

impl Pairs {
    /// The entries on the other side of an entry's calls, or of its result.
    pub(crate) fn partners(&self, index: usize) -> &[usize] {
        self.partners.get(&index).map(Vec::as_slice).unwrap_or_default()
    }

    /// Calls with their results: the index of each.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        let all = self.partners.iter();
        all.flat_map(|(index, partners)| partners.iter().map(move |partner| (*index, *partner)))
            .filter(|(call, result)| call < result)
    }

    /// The entries that wait for a result, in order.
    pub(crate) fn open(&self) -> &[usize] {
        &self.open
    }

    /// Whether the entry waits for a result.
    pub(crate) fn is_open(&self, index: usize) -> bool {
        self.open.binary_search(&index).is_ok()
    }
}

impl ShownThread {
    /// How many messages are shown.
    pub fn len(&self) -> u64 {
        self.entries.len() as u64
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// What names this state.
    pub fn token(&self) -> SnapshotToken {
        SnapshotToken::of(&self.session, self.entries.iter().map(|entry| entry.number))
    }

    /// What would name the state in which these were shown.
    pub fn token_of(&self, shown: impl Iterator<Item = Number>) -> SnapshotToken {
        SnapshotToken::of(&self.session, shown)
    }

    /// How many entries, from the first, can be compressed: not the call that runs at this moment, nor the results of calls beside it.
    pub(crate) fn settled(&self, pairs: &Pairs) -> usize {
        let mut end = self.entries.len();
        loop {
            let results = self.entries[..end].iter().rev();
            let mut first = end - results.take_while(|entry| entry.role == ReasoningRole::Tool).count();
            // Of the results at the end only those that answer the call in question are beside it.
            if first > 0
                && pairs.is_open(first - 1)
                && (first..end).all(|result| pairs.partners(result).contains(&(first - 1)))
            {
                first -= 1;
                end = first;
                continue;
            }
            return end;
        }
    }

    /// A result answers the nearest call of its id before it that has no result yet.
    pub(crate) fn pairs(&self) -> Pairs {
        let mut partners: HashMap<usize, Vec<usize>> = HashMap::new();
        let mut waiting: HashMap<&str, Vec<usize>> = HashMap::new();
        for (index, entry) in self.entries.iter().enumerate() {
            for call in &entry.calls {
                waiting.entry(&call.id).or_default().push(index);
            }
            let call = entry.answers.as_deref().and_then(|id| waiting.get_mut(id)).and_then(Vec::pop);
            if let Some(call) = call {
                partners.entry(call).or_default().push(index);
                partners.entry(index).or_default().push(call);
            }
        }
        let mut open: Vec<usize> = waiting.into_values().flatten().collect();
        open.retain(|index| self.entries[*index].in_temp);
        open.sort_unstable();
        open.dedup();
        Pairs { partners, open }
    }

    /// Per entry that answers a call: the tool, as the call names it.
    pub fn called_tools(&self) -> Vec<Option<&str>> {
        let mut called: HashMap<&str, &str> = HashMap::new();
        self.entries
            .iter()
            .map(|entry| {
                called.extend(entry.calls.iter().map(|call| (call.id.as_str(), call.name.as_str())));
                entry.answers.as_deref().and_then(|id| called.get(id).copied())
            })
            .collect()
    }

    /// Where a message stands, from 1.
    pub fn position(&self, number: Number) -> Option<u64> {
        self.entries.iter().position(|entry| entry.number == number).map(|index| index as u64 + 1)
    }

    /// Whether no more summaries can be shown.
    pub(crate) fn is_full_of_summaries(&self) -> bool {
        let summaries = self.entries.iter().filter(|entry| entry.role == ReasoningRole::Summary);
        summaries.count() >= MAX_SUMMARIES_SHOWN
    }

    /// The entries of the temp layer that can be compressed: from, and up to but not with.
    pub(crate) fn temp(&self, pairs: &Pairs) -> (usize, usize) {
        let end = self.settled(pairs);
        let temp = self.entries[..end].iter().rev().take_while(|entry| entry.in_temp).count();
        (end - temp, end)
    }
}
