//! What an import says of messages that it could not take as they were.

use std::collections::BTreeMap;
use std::fmt;

use model::MessageId;

use super::repair::Replaced;

/// What was done with a message that could not be taken as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportNote {
    /// Its number in the input, from 0; in an export with branches, its number in the current branch.
    pub index: usize,
    /// Its id there.
    pub id: Option<String>,
    /// What was done.
    pub what: NoteKind,
}

/// How a message was taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoteKind {
    /// It is the same as an earlier one with its id, and left out.
    Twice,
    /// Its id cannot be one here, or was used before: it has another.
    IdChanged {
        /// The new id.
        to: MessageId,
    },
    /// Its time is later than now: it is placed right after the message before it.
    Future,
    /// It answers no open call: it is a batch of its own, and never in a context.
    Orphan,
    /// A call has no result in a chat that went on: it was given up.
    Unanswered {
        /// The tool.
        name: String,
    },
    /// It is an instruction of the other system, no message, and left out.
    NoMessage,
    /// Something in it cannot be stored, and was replaced.
    Replaced(Replaced),
    /// A part has a type that is not known.
    UnknownPart {
        /// Its number, from 0.
        part: usize,
        /// Its type.
        kind: String,
        /// The field that the text was taken from.
        text_from: Option<&'static str>,
    },
    /// It has a role, but no field that is understood; it is kept with a placeholder and, whole, in the metadata.
    NotUnderstood {
        /// Its fields, or what else it is.
        what: String,
    },
    /// A field is nested too deep to be kept, and left out.
    TooDeep {
        /// The field.
        field: String,
    },
    /// A field for its time has none that is understood; it is kept in the metadata.
    UnknownTime {
        /// The field.
        field: &'static str,
    },
    /// The input lists the newest message first: it was read from its end.
    NewestFirst,
    /// The input is one page of a longer list.
    HasMore,
    /// It has no text, call or result there either.
    Empty,
}

impl NoteKind {
    /// Whether something of the message was lost, or guessed. A strict import refuses it.
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
    /// What was found, without what was done.
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

/// What an export has that does not become a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeftOutKind {
    /// A message of a branch that is not the current one: an edited input, an answer that was regenerated.
    OtherBranch,
    /// A message that the other system does not show, such as its own instructions.
    Hidden,
    /// A message without any text.
    Empty,
    /// A line such as "Thought for 8 seconds".
    Recap,
    /// An answer that failed before it had a text.
    Failed,
    /// A result that answers no call, such as files that were searched for every answer.
    LooseResult,
}

impl LeftOutKind {
    /// Its name in reports.
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

/// How many messages of an export were left out, by reason.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeftOut(BTreeMap<LeftOutKind, u64>);

impl LeftOut {
    /// Counts some more.
    pub fn add(&mut self, kind: LeftOutKind, count: u64) {
        if count > 0 {
            *self.0.entry(kind).or_default() += count;
        }
    }

    /// The counts that are not zero.
    pub fn counts(&self) -> impl Iterator<Item = (LeftOutKind, u64)> + '_ {
        self.0.iter().map(|(kind, count)| (*kind, *count))
    }

    /// Whether all was taken.
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
