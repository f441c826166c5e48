//! Defects that are planted to see whether the simulation finds them.
//!
//! All of them are in the doubles of the store and the log, in the driver, or rewrite what goes in and out of the
//! machine: the production crates know nothing of them.

use std::fmt;

/// A planted defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlantedBug {
    /// Commits are applied whatever epoch they come under.
    NoFence,
    /// Messages have no unique key. Look-ups lag as well, because otherwise the key is never needed.
    NoUniqueKey,
    /// Look-ups answer that every message is new.
    NoLookUp,
    /// The checkpoint is what was read, not what was used.
    CheckpointIsReadPosition,
    /// After an unknown commit the store is read without raising the epoch, so without waiting for the lock.
    LookWithoutLock,
    /// The content is the chunks in the order of their arrival.
    AppendOnArrival,
    /// Leases are written and judged by the clocks of the workers.
    LeaseByWorkerClock,
    /// The machine gets its commit as applied when it was only sent.
    FreedBeforeCommit,
    /// The clock of gaps stands still while chunks come.
    GapClockReset,
    /// Dead letters are written after the commit, in a transaction of their own.
    DeadLetterOutside,
    /// A new owner's positions start at its clock, not above the stored high water.
    NoHighWater,
    /// Entries that were on their way when the reader was set back are taken.
    StaleEntries,
    /// A cut reader goes on where it would have been, not after what it last handed over.
    SkipAfterCut,
    /// Terminals are sent when the commit is sent.
    TerminalBeforeCommit,
    /// Messages are opened without end.
    RoomIgnored,
    /// Saves of a spilled message replace what was saved before.
    SavesReplace,
    /// What was saved of a spilled message stays when it has ended.
    SpillsStay,
    /// Saves are not fenced: a late one of an earlier owner is written.
    SavesUnfenced,
    /// A store that has lost saves and no commit is taken for the one that its owner knows.
    SavesUncounted,
    /// The machine takes a save for stored when it is handed out.
    SavesUnconfirmed,
    /// An attempt that was overtaken still counts: higher attempts do not fence.
    AttemptsMixed,
    /// An unknown commit is taken for an applied one.
    UnknownIsApplied,
    /// Neither the epoch nor the guards of queues are looked at.
    NoGuard,
    /// The head of a queue moves, but the messages of the task's turn are not written.
    TaskWithoutTurn,
    /// The answer of a turn is written with the commit after that of its input.
    TurnSplit,
    /// A failing task is counted, but its agent does not wait.
    FailureWithoutBackoff,
    /// Backoffs are written by the clocks of the workers.
    BackoffByWorkerClock,
    /// The head of a queue moves past a task that has failed and shall be tried again.
    HeadPastFailing,
    /// A request that is delivered again has the attempt of the delivery before.
    AttemptStays,
    /// Chunks of turns count without the turn's token.
    TokenIgnored,
    /// Turns and tasks are new, whatever the store knows; and the ids of tasks are not unique.
    CheckAlwaysNew,
    /// Tasks of one commit are stored in another order than they came in.
    QueueShuffled,
    /// The outbox is published when the commit is sent.
    OutboxBeforeCommit,
    /// A new owner does not know of the outbox.
    OutboxForgotten,
    /// A new owner does not know of saved inputs.
    OpenTurnsLost,
    /// A new owner does not know how often the head of a queue was tried.
    RunForgotten,
    /// A takeover counts as a failure of the agents.
    TakeoverCounts,
    /// Failed turns are not kept.
    PromptLost,
    /// The store does not know which runs have failed.
    RetryRepeats,
    /// Control commands that stop a turn do something else.
    StopIgnored,
    /// Backoffs that are stored do not count for a new owner.
    BackoffForgotten,
    /// A gateway takes the ends in the store for those that the owner has spoken of.
    CutFromStore,
    /// Gateways do not look at the numbers of frames.
    FrameNumbersIgnored,
    /// Gateways read beyond the cut.
    PageBeyondCut,
    /// Gateways do not notice that the last frame of a thread was lost.
    LastFrameUnnoticed,
    /// A resume knows of no open messages.
    CursorForgotten,
    /// What fails is not kept for those who come later.
    FailureUnkept,
    /// An owner says that everything it has handed to the store is committed.
    CommittedTooEarly,
    /// Frames of an earlier owner count.
    OldOwnerHeard,
    /// An owner says nothing of what is open.
    OpenTextForgotten,
    /// A client comes back with the id before the last one.
    CursorLags,
    /// A page that holds a part of the ends is taken for all of them.
    PageCutShort,
    /// A page of the store does not say that the place that it was asked after is gone.
    UndoneEndsKept,
    /// An answer that goes on is asked for once more by a new owner.
    AnswerRequestedAgain,
    /// What would follow a turn is sent although it was stopped.
    StoppedTurnGoesOn,
    /// A run may be silent for ever.
    DeadlineForgotten,
    /// A message may be silent for ever.
    StallForgotten,
    /// Only leases that were given back are taken, not those that have run out.
    OnlyFreeIsTaken,
    /// What was saved of an answer stays when its turn has ended.
    SavedAnswersStay,
    /// Inputs that were saved stay when their turns have ended.
    SavedInputsStay,
    /// Requests of runs that have ended are left where they are.
    NeverWithdrawn,
    /// Commits are applied under the right epoch, however many came before.
    EpochAlone,
    /// Leases are prolonged under the right epoch, however many commits there were.
    RenewalBlind,
    /// A stream is the same when it has the same name and is long enough, whatever its entries are.
    MarkIgnored,
    /// Of what the store and the owner have read of a stream, only the higher one is compared.
    HighestMarkAlone,
    /// What a stream jumps over is passed in silence.
    HolePassed,
    /// Incidents are noticed, but not kept.
    IncidentForgotten,
    /// A batch that goes on is not asked for its next step.
    ContinuationLost,
    /// The next step of a batch begins a batch of its own.
    BatchForgotten,
    /// Who erases a thread does not make its owner forget what it holds.
    ErasedUnfenced,
    /// Erasing a thread counts a commit that was not made, and takes no lease away.
    RenouncedByCount,
    /// Commands and messages are taken whatever was erased.
    ErasedUnasked,
    /// Turns begin whatever was erased.
    ErasedStarts,
    /// The tasks that follow the turns of an erased thread stay.
    ErasedInPart,
    /// The last message of a batch that is too old stays.
    RetiredInPart,
    /// Batches that turns go on with are deleted like others.
    RetiredOpen,
    /// Batches are deleted as they were read, however their thread has gone on since.
    RetiredBlind,
    /// The newest batches are deleted and not the oldest.
    RetiredNewest,
    /// What was deleted is not known any more to have been there.
    RetiredForgotten,
    /// A message's number is how many messages its thread has.
    NumberIsCount,
    /// A compaction is written whatever was written since it was planned.
    CompactedBlind,
    /// A thread that was erased is compacted.
    CompactedErased,
    /// A batch that is not complete is put away.
    CompactedOpen,
    /// Contexts do not know of compactions.
    CompactionIgnored,
    /// The others of a group of which the store refuses one are taken for written.
    GroupDragged,
    /// A group of unknown outcome is taken for applied.
    GroupUnknownIsApplied,
    /// The fence is asked for the first of a group alone.
    GroupFencedTogether,
    /// How many follow-ups there were in a row is not asked before one is sent.
    CapCheckedAfterCall,
    /// Follow-ups in a row are counted over the messages of persons.
    CountNotReset,
    /// A turn that goes on with a batch counts as a message of a person.
    CountResetByContinuation,
    /// A timer that has fired waits on.
    TimerFiresTwice,
    /// A follow-up is sent when it is decided, before its commit.
    FiredBeforeCommit,
    /// A follow-up does not take the place of the one that waits in its thread.
    OverdueNotMerged,
    /// Quiet hours are those of UTC.
    QuietHoursByUtc,
    /// It does not matter when the last follow-up was sent.
    CooldownIgnored,
    /// A turn that has failed is followed up.
    ArmedAfterError,
    /// A new owner does not know of timers.
    TimersForgotten,
    /// Timers are due by the clocks of workers.
    DueByWorkerClock,
    /// What an input says decides whether the system has made it up.
    SyntheticByContent,
    /// The answer to a person is taken back like a follow-up.
    OrdinaryAnswerWithdrawn,
    /// Follow-ups begin although a person has written.
    SupersededIgnored,
    /// A person's message whose turn fails ends no follow-up.
    FailedInputForgotten,
    /// The chunks of follow-ups are sent as they come.
    HeldBackShown,
    /// The task of an occurrence is named by when it was sent.
    OccurrenceByNow,
    /// A schedule that has fired is due as before.
    OccurrenceStays,
    /// The calls of earlier attempts are not saved with an open answer.
    EarlierCallsLost,
    /// A run that failed has used nothing.
    FailedCallsLost,
    /// A question with one row that the store refuses is asked again as it is, for ever.
    RefusedHoldsUpOthers,
    /// The calls of an answer are numbered anew for each commit that brings some of it.
    CallsCountedTwice,
}

impl PlantedBug {
    /// All of them.
    pub const ALL: [Self; 109] = [
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

    /// The bug of that name, as `Debug` writes it; the case does not matter, nor do dashes.
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
