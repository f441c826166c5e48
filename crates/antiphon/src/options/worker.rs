//! Options of workers.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use model::{PartitionCount, WorkflowName};
use scheduling::turn_limits::TurnLimits;
use store::CleanupKind;
use worker::{CleanupConfig, CleanupRule, WorkerConfig};

use crate::exit::ExitError;

use super::prices::PRICES_HEADING;
use super::values::{lease, seconds, up_to_a_day, worker_id, workflow};

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Worker")]
pub(crate) struct WorkerSettings {
    /// Name of the worker in leases and logs, unique among processes. [default: random]
    #[arg(long, env = "ANTIPHON_WORKER_ID", value_parser = worker_id)]
    pub(crate) worker_id: Option<String>,
    /// Lifetime in seconds of a lease that is not renewed: other workers take over the partitions
    /// of a dead worker after this time.
    #[arg(long, env = "ANTIPHON_LEASE_TTL_SECONDS", default_value = "10", value_parser = lease)]
    pub(crate) lease_ttl_seconds: Duration,
    /// Whether a chunk for an unknown thread creates it; if not, its message becomes a dead letter.
    #[arg(long, env = "ANTIPHON_AUTO_CREATE_THREADS", default_value_t = true, action = clap::ArgAction::Set)]
    pub(crate) auto_create_threads: bool,
    /// Whether a task for an unknown agent, or a message to an unknown thread, creates it; if not,
    /// it fails.
    #[arg(long, env = "ANTIPHON_AUTO_CREATE_AGENTS", default_value_t = true, action = clap::ArgAction::Set)]
    pub(crate) auto_create_agents: bool,
    /// Path of a JSON file with limits of turns per workflow, model or tenant in the whole fleet:
    /// turns at once, turns per minute and tokens per minute. The same for all workers; read at the
    /// start.
    #[arg(long, env = "ANTIPHON_LIMITS_FILE", help_heading = PRICES_HEADING)]
    limits_file: Option<PathBuf>,
    /// Name of the workflow of agents without settings.
    #[arg(long, env = "ANTIPHON_DEFAULT_WORKFLOW", default_value = "default", value_parser = workflow)]
    pub(crate) default_workflow: WorkflowName,
    /// Maximum number of turns of one partition that are in progress at once; further ones wait.
    #[arg(long, env = "ANTIPHON_MAX_ACTIVE_TURNS_PER_PARTITION", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) max_active_turns_per_partition: u32,
    /// Timeout in seconds of a turn's run without any chunk, unless its agent's settings override
    /// it.
    #[arg(long, env = "ANTIPHON_TURN_DEADLINE_SECONDS", default_value = "120", value_parser = up_to_a_day)]
    pub(crate) turn_deadline_seconds: Duration,
    /// First backoff in seconds of an agent whose task has failed, unless its settings override it.
    #[arg(long, env = "ANTIPHON_BACKOFF_BASE_SECONDS", default_value = "60", value_parser = up_to_a_day)]
    pub(crate) backoff_base_seconds: Duration,
    /// Maximum backoff in seconds of an agent, unless its settings override it.
    #[arg(long, env = "ANTIPHON_BACKOFF_CAP_SECONDS", default_value = "86400", value_parser = up_to_a_day)]
    pub(crate) backoff_cap_seconds: Duration,
    /// Timeout in seconds of a gap; a gap that stays open longer fails its message.
    #[arg(long, env = "ANTIPHON_GAP_TIMEOUT_SECONDS", default_value = "30", value_parser = seconds)]
    pub(crate) gap_timeout_seconds: Duration,
    /// Timeout in seconds of a message without any chunk; after it the message fails.
    #[arg(long, env = "ANTIPHON_STALL_TIMEOUT_SECONDS", default_value = "300", value_parser = seconds)]
    pub(crate) stall_timeout_seconds: Duration,
    /// Maximum number of open messages per worker; new ones wait in the stream.
    #[arg(long, env = "ANTIPHON_MAX_OPEN_MESSAGES", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) max_open_messages: u32,
    /// Maximum number of chunks of one message.
    #[arg(long, env = "ANTIPHON_MAX_CHUNKS_PER_MESSAGE", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) max_chunks_per_message: u32,
    /// Maximum size of one message in bytes.
    #[arg(long, env = "ANTIPHON_MAX_MESSAGE_BYTES", default_value_t = 4 << 20, value_parser = clap::value_parser!(u32).range(1024..=67_108_864))]
    pub(crate) max_message_bytes: u32,
    /// Maximum size in bytes of the text and metadata of one chunk.
    #[arg(long, env = "ANTIPHON_MAX_CHUNK_BYTES", default_value_t = 64 << 10, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub(crate) max_chunk_bytes: u32,
    /// Maximum size in bytes of the open messages of a worker; new ones wait in the stream. Beyond
    /// twice this size the largest are dropped from memory and read again later.
    #[arg(long, env = "ANTIPHON_MAX_BUFFER_BYTES", default_value_t = 256 << 20, value_parser = clap::value_parser!(u64).range(1 << 20..))]
    pub(crate) max_buffer_bytes: u64,
    /// Maximum number of stream entries of a partition that its next owner may have to read again.
    /// Beyond it the open messages and turns that need them are saved in Postgres, the oldest
    /// first.
    #[arg(long, env = "ANTIPHON_REPLAY_ENTRIES", default_value_t = 500_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) replay_entries: u64,
    /// Time in seconds for which used entries stay in the stream. If Postgres goes back by less
    /// than this time, nothing is lost.
    #[arg(long, env = "ANTIPHON_STREAM_RETAIN_SECONDS", default_value = "60", value_parser = seconds)]
    pub(crate) stream_retain_seconds: Duration,
    #[command(flatten)]
    pub(crate) cleanup: CleanupSettings,
}

