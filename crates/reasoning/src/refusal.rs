//! Refusals: the reason, and the requests that would be accepted. The agent reads their text.

use std::fmt;

use model::quoting;

use crate::{MAX_SUMMARIES_SHOWN, Number, Runs, numbers_text};

/// A refused request, which changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Refusal {
    pub reason: Reason,
    /// The requests that would be accepted.
    pub valid: Valid,
}

/// The values that a request could have instead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Valid {
    /// The refusal does not depend on the state of the thread.
    Anything,
    /// Ranges of positions, each of which could be compressed as a whole. If empty, no message can
    /// be compressed.
    Ranges(Vec<(u64, u64)>),
    /// Number of messages from the end of the temp layer: minimum and maximum. `None`: none can be
    /// compressed.
    Count(Option<(u64, u64)>),
    /// Numbers in the order in which they are shown; each list could be compressed as a whole.
    Numbers(Vec<Runs>),
    /// Names of checkpoints.
    Names(Vec<String>),
}

/// The reason why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The summary has no visible character.
    #[error("the summary is blank: say in it what the messages said")]
    BlankSummary,
    /// A text is too long.
    #[error("{what} has {bytes} bytes; at most {max_bytes} are taken")]
    TooLong {
        /// Name of the text.
        what: &'static str,
        bytes: usize,
        max_bytes: usize,
    },
    /// There are too many items.
    #[error("there are {count} {what}; at most {max} are taken")]
    TooMany {
        /// The kind of items.
        what: &'static str,
        /// Number of items.
        count: u64,
        max: u64,
    },
    /// The text has a NUL character.
    #[error("{what} has a NUL character, which cannot be stored")]
    Nul {
        /// Name of the text.
        what: &'static str,
    },
    /// A name is blank or not one plain line.
    #[error("{what} must be one line that is not blank, without control characters and invisible ones")]
    Name {
        /// Kind of the name.
        what: &'static str,
    },
    /// The thread has changed since the token was issued.
    #[error("the thread has changed: {messages} messages now; view it again")]
    Stale {
        /// Number of messages shown.
        messages: u64,
    },
    /// The thread does not have these positions.
    #[error("[{from}] to [{to}] is no range of the thread, which has {messages} messages")]
    Range {
        from: i64,
        to: i64,
        /// Number of messages shown.
        messages: u64,
    },
    /// The temp layer does not have that many messages.
    #[error("the last {count} messages cannot be compressed: only the temp layer counts")]
    Count { count: i64 },
    /// The request selects a single message, and the summary is not shorter than it.
    #[error("one message is compressed only into a summary that is shorter: name at least two")]
    Single,
    /// The request selects a call without its result.
    #[error("[{position}] calls a tool whose result has not come")]
    OpenCall {
        /// Position of the call.
        position: u64,
    },
    /// The number was never assigned.
    #[error("no message has the number {0}")]
    UnknownNumber(i64),
    /// A summary replaces the number, or the number is a summary that was undone.
    #[error("the message with the number {0} is not shown")]
    HiddenNumber(i64),
    /// The number is listed twice.
    #[error("the number {0} is named twice")]
    RepeatedNumber(i64),
    /// Other messages are between the numbers.
    #[error("the messages do not stand next to each other: {between} stands between them")]
    NotAdjacent {
        /// The first number in between.
        between: Number,
    },
    /// Too many summaries would be shown, and each layer lists the shown messages.
    #[error("the thread shows {MAX_SUMMARIES_SHOWN} summaries: compress some of them into one")]
    TooManySummaries,
    /// The highest number for summaries has been assigned.
    #[error("the session has given all of its numbers: go on in another session")]
    NoNumberLeft,
    /// Thinking has no message after it.
    #[error("thinking alone is no message: put it into the assistant message that follows it")]
    ThinkingAlone,
    /// The text is empty.
    #[error("{what} is blank")]
    Blank {
        /// Name of the text.
        what: &'static str,
    },
    /// A call with this id is waiting already, or one message has the id twice.
    #[error("the call {0:?} waits for its result already")]
    CallWaits(String),
    /// The result answers no waiting call.
    #[error("no call {0:?} waits for a result")]
    NoSuchCall(String),
    /// The role cannot have calls, or cannot have a result.
    #[error("{what} belongs to a message of the role {role} only")]
    WrongRole {
        /// The field that the message has.
        what: &'static str,
        /// The role of the message.
        role: &'static str,
    },
    /// A summary cannot be appended; only compressions create summaries.
    #[error("a summary is made by compressing, not by appending")]
    Summary,
    /// There is no layer to undo.
    #[error("there is no compression to take back")]
    NothingToUndo,
    /// The summary does not belong to the newest layer.
    #[error("{0} is not the newest summary: only the newest compression can be taken back")]
    NotNewest(String),
    /// No checkpoint has this name.
    #[error("there is no checkpoint {0:?}")]
    UnknownCheckpoint(String),
    /// The layer of the checkpoint was undone.
    #[error("what the checkpoint {0:?} names was taken back")]
    CheckpointUndone(String),
    /// The request id was used for another request.
    #[error("the request id {0:?} was used for another request")]
    RequestReused(String),
    /// The first batch is after the last one.
    #[error("the batches {from} to {to} are no range")]
    Batches { from: i64, to: i64 },
    /// The thread does not exist or belongs to another tenant.
    #[error("there is no thread {0:?}, or no message in that range of its batches")]
    Source(String),
}

