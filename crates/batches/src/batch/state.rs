//! Decides whether a batch is complete.

use std::cmp::Ordering;
use std::fmt;

use model::{BatchType, Role};

use crate::turn::MISSING;
use crate::{Pairing, SharedItem};

/// Whether a batch is complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchState {
    /// Calls and results match, the last message is an assistant message without calls, and no
    /// message announces a continuation.
    Complete,
    /// The batch is incomplete for this reason.
    Incomplete(IncompleteReason),
}

/// The reason why a batch is incomplete: the first one that applies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IncompleteReason {
    /// There are no messages.
    Empty,
    /// The message with this number is missing: it was lost or is not read yet.
    Hole { missing: i32 },
    /// Two messages have the same number.
    Doubled { number: i32 },
    /// The batch should begin with an input but has none.
    NoInput,
    /// A result answers no earlier call.
    OrphanResult {
        /// The call id of the result.
        id: String,
    },
    /// The batch has only its input.
    LoneInput,
    /// Calls follow a final text and have no results.
    LateCall {
        /// Ids of the calls.
        ids: Vec<String>,
    },
    /// Some calls have no results.
    UnansweredCalls {
        /// Ids of the calls.
        ids: Vec<String>,
    },
    /// The last message is a result: the model has not answered it.
    EndsInResult,
    /// The last message is an unanswered input.
    EndsInInput,
    /// The last message announces a continuation.
    Continues,
}

impl IncompleteReason {
    pub fn code(&self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Hole { .. } => "hole",
            Self::Doubled { .. } => "doubled",
            Self::NoInput => "no_input",
            Self::OrphanResult { .. } => "orphan_result",
            Self::LoneInput => "lone_input",
            Self::LateCall { .. } => "late_call",
            Self::UnansweredCalls { .. } => "unanswered_calls",
            Self::EndsInResult => "ends_in_result",
            Self::EndsInInput => "ends_in_input",
            Self::Continues => "continues",
        }
    }
}

impl fmt::Display for IncompleteReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("it has no messages"),
            Self::Hole { missing } => write!(f, "its message number {missing} is missing"),
            Self::Doubled { number } => write!(f, "two of its messages have the number {number}"),
            Self::NoInput => f.write_str("it does not begin with an input"),
            Self::OrphanResult { id } => write!(f, "the result for {id:?} answers no call before it"),
            Self::LoneInput => f.write_str("it has only its input"),
            Self::LateCall { ids } => {
                write!(f, "after its final text came calls without results: {}", ids.join(", "))
            }
            Self::UnansweredCalls { ids } => write!(f, "calls have no results: {}", ids.join(", ")),
            Self::EndsInResult => {
                f.write_str("it ends in a tool's result, and the model has not spoken since")
            }
            Self::EndsInInput => f.write_str("it ends in an input that has no answer"),
            Self::Continues => f.write_str("its last message says that it goes on"),
        }
    }
}

/// The state of a batch with these messages, ordered by number.
pub(super) fn state(items: &[SharedItem]) -> BatchState {
    match why(items) {
        Some(why) => BatchState::Incomplete(why),
        None => BatchState::Complete,
    }
}

fn why(items: &[SharedItem]) -> Option<IncompleteReason> {
    let Some(last) = items.last() else { return Some(IncompleteReason::Empty) };
    numbers(items).or_else(|| input(items)).or_else(|| calls(items)).or_else(|| match last.role {
        Role::User | Role::System if items.len() == 1 && last.is_note() => None,
        Role::User | Role::System if items.iter().all(|item| is_input(item.role)) => {
            Some(IncompleteReason::LoneInput)
        }
        Role::User | Role::System => Some(IncompleteReason::EndsInInput),
        Role::Tool => Some(IncompleteReason::EndsInResult),
        Role::Assistant if last.is_marked(MISSING) && last.content.is_empty() => {
            Some(IncompleteReason::EndsInResult)
        }
        Role::Assistant => last.is_marked("continuation").then_some(IncompleteReason::Continues),
    })
}

fn is_input(role: Role) -> bool {
    matches!(role, Role::User | Role::System)
}

fn numbers(items: &[SharedItem]) -> Option<IncompleteReason> {
    items.iter().zip(0..).find_map(|(item, expected)| match item.sequence_num.cmp(&expected) {
        Ordering::Less => Some(IncompleteReason::Doubled { number: item.sequence_num }),
        Ordering::Greater => Some(IncompleteReason::Hole { missing: expected }),
        Ordering::Equal => None,
    })
}

/// The batch of a request begins with its input. Only a batch that the system began has no input.
fn input(items: &[SharedItem]) -> Option<IncompleteReason> {
    let first = items.iter().find(|item| item.role != Role::System)?;
    let unasked = first.batch_type == BatchType::SystemTrigger && first.role == Role::Assistant;
    (first.role != Role::User && !unasked && first.role != Role::Tool).then_some(IncompleteReason::NoInput)
}

fn calls(items: &[SharedItem]) -> Option<IncompleteReason> {
    let pairing = Pairing::of(items);
    if let Some(orphan) = pairing.orphans().first() {
        let id = items.get(*orphan).and_then(|item| item.tool_call_id.clone()).unwrap_or_default();
        return Some(IncompleteReason::OrphanResult { id });
    }
    let open: Vec<(usize, usize)> = pairing.open().collect();
    let (first, _) = open.first()?;
    let id = |(message, call): &(usize, usize)| Some(items.get(*message)?.calls().get(*call)?.id.to_owned());
    let ids = open.iter().filter_map(id).collect();
    // A final text between the last input and the first open call makes that call a late one.
    let before = items.iter().take(*first).rev().take_while(|item| !is_input(item.role));
    let is_late = before.into_iter().next().is_some_and(|item| {
        item.role == Role::Assistant && item.calls().is_empty() && !item.is_marked("continuation")
    });
    Some(if is_late { IncompleteReason::LateCall { ids } } else { IncompleteReason::UnansweredCalls { ids } })
}