impl WorkerSettings {
    /// # Errors
    /// The file cannot be read or is invalid.
    pub(crate) fn turn_limits(&self) -> Result<TurnLimits, ExitError> {
        let Some(path) = &self.limits_file else { return Ok(TurnLimits::default()) };
        let wrong =
            |why: String| ExitError::Configuration(format!("ANTIPHON_LIMITS_FILE {}: {why}", path.display()));
        let json = fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        TurnLimits::parse(&json).map_err(|error| wrong(error.to_string()))
    }

    /// The worker's configuration.
    pub(crate) fn config(&self, partitions: PartitionCount) -> WorkerConfig {
        let worker_id =
            self.worker_id.clone().unwrap_or_else(|| format!("w-{}", uuid::Uuid::now_v7().simple()));
        let mut config = WorkerConfig::new(worker_id, partitions, self.default_workflow.clone());
        let ms = |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        config.lease = self.lease_ttl_seconds;
        config.create_threads = self.auto_create_threads;
        config.open_messages = self.max_open_messages as usize;
        config.buffer_bytes = usize::try_from(self.max_buffer_bytes).unwrap_or(usize::MAX);
        config.chunk_bytes = self.max_chunk_bytes as usize;
        config.stream_retain = self.stream_retain_seconds;
        self.cleanup.apply(&mut config.cleanup);
        config.retention_every = config.cleanup.age_interval();
        config.rules.deadline_ms = ms(self.turn_deadline_seconds);
        config.rules.backoff_base_ms = ms(self.backoff_base_seconds);
        config.rules.backoff_cap_ms = ms(self.backoff_cap_seconds);
        config.limits.create_agents = self.auto_create_agents;
        config.limits.active_turns = self.max_active_turns_per_partition as usize;
        config.limits.gap_timeout_ms = ms(self.gap_timeout_seconds);
        config.limits.stall_timeout_ms = ms(self.stall_timeout_seconds);
        config.limits.sweep_ms = config.limits.sweep_ms.min(config.limits.stall_timeout_ms);
        config.limits.replay_entries = self.replay_entries;
        config.limits.chunks_per_message = self.max_chunks_per_message;
        config.limits.message_bytes = self.max_message_bytes as usize;
        config
    }
}