impl Reason {
    pub fn code(&self) -> &'static str {
        match self {
            Self::BlankSummary => "blank_summary",
            Self::TooLong { .. } => "too_long",
            Self::TooMany { .. } => "too_many",
            Self::Nul { .. } => "nul_character",
            Self::Name { .. } => "invalid_name",
            Self::Stale { .. } => "thread_changed",
            Self::Range { .. } => "invalid_range",
            Self::Count { .. } => "invalid_count",
            Self::Single => "single_message",
            Self::OpenCall { .. } => "open_call",
            Self::UnknownNumber(_) => "unknown_number",
            Self::HiddenNumber(_) => "hidden_number",
            Self::RepeatedNumber(_) => "repeated_number",
            Self::NotAdjacent { .. } => "not_adjacent",
            Self::TooManySummaries => "too_many_summaries",
            Self::NoNumberLeft => "session_full",
            Self::ThinkingAlone => "thinking_alone",
            Self::Blank { .. } => "blank",
            Self::CallWaits(_) => "call_waits",
            Self::NoSuchCall(_) => "no_such_call",
            Self::WrongRole { .. } => "wrong_role",
            Self::Summary => "summary_role",
            Self::NothingToUndo => "nothing_to_undo",
            Self::NotNewest(_) => "not_newest",
            Self::UnknownCheckpoint(_) => "unknown_checkpoint",
            Self::CheckpointUndone(_) => "checkpoint_undone",
            Self::RequestReused(_) => "request_id_reused",
            Self::Batches { .. } => "invalid_batches",
            Self::Source(_) => "unknown_source",
        }
    }
}

impl Refusal {
    /// Creates a refusal that does not depend on the state of the thread.
    pub fn anyway(reason: Reason) -> Self {
        Self { reason, valid: Valid::Anything }
    }
}

impl From<Reason> for Refusal {
    fn from(reason: Reason) -> Self {
        Self::anyway(reason)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reason.fmt(f)?;
        match &self.valid {
            Valid::Anything => Ok(()),
            Valid::Ranges(ranges) if ranges.is_empty() => {
                f.write_str("; valid: nothing, no message can be compressed")
            }
            Valid::Ranges(ranges) => {
                let ranges: Vec<_> = ranges.iter().map(|(from, to)| format!("[{from}] to [{to}]")).collect();
                write!(f, "; valid: {}", ranges.join(" or "))
            }
            Valid::Count(Some((from, to))) => write!(f, "; valid: {from} to {to}"),
            Valid::Count(None) => f.write_str("; valid: nothing, the temp layer has no message to compress"),
            Valid::Numbers(numbers) if numbers.is_empty() => {
                f.write_str("; valid: nothing, no message can be compressed")
            }
            Valid::Numbers(numbers) => {
                let lists: Vec<_> = numbers.iter().map(|runs| numbers_text(runs.numbers())).collect();
                write!(f, "; valid: {}", lists.join(" or "))
            }
            Valid::Names(names) if names.is_empty() => f.write_str("; there is none"),
            Valid::Names(names) => {
                let names: Vec<_> = names.iter().map(|name| quoting::one_line(name)).collect();
                write!(f, "; valid: {}", names.join(", "))
            }
        }
    }
}
