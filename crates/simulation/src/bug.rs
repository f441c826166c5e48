//! Defects that are planted to test whether the simulation finds them.
//!
//! Each defect is in a double (store, log) or in the driver, or rewrites the inputs and outputs of
//! the machine. The production crates do not contain them.

use std::fmt;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlantedBug {
    /// Commits are applied under any epoch.
    NoFence,
    /// Messages have no unique key. Look-ups lag too, because otherwise the key is never needed.
    NoUniqueKey,
    /// Look-ups report every message as new.
    NoLookUp,
    /// The checkpoint is the last entry read, not the last one no longer needed.
    CheckpointIsReadPosition,
    /// After an unknown commit the owner reads the store without raising the epoch, so it does not
    /// wait for the lock.
    LookWithoutLock,
    /// The content is the chunks in order of arrival.
    AppendOnArrival,
    /// Leases are written and compared by the workers' clocks.
    LeaseByWorkerClock,
    /// The machine is notified that its commit was applied when the commit was only sent.
    FreedBeforeCommit,
    /// The clock of gaps stops while chunks arrive.
    GapClockReset,
    /// Dead letters are written after the commit, in their own transaction.
    DeadLetterOutside,
    /// A new owner's positions start at its clock instead of above the stored high water.
    NoHighWater,
    /// The machine takes entries that were in flight when the reader was set back.
    StaleEntries,
    /// A reader that was cut off continues at its next requested entry, not after the last one it
    /// handed over.
    SkipAfterCut,
    /// Terminals are sent when the commit is sent.
    TerminalBeforeCommit,
    /// The limit on open messages is ignored.
    RoomIgnored,
    /// Each save of a spilled message replaces the earlier ones.
    SavesReplace,
    /// Saved parts of a spilled message stay after the message has ended.
    SpillsStay,
    /// Saves are not fenced: a late save of an earlier owner is written.
    SavesUnfenced,
    /// A store that has lost saves, but no commit, is taken for the store that its owner knows.
    SavesUncounted,
    /// The machine treats a save as stored as soon as it is handed out.
    SavesUnconfirmed,
    /// A higher attempt does not fence the lower ones.
    AttemptsMixed,
    /// An unknown commit counts as applied.
    UnknownIsApplied,
    /// Neither the epoch nor the guards of queues are checked.
    NoGuard,
    /// The head of a queue moves, but the messages of the task's turn are not written.
    TaskWithoutTurn,
    /// The answer of a turn is written one commit after its input.
    TurnSplit,
    /// The failure of a task is counted, but its agent does not back off.
    FailureWithoutBackoff,
    /// Backoffs are written by the workers' clocks.
    BackoffByWorkerClock,
    /// The head of a queue moves past a failed task that must be retried.
    HeadPastFailing,
    /// A redelivered request keeps the attempt of its previous delivery.
    AttemptStays,
    /// Chunks of turns count without the turn's token.
    TokenIgnored,
    /// Turns and tasks always count as new, even if the store knows them, and task ids are not
    /// unique.
    CheckAlwaysNew,
    /// The tasks of one commit are stored in another order than they arrived in.
    QueueShuffled,
    /// The outbox is published when the commit is sent.
    OutboxBeforeCommit,
    /// A new owner does not load the outbox.
    OutboxForgotten,
    /// A new owner does not load saved inputs.
    OpenTurnsLost,
    /// A new owner does not load how often the head of a queue was tried.
    RunForgotten,
    /// A takeover counts as a failure of the partition's agents.
    TakeoverCounts,
    /// Failed turns are not kept.
    PromptLost,
    /// The store forgets which runs have failed.
    RetryRepeats,
    /// Control commands that stop a turn do something else.
    StopIgnored,
    /// A new owner ignores stored backoffs.
    BackoffForgotten,
    /// A gateway treats the ends in the store like ends that the owner has reported.
    CutFromStore,
    /// Gateways ignore the numbers of frames.
    FrameNumbersIgnored,
    /// Gateways read beyond the cut.
    PageBeyondCut,
    /// Gateways do not notice that the last frame of a thread was lost.
    LastFrameUnnoticed,
    /// A resume ignores open messages.
    CursorForgotten,
    /// The ends of failed messages are not kept for later subscribers.
    FailureUnkept,
    /// The ends that a gateway reads from the store lack the inputs of their answers.
    InputsUnread,
    /// An owner reports everything that it has handed to the store as committed.
    CommittedTooEarly,
    /// Gateways accept frames of an earlier owner.
    OldOwnerHeard,
    /// An owner does not report what is open.
    OpenTextForgotten,
    /// A client resumes with the id before its last one.
    CursorLags,
    /// A page with some of the ends counts as all of them.
    PageCutShort,
    /// A page of the store does not report that its start position no longer exists.
    UndoneEndsKept,
    /// A new owner requests an answer again that is already in progress.
    AnswerRequestedAgain,
    /// Follow-on work of a turn is sent although the turn was stopped.
    StoppedTurnGoesOn,
    /// A run may be silent forever.
    DeadlineForgotten,
    /// A message may be silent forever.
    StallForgotten,
    /// Only released leases are taken, not expired ones.
    OnlyFreeIsTaken,
    /// Saved parts of an answer stay after its turn has ended.
    SavedAnswersStay,
    /// Saved inputs stay after their turns have ended.
    SavedInputsStay,
    /// Requests of runs that have ended are not withdrawn.
    NeverWithdrawn,
    /// Commits are applied if the epoch is right; the commit counter is ignored.
    EpochAlone,
    /// Leases are renewed if the epoch is right; the commit counter is ignored.
    RenewalBlind,
    /// A stream of the same name that is long enough counts as the same stream, even with other
    /// entries.
    MarkIgnored,
    /// Only the higher of the marks that store and owner have read in a stream is compared.
    HighestMarkAlone,
    /// A hole in a stream is skipped without a report.
    HolePassed,
    /// Incidents are noticed, but not recorded.
    IncidentForgotten,
    /// The next step of a continued batch is not requested.
    ContinuationLost,
    /// The next step of a batch begins a new batch.
    BatchForgotten,
    /// Erasing a thread does not make its owner forget the state that it holds.
    ErasedUnfenced,
    /// Erasing a thread counts a commit that was not made, and takes no lease away.
    RenouncedByCount,
    /// Commands and messages of erased threads are accepted.
    ErasedUnasked,
    /// Turns of erased threads begin.
    ErasedStarts,
    /// The tasks that follow the turns of an erased thread stay.
    ErasedInPart,
    /// The last message of an expired batch stays.
    RetiredInPart,
    /// Retention deletes even batches that turns are about to continue.
    RetiredOpen,
    /// Retention deletes batches as it read them, even if their thread has changed after the read.
    RetiredBlind,
    /// Retention deletes the newest batches instead of the oldest.
    RetiredNewest,
    /// The store forgets that deleted messages existed.
    RetiredForgotten,
    /// A message's number is the count of its thread's messages.
    NumberIsCount,
    /// A compaction is written even if the thread has changed since it was planned.
    CompactedBlind,
    /// A thread that was erased is compacted.
    CompactedErased,
    /// An incomplete batch is compacted.
    CompactedOpen,
    /// Contexts ignore compactions.
    CompactionIgnored,
    /// When the store refuses one commit of a group, the others count as written.
    GroupDragged,
    /// A group of unknown outcome counts as applied.
    GroupUnknownIsApplied,
    /// The fence checks only the first commit of a group.
    GroupFencedTogether,
    /// The number of consecutive follow-ups is not checked before one is sent.
    CapCheckedAfterCall,
    /// A person's message does not reset the count of consecutive follow-ups.
    CountNotReset,
    /// A continuation turn counts as a message of a person.
    CountResetByContinuation,
    /// A timer that has fired stays pending.
    TimerFiresTwice,
    /// A follow-up is sent when it is decided, before its commit.
    FiredBeforeCommit,
    /// A new follow-up does not replace the pending one of its thread.
    OverdueNotMerged,
    /// Quiet hours are in UTC.
    QuietHoursByUtc,
    /// The time since the last follow-up is ignored.
    CooldownIgnored,
    /// A failed turn arms a follow-up.
    ArmedAfterError,
    /// A new owner does not load timers.
    TimersForgotten,
    /// Timers are due by the workers' clocks.
    DueByWorkerClock,
    /// The text of an input decides whether it is synthetic.
    SyntheticByContent,
    /// The answer to a person is withdrawn like a follow-up.
    OrdinaryAnswerWithdrawn,
    /// Follow-ups begin although a rule has forbidden them since they fired.
    SupersededIgnored,
    /// A person's message whose turn fails cancels no follow-up.
    FailedInputForgotten,
    /// The chunks of follow-ups are sent as they arrive.
    HeldBackShown,
    /// The task of an occurrence is named after the time it was sent.
    OccurrenceByNow,
    /// A schedule that has fired keeps its due time.
    OccurrenceStays,
    /// Model calls of earlier attempts are not saved with an open answer.
    EarlierCallsLost,
    /// The model calls of a failed run are not counted.
    FailedCallsLost,
    /// A query with one row that the store refuses is repeated unchanged forever.
    RefusedHoldsUpOthers,
    /// The calls of an answer are numbered from 0 again in each commit that brings some of them.
    CallsCountedTwice,
}

