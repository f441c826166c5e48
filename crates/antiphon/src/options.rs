//! The command line. Every flag is also a variable; `--help` shows both.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use model::{PartitionCount, WorkflowName};
use runtime::telemetry::Format;

use crate::access_options::AccessSettings;
use crate::commands::{Batches, DeadLetters, EraseOwner, Incidents, Keys, Threads};
use crate::keep_options::KeepSettings;
use crate::workflow_role::{Workflow, WorkflowSettings};

/// Ordered, durable answers of AI workflows: from NATS to clients and Postgres.
#[derive(Debug, Parser)]
#[command(name = "antiphon", version, max_term_width = 110)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) log: Log,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create or update the tables in Postgres and the streams in NATS.
    Migrate(Migrate),
    /// Order, stream and persist: owns partitions.
    Worker(Worker),
    /// Serve HTTP: event streams, history.
    Gateway(Gateway),
    /// Answer turn requests: with a model, or by script.
    Workflow(Workflow),
    /// Migrate, then run every role in this one process: for small installations. The workflow service only when its engine,
    /// a model or a script is given.
    All(All),
    /// Exit 0 when the process at the metrics address is ready, else 1.
    Healthcheck(Healthcheck),
    /// Look at batches, and mend what is stored of them.
    Batches(Batches),
    /// Look at threads, export and import them, copy and erase them.
    Threads(Threads),
    /// Erase everything of a tenant or a user. Without --yes it only says what there is.
    Erase(EraseOwner),
    /// Look at what was given up on, replay it, drop it.
    DeadLetters(DeadLetters),
    /// Make, list and revoke API keys.
    Keys(Keys),
    /// See what a store or a stream that went back in time has cost, and say that you have seen it.
    Incidents(Incidents),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Log {
    /// What is logged, for example `info` or `warn,worker=debug`.
    #[arg(long = "log", env = "ANTIPHON_LOG", default_value = "info", global = true)]
    pub(crate) filter: String,
    /// `text` or `json`.
    #[arg(long = "log-format", env = "ANTIPHON_LOG_FORMAT", default_value = "text", global = true)]
    pub(crate) format: Format,
}

/// Where NATS is.
#[derive(Debug, Clone, Args)]
pub(crate) struct Nats {
    /// NATS: one URL or several of one cluster, separated by commas.
    #[arg(long, env = "NATS_URL", default_value = "nats://127.0.0.1:4222", hide_env_values = true)]
    pub(crate) nats_url: String,
    /// A NATS credentials file (JWT and seed).
    #[arg(long, env = "ANTIPHON_NATS_CREDENTIALS")]
    pub(crate) nats_credentials: Option<PathBuf>,
    /// A file with an nkey seed.
    #[arg(long, env = "ANTIPHON_NATS_NKEY")]
    pub(crate) nats_nkey: Option<PathBuf>,
    /// Certificates of the authorities that sign the NATS servers'.
    #[arg(long, env = "ANTIPHON_NATS_CA")]
    pub(crate) nats_ca: Option<PathBuf>,
    /// Subjects of answers begin with this.
    #[arg(long, env = "ANTIPHON_NATS_INBOX_PREFIX")]
    pub(crate) nats_inbox_prefix: Option<String>,
}

