//! What is refused, and what would have been taken. Its text is what the agent reads.

use std::fmt;

use model::quoting;

use crate::{MAX_SUMMARIES_SHOWN, Number, Runs, numbers_text};

/// A request that changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Refusal {
    /// What is wrong with it.
    pub reason: Reason,
    /// What would have been taken.
    pub valid: Valid,
}

/// What a request could have named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Valid {
    /// Nothing that depends on the state of the thread.
    Anything,
    /// Ranges of positions, each of which could be compressed as a whole; none: nothing can be compressed.
    Ranges(Vec<(u64, u64)>),
    /// A number of messages from the end of the temp layer; `None`: nothing there can be compressed.
    Count(Option<(u64, u64)>),
    /// Numbers in the order in which they are shown, each list of which could be compressed as a whole.
    Numbers(Vec<Runs>),
    /// Names, of checkpoints.
    Names(Vec<String>),
}

/// What is wrong with a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// A summary in which nothing can be seen.
    #[error("the summary is blank: say in it what the messages said")]
    BlankSummary,
    /// More bytes than are taken.
    #[error("{what} has {bytes} bytes; at most {max_bytes} are taken")]
    TooLong {
        /// Which text.
        what: &'static str,
        /// Its length.
        bytes: usize,
        /// The bound.
        max_bytes: usize,
    },
    /// More items than are taken.
    #[error("there are {count} {what}; at most {max} are taken")]
    TooMany {
        /// Items of what.
        what: &'static str,
        /// How many.
        count: u64,
        /// The bound.
        max: u64,
    },
    /// A NUL character.
    #[error("{what} has a NUL character, which cannot be stored")]
    Nul {
        /// Which text.
        what: &'static str,
    },
    /// Blank, or no plain line.
    #[error("{what} must be one line that is not blank, without control characters and invisible ones")]
    Name {
        /// Which name.
        what: &'static str,
    },
    /// The thread is not what the token was given for.
    #[error("the thread has changed: {messages} messages now; view it again")]
    Stale {
        /// How many it shows.
        messages: u64,
    },
    /// Positions that the thread does not have.
    #[error("[{from}] to [{to}] is no range of the thread, which has {messages} messages")]
    Range {
        /// As asked for.
        from: i64,
        /// As asked for.
        to: i64,
        /// How many the thread shows.
        messages: u64,
    },
    /// A number of messages that the temp layer does not have.
    #[error("the last {count} messages cannot be compressed: only the temp layer counts")]
    Count {
        /// As asked for.
        count: i64,
    },
    /// One message, and a summary that is as long.
    #[error("one message is compressed only into a summary that is shorter: name at least two")]
    Single,
    /// A call without its result.
    #[error("[{position}] calls a tool whose result has not come")]
    OpenCall {
        /// Where it stands.
        position: u64,
    },
    /// A number that was never given.
    #[error("no message has the number {0}")]
    UnknownNumber(i64),
    /// A number that a summary stands for, or whose summary was taken back.
    #[error("the message with the number {0} is not shown")]
    HiddenNumber(i64),
    /// A number that is named twice.
    #[error("the number {0} is named twice")]
    RepeatedNumber(i64),
    /// Numbers with others between them.
    #[error("the messages do not stand next to each other: {between} stands between them")]
    NotAdjacent {
        /// The first that was not named.
        between: Number,
    },
    /// Each layer says what is shown.
    #[error("the thread shows {MAX_SUMMARIES_SHOWN} summaries: compress some of them into one")]
    TooManySummaries,
    /// A number beyond the last one that a summary takes.
    #[error("the session has given all of its numbers: go on in another session")]
    NoNumberLeft,
    /// Thinking that no message follows.
    #[error("thinking alone is no message: put it into the assistant message that follows it")]
    ThinkingAlone,
    /// Nothing was said.
    #[error("{what} is blank")]
    Blank {
        /// Which text.
        what: &'static str,
    },
    /// A call that waits already, or twice the same in one message.
    #[error("the call {0:?} waits for its result already")]
    CallWaits(String),
    /// A result of nothing.
    #[error("no call {0:?} waits for a result")]
    NoSuchCall(String),
    /// Calls of a role that does not call, or a result of a role that is no tool.
    #[error("{what} belongs to a message of the role {role} only")]
    WrongRole {
        /// What it has.
        what: &'static str,
        /// Whose it is.
        role: &'static str,
    },
    /// Summaries are made by compressing.
    #[error("a summary is made by compressing, not by appending")]
    Summary,
    /// No layer to take back.
    #[error("there is no compression to take back")]
    NothingToUndo,
    /// Not the newest layer's.
    #[error("{0} is not the newest summary: only the newest compression can be taken back")]
    NotNewest(String),
    /// No such checkpoint.
    #[error("there is no checkpoint {0:?}")]
    UnknownCheckpoint(String),
    /// The state that it names was taken back.
    #[error("what the checkpoint {0:?} names was taken back")]
    CheckpointUndone(String),
    /// The same request id, for something else.
    #[error("the request id {0:?} was used for another request")]
    RequestReused(String),
    /// Batches from behind to before.
    #[error("the batches {from} to {to} are no range")]
    Batches {
        /// As asked for.
        from: i64,
        /// As asked for.
        to: i64,
    },
    /// A thread of another tenant, or one that does not exist.
    #[error("there is no thread {0:?}, or no message in that range of its batches")]
    Source(String),
}

impl Reason {
    /// What it is called, for programs.
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
    /// A refusal that has nothing to do with the state of the thread.
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
