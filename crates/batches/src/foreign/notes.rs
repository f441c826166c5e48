//! Notes of an import about messages that were changed or dropped.

use std::collections::BTreeMap;
use std::fmt;

use model::MessageId;

use super::repair::Replaced;

/// Reports how a message was handled that could not be imported unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportNote {
    /// Index in the input, from 0; in an export with branches, index in the current branch.
    pub index: usize,
    /// The message's id in the input.
    pub id: Option<String>,
    pub what: NoteKind,
}

/// How a message was imported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoteKind {
    /// The message equals an earlier one with the same id and was left out.
    Twice,
    /// The id of the message is invalid or already used, so the message got another one.
    IdChanged {
        /// The new id.
        to: MessageId,
    },
    /// The time of the message is in the future, so it is placed right after the previous message.
    Future,
    /// The message answers no open call. It forms its own batch, which contexts never include.
    Orphan,
    /// A call has no result although the chat continued: the call is dropped.
    Unanswered {
        /// Name of the tool.
        name: String,
    },
    /// The message is an instruction of the other system, so it was left out.
    NoMessage,
    /// The message had values that cannot be stored; they were replaced.
    Replaced(Replaced),
    /// A part has an unknown type.
    UnknownPart {
        /// Index of the part, from 0.
        part: usize,
        kind: String,
        /// The field that was used as text of the part, if any.
        text_from: Option<&'static str>,
    },
    /// The message has a role but no known field. Its text is a placeholder, and the metadata has
    /// the whole message.
    NotUnderstood {
        /// The names of its fields, or the type of the value if it is not an object.
        what: String,
    },
    /// A field is nested too deeply to be stored and was left out.
    TooDeep { field: String },
    /// A time field has an unknown format; its value is kept in the metadata.
    UnknownTime { field: &'static str },
    /// The input lists the newest message first, so it was read from its end.
    NewestFirst,
    /// The input is one page of a longer list.
    HasMore,
    /// The message has no text, call or result.
    Empty,
}

impl NoteKind {
    /// True if the import lost or guessed a part of the message. A strict import refuses it.
    pub fn is_loss(&self) -> bool {
        match self {
            Self::Replaced(_)
            | Self::UnknownPart { .. }
            | Self::NotUnderstood { .. }
            | Self::TooDeep { .. }
            | Self::HasMore => true,
            Self::Twice
            | Self::IdChanged { .. }
            | Self::Future
            | Self::Orphan
            | Self::Unanswered { .. }
            | Self::NoMessage
            | Self::UnknownTime { .. }
            | Self::NewestFirst
            | Self::Empty => false,
        }
    }
}

impl fmt::Display for ImportNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "message {}", self.index + 1)?;
        if let Some(id) = &self.id {
            write!(f, " ({id:?})")?;
        }
        write!(f, ": {}", self.what)
    }
}

impl fmt::Display for NoteKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what())?;
        match self {
            Self::Twice | Self::NoMessage | Self::TooDeep { .. } => f.write_str("; left out"),
            Self::IdChanged { to } => write!(f, "; it becomes {to}"),
            Self::Future => f.write_str("; it is placed after the one before"),
            Self::Orphan => f.write_str("; it is kept in a batch of its own"),
            Self::Unanswered { .. } => f.write_str("; it is kept in the metadata only"),
            Self::Replaced(_) => f.write_str("; it was replaced"),
            Self::UnknownPart { text_from: Some(field), .. } => {
                write!(f, "; its text was taken from its field {field:?}")
            }
            Self::UnknownPart { text_from: None, .. } => f.write_str("; its place is marked in the text"),
            Self::NotUnderstood { .. } => f.write_str("; its fields are kept in the metadata"),
            Self::UnknownTime { .. } => f.write_str("; it is kept in the metadata"),
            Self::NewestFirst => f.write_str("; the list was read from its end"),
            Self::HasMore => f.write_str("; import all pages as one list"),
            Self::Empty => Ok(()),
        }
    }
}

impl NoteKind {
    /// Describes the finding, without the action.
    pub(super) fn what(&self) -> String {
        match self {
            Self::Twice => "the same as an earlier one".to_owned(),
            Self::IdChanged { .. } => "its id is taken or not allowed here".to_owned(),
            Self::Future => "its time is later than now".to_owned(),
            Self::Orphan => "a result without a call".to_owned(),
            Self::Unanswered { name } => format!("its call of {name:?} has no result"),
            Self::NoMessage => "not a message".to_owned(),
            Self::Replaced(replaced) => replaced.to_string(),
            Self::UnknownPart { part, kind, .. } => {
                format!("part {} is of the unknown type {kind:?}", part + 1)
            }
            Self::NotUnderstood { what } => format!("no text, call or result was found in it ({what})"),
            Self::TooDeep { field } => format!("{field:?} is nested too deep to be kept"),
            Self::UnknownTime { field } => format!("{field:?} has no time that is understood"),
            Self::NewestFirst => "the first of the list is the newest".to_owned(),
            Self::HasMore => "the list is one page of a longer one (has_more)".to_owned(),
            Self::Empty => "it has no text".to_owned(),
        }
    }
}

/// A part of an export that does not become a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeftOutKind {
    /// A message of another branch: an edited input, or a regenerated answer.
    OtherBranch,
    /// A message that the other system does not show, such as its own instructions.
    Hidden,
    /// A message without any text.
    Empty,
    /// A line such as "Thought for 8 seconds".
    Recap,
    /// An answer that failed before it had text.
    Failed,
    /// A result without a call, such as files searched for every answer.
    LooseResult,
}

impl LeftOutKind {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::OtherBranch => "other_branches",
            Self::Hidden => "hidden",
            Self::Empty => "empty",
            Self::Recap => "recaps",
            Self::Failed => "failed",
            Self::LooseResult => "results_without_calls",
        }
    }
}

/// Number of messages left out of an export, by reason.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeftOut(BTreeMap<LeftOutKind, u64>);

impl LeftOut {
    /// Adds to the count of a reason.
    pub fn add(&mut self, kind: LeftOutKind, count: u64) {
        if count > 0 {
            *self.0.entry(kind).or_default() += count;
        }
    }

    /// The non-zero counts.
    pub fn counts(&self) -> impl Iterator<Item = (LeftOutKind, u64)> + '_ {
        self.0.iter().map(|(kind, count)| (*kind, *count))
    }

    /// True if nothing was left out.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (kind, count)) in self.counts().enumerate() {
            let what = match kind {
                LeftOutKind::OtherBranch => "of other branches",
                LeftOutKind::Hidden => "hidden",
                LeftOutKind::Empty => "empty",
                LeftOutKind::Recap => "that only say how long the model thought",
                LeftOutKind::Failed => "failed",
                LeftOutKind::LooseResult => "results without calls",
            };
            write!(f, "{}{count} {what}", if index == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}
