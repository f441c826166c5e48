//! The command that opens a turn.

use std::borrow::Cow;

use crate::{AgentId, Metadata, ThreadId, TurnId, TurnOptions, TurnOrigin};

/// An input that opens a turn in a thread. Gateways write those of people and clients into the
/// thread's stream, and the thread's owner all others.
#[derive(Debug, Clone, PartialEq)]
pub struct TurnOpened {
    pub turn: TurnId,
    pub thread: ThreadId,
    /// Agent whose workflow answers.
    pub agent: AgentId,
    /// 0, or for the retry of a failed turn one more than the failed run.
    pub run: u32,
    pub content: String,
    /// What opens the turn.
    pub origin: TurnOrigin,
    /// The sender's own, without the keys of the origin; see [`TurnOpened::input_metadata`].
    pub metadata: Metadata,
    /// Operator or client that retried it, for the audit; `None` for run 0.
    pub actor: Option<Box<str>>,
    pub options: TurnOptions,
}

impl TurnOpened {
    /// Size in bytes for memory limits.
    pub fn size(&self) -> usize {
        self.content.len()
            + self.metadata.size()
            + self.origin.metadata().size()
            + self.options.parameters.size()
            + 256
    }

    /// Metadata of the input: the sender's, with the keys of its origin.
    pub fn input_metadata(&self) -> Cow<'_, Metadata> {
        self.metadata.joined(self.origin.metadata())
    }
}
