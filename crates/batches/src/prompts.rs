//! Texts that ask a model for more after a turn. The prompt of summaries is in [`crate::compaction`].

/// The input of a continuation, which the answer before it requested.
pub const CONTINUE: &str = "You asked for another step. Please go on where you stopped.";

/// Begins the task that does the work of a turn. The transcript of the turn follows it.
pub const DO_WORK: &str = "Do the work that this turn asks for.";

/// Begins a memory task. The transcript of the turn follows it, and
/// [`parse_facts`](crate::memory::parse_facts) reads the answer.
pub const NOTE_FACTS: &str = "Note the facts of this turn that are worth remembering of the user, as JSON and nothing else: \
    {\"facts\": [{\"text\": \"one sentence that makes sense alone\", \"kind\": \"preference\", \"confidence\": 0.9}]}. \
    At most 32; without any: {\"facts\": []}. What you remember already, and what is only repeated from it, is no new fact. \
    A fact that makes one of those wrong or outdated which you remember names the ids of these: \"supersedes\": [\"…\"].";
