//! Differences between the shown and the stored messages.

use std::fmt;

use model::Position;

/// A difference between the stored message and the one that a provider sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Repair {
    /// The message; `None` for a generated one.
    pub message: Option<Position>,
    pub kind: RepairKind,
}

/// The change to a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RepairKind {
    /// A result that answers no call is left out.
    OrphanDropped {
        /// The call id of the result.
        id: String,
    },
    /// A call without a result got one.
    CallClosed {
        /// Id of the call.
        id: String,
    },
    /// A result was moved to directly after its call.
    ResultMoved {
        /// Id of the call.
        id: String,
    },
    /// A call has another id: providers refuse the stored one, or it was used before.
    IdChanged {
        /// The stored id.
        from: String,
        /// The shown id.
        to: String,
    },
    /// A tool has another name: providers refuse the stored one.
    NameChanged {
        /// The stored name.
        from: String,
        /// The shown name.
        to: String,
    },
    /// Arguments that are not a JSON object were wrapped in one.
    ArgumentsWrapped {
        /// Id of the call.
        id: String,
    },
    /// An empty text was replaced by a placeholder.
    EmptyFilled,
    /// An assistant message without content is left out.
    EmptyDropped,
    /// Instructions within the thread are shown as a user message.
    SystemAsUser,
    /// The active batch is shown last, although other batches began after it.
    ActiveMoved,
    /// A user message was inserted before the first message.
    BegunWithUser,
    /// A user message was added after the last message, so that the model has a message to answer.
    EndedWithUser,
}

impl RepairKind {
    pub fn code(&self) -> &'static str {
        match self {
            Self::OrphanDropped { .. } => "orphan_dropped",
            Self::CallClosed { .. } => "call_closed",
            Self::ResultMoved { .. } => "result_moved",
            Self::IdChanged { .. } => "id_changed",
            Self::NameChanged { .. } => "name_changed",
            Self::ArgumentsWrapped { .. } => "arguments_wrapped",
            Self::EmptyFilled => "empty_filled",
            Self::EmptyDropped => "empty_dropped",
            Self::SystemAsUser => "system_as_user",
            Self::ActiveMoved => "active_moved",
            Self::BegunWithUser => "begun_with_user",
            Self::EndedWithUser => "ended_with_user",
        }
    }
}

impl fmt::Display for RepairKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OrphanDropped { id } => write!(f, "the result for {id:?} answers no call and is left out"),
            Self::CallClosed { id } => write!(f, "the call {id:?} has no result and got one that says so"),
            Self::ResultMoved { id } => write!(f, "the result for {id:?} stands right after its call"),
            Self::IdChanged { from, to } => write!(f, "the call {from:?} is shown as {to:?}"),
            Self::NameChanged { from, to } => write!(f, "the tool {from:?} is shown as {to:?}"),
            Self::ArgumentsWrapped { id } => {
                write!(f, "the arguments of {id:?} are no JSON object and stand in one")
            }
            Self::EmptyFilled => f.write_str("it has no text and got one that says so"),
            Self::EmptyDropped => f.write_str("it says nothing and is left out"),
            Self::SystemAsUser => f.write_str("instructions within the thread are shown as a user's message"),
            Self::ActiveMoved => f.write_str("the active batch stands last, though others began after it"),
            Self::BegunWithUser => f.write_str("a user's message was put before the assistant's first"),
            Self::EndedWithUser => f.write_str("a user's message was put at the end"),
        }
    }
}
