//! Settings of what is kept for people: how long, and how much.

use std::time::Duration;

use clap::Args;
use worker::{KeepConfig, KeepLimits};

use crate::options::seconds;

/// Each kind has a bound in age and one in bytes. Beyond either the oldest go.
#[derive(Debug, Clone, Args)]
pub(crate) struct KeepSettings {
    /// Between two looks at these bounds.
    #[arg(long, env = "ANTIPHON_CLEANUP_INTERVAL_SECONDS", default_value = "60", value_parser = seconds)]
    cleanup_interval_seconds: Duration,
    /// Completed tasks are kept for so long.
    #[arg(long, env = "ANTIPHON_COMPLETED_TASKS_MAX_DAYS", default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    completed_tasks_max_days: u32,
    /// Bytes of completed tasks.
    #[arg(long, env = "ANTIPHON_COMPLETED_TASKS_MAX_BYTES", default_value_t = 1 << 30)]
    completed_tasks_max_bytes: u64,
    /// Failed tasks that nobody has retried or dropped are kept for so long.
    #[arg(long, env = "ANTIPHON_FAILED_TASKS_MAX_DAYS", default_value_t = 90, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    failed_tasks_max_days: u32,
    /// Bytes of failed tasks.
    #[arg(long, env = "ANTIPHON_FAILED_TASKS_MAX_BYTES", default_value_t = 256 << 20)]
    failed_tasks_max_bytes: u64,
    /// Failed turns that nobody has retried or dropped are kept for so long.
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
    /// Erased threads are remembered for so long: what comes later for one makes a new thread.
    #[arg(long, env = "ANTIPHON_ERASED_THREADS_MAX_DAYS", default_value_t = 90, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    erased_threads_max_days: u32,
    /// Bytes of the marks of erased threads.
    #[arg(long, env = "ANTIPHON_ERASED_THREADS_MAX_BYTES", default_value_t = 64 << 20)]
    erased_threads_max_bytes: u64,
}

impl KeepSettings {
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
            ],
        }
    }
}
