//! Options of workers.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use model::{PartitionCount, WorkflowName};
use scheduling::turn_limits::TurnLimits;
use worker::{KeepConfig, KeepLimits, WorkerConfig};

use crate::exit::ExitError;

use super::prices::PRICES_HEADING;
use super::values::{lease, seconds, up_to_a_day, worker_id, workflow};

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Worker")]
pub(crate) struct WorkerSettings {
    /// Name in leases and logs, unique among processes. [default: random]
    #[arg(long, env = "ANTIPHON_WORKER_ID", value_parser = worker_id)]
    pub(crate) worker_id: Option<String>,
    /// How long a lease lasts without being renewed: how long a death goes unnoticed.
    #[arg(long, env = "ANTIPHON_LEASE_TTL_SECONDS", default_value = "10", value_parser = lease)]
    pub(crate) lease_ttl_seconds: Duration,
    /// Whether a chunk for an unknown thread creates it; if not, its message becomes a dead letter.
    #[arg(long, env = "ANTIPHON_AUTO_CREATE_THREADS", default_value_t = true, action = clap::ArgAction::Set)]
    pub(crate) auto_create_threads: bool,
    /// Whether a task for an unknown agent, or a message to an unknown thread, creates it; if not, it fails.
    #[arg(long, env = "ANTIPHON_AUTO_CREATE_AGENTS", default_value_t = true, action = clap::ArgAction::Set)]
    pub(crate) auto_create_agents: bool,
    /// How many turns of a workflow, a model or a tenant may run at once in the whole fleet, and how fast they may begin, in JSON; the same for
    /// all workers. Read at the start.
    #[arg(long, env = "ANTIPHON_LIMITS_FILE", help_heading = PRICES_HEADING)]
    limits_file: Option<PathBuf>,
    /// The workflow of agents without settings.
    #[arg(long, env = "ANTIPHON_DEFAULT_WORKFLOW", default_value = "default", value_parser = workflow)]
    pub(crate) default_workflow: WorkflowName,
    /// Turns of one partition that are under way at once; further ones wait.
    #[arg(long, env = "ANTIPHON_MAX_ACTIVE_TURNS_PER_PARTITION", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) max_active_turns_per_partition: u32,
    /// A run of a turn without any chunk for so long fails, unless its agent's settings say otherwise.
    #[arg(long, env = "ANTIPHON_TURN_DEADLINE_SECONDS", default_value = "120", value_parser = up_to_a_day)]
    pub(crate) turn_deadline_seconds: Duration,
    /// First backoff of an agent whose task has failed, unless its settings say otherwise.
    #[arg(long, env = "ANTIPHON_BACKOFF_BASE_SECONDS", default_value = "60", value_parser = up_to_a_day)]
    pub(crate) backoff_base_seconds: Duration,
    /// Longest backoff of an agent, unless its settings say otherwise.
    #[arg(long, env = "ANTIPHON_BACKOFF_CAP_SECONDS", default_value = "86400", value_parser = up_to_a_day)]
    pub(crate) backoff_cap_seconds: Duration,
    /// A gap that stays open for so long fails its message.
    #[arg(long, env = "ANTIPHON_GAP_TIMEOUT_SECONDS", default_value = "30", value_parser = seconds)]
    pub(crate) gap_timeout_seconds: Duration,
    /// A message without any chunk for so long fails.
    #[arg(long, env = "ANTIPHON_STALL_TIMEOUT_SECONDS", default_value = "300", value_parser = seconds)]
    pub(crate) stall_timeout_seconds: Duration,
    /// Open messages of this worker; beyond them new ones wait in the stream.
    #[arg(long, env = "ANTIPHON_MAX_OPEN_MESSAGES", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) max_open_messages: u32,
    /// Chunks of one message.
    #[arg(long, env = "ANTIPHON_MAX_CHUNKS_PER_MESSAGE", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) max_chunks_per_message: u32,
    /// Bytes of one message.
    #[arg(long, env = "ANTIPHON_MAX_MESSAGE_BYTES", default_value_t = 4 << 20, value_parser = clap::value_parser!(u32).range(1024..=67_108_864))]
    pub(crate) max_message_bytes: u32,
    /// Bytes of text and metadata of one chunk.
    #[arg(long, env = "ANTIPHON_MAX_CHUNK_BYTES", default_value_t = 64 << 10, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    pub(crate) max_chunk_bytes: u32,
    /// Bytes of open messages of this worker; beyond them new ones wait in the stream, and beyond twice as many the largest are forgotten and
    /// read again later.
    #[arg(long, env = "ANTIPHON_MAX_BUFFER_BYTES", default_value_t = 256 << 20, value_parser = clap::value_parser!(u64).range(1 << 20..))]
    pub(crate) max_buffer_bytes: u64,
    /// Bytes of the ends of threads that this worker remembers, with their JSON, so that their next turns read and encode only what is new; 0: none.
    #[arg(long, env = "ANTIPHON_THREAD_CACHE_BYTES", default_value_t = 64 << 20)]
    pub(crate) thread_cache_bytes: u64,
    /// Entries of a partition's stream that its next owner may have to read again. Beyond them the open messages and turns that need them
    /// are saved in Postgres, the oldest first.
    #[arg(long, env = "ANTIPHON_REPLAY_ENTRIES", default_value_t = 500_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) replay_entries: u64,
    /// The same in bytes; at most a quarter of what the stream may hold.
    #[arg(long, env = "ANTIPHON_REPLAY_BYTES", default_value_t = 256 << 20, value_parser = clap::value_parser!(u64).range(1 << 16..))]
    pub(crate) replay_bytes: u64,
    /// Connections that commit.
    #[arg(long, env = "ANTIPHON_COMMIT_CONNECTIONS", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) commit_connections: u8,
    /// Entries stay in the stream for so long after they were used: so far Postgres may go back in time without a loss.
    #[arg(long, env = "ANTIPHON_STREAM_RETAIN_SECONDS", default_value = "60", value_parser = seconds)]
    pub(crate) stream_retain_seconds: Duration,
    /// An `Idempotency-Key` may be used for another message after so long.
    #[arg(long, env = "ANTIPHON_IDEMPOTENCY_KEY_TTL_SECONDS", default_value = "86400", value_parser = seconds)]
    pub(crate) idempotency_key_ttl_seconds: Duration,
    /// Between two looks at what the `retention` of agents keeps of their threads.
    #[arg(long, env = "ANTIPHON_RETENTION_INTERVAL_SECONDS", default_value = "600", value_parser = seconds)]
    pub(crate) retention_interval_seconds: Duration,
    #[command(flatten)]
    pub(crate) keep: RetentionSettings,
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
        config.thread_cache_bytes = usize::try_from(self.thread_cache_bytes).unwrap_or(usize::MAX);
        config.chunk_bytes = self.max_chunk_bytes as usize;
        config.writers = self.commit_connections.into();
        config.stream_retain = self.stream_retain_seconds;
        config.idempotency_key_ttl = self.idempotency_key_ttl_seconds;
        config.keep = self.keep.config();
        config.retention_every = self.retention_interval_seconds;
        config.rules.deadline_ms = ms(self.turn_deadline_seconds);
        config.rules.backoff_base_ms = ms(self.backoff_base_seconds);
        config.rules.backoff_cap_ms = ms(self.backoff_cap_seconds);
        config.limits.create_agents = self.auto_create_agents;
        config.limits.active_turns = self.max_active_turns_per_partition as usize;
        config.limits.gap_timeout_ms = ms(self.gap_timeout_seconds);
        config.limits.stall_timeout_ms = ms(self.stall_timeout_seconds);
        config.limits.replay_entries = self.replay_entries;
        config.limits.replay_bytes = self.replay_bytes;
        config.limits.chunks_per_message = self.max_chunks_per_message;
        config.limits.message_bytes = self.max_message_bytes as usize;
        config
    }
}