impl PlantedBug {
    pub const ALL: [Self; 110] = [
        Self::NoFence,
        Self::NoUniqueKey,
        Self::NoLookUp,
        Self::CheckpointIsReadPosition,
        Self::LookWithoutLock,
        Self::AppendOnArrival,
        Self::LeaseByWorkerClock,
        Self::FreedBeforeCommit,
        Self::GapClockReset,
        Self::DeadLetterOutside,
        Self::NoHighWater,
        Self::StaleEntries,
        Self::SkipAfterCut,
        Self::TerminalBeforeCommit,
        Self::RoomIgnored,
        Self::SavesReplace,
        Self::SpillsStay,
        Self::SavesUnfenced,
        Self::SavesUncounted,
        Self::SavesUnconfirmed,
        Self::AttemptsMixed,
        Self::UnknownIsApplied,
        Self::NoGuard,
        Self::TaskWithoutTurn,
        Self::TurnSplit,
        Self::FailureWithoutBackoff,
        Self::BackoffByWorkerClock,
        Self::HeadPastFailing,
        Self::AttemptStays,
        Self::TokenIgnored,
        Self::CheckAlwaysNew,
        Self::QueueShuffled,
        Self::OutboxBeforeCommit,
        Self::OutboxForgotten,
        Self::OpenTurnsLost,
        Self::RunForgotten,
        Self::TakeoverCounts,
        Self::PromptLost,
        Self::RetryRepeats,
        Self::StopIgnored,
        Self::BackoffForgotten,
        Self::CutFromStore,
        Self::FrameNumbersIgnored,
        Self::PageBeyondCut,
        Self::LastFrameUnnoticed,
        Self::CursorForgotten,
        Self::FailureUnkept,
        Self::InputsUnread,
        Self::CommittedTooEarly,
        Self::OldOwnerHeard,
        Self::OpenTextForgotten,
        Self::CursorLags,
        Self::PageCutShort,
        Self::UndoneEndsKept,
        Self::AnswerRequestedAgain,
        Self::StoppedTurnGoesOn,
        Self::DeadlineForgotten,
        Self::StallForgotten,
        Self::OnlyFreeIsTaken,
        Self::SavedAnswersStay,
        Self::SavedInputsStay,
        Self::NeverWithdrawn,
        Self::EpochAlone,
        Self::RenewalBlind,
        Self::MarkIgnored,
        Self::HighestMarkAlone,
        Self::HolePassed,
        Self::IncidentForgotten,
        Self::ContinuationLost,
        Self::BatchForgotten,
        Self::ErasedUnfenced,
        Self::RenouncedByCount,
        Self::ErasedUnasked,
        Self::ErasedStarts,
        Self::ErasedInPart,
        Self::RetiredInPart,
        Self::RetiredOpen,
        Self::RetiredBlind,
        Self::RetiredNewest,
        Self::RetiredForgotten,
        Self::NumberIsCount,
        Self::CompactedBlind,
        Self::CompactedErased,
        Self::CompactedOpen,
        Self::CompactionIgnored,
        Self::GroupDragged,
        Self::GroupUnknownIsApplied,
        Self::GroupFencedTogether,
        Self::CapCheckedAfterCall,
        Self::CountNotReset,
        Self::CountResetByContinuation,
        Self::TimerFiresTwice,
        Self::FiredBeforeCommit,
        Self::OverdueNotMerged,
        Self::QuietHoursByUtc,
        Self::CooldownIgnored,
        Self::ArmedAfterError,
        Self::TimersForgotten,
        Self::DueByWorkerClock,
        Self::SyntheticByContent,
        Self::OrdinaryAnswerWithdrawn,
        Self::SupersededIgnored,
        Self::FailedInputForgotten,
        Self::HeldBackShown,
        Self::OccurrenceByNow,
        Self::OccurrenceStays,
        Self::EarlierCallsLost,
        Self::FailedCallsLost,
        Self::CallsCountedTwice,
        Self::RefusedHoldsUpOthers,
    ];

    /// Finds a bug by its `Debug` name; ignores case, dashes and underscores.
    pub fn from_name(name: &str) -> Option<Self> {
        let plain = |text: &str| text.replace(['-', '_'], "").to_lowercase();
        Self::ALL.into_iter().find(|bug| plain(&bug.to_string()) == plain(name))
    }
}

impl fmt::Display for PlantedBug {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
