//! What happened in a run, so that a swarm that never meets a fault does not pass for a good one.

use std::fmt;

macro_rules! coverage {
    ($($(#[$doc:meta])* $field:ident),* $(,)?) => {
        /// How often each thing happened.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Coverage {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl Coverage {
            /// Adds another run.
            pub fn add(&mut self, other: &Self) {
                $(self.$field += other.$field;)*
            }
        }

        impl fmt::Display for Coverage {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                $(write!(f, "{} {}, ", stringify!($field).replace('_', " "), self.$field)?;)*
                Ok(())
            }
        }
    };
}

coverage! {
    /// Events of the simulation.
    events,
    /// Stream entries that machines read, repetitions included.
    entries,
    /// Commits that were applied.
    commits,
    /// Grants of a lease, reclaims left out.
    takeovers,
    /// Own epochs raised after an unknown commit.
    reclaims,
    /// Unknown outcomes of commits that had been applied when the worker gave up asking.
    unknown_applied,
    /// Unknown outcomes of commits that were never applied.
    unknown_not_applied,
    /// Unknown outcomes of commits that were applied later.
    unknown_late,
    /// Commits applied after their worker had died.
    applied_after_death,
    /// Commits refused for their epoch.
    fenced,
    /// Statements that waited for the lock of a row.
    lock_waits,
    /// Commits that the store refused for now.
    refused,
    /// Workers that died.
    crashes,
    /// Workers that stood still for a while.
    pauses,
    /// Workers that gave their leases back.
    drains,
    /// Readers set back for messages that had waited in the stream.
    rereads,
    /// Readers that lost their place or the stream.
    reader_faults,
    /// Reads of entries behind the end of the stream that took long.
    slow_reads,
    /// Owners that went before they had read up to the end of the stream.
    replays_cut_short,
    /// Answers of many chunks.
    long_answers,
    /// Sheds of memory that forgot a message.
    sheds,
    /// Parts of open messages, and inputs, that were handed out to be saved.
    spills,
    /// Statements that saved some.
    saves,
    /// Those of an owner whose worker had died or been drained.
    saves_after_death,
    /// Those that were refused: another owner had the partition, or the store had gone back.
    saves_fenced,
    /// Spilled messages restored by a new owner.
    spill_restores,
    /// Messages completed.
    completed,
    /// Messages that failed for a gap.
    gap_timeouts,
    /// Messages that stalled.
    stalls,
    /// Chunks that contradicted one with their id.
    conflicts,
    /// Chunks of messages that had ended.
    late,
    /// Chunks of lower attempts.
    overtaken,
    /// Attempts that reset a message.
    resets,
    /// New messages that had to wait in the stream.
    deferred,
    /// Entries that became dead letters.
    entry_letters,
    /// Messages that were stored already when a commit brought them.
    key_conflicts,
    /// Answers to questions of gateways.
    answers,
    /// Clients that came back with the last id.
    resumes,
    /// Gateways that were started anew.
    gateway_restarts,
    /// Frames, questions and answers that were on their way for long.
    late_frames,
    /// Pages of ends that gateways read.
    pages,
    /// Frames that were missing and made up for.
    holes_repaired,
    /// Messages that were not shown while they came.
    left_out,
    /// Clients that had to begin anew.
    restarts,
    /// Connections of clients that were cut.
    client_cuts,
    /// Terminals that clients saw.
    terminals,
    /// Commands that the store was asked about.
    checks,
    /// Parts of queues that were read on.
    loads,
    /// Commands that had been taken before.
    duplicate_commands,
    /// Tasks that entered queues.
    tasks,
    /// Turns begun, by owners of record or not.
    starts,
    /// Turn requests that the stream knew already.
    repeated_requests,
    /// Deliveries of turn requests.
    deliveries,
    /// Deliveries of requests that had not been answered.
    redeliveries,
    /// Requests that could not be made.
    unrequestable,
    /// Turns whose agent might not begin them.
    postponed,
    /// Those of them whose agent had spent its budget.
    over_budget,
    /// Turns that were not begun because a limit was reached, each time that it was looked.
    limited,
    /// Further steps of batches that were asked for.
    continuations,
    /// Runs that were not waited for any more.
    abandoned,
    /// Frames without the turn's token.
    forged,
    /// Chunks refused for want of the turn's token.
    not_asked,
    /// Turns completed.
    turns_completed,
    /// Turns stopped.
    turns_stopped,
    /// Runs of turns that failed.
    turns_failed,
    /// Tasks given up.
    tasks_failed,
    /// Backoffs begun.
    backoffs,
    /// Turns that the store refused.
    refused_turns,
    /// Messages that the store refused to look up.
    refused_look_ups,
    /// Commands that the store refused to look up.
    refused_checks,
    /// Turns of which the store refused to read what they start from.
    unreadable_starts,
    /// Timers of which the store refused to read what decides about them.
    unreadable_timers,
    /// Parts of refused commits that were written alone.
    parts_alone,
    /// Refused commits of which some parts were written and the rest was not.
    parts_without_rest,
    /// Retries of failed turns.
    retries,
    /// Control commands sent.
    control_commands,
    /// Questions answered why something waits.
    explained,
    /// Messages of the outbox that were published.
    relayed,
    /// Inputs that a new owner found saved.
    inputs_restored,
    /// Queues that a new owner found.
    queues_restored,
    /// Batches of the outbox that a new owner found.
    outbox_restored,
    /// Commits that brought what was there already, or queues that were further than their owners thought.
    turn_conflicts,
    /// Stores that went back in time.
    steps_back,
    /// Partitions with a commit under way then.
    steps_in_commit,
    /// Owners that noticed it.
    steps_noticed,
    /// Threads that were erased, to the end.
    erasures,
    /// Erasings that were killed and begun again.
    erasures_killed,
    /// Erasings that a store that went back did not know of, or not of all.
    erasures_undone,
    /// Rows that went with them.
    erased_rows,
    /// Owners that were made to forget.
    renounced,
    /// Turns that did not begin because their threads were erased.
    erased_starts,
    /// Commands that were dropped for that.
    erased_commands,
    /// Rounds of retention.
    retention_rounds,
    /// Batches that were deleted.
    retired_batches,
    /// Contexts of turns that were built.
    contexts,
    /// Compactions that were written.
    compactions,
    /// Compactions that came too late.
    compactions_outrun,
    /// Compactions whose summary has come, or never will.
    compactions_settled,
    /// Compactions that were undone.
    compactions_undone,
    /// Threads that had gone on when batches of theirs were to be deleted.
    retention_outrun,
    /// Commits of several partitions in one statement.
    groups,
    /// Those of unknown outcome.
    groups_unknown,
    /// Those of which the store refused one.
    groups_refused,
    /// Streams that lost their end and went on.
    stream_cuts,
    /// Streams made anew.
    stream_renewals,
    /// Streams purged behind a store that went back.
    purges_behind,
    /// Streams that lost an entry.
    entries_lost,
    /// Clients that were gone when what they had been shown was undone: they are not checked.
    undone_transcripts,
    /// Restarts that took back an end that their client had been shown.
    taken_back,
    /// Holes that owners came upon.
    holes_named,
    /// Streams that were not as their stores knew them.
    rebases,
    /// Incidents that were recorded with that.
    incidents,
    /// Entries that are gone on both sides.
    gone,
    /// Jumps of the clocks to the next timer.
    jumps_ahead,
    /// Days without a worker.
    outages_of_days,
    /// Timers that a new owner found.
    timers_restored,
    /// Those of them that were overdue.
    timers_overdue,
    /// Follow-ups that did not begin because a person had written.
    superseded_starts,
    /// Follow-ups that were armed.
    follow_ups_armed,
    /// Follow-ups that fired.
    follow_ups_fired,
    /// Tasks of schedules and delayed ones that were sent.
    tasks_fired,
    /// Follow-ups that waited for their cooldown.
    cooldowns,
    /// Those that waited for the end of quiet hours.
    quiet_hours,
    /// Occurrences that did not take place.
    occurrences_skipped,
    /// Follow-ups that were withdrawn because a person wrote.
    follow_ups_withdrawn,
    /// Those of which nothing is left for another reason.
    follow_ups_failed,
    /// Follow-ups that a message cancelled before they fired.
    follow_ups_cancelled,
    /// Those that a newer one replaced.
    follow_ups_replaced,
    /// Follow-ups refused: too many in a row.
    refused_in_a_row,
    /// Too many that day.
    refused_per_day,
    /// The settings do not ask for them.
    refused_disabled,
    /// The agent is paused.
    refused_paused,
    /// Calls of models in the ledger.
    model_calls,
    /// Those of answers that did not come to their end.
    partial_calls,
}
