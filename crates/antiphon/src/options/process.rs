//! Options of every process: logs, servers, streams, metrics.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use model::WorkflowName;
use runtime::telemetry::LogFormat;

use super::traces::Traces;
use super::values::workflow;

/// Of `--database-url`, which several commands have.
pub(super) const DATABASE_HELP: &str = "Postgres 15 to 18 itself, not a pooler such as pgbouncer, which is refused: sessions have settings \
    and prepared statements, and there are few, ten a worker and eight a gateway";
pub(super) const DATABASE_HEADING: &str = "Postgres";
/// Of what the partitions and streams of a fleet are to be.
pub(super) const STREAMS_HEADING: &str = "Partitions and streams";

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Logs")]
pub(crate) struct Log {
    /// What is logged, for example `info` or `warn,worker=debug`.
    #[arg(long = "log", env = "ANTIPHON_LOG", default_value = "info", global = true)]
    pub(crate) filter: String,
    /// `text` or `json`.
    #[arg(long = "log-format", env = "ANTIPHON_LOG_FORMAT", default_value = "text", global = true)]
    pub(crate) format: LogFormat,
}

/// Where NATS is.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "NATS")]
pub(crate) struct NatsArguments {
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
    /// A certificate (PEM) by which NATS knows this process, in place of a password or beside one. Read with each connection, as its key.
    #[arg(long, env = "ANTIPHON_NATS_CERTIFICATE", requires = "nats_certificate_key")]
    pub(crate) nats_certificate: Option<PathBuf>,
    /// The private key (PEM) of that certificate.
    #[arg(long, env = "ANTIPHON_NATS_CERTIFICATE_KEY", requires = "nats_certificate")]
    pub(crate) nats_certificate_key: Option<PathBuf>,
    /// Subjects of answers begin with this. [default: `_INBOX`]
    #[arg(long, env = "ANTIPHON_NATS_INBOX_PREFIX")]
    pub(crate) nats_inbox_prefix: Option<String>,
}

/// Where the two servers are.
#[derive(Debug, Clone, Args)]
pub(crate) struct Servers {
    #[command(flatten)]
    pub(crate) nats: NatsArguments,
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, help = DATABASE_HELP, help_heading = DATABASE_HEADING)]
    pub(crate) database_url: String,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = STREAMS_HEADING)]
pub(crate) struct StreamArguments {
    /// Replicas of each stream: 3 in production, with `sync_interval: always` in NATS.
    #[arg(long, env = "ANTIPHON_STREAM_REPLICAS", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=5))]
    pub(crate) stream_replicas: u8,
    /// Bytes that each stream may hold. Full, those of partitions and of turn requests (WORK) refuse publishers; that of turns' ends (TURNS)
    /// drops the oldest. That of tool calls (TOOL_CALLS) holds a quarter of it, and drops the oldest as well.
    #[arg(long, env = "ANTIPHON_STREAM_MAX_BYTES", default_value_t = 1 << 30, value_parser = clap::value_parser!(i64).range(1 << 20..))]
    pub(crate) stream_max_bytes: i64,
    /// Workflows whose consumers of turn requests are made: their services then need no right to make one. A consumer that is there stays.
    #[arg(long, env = "ANTIPHON_WORKFLOWS", default_value = "default", value_delimiter = ',', value_parser = workflow)]
    pub(crate) workflows: Vec<WorkflowName>,
    /// Programs that read the ends of turns: for each `<name>` the durable consumer `INTEGRATOR_<name>` of the stream TURNS is made.
    #[arg(long, env = "ANTIPHON_INTEGRATORS", default_value = "default", value_delimiter = ',', value_parser = workflow)]
    pub(crate) integrators: Vec<WorkflowName>,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct ProcessArguments {
    #[command(flatten)]
    pub(crate) servers: Servers,
    #[command(flatten)]
    pub(crate) metrics: Metrics,
    #[command(flatten)]
    pub(crate) traces: Traces,
}

/// Where a process can be observed.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Metrics and probes")]
pub(crate) struct Metrics {
    /// Where `/metrics` and the probes `/livez`, `/readyz` and `/startupz` are served.
    #[arg(long, env = "ANTIPHON_METRICS_ADDR", default_value = "127.0.0.1:9464")]
    pub(crate) metrics_addr: SocketAddr,
}
