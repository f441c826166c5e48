//! Metrics of a worker: names, kinds and descriptions.

use std::sync::Arc;

use metrics::{Counter, counter, gauge, histogram};
use partition::{Counters, TurnTimes};
use runtime::metrics::MetricDescription;

use crate::gauges::{self, PartitionGauges, WorkerGauges};

// Names of metrics that are set elsewhere in this crate.
pub(crate) const UNKNOWN_COMMITS: &str = "antiphon_worker_unknown_commits_total";
pub(crate) const RETRIED_COMMITS: &str = "antiphon_worker_retried_commits_total";
pub(crate) const DAMAGED_COMMITS: &str = "antiphon_worker_damaged_commits_total";
pub(crate) const OPEN_INCIDENTS: &str = "antiphon_worker_open_incidents";
pub(crate) const PARTITION_COUNT: &str = "antiphon_worker_partition_count";
pub(crate) const PARTITIONS: &str = "antiphon_worker_partitions";
pub(crate) const STREAM_FILL_RATIO: &str = "antiphon_worker_stream_fill_ratio";
pub(crate) const UNOWNED_PARTITIONS: &str = "antiphon_worker_unowned_partitions";
pub(crate) const LEASES_LOST: &str = "antiphon_worker_leases_lost_total";
pub(crate) const INCIDENTS: &str = "antiphon_worker_incidents_total";
pub(crate) const DELETED_ROWS: &str = "antiphon_worker_deleted_rows_total";
pub(crate) const RETAINED_BYTES: &str = "antiphon_worker_retained_bytes";
pub(crate) const RETENTION_DELETED_BATCHES: &str = "antiphon_worker_retention_deleted_batches_total";
/// Attempts of [`crate::erasures`].
pub(crate) const ERASURES: &str = "antiphon_worker_erasures_total";
pub(crate) const COMMIT_SECONDS: &str = "antiphon_worker_commit_seconds";
/// Histograms of turns of inputs.
const FIRST_CHUNK_SECONDS: &str = "antiphon_worker_first_chunk_seconds";
const TURN_SECONDS: &str = "antiphon_worker_turn_seconds";
pub(crate) const FENCED_COMMITS: &str = "antiphon_worker_fenced_commits_total";
pub(crate) const STALE_COMMITS: &str = "antiphon_worker_stale_commits_total";
pub(crate) const LIVE_FRAMES_DROPPED: &str = "antiphon_worker_live_frames_dropped_total";
/// Messages that contain the frames ready for one gateway.
pub(crate) const LIVE_MESSAGES: &str = "antiphon_worker_live_messages_total";
pub(crate) const COMPACTIONS: &str = "antiphon_worker_compactions_total";
pub(crate) const LATE_CONTINUATIONS: &str = "antiphon_worker_late_continuations_total";
pub(crate) const MODEL_CALLS: &str = "antiphon_worker_model_calls_total";
pub(crate) const MODEL_TOKENS: &str = "antiphon_worker_model_tokens_total";
pub(crate) const LIMITED_TURNS: &str = "antiphon_worker_limited_turns_total";
/// Turns that started with memory.
pub(crate) const MEMORY_QUERIES: &str = "antiphon_worker_memory_queries_total";
/// Facts that got a vector, and facts that the endpoint refuses.
pub(crate) const EMBEDDED_FACTS: &str = "antiphon_worker_embedded_facts_total";
pub(crate) const UNEMBEDDABLE_FACTS: &str = "antiphon_worker_unembeddable_facts_total";
/// Turns that started, by the messages of their threads that had to be read.
pub(crate) const THREAD_READS: &str = "antiphon_worker_thread_reads_total";
pub(crate) const THREAD_CACHE_BYTES: &str = "antiphon_worker_thread_cache_bytes";
pub(crate) const TIMERS: &str = "antiphon_worker_timers_total";
/// Metrics of [`crate::refusals`].
pub(crate) const REFUSED_ITEMS: &str = "antiphon_worker_refused_items_total";
pub(crate) const REFUSED_OPERATIONS: &str = "antiphon_worker_refused_operations";
pub(crate) const OUTBOX_FAILED: &str = "antiphon_worker_outbox_failed_total";

