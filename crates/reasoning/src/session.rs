//! A session and the sources of its base messages.

use model::{AgentId, Position, ReasoningSessionId, ThreadId, Timestamp};

use crate::{MAX_SOURCES, Reason, Refusal};

/// A reasoning session of an agent: base layers, which are messages of threads, and a temp layer of
/// its own messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReasoningSession {
    /// The id includes the tenant.
    pub id: ReasoningSessionId,
    /// The agent, of the same tenant.
    pub agent: AgentId,
    /// The base layers, in order.
    pub sources: Vec<ContextSource>,
    /// Name of the creator.
    pub created_by: String,
    pub created_at: Timestamp,
    /// The thread whose contexts apply the session's compressions, if any.
    pub applies_to: Option<ThreadId>,
}

/// The source of a base layer's messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextSource {
    /// A thread of the session's tenant.
    pub thread: ThreadId,
    /// The first batch; `None`: from the beginning.
    pub from_batch: Option<Position>,
    /// The last batch; `None`: up to the end.
    pub to_batch: Option<Position>,
    /// The position of the thread's last message when the layer was made; `None` before that.
    pub as_of: Option<Position>,
    /// The lowest and highest thread number of the copied messages. `None` before they are copied,
    /// and if no message has a number.
    pub numbers: Option<(u64, u64)>,
}

impl ReasoningSession {
    /// Checks the sources of a session.
    ///
    /// # Errors
    /// There are too many sources, the range of one is reversed, or one belongs to another tenant.
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
