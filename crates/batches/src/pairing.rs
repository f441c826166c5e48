//! Matches results to the calls of a batch.

use std::borrow::Borrow;
use std::collections::BTreeMap;

use model::Role;

use crate::Item;

/// Where the answer to a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerLocation {
    /// In the message with this index.
    Message(usize),
    /// The answer is stored in the call.
    Beside,
    /// There is no answer yet.
    Open,
}

/// Matched calls and results of one batch. A result answers the first open call with its id that
/// precedes it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pairing {
    /// For each message with calls: the answers of its calls, in call order.
    answers: BTreeMap<usize, Vec<AnswerLocation>>,
    /// Tool messages that answer no earlier call.
    orphans: Vec<usize>,
}

impl Pairing {
    /// Matches the messages of one batch, in their order.
    pub fn of(items: &[impl Borrow<Item>]) -> Self {
        let mut pairing = Self::default();
        let mut open: Vec<(&str, usize, usize)> = Vec::new();
        for (index, item) in items.iter().map(Borrow::borrow).enumerate() {
            if item.role == Role::Tool {
                let id = item.tool_call_id.as_deref();
                match open.iter().position(|(open, _, _)| Some(*open) == id) {
                    Some(found) => {
                        let (_, message, call) = open.remove(found);
                        pairing.set(message, call, AnswerLocation::Message(index));
                    }
                    None => pairing.orphans.push(index),
                }
                continue;
            }
            let calls = item.calls();
            if calls.is_empty() {
                continue;
            }
            let answer = |beside: Option<&str>| {
                if beside.is_some() { AnswerLocation::Beside } else { AnswerLocation::Open }
            };
            pairing.answers.insert(index, calls.iter().map(|call| answer(call.result)).collect());
            let unanswered = calls.iter().enumerate().filter(|(_, call)| call.result.is_none());
            open.extend(unanswered.map(|(number, call)| (call.id, index, number)));
        }
        pairing
    }

    fn set(&mut self, message: usize, call: usize, answer: AnswerLocation) {
        if let Some(slot) = self.answers.get_mut(&message).and_then(|answers| answers.get_mut(call)) {
            *slot = answer;
        }
    }

    /// The answers to the calls of the message with this index, in call order.
    pub fn answers(&self, message: usize) -> &[AnswerLocation] {
        self.answers.get(&message).map(Vec::as_slice).unwrap_or_default()
    }

    /// Indices of the tool messages that answer no call.
    pub fn orphans(&self) -> &[usize] {
        &self.orphans
    }

    /// `(message, call)` of every call without a result.
    pub fn open(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        self.answers.iter().flat_map(|(message, answers)| {
            let open = answers.iter().enumerate().filter(|(_, answer)| **answer == AnswerLocation::Open);
            open.map(|(call, _)| (*message, call))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::items;

    #[test]
    fn each_result_answers_the_first_open_call_of_its_id() {
        let pairing = Pairing::of(&items("1.0u 1.1A:a,b,a 1.2t:b 1.3t:a 1.4t:a 1.5A:a 1.6t:a 1.7t:a 1.8t:z"));
        let message = AnswerLocation::Message;
        assert_eq!(pairing.answers(1), [message(3), message(2), message(4)]);
        assert_eq!(pairing.answers(5), [message(6)]);
        assert_eq!(pairing.orphans(), [7, 8]);
        assert_eq!(pairing.open().count(), 0);
    }

    #[test]
    fn a_result_before_its_call_answers_nothing() {
        let pairing = Pairing::of(&items("1.0u 1.1t:a 1.2A:a"));
        assert_eq!((pairing.orphans(), pairing.answers(2)), (&[1][..], &[AnswerLocation::Open][..]));
        assert_eq!(pairing.open().collect::<Vec<_>>(), [(2, 0)]);
    }
}