/// Each kind of record has a maximum age and a maximum size. Beyond either the oldest are deleted.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Cleanup of operational records")]
pub(crate) struct CleanupSettings {
    /// Interval in seconds between checks of the maximum sizes. Maximum ages, and the retention
    /// that agents have in their settings, are checked at ten times this interval, and at least
    /// every ten minutes.
    #[arg(long, env = "ANTIPHON_CLEANUP_INTERVAL_SECONDS", default_value = "60", value_parser = seconds)]
    cleanup_interval_seconds: Duration,
    /// Maximum size in bytes of the completed tasks, of the dead letters and of the audit log,
    /// each. Failed tasks and failed turns have a quarter of it each, the marks of erased threads
    /// and of erased tenants, and the receipts of erasures, a sixteenth.
    #[arg(long, env = "ANTIPHON_RECORDS_MAX_BYTES", default_value_t = 1 << 30, value_parser = clap::value_parser!(u64).range(1 << 16..))]
    records_max_bytes: u64,
    /// Maximum age in days of completed tasks; their turns stay in the history.
    #[arg(long, env = "ANTIPHON_COMPLETED_TASKS_MAX_DAYS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    completed_tasks_max_days: u32,
    /// Maximum age in days of failed tasks and failed turns that are neither retried nor dropped.
    #[arg(long, env = "ANTIPHON_FAILURES_MAX_DAYS", default_value_t = 90, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    failures_max_days: u32,
    /// Maximum age in days of dead letters.
    #[arg(long, env = "ANTIPHON_DEAD_LETTERS_MAX_DAYS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    dead_letters_max_days: u32,
    /// Maximum age in days of audit entries.
    #[arg(long, env = "ANTIPHON_AUDIT_LOG_MAX_DAYS", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    audit_log_max_days: u32,
    /// Time in days for which erased threads and erased tenants are remembered, and receipts of
    /// erasures are kept; after it data for one is accepted as new.
    #[arg(long, env = "ANTIPHON_ERASED_THREADS_MAX_DAYS", default_value_t = 90, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    erased_threads_max_days: u32,
}

impl CleanupSettings {
    fn apply(&self, config: &mut CleanupConfig) {
        config.every = self.cleanup_interval_seconds;
        let (large, failures, marks) =
            (self.records_max_bytes, self.records_max_bytes / 4, self.records_max_bytes / 16);
        for (kind, days, bytes) in [
            (CleanupKind::CompletedTasks, self.completed_tasks_max_days, large),
            (CleanupKind::FailedTasks, self.failures_max_days, failures),
            (CleanupKind::FailedTurns, self.failures_max_days, failures),
            (CleanupKind::DeadLetters, self.dead_letters_max_days, large),
            (CleanupKind::Audit, self.audit_log_max_days, large),
            (CleanupKind::ErasedThreads, self.erased_threads_max_days, marks),
            (CleanupKind::ErasedTenants, self.erased_threads_max_days, marks),
            (CleanupKind::Erasures, self.erased_threads_max_days, marks),
        ] {
            config.set(CleanupRule::new(kind, days, Some(bytes)));
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::FromArgMatches as _;

    use super::*;

    #[test]
    fn defaults_are_those_of_the_worker() {
        let matches = WorkerSettings::augment_args(clap::Command::new("worker")).get_matches_from(["worker"]);
        let settings = WorkerSettings::from_arg_matches(&matches).unwrap();
        let partitions = PartitionCount::new(8).unwrap();
        let (mut config, mut expected) = (
            settings.config(partitions),
            WorkerConfig::new(String::new(), partitions, settings.default_workflow.clone()),
        );
        config.worker_id.clear();
        expected.cleanup.rules.sort_by_key(|rule| rule.kind.name());
        config.cleanup.rules.sort_by_key(|rule| rule.kind.name());
        assert_eq!(format!("{config:?}"), format!("{expected:?}"));
    }
}
