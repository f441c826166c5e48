//! Metrics of the NATS connections, in every process that has one.

use ::metrics::counter;
use runtime::metrics::MetricDescription;

const READER_RESTARTS: &str = "antiphon_nats_reader_restarts_total";
const SERVER_CHANGES: &str = "antiphon_nats_server_changes_total";
const STALLED_CONSUMERS: &str = "antiphon_nats_stalled_consumers_total";

/// The reasons in the metric why readers recreate their consumers.
pub(crate) const RESTART_REASONS: [&str; 6] =
    ["silent", "reconnected", "ended", "not_contiguous", "status", "replica_behind"];

/// Every metric of this crate, for the metrics endpoint and the reference.
pub const METRICS: &[MetricDescription] = &[
    MetricDescription::counter(
        READER_RESTARTS,
        "Consumers of partitions that were recreated, by reason: silent, reconnected, ended, not_contiguous, status, \
         replica_behind",
    )
    .by(&["reason"]),
    MetricDescription::counter(
        SERVER_CHANGES,
        "Connections moved to another server of the cluster, because their server knew no leader of the streams",
    ),
    MetricDescription::counter(
        STALLED_CONSUMERS,
        "Consumers of turn requests that had stalled and were given another leader",
    ),
];

/// Registers the help texts with the recorder, and initialises the counters to 0.
pub(crate) fn register() {
    runtime::metrics::describe(METRICS);
    for reason in RESTART_REASONS {
        counter!(READER_RESTARTS, "reason" => reason).increment(0);
    }
    counter!(SERVER_CHANGES).increment(0);
    counter!(STALLED_CONSUMERS).increment(0);
}

/// Counts a recreated consumer. `reason` is one of [`RESTART_REASONS`].
pub(crate) fn reader_restarted(reason: &'static str) {
    counter!(READER_RESTARTS, "reason" => reason).increment(1);
}

pub(crate) fn server_changed() {
    counter!(SERVER_CHANGES).increment(1);
}

pub(crate) fn consumer_had_stalled() {
    counter!(STALLED_CONSUMERS).increment(1);
}
