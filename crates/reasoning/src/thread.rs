//! The shown part of a session, with only those fields of messages that decisions on compressions
//! need.

use std::collections::HashMap;

use model::ReasoningSessionId;

use crate::message::SessionMessage;
use crate::{MAX_SUMMARIES_SHOWN, Number, ReasoningRole, SessionCall, SnapshotToken};

/// A shown message, without its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownMessage {
    pub number: Number,
    /// True if the message belongs to the temp layer.
    pub in_temp: bool,
    pub role: ReasoningRole,
    /// Number of characters of its text.
    pub chars: u32,
    /// Calls of an assistant message, except those that contain their result.
    pub calls: Vec<SessionCall>,
    /// For a tool message: the id of the answered call.
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

/// The shown messages of a session, in order. Position 1 is the first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownThread {
    pub session: ReasoningSessionId,
    /// The shown messages.
    pub entries: Vec<ShownMessage>,
    /// The highest assigned number, shown or not.
    pub last_number: Number,
}

/// The entries that belong together, as indices from 0.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    /// For each entry with calls or a result: the entries with the matching results or calls.
    pub(crate) partners: HashMap<usize, Vec<usize>>,
    /// Entries of the temp layer that have a call without a result, in order.
    pub(crate) open: Vec<usize>,
}

impl Pairs {
    /// The entries with the results of an entry's calls, or with the call of its result.
    pub(crate) fn partners(&self, index: usize) -> &[usize] {
        self.partners.get(&index).map(Vec::as_slice).unwrap_or_default()
    }

    /// Calls with their results, as indices.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (usize, usize)> {
        let all = self.partners.iter();
        all.flat_map(|(index, partners)| partners.iter().map(move |partner| (*index, *partner)))
            .filter(|(call, result)| call < result)
    }

    /// The entries that wait for a result, in order.
    pub(crate) fn open(&self) -> &[usize] {
        &self.open
    }

    /// True if the entry waits for a result.
    pub(crate) fn is_open(&self, index: usize) -> bool {
        self.open.binary_search(&index).is_ok()
    }
}

impl ShownThread {
    /// Number of shown messages.
    pub fn len(&self) -> u64 {
        self.entries.len() as u64
    }

    /// True if no message is shown.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The token of this state.
    pub fn token(&self) -> SnapshotToken {
        SnapshotToken::of(&self.session, self.entries.iter().map(|entry| entry.number))
    }

    /// The token of the state in which these messages are shown.
    pub fn token_of(&self, shown: impl Iterator<Item = Number>) -> SnapshotToken {
        SnapshotToken::of(&self.session, shown)
    }

    /// The number of entries, from the first, that can be compressed. The running call is excluded,
    /// and so are the results of calls in the same message.
    pub(crate) fn settled(&self, pairs: &Pairs) -> usize {
        let mut end = self.entries.len();
        loop {
            let results = self.entries[..end].iter().rev();
            let mut first = end - results.take_while(|entry| entry.role == ReasoningRole::Tool).count();
            // Results at the end are excluded only if all of them answer calls of this entry.
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

    /// Pairs each result with the nearest earlier call that has its id and no result yet.
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

    /// For each entry that answers a call: the tool's name in the call.
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

    /// The position of a message, from 1.
    pub fn position(&self, number: Number) -> Option<u64> {
        self.entries.iter().position(|entry| entry.number == number).map(|index| index as u64 + 1)
    }

    /// True if no more summaries can be shown.
    pub(crate) fn is_full_of_summaries(&self) -> bool {
        let summaries = self.entries.iter().filter(|entry| entry.role == ReasoningRole::Summary);
        summaries.count() >= MAX_SUMMARIES_SHOWN
    }

    /// The entries of the temp layer that can be compressed, as a half-open range.
    pub(crate) fn temp(&self, pairs: &Pairs) -> (usize, usize) {
        let end = self.settled(pairs);
        let temp = self.entries[..end].iter().rev().take_while(|entry| entry.in_temp).count();
        (end - temp, end)
    }
}