/// Metrics of a worker besides the gauges of its partitions.
const METRICS: &[MetricDescription] = &[
    MetricDescription::counter("antiphon_worker_entries_total", "Stream entries read"),
    MetricDescription::counter("antiphon_worker_chunks_total", "Chunks accepted"),
    MetricDescription::counter(
        "antiphon_worker_out_of_order_chunks_total",
        "Chunks that had to wait for an earlier one",
    ),
    MetricDescription::counter(
        "antiphon_worker_duplicate_chunks_total",
        "Chunks dropped: same id, same content",
    ),
    MetricDescription::counter(
        "antiphon_worker_conflicting_chunks_total",
        "Chunks dropped: same id, other content",
    ),
    MetricDescription::counter(
        "antiphon_worker_late_chunks_total",
        "Chunks dropped: their message had ended",
    ),
    MetricDescription::counter(
        "antiphon_worker_fenced_chunks_total",
        "Chunks dropped: of a lower attempt, or of another delivery of the same attempt",
    ),
    MetricDescription::counter(
        "antiphon_worker_deferred_chunks_total",
        "Chunks of new messages that waited in the stream",
    ),
    MetricDescription::counter("antiphon_worker_attempt_resets_total", "Messages reset by a higher attempt"),
    MetricDescription::counter("antiphon_worker_dead_letters_total", "Entries that became dead letters"),
    MetricDescription::counter(
        "antiphon_worker_forbidden_entries_total",
        "Dead letters whose subject does not allow their content: commands on other subjects than `commands.<key>`, \
         and messages in a role that their subject does not accept",
    ),
    MetricDescription::counter(
        "antiphon_worker_other_role_chunks_total",
        "Chunks dropped: their role differs from that of their message",
    ),
    MetricDescription::counter("antiphon_worker_gap_timeouts_total", "Messages failed by a gap"),
    MetricDescription::counter("antiphon_worker_failed_messages_total", "Messages failed for any reason"),
    MetricDescription::counter("antiphon_worker_completed_messages_total", "Messages committed"),
    MetricDescription::counter(
        "antiphon_worker_shed_messages_total",
        "Open messages dropped from memory because of its limit and read again",
    ),
    MetricDescription::counter(
        "antiphon_worker_spills_total",
        "Open messages and inputs saved because a replay would take too long; each part counts once",
    ),
    MetricDescription::counter(
        "antiphon_worker_late_stops_total",
        "Stops sent again because a workflow service continues a run that has ended",
    ),
    MetricDescription::counter(
        "antiphon_worker_late_model_calls_total",
        "Model calls of attempts that began after the end of their run; they are in the ledger",
    ),
    MetricDescription::counter("antiphon_worker_stream_gaps_total", "Stream sequences that are missing"),
    MetricDescription::counter(
        "antiphon_worker_unauthorized_chunks_total",
        "Chunks of turns dropped: they had no valid turn token",
    ),
    MetricDescription::counter(
        "antiphon_worker_duplicate_commands_total",
        "Inputs, tasks and control commands dropped: they had already been accepted",
    ),
    MetricDescription::counter(
        "antiphon_worker_erased_commands_total",
        "Inputs and tasks dropped: their threads were erased",
    ),
    MetricDescription::counter("antiphon_worker_tasks_total", "Tasks that entered queues"),
    MetricDescription::counter("antiphon_worker_failed_tasks_total", "Tasks that failed permanently"),
    MetricDescription::counter("antiphon_worker_started_turns_total", "Runs of turns begun"),
    MetricDescription::counter("antiphon_worker_completed_turns_total", "Turns completed and committed"),
    MetricDescription::counter("antiphon_worker_stopped_turns_total", "Turns stopped and committed"),
    MetricDescription::counter("antiphon_worker_failed_turns_total", "Runs of turns that failed"),
    MetricDescription::counter("antiphon_worker_backoffs_total", "Backoffs of agents begun"),
    MetricDescription::counter(
        "antiphon_worker_continuations_total",
        "Batches continued by a continuation",
    ),
    MetricDescription::counter(
        "antiphon_worker_continuations_rejected_total",
        "Continuations not sent, because 50 in a row are the maximum",
    ),
    MetricDescription::counter(
        "antiphon_worker_ambiguous_calls_total",
        "Tool calls stored without an id, or with the id of another call of their step",
    ),
    MetricDescription::counter("antiphon_worker_facts_total", "Facts found by memory tasks"),
    MetricDescription::counter(
        "antiphon_worker_repeated_facts_total",
        "Facts that memory tasks found and that were not kept, because the turn had been given them and the user had \
         not written them",
    ),
    MetricDescription::counter(
        "antiphon_worker_invalid_facts_total",
        "Facts of memory tasks that cannot be used, and answers without a list of facts; only these are left out",
    ),
    MetricDescription::counter(
        MODEL_CALLS,
        "Model calls in the ledger, by `kind`: `turn`, `follow_up`, `summary`, `memory`; per model, agent and tenant: \
         `GET /v1/usage`",
    )
    .by(&["kind"]),
    MetricDescription::counter(
        MODEL_TOKENS,
        "Tokens of the model calls in the ledger, by `type`: `input` (of which `cached`), `output` (of which \
         `reasoning`)",
    )
    .by(&["type"]),
    MetricDescription::counter(LIMITED_TURNS, "Times that a turn did not begin because a limit was reached"),
    MetricDescription::counter(
        MEMORY_QUERIES,
        "Turns that began with memory, by `source` of the question: `current_message`, `last_message`, `summary`, or \
         `none`",
    )
    .by(&["source"]),
    MetricDescription::counter(EMBEDDED_FACTS, "Facts that got a vector"),
    MetricDescription::counter(
        UNEMBEDDABLE_FACTS,
        "Facts without a vector, because the endpoint refuses their texts; they are found by their words alone",
    ),
    MetricDescription::counter(
        THREAD_READS,
        "Turns that began, by `messages` that had to be read: of the newest messages of their threads `all`, `new` or \
         `none`, and messages before those (`older`)",
    )
    .by(&["messages"]),
    MetricDescription::counter(LATE_CONTINUATIONS, "Batches continued after they had been abandoned"),
    MetricDescription::counter(
        RETENTION_DELETED_BATCHES,
        "Batches deleted by retention, by `limit`: `age`, `count`, `bytes`",
    )
    .by(&["limit"]),
    MetricDescription::counter(
        ERASURES,
        "Attempts to erase a thread, a user or a tenant, without dry runs, by `outcome`: `done`, `again` (something is left, and it is \
         tried again), `failed` (it is not), `lost` (another worker took it over)",
    )
    .by(&["outcome"]),
    MetricDescription::counter(
        DELETED_ROWS,
        "Operational records deleted by cleanup, by `kept`: `completed_tasks`, `failed_tasks`, `failed_turns`, \
         `dead_letters`, `audit`, `erased_threads`, `erased_tenants`, `erasures`, `task_ids`, `idempotency_keys`, \
         `failed_messages`, `expired_messages`, `responses`, `timers`, `facts`, `model_calls`, `usage_days`, \
         `reasoning_sessions`, `temporary_threads`; and `bound`: `age`, `bytes`",
    )
    .by(&["kept", "bound"]),
    MetricDescription::counter(
        "antiphon_worker_control_commands_total",
        "Control commands of operators and clients accepted",
    ),
    MetricDescription::counter(
        INCIDENTS,
        "Stores and streams that went back in time, by `kind`: `store_stepped_back`, `entries_gone`, `stream_parted`, \
         `stream_renewed`",
    )
    .by(&["kind"]),
    MetricDescription::counter(UNKNOWN_COMMITS, "Commits whose outcome was unknown"),
    MetricDescription::counter(
        RETRIED_COMMITS,
        "Commit statements that Postgres did not accept or did not finish in time, and that were sent again",
    ),
    MetricDescription::counter(
        DAMAGED_COMMITS,
        "Attempts of commits that met damaged data in Postgres",
    ),
    MetricDescription::counter(STALE_COMMITS, "Commits that met a queue further ahead than its owner assumed"),
    MetricDescription::counter(
        FENCED_COMMITS,
        "Commits refused: the lease was lost, or the store had gone back in time",
    ),
    MetricDescription::counter(LEASES_LOST, "Leases that another worker took"),
    MetricDescription::counter(LIVE_FRAMES_DROPPED, "Live frames dropped while NATS was unavailable"),
    MetricDescription::counter(
        LIVE_MESSAGES,
        "Messages with live frames sent to gateways: each contains all frames that were ready for one gateway",
    ),
    MetricDescription::counter(
        REFUSED_ITEMS,
        "Items that Postgres refuses permanently and that failed alone, by `item`: `turn`, `memory`, `message`, \
         `command`, `queue`, `timer`, `vector`, `retention`, `budgets`, `limit`, `save` (an open message or input), \
         `write` (a task or a model call in a commit). Messages and turns refused in a commit are dead letters and \
         failed turns",
    )
    .by(&["item"]),
    MetricDescription::counter(OUTBOX_FAILED, "Entries of the outbox that can never be published"),
    MetricDescription::counter(
        "antiphon_worker_postponed_turns_total",
        "Times that a turn did not begin because its agent backs off or is paused",
    ),
    MetricDescription::counter(
        TIMERS,
        "Outcomes of timers, by `kind` (`follow_up`, `schedule`, `task`), `outcome` (`armed`, `not_armed`, `fired`, \
         `postponed`, `refused`, `cancelled`, `withdrawn`) and `by`: the rule or event that decided it",
    )
    .by(&["kind", "outcome", "by"]),
    MetricDescription::counter(
        COMPACTIONS,
        "Threads examined for compaction, by `outcome`: `compacted`, `summary_wanted`, `summarised`, \
         `without_summary`, `waiting`, `not_due`, `failed`",
    )
    .by(&["outcome"]),
    MetricDescription::counter(
        "antiphon_worker_actions_total",
        "Actions of the partition machines performed, by `action`",
    )
    .by(&["action"]),
    MetricDescription::gauge(PARTITION_COUNT, "Partitions of the fleet"),
    MetricDescription::gauge(PARTITIONS, "Partitions held"),
    MetricDescription::gauge(
        UNOWNED_PARTITIONS,
        "Partitions of the fleet that no worker owns, as this worker sees it in Postgres; absent while Postgres is \
         unavailable",
    ),
    MetricDescription::gauge(
        STREAM_FILL_RATIO,
        "Ratio of the bytes in a stream to its maximum size, by `stream`: those of the partitions held, and that of \
         turn requests (WORK), which refuse publishers at 1",
    )
    .by(&["stream"]),
    MetricDescription::gauge(
        REFUSED_OPERATIONS,
        "Operations that Postgres refuses permanently and that are still retried; the worker is not ready meanwhile",
    ),
    MetricDescription::gauge(OPEN_INCIDENTS, "Unacknowledged incidents of the partitions held"),
    MetricDescription::gauge(
        RETAINED_BYTES,
        "Bytes on disk of the tables with operational records that have a limit in bytes, by `kept`: `completed_tasks`, \
         `failed_tasks`, `failed_turns`, `dead_letters`, `audit`, `erased_threads`, `erased_tenants`, `erasures`",
    )
    .by(&["kept"]),
    MetricDescription::gauge(
        THREAD_CACHE_BYTES,
        "Bytes of the cached ends of threads, for their next turns",
    ),
    MetricDescription::histogram(COMMIT_SECONDS, "Duration of commits, from ready to durable"),
    MetricDescription::histogram(
        FIRST_CHUNK_SECONDS,
        "Duration from reading an input in the stream to reading the first chunk of its answer",
    ),
    MetricDescription::histogram(
        TURN_SECONDS,
        "Duration from reading an input in the stream to the commit of its whole answer",
    ),
];

