//! The invariants, and how a violation is reported.

use std::fmt;

/// A property that always holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Invariant {
    EndsOnce,
    Content,
    Checkpoint,
    ClientText,
    OneTerminal,
    Inputs,
    NothingMissed,
    EventIds,
    Epochs,
    /// Positions are unique and rise in a thread; each message names its predecessor.
    Positions,
    /// The numbers of a thread's messages are dense in commit order, even after retention deletes
    /// some.
    Numbers,
    /// A gap that nothing closes fails its message in time, whatever else arrives.
    GapTimeout,
    /// A message fails only for a reason that is in the log, or for a timeout if it was slow.
    RightFailure,
    /// No more messages are open than the limit allows.
    Room,
    WholeTurn,
    OneDelivery,
    /// Each run of a turn ends once, in order, and nothing follows a success.
    RunsOnce,
    Fifo,
    OneAtATime,
    Backoff,
    /// A run fails only because of its workflow, a person or the store.
    RightCause,
    /// T2, T3, T7 and T9: every command ends.
    OrdersEnd,
    /// Follow-on work of a turn is published once by its id, and only after its commit was applied.
    Outbox,
    /// An answer that is in progress is not requested again.
    OneRequest,
    /// A stopped turn publishes nothing but its end.
    AfterStop,
    /// Timeouts and takeovers happen within a bound.
    InTime,
    /// Saved parts are deleted in the transaction that ends their message or turn.
    SavedRows,
    /// The request of a run that its owner has ended is withdrawn.
    Withdrawn,
    /// Data lost on both sides is recorded as an incident.
    Named,
    /// Nothing that was erased comes back.
    Erased,
    /// Retention deletes whole batches, oldest first.
    Retired,
    /// A context contains nothing that was compacted, and everything else whole and once.
    Compacted,
    FiresOnce,
    /// A timer is decided when it is due, and not before.
    TimerInTime,
    Restraint,
    /// A follow-up is armed only by a completed turn of a person or of a follow-up whose answer is
    /// not empty.
    ArmedBy,
    /// A follow-up is sent and stored only while no person has written.
    HeldBack,
    Occurrences,
    /// The ledger has each model call that an answer lists, once.
    Usage,
    /// When the faults stop, everything ends.
    Liveness,
    NoPanic,
}

impl Invariant {
    /// The statement of the invariant, with its number in the reliability notes if it has one.
    pub fn statement(self) -> &'static str {
        match self {
            Self::EndsOnce => "I1 what is acknowledged ends as exactly one message or one dead letter",
            Self::Content => "I2 the content is the chunks in order",
            Self::Checkpoint => "I5 the checkpoint passes nothing that is not persisted",
            Self::ClientText => "I6 a client's text is a prefix of the persisted text, equal when complete",
            Self::OneTerminal => "I8 a connection sees at most one terminal of a message, and the right one",
            Self::Inputs => {
                "P1 a client is shown each input once, before its answer, or that it is withdrawn"
            }
            Self::NothingMissed => "C17 a client is sent every end after it came, once, in their order",
            Self::EventIds => "C13 an event id is unique for ever",
            Self::Epochs => "I9 epochs strictly rise",
            Self::Positions => "positions are unique and rise in a thread, parents link",
            Self::Numbers => {
                "the numbers of a thread's messages are dense in the order of commits, and never given again"
            }
            Self::GapTimeout => "a gap that nothing closes fails its message in time",
            Self::RightFailure => "a message fails only for its own faults",
            Self::Room => "no more messages are open than there is room for",
            Self::WholeTurn => "T1 a turn's messages are written whole, in one transaction, in their places",
            Self::OneDelivery => "T11 an answer is the chunks of one delivery of one run, in order",
            Self::RunsOnce => "each run of a turn ends once, in its order, and nothing comes after a success",
            Self::Fifo => {
                "T4 an agent's tasks run strictly in their order, and are completed with their turns"
            }
            Self::OneAtATime => "T10 a thread has one turn at a time",
            Self::Backoff => "T6 a failure is a backoff by the database's clock, and nothing else is",
            Self::RightCause => "a run fails only for what its workflow, a person or the store did",
            Self::OrdersEnd => {
                "what was asked for ends: as messages, a failure, a dead letter or a row of the audit"
            }
            Self::Outbox => "what follows a turn is published once by its id, and only after its commit",
            Self::OneRequest => "an answer that is under way is not asked for again",
            Self::AfterStop => "of a turn that was stopped nothing leaves but its end",
            Self::InTime => "deadlines, stalls and takeovers come within a bound",
            Self::SavedRows => "what is saved of something goes with the transaction that ends it",
            Self::Withdrawn => "the request of a run that its owner has ended is taken back",
            Self::Named => "what neither the stream nor the store has any more is named by an incident",
            Self::Erased => "of a thread that was erased nothing is asked for, and nothing is stored again",
            Self::Retired => "old batches are deleted whole, the oldest first, and none that goes on",
            Self::Compacted => "contexts have whole batches once, and none that was put away",
            Self::FiresOnce => {
                "A3 a timer fires at most once, and what it fires is sent with the commit that marks it"
            }
            Self::TimerInTime => "a timer is decided about soon after it is due, and never before",
            Self::Restraint => {
                "A4 a follow-up is sent where the rules allow it, and refused where they do not"
            }
            Self::ArmedBy => {
                "a follow-up is armed by a completed turn that says something, and by nothing else"
            }
            Self::HeldBack => "A4 nothing of a follow-up is sent or stored once a person has written",
            Self::Occurrences => "T15 an occurrence is one task, and none before it is due",
            Self::Usage => "the ledger has each call of a model that an answer lists, once",
            Self::Liveness => "when the faults stop, everything ends",
            Self::NoPanic => "nothing panics",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    pub invariant: Invariant,
    /// The message, entry or connection that is concerned.
    pub subject: String,
    pub expected: String,
    pub seen: String,
}

impl Violation {
    pub fn new(
        invariant: Invariant,
        subject: impl ToString,
        expected: impl Into<String>,
        seen: impl Into<String>,
    ) -> Self {
        Self { invariant, subject: subject.to_string(), expected: expected.into(), seen: seen.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { invariant, subject, expected, seen } = self;
        write!(f, "{}: {subject}: expected {expected}; seen {seen}", invariant.statement())
    }
}
