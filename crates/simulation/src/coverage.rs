//! Counts what happened in a run, so that a swarm that never meets a fault does not pass.

use std::fmt;

macro_rules! coverage {
    ($($(#[$doc:meta])* $field:ident),* $(,)?) => {
        /// How often each thing happened.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct Coverage {
            $($(#[$doc])* pub $field: u64,)*
        }

        impl Coverage {
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
    events,
    /// Stream entries that machines read, including repetitions.
    entries,
    /// Commits that were applied.
    commits,
    /// Granted leases, without reclaims.
    takeovers,
    /// An owner raised its own epoch after an unknown commit.
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
    /// Workers that paused.
    pauses,
    /// Workers that released their leases.
    drains,
    /// Readers that were set back to read messages which had waited in the stream.
    rereads,
    /// Readers that lost their place or the stream.
    reader_faults,
    /// Slow reads of entries that were behind the end of the stream.
    slow_reads,
    /// Owners that stopped before they had read up to the end of the stream.
    replays_cut_short,
    /// Answers of many chunks.
    long_answers,
    /// Memory sheds that dropped a message.
    sheds,
    /// Parts of open messages, and inputs, that were handed out to be saved.
    spills,
    /// Statements that saved parts.
    saves,
    /// Saves of an owner whose worker had died or been drained.
    saves_after_death,
    /// Saves that were refused: another owner had the partition, or the store had gone back in
    /// time.
    saves_fenced,
    /// Spilled messages restored by a new owner.
    spill_restores,
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
    /// Messages that were already stored when a commit brought them.
    key_conflicts,
    /// Replies to queries of gateways.
    answers,
    /// Clients that resumed with their last id.
    resumes,
    /// Restarts of gateways.
    gateway_restarts,
    /// Frames, queries and replies that were in flight for a long time.
    late_frames,
    /// Pages of ends that gateways read.
    pages,
    /// Missing frames that were recovered.
    holes_repaired,
    /// Messages that were not shown while they arrived.
    left_out,
    /// Clients that had to start over.
    restarts,
    /// Connections of clients that were cut.
    client_cuts,
    /// Terminals that clients saw.
    terminals,
    /// Commands that were looked up in the store.
    checks,
    /// Further parts of queues that were read.
    loads,
    /// Commands that had already been accepted.
    duplicate_commands,
    /// Tasks that entered queues.
    tasks,
    /// Turns begun, whether or not by the owner of record.
    starts,
    /// Turn requests that the stream had already.
    repeated_requests,
    /// Deliveries of turn requests.
    deliveries,
    /// Deliveries of requests that had not been answered.
    redeliveries,
    /// Requests that could not be made.
    unrequestable,
    /// Turns that their agent could not begin yet.
    postponed,
    /// Postponed turns whose agent had spent its budget.
    over_budget,
    /// Turns not begun because a limit was reached, counted at each check.
    limited,
    /// Requests for further steps of batches.
    continuations,
    /// Runs that were abandoned.
    abandoned,
    /// Frames without the turn's token.
    forged,
    /// Chunks refused because the turn's token was missing.
    not_asked,
    turns_completed,
    turns_stopped,
    /// Runs of turns that failed.
    turns_failed,
    /// Tasks given up.
    tasks_failed,
    backoffs,
    /// Turns that the store refused.
    refused_turns,
    /// Messages whose look-up the store refused.
    refused_look_ups,
    /// Commands whose look-up the store refused.
    refused_checks,
    /// Turns whose starting data the store refused to read.
    unreadable_starts,
    /// Timers whose data for the decision the store refused to read.
    unreadable_timers,
    /// Parts of refused commits that were written separately.
    parts_alone,
    /// Refused commits of which some parts were written and the others were not.
    parts_without_rest,
    retries,
    /// Control commands sent.
    control_commands,
    /// Answered queries about why something waits.
    explained,
    /// Messages of the outbox that were published.
    relayed,
    /// Saved inputs that a new owner loaded.
    inputs_restored,
    /// Queues that a new owner loaded.
    queues_restored,
    /// Batches of the outbox that a new owner loaded.
    outbox_restored,
    /// Commits that brought rows which were already there, or whose queues had advanced further
    /// than their owners knew.
    turn_conflicts,
    /// Stores that went back in time.
    steps_back,
    /// Partitions with a commit in progress when a store went back in time.
    steps_in_commit,
    /// Owners that noticed a store that went back in time.
    steps_noticed,
    /// Threads that were erased completely.
    erasures,
    /// Erasures that were killed and started again.
    erasures_killed,
    /// Erasures that a store that went back in time had forgotten, fully or partly.
    erasures_undone,
    /// Rows that erasures deleted.
    erased_rows,
    /// Owners that an erasure made forget their state.
    renounced,
    /// Turns that did not begin because their threads were erased.
    erased_starts,
    /// Commands that were dropped because their threads were erased.
    erased_commands,
    retention_rounds,
    /// Batches that retention deleted.
    retired_batches,
    /// Contexts that were built for turns.
    contexts,
    /// Compactions that were written.
    compactions,
    /// Compactions that were outdated when they were to be written.
    compactions_outrun,
    /// Compactions whose summary was written or given up.
    compactions_settled,
    /// Compactions that were undone.
    compactions_undone,
    /// Threads that had changed when their batches were to be deleted.
    retention_outrun,
    /// Commits of several partitions in one statement.
    groups,
    /// Groups of unknown outcome.
    groups_unknown,
    /// Groups of which the store refused one commit.
    groups_refused,
    /// Streams that lost their end and continued.
    stream_cuts,
    /// Streams that were created again.
    stream_renewals,
    /// Streams that were purged beyond the state of a store that went back in time.
    purges_behind,
    /// Streams that lost an entry.
    entries_lost,
    /// Clients that had left before events that they saw were undone. They are not checked.
    undone_transcripts,
    /// Restarts that revoked an end that their client had been shown.
    taken_back,
    /// Holes that owners encountered.
    holes_named,
    /// Streams that did not match the marks in the store.
    rebases,
    /// Incidents that were recorded when a stream did not match.
    incidents,
    /// Entries that both stream and store have lost.
    gone,
    /// Jumps of the clocks to the next timer.
    jumps_ahead,
    /// Outages of days without a worker.
    outages_of_days,
    /// Timers that a new owner loaded.
    timers_restored,
    /// Loaded timers that were overdue.
    timers_overdue,
    /// Follow-ups that did not begin because a person had written.
    superseded_starts,
    follow_ups_armed,
    follow_ups_fired,
    /// Tasks of schedules, and delayed tasks, that were sent.
    tasks_fired,
    /// Follow-ups that waited for their cooldown.
    cooldowns,
    /// Follow-ups that waited for the end of quiet hours.
    quiet_hours,
    /// Occurrences that were skipped.
    occurrences_skipped,
    /// Follow-ups that were withdrawn because a person wrote.
    follow_ups_withdrawn,
    /// Follow-ups that were withdrawn for another reason.
    follow_ups_failed,
    /// Follow-ups that a message cancelled before they fired.
    follow_ups_cancelled,
    /// Follow-ups that a newer one replaced.
    follow_ups_replaced,
    /// Follow-ups refused: too many in a row.
    refused_in_a_row,
    /// Follow-ups refused: too many that day.
    refused_per_day,
    /// Follow-ups refused: the settings do not enable them.
    refused_disabled,
    /// Follow-ups refused: the agent is paused.
    refused_paused,
    /// Model calls in the ledger.
    model_calls,
    /// Model calls of answers that did not complete.
    partial_calls,
}