/// Every metric of a worker.
pub fn described_metrics() -> Vec<MetricDescription> {
    gauges::described().chain(METRICS.iter().copied()).collect()
}

/// Registers the help texts for the metrics endpoint.
pub(crate) fn describe() {
    runtime::metrics::describe(&described_metrics());
    embeddings::describe_metrics();
    // Created at 0: otherwise rates would miss the increment with which a counter appears.
    let rare = [
        UNKNOWN_COMMITS,
        RETRIED_COMMITS,
        DAMAGED_COMMITS,
        STALE_COMMITS,
        FENCED_COMMITS,
        LEASES_LOST,
        LIVE_FRAMES_DROPPED,
        LIVE_MESSAGES,
        OUTBOX_FAILED,
        LATE_CONTINUATIONS,
    ];
    rare.iter().for_each(|name| counter!(*name).increment(0));
    counter!(ERASURES, "outcome" => "failed").increment(0);
    gauge!(OPEN_INCIDENTS).increment(0.0);
    gauge!(REFUSED_OPERATIONS).increment(0.0);
}

/// Metrics of one partition; its gauges are removed when the worker releases it.
#[derive(Debug)]
pub(crate) struct WorkerMetrics {
    partition: String,
    gauges: Arc<WorkerGauges>,
    /// Counters looked up so far: a look-up costs more than most actions.
    actions: Vec<(&'static str, Counter)>,
}

impl WorkerMetrics {
    pub(crate) fn new(partition: String, gauges: Arc<WorkerGauges>) -> Self {
        Self { partition, gauges, actions: Vec::new() }
    }

