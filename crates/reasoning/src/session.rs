//! A session and where its base messages came from.

use model::{AgentId, Position, ReasoningSessionId, ThreadId, Timestamp};

use crate::{MAX_SOURCES, Reason, Refusal};

/// What an agent reasons in: base layers, which are messages of threads, and a temp layer of its own messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReasoningSession {
    /// Its id, with its tenant.
    pub id: ReasoningSessionId,
    /// Whose it is; of the same tenant.
    pub agent: AgentId,
    /// Its base layers, in their order.
    pub sources: Vec<ContextSource>,
    /// Who made it.
    pub created_by: String,
    /// When.
    pub created_at: Timestamp,
    /// The thread whose contexts show what the session shows of it, if any.
    pub applies_to: Option<ThreadId>,
}

/// Where the messages of a base layer came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextSource {
    /// The thread, of the session's tenant.
    pub thread: ThreadId,
    /// The first batch; `None`: from the beginning.
    pub from_batch: Option<Position>,
    /// The last batch; `None`: all that there is.
    pub to_batch: Option<Position>,
    /// The position of the thread's last message when the layer was made; `None` until it is.
    pub as_of: Option<Position>,
    /// The lowest and the highest number in the thread among the messages that were copied; `None` until they are, and where
    /// none has a number.
    pub numbers: Option<(u64, u64)>,
}

impl ReasoningSession {
    /// Checks what a session is made of.
    ///
    /// # Errors
    /// There are too many sources, one is a range from behind to before, or something is another tenant's.
    pub fn check(id: &ReasoningSessionId, agent: &AgentId, sources: &[ContextSource]) -> Result<(), Refusal> {
        if sources.len() > MAX_SOURCES {
            let (count, max) = (sources.len() as u64, MAX_SOURCES as u64);
            return Err(Reason::TooMany { what: "base layers", count, max }.into());
        }
        if agent.tenant() != id.tenant() {
            return Err(Reason::Source(agent.name().to_owned()).into());
        }
        for source in sources {
            if source.thread.tenant() != id.tenant() {
                return Err(Reason::Source(source.thread.name().to_owned()).into());
            }
            if let (Some(from), Some(to)) = (source.from_batch, source.to_batch)
                && from > to
            {
                return Err(Reason::Batches { from: from.get(), to: to.get() }.into());
            }
        }
        Ok(())
    }
}