/// Where the two servers are.
#[derive(Debug, Clone, Args)]
pub(crate) struct Servers {
    #[command(flatten)]
    pub(crate) nats: Nats,
    /// Postgres, 15 to 18.
    #[arg(long, env = "DATABASE_URL", hide_env_values = true)]
    pub(crate) database_url: String,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Streams {
    /// Replicas of each stream: 3 in production.
    #[arg(long, env = "ANTIPHON_STREAM_REPLICAS", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=5))]
    pub(crate) stream_replicas: u8,
    /// Bytes that each stream may hold. Full, those of partitions and of turn requests refuse publishers; that of turns' ends
    /// drops the oldest.
    #[arg(long, env = "ANTIPHON_STREAM_MAX_BYTES", default_value_t = 1 << 30, value_parser = clap::value_parser!(i64).range(1 << 20..))]
    pub(crate) stream_max_bytes: i64,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Migrate {
    #[command(flatten)]
    pub(crate) servers: Servers,
    #[command(flatten)]
    pub(crate) streams: Streams,
    /// Number of partitions, a power of two; fixed by the first migration.
    #[arg(long, env = "ANTIPHON_PARTITIONS", default_value = "8", value_parser = partitions)]
    pub(crate) partitions: PartitionCount,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Process {
    #[command(flatten)]
    pub(crate) servers: Servers,
    /// Where /metrics and the probes are served.
    #[arg(long, env = "ANTIPHON_METRICS_ADDR", default_value = "127.0.0.1:9464")]
    pub(crate) metrics_addr: SocketAddr,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct WorkerSettings {
    /// Name in leases and logs, unique among processes; random when absent.
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
    /// Thinks for agents without settings.
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
    /// Open messages of this worker; beyond it new ones wait in the stream.
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
    /// Bytes of open messages of this worker; beyond it new ones wait in the stream.
    #[arg(long, env = "ANTIPHON_MAX_BUFFER_BYTES", default_value_t = 256 << 20, value_parser = clap::value_parser!(u64).range(1 << 20..))]
    pub(crate) max_buffer_bytes: u64,
    /// An open message that holds the checkpoint back for so long is saved, so that the checkpoint can pass it.
    #[arg(long, env = "ANTIPHON_SPILL_AFTER_SECONDS", default_value = "20", value_parser = seconds)]
    pub(crate) spill_after_seconds: Duration,
    /// Connections that commit.
    #[arg(long, env = "ANTIPHON_COMMIT_CONNECTIONS", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) commit_connections: u8,
    /// Entries stay in the stream for so long after they were used.
    #[arg(long, env = "ANTIPHON_STREAM_RETAIN_SECONDS", default_value = "60", value_parser = seconds)]
    pub(crate) stream_retain_seconds: Duration,
    /// An Idempotency-Key may be used for another message after so long.
    #[arg(long, env = "ANTIPHON_IDEMPOTENCY_KEY_TTL_SECONDS", default_value = "86400", value_parser = seconds)]
    pub(crate) idempotency_key_ttl_seconds: Duration,
    /// Between two looks at what agents' rules keep of their threads.
    #[arg(long, env = "ANTIPHON_RETENTION_INTERVAL_SECONDS", default_value = "600", value_parser = seconds)]
    pub(crate) retention_interval_seconds: Duration,
    #[command(flatten)]
    pub(crate) keep: KeepSettings,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct GatewaySettings {
    /// Where the API is served.
    #[arg(long, env = "ANTIPHON_HTTP_ADDR", default_value = "127.0.0.1:8080")]
    pub(crate) http_addr: SocketAddr,
    #[command(flatten)]
    pub(crate) access: Box<AccessSettings>,
    #[command(flatten)]
    pub(crate) http: HttpSettings,
}

/// Bounds of the API's connections.
#[derive(Debug, Clone, Args)]
pub(crate) struct HttpSettings {
    /// Open connections, and as many requests under way on HTTP/2 ones; further connections wait, further requests get 503.
    #[arg(long, env = "ANTIPHON_MAX_CONNECTIONS", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) max_connections: u32,
    /// Both together of one address (IPv6: of one /64); further connections are closed, further requests get 429. Behind a proxy
    /// all have its address: 0 is no bound.
    #[arg(long, env = "ANTIPHON_MAX_CONNECTIONS_PER_IP", default_value_t = 1_000)]
    pub(crate) max_connections_per_ip: u32,
    /// How long the head of a request may take, and a new connection say nothing.
    #[arg(long, env = "ANTIPHON_HEADER_TIMEOUT_SECONDS", default_value = "10", value_parser = up_to_a_day)]
    pub(crate) header_timeout_seconds: Duration,
    /// How long a connection may have nothing to do after a request: longer than a proxy keeps its connections (nginx: 60).
    #[arg(long, env = "ANTIPHON_IDLE_TIMEOUT_SECONDS", default_value = "75", value_parser = up_to_a_day)]
    pub(crate) idle_timeout_seconds: Duration,
    /// How long the body of a request may take.
    #[arg(long, env = "ANTIPHON_BODY_TIMEOUT_SECONDS", default_value = "30", value_parser = up_to_a_day)]
    pub(crate) body_timeout_seconds: Duration,
    /// A client that takes nothing of its answer for so long is cut.
    #[arg(long, env = "ANTIPHON_WRITE_TIMEOUT_SECONDS", default_value = "30", value_parser = up_to_a_day)]
    pub(crate) write_timeout_seconds: Duration,
    /// Bytes that a viewer may lag behind before it is cut.
    #[arg(long, env = "ANTIPHON_SUBSCRIBER_BUFFER_BYTES", default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(1 << 10..=1 << 30))]
    pub(crate) subscriber_buffer_bytes: u32,
    /// When the gateway is to stop it says that it is not ready, and takes connections for so long, until load balancers have
    /// forgotten it. [default: 5; 0 at a loopback address]
    #[arg(long, env = "ANTIPHON_HTTP_CLOSE_DELAY_SECONDS", value_parser = delay)]
    pub(crate) http_close_delay_seconds: Option<Duration>,
    /// Connections have so long to end after that.
    #[arg(long, env = "ANTIPHON_HTTP_DRAIN_SECONDS", default_value = "10", value_parser = up_to_a_day)]
    pub(crate) http_drain_seconds: Duration,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Worker {
    #[command(flatten)]
    pub(crate) process: Process,
    #[command(flatten)]
    pub(crate) worker: WorkerSettings,
    /// When given, the start is refused unless the fleet has this many partitions.
    #[arg(long, env = "ANTIPHON_PARTITIONS", value_parser = partitions)]
    pub(crate) partitions: Option<PartitionCount>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Gateway {
    #[command(flatten)]
    pub(crate) process: Process,
    #[command(flatten)]
    pub(crate) gateway: GatewaySettings,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct All {
    #[command(flatten)]
    pub(crate) process: Process,
    #[command(flatten)]
    pub(crate) streams: Streams,
    #[command(flatten)]
    pub(crate) worker: Box<WorkerSettings>,
    #[command(flatten)]
    pub(crate) gateway: GatewaySettings,
    #[command(flatten)]
    pub(crate) workflow: WorkflowSettings,
    /// Number of partitions, a power of two; fixed by the first migration.
    #[arg(long, env = "ANTIPHON_PARTITIONS", default_value = "8", value_parser = partitions)]
    pub(crate) partitions: PartitionCount,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Healthcheck {
    /// The metrics address of the process.
    #[arg(long, env = "ANTIPHON_METRICS_ADDR", default_value = "127.0.0.1:9464")]
    pub(crate) metrics_addr: SocketAddr,
}

fn partitions(text: &str) -> Result<PartitionCount, String> {
    let count = text.trim().parse::<u64>().map_err(|error| error.to_string())?;
    PartitionCount::new(count).map_err(|error| error.to_string())
}

pub(crate) fn seconds(text: &str) -> Result<Duration, String> {
    match text.trim().parse::<f64>() {
        Ok(seconds) if (0.1..=1e7).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        Ok(_) => Err("it must be from 0.1 to 10000000 seconds".to_owned()),
        Err(_) => Err("it must be a number of seconds, without a unit".to_owned()),
    }
}

/// 0 is none.
fn delay(text: &str) -> Result<Duration, String> {
    match text.trim() {
        "0" => Ok(Duration::ZERO),
        text => up_to_a_day(text),
    }
}

fn up_to_a_day(text: &str) -> Result<Duration, String> {
    let duration = seconds(text)?;
    match duration <= Duration::from_secs(86_400) {
        true => Ok(duration),
        false => Err("it must be at most 86400 seconds, a day".to_owned()),
    }
}

fn workflow(text: &str) -> Result<WorkflowName, String> {
    WorkflowName::parse(text).map_err(|error| error.to_string())
}

/// Renewals come at a third of it and sessions trust it for four fifths: below two seconds a busy machine loses it.
fn lease(text: &str) -> Result<Duration, String> {
    let lease = seconds(text)?;
    match (2.0..=300.0).contains(&lease.as_secs_f64()) {
        true => Ok(lease),
        false => Err("a lease must last from 2 to 300 seconds".to_owned()),
    }
}

fn worker_id(text: &str) -> Result<String, String> {
    model::ThreadId::parse(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Options::command().debug_assert();
    }

    #[test]
    fn wrong_values_are_refused() {
        for wrong in ["", " ", "0", "-1", "10 m", "10s", "nan", "inf", "1e9", "'10'"] {
            assert!(seconds(wrong).is_err(), "{wrong:?}");
        }
        for wrong in ["", "0", "3", "-8", "2048", "8.0", "1e3"] {
            assert!(partitions(wrong).is_err(), "{wrong:?}");
        }
        assert!(lease("1").is_err() && lease("2").is_ok());
        assert!(up_to_a_day("86401").is_err() && up_to_a_day("0").is_err() && up_to_a_day("86400").is_ok());
        assert!(delay("0").is_ok_and(|delay| delay.is_zero()) && delay("5").is_ok() && delay("-1").is_err());
        assert!(workflow("a.b").is_err() && workflow("").is_err() && workflow("default").is_ok());
        assert!(worker_id("a b").is_err() && worker_id("pod-1").is_ok());
    }
}