/// Each kind has a bound in age and one in bytes. Beyond either the oldest go.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "What workers keep for people")]
pub(crate) struct RetentionSettings {
    /// Between two looks at the bounds of what is kept for people: beyond one in days or in bytes the oldest go.
    #[arg(long, env = "ANTIPHON_CLEANUP_INTERVAL_SECONDS", default_value = "60", value_parser = seconds)]
    cleanup_interval_seconds: Duration,
    /// Completed tasks are kept for so long; their turns stay in the history.
    #[arg(long, env = "ANTIPHON_COMPLETED_TASKS_MAX_DAYS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    completed_tasks_max_days: u32,
    /// Bytes of completed tasks.
    #[arg(long, env = "ANTIPHON_COMPLETED_TASKS_MAX_BYTES", default_value_t = 1 << 30)]
    completed_tasks_max_bytes: u64,
    /// Failed tasks that are neither retried nor dropped are kept for so long.
    #[arg(long, env = "ANTIPHON_FAILED_TASKS_MAX_DAYS", default_value_t = 90, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    failed_tasks_max_days: u32,
    /// Bytes of failed tasks.
    #[arg(long, env = "ANTIPHON_FAILED_TASKS_MAX_BYTES", default_value_t = 256 << 20)]
    failed_tasks_max_bytes: u64,
    /// Failed turns that are neither retried nor dropped are kept for so long.
    #[arg(long, env = "ANTIPHON_FAILED_TURNS_MAX_DAYS", default_value_t = 90, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    failed_turns_max_days: u32,
    /// Bytes of failed turns.
    #[arg(long, env = "ANTIPHON_FAILED_TURNS_MAX_BYTES", default_value_t = 256 << 20)]
    failed_turns_max_bytes: u64,
    /// Dead letters are kept for so long.
    #[arg(long, env = "ANTIPHON_DEAD_LETTERS_MAX_DAYS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    dead_letters_max_days: u32,
    /// Bytes of dead letters.
    #[arg(long, env = "ANTIPHON_DEAD_LETTERS_MAX_BYTES", default_value_t = 1 << 30)]
    dead_letters_max_bytes: u64,
    /// The audit is kept for so long.
    #[arg(long, env = "ANTIPHON_AUDIT_LOG_MAX_DAYS", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    audit_log_max_days: u32,
    /// Bytes of the audit.
    #[arg(long, env = "ANTIPHON_AUDIT_LOG_MAX_BYTES", default_value_t = 1 << 30)]
    audit_log_max_bytes: u64,
    /// Time for which erased threads and erased tenants are remembered: what comes later for one is taken as new.
    #[arg(long, env = "ANTIPHON_ERASED_THREADS_MAX_DAYS", default_value_t = 90, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    erased_threads_max_days: u32,
    /// Bytes of the marks of erased threads, and of those of erased tenants.
    #[arg(long, env = "ANTIPHON_ERASED_THREADS_MAX_BYTES", default_value_t = 64 << 20)]
    erased_threads_max_bytes: u64,
}

impl RetentionSettings {
    pub(crate) fn config(&self) -> KeepConfig {
        let limits = |days: u32, max_bytes: u64| KeepLimits {
            max_age: Duration::from_secs(u64::from(days) * 86_400),
            max_bytes,
        };
        KeepConfig {
            every: self.cleanup_interval_seconds,
            limits: [
                limits(self.completed_tasks_max_days, self.completed_tasks_max_bytes),
                limits(self.failed_tasks_max_days, self.failed_tasks_max_bytes),
                limits(self.failed_turns_max_days, self.failed_turns_max_bytes),
                limits(self.dead_letters_max_days, self.dead_letters_max_bytes),
                limits(self.audit_log_max_days, self.audit_log_max_bytes),
                limits(self.erased_threads_max_days, self.erased_threads_max_bytes),
                limits(self.erased_threads_max_days, self.erased_threads_max_bytes),
            ],
        }
    }
}