    pub(crate) fn action(&mut self, name: &'static str) {
        if let Some((_, counter)) = self.actions.iter().find(|(known, _)| *known == name) {
            return counter.increment(1);
        }
        let counter = counter!("antiphon_worker_actions_total", "action" => name);
        counter.increment(1);
        self.actions.push((name, counter));
    }

    pub(crate) fn add_counters(&self, counters: &Counters) {
        let count = |name: &'static str, value: u64| {
            counter!(name).increment(value);
        };
        count("antiphon_worker_entries_total", counters.entries);
        count("antiphon_worker_chunks_total", counters.chunks);
        count("antiphon_worker_out_of_order_chunks_total", counters.out_of_order);
        count("antiphon_worker_duplicate_chunks_total", counters.duplicates);
        count("antiphon_worker_conflicting_chunks_total", counters.conflicts);
        count("antiphon_worker_late_chunks_total", counters.late);
        count("antiphon_worker_fenced_chunks_total", counters.fenced);
        count("antiphon_worker_late_stops_total", counters.late_stops);
        count("antiphon_worker_late_model_calls_total", counters.late_calls);
        count("antiphon_worker_deferred_chunks_total", counters.deferred);
        count("antiphon_worker_attempt_resets_total", counters.resets);
        count("antiphon_worker_dead_letters_total", counters.refused);
        count("antiphon_worker_forbidden_entries_total", counters.forbidden);
        count("antiphon_worker_other_role_chunks_total", counters.other_roles);
        count("antiphon_worker_gap_timeouts_total", counters.gap_timeouts);
        count("antiphon_worker_failed_messages_total", counters.failed);
        count("antiphon_worker_completed_messages_total", counters.completed);
        count("antiphon_worker_shed_messages_total", counters.shed);
        count("antiphon_worker_spills_total", counters.spills);
        count("antiphon_worker_stream_gaps_total", counters.holes);
        count("antiphon_worker_unauthorized_chunks_total", counters.unauthorized);
        count("antiphon_worker_duplicate_commands_total", counters.duplicate_commands);
        count("antiphon_worker_erased_commands_total", counters.erased_commands);
        count("antiphon_worker_tasks_total", counters.tasks);
        count("antiphon_worker_failed_tasks_total", counters.tasks_failed);
        count("antiphon_worker_started_turns_total", counters.turns_started);
        count("antiphon_worker_postponed_turns_total", counters.postponed);
        count("antiphon_worker_completed_turns_total", counters.turns_completed);
        count("antiphon_worker_stopped_turns_total", counters.turns_stopped);
        count("antiphon_worker_failed_turns_total", counters.turns_failed);
        count("antiphon_worker_backoffs_total", counters.backoffs);
        count("antiphon_worker_continuations_total", counters.continuations);
        count("antiphon_worker_continuations_rejected_total", counters.continuations_rejected);
        count("antiphon_worker_ambiguous_calls_total", counters.ambiguous_calls);
        count("antiphon_worker_facts_total", counters.facts);
        count("antiphon_worker_repeated_facts_total", counters.repeated_facts);
        count("antiphon_worker_invalid_facts_total", counters.invalid_facts);
        count("antiphon_worker_control_commands_total", counters.control_commands);
    }

    pub(crate) fn set_gauges(&self, now: PartitionGauges) {
        self.gauges.set(&self.partition, now);
    }

    #[allow(clippy::unused_self, reason = "what a partition counts is counted here")]
    pub(crate) fn add_turn_times(&self, times: &TurnTimes) {
        for (name, times) in
            [(FIRST_CHUNK_SECONDS, &times.first_chunk_ms), (TURN_SECONDS, &times.committed_ms)]
        {
            let histogram = histogram!(name);
            times.iter().for_each(|ms| histogram.record(*ms as f64 / 1_000.0));
        }
    }
}

impl Drop for WorkerMetrics {
    fn drop(&mut self) {
        self.gauges.remove(&self.partition);
    }
}
