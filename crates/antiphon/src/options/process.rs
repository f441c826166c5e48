//! Options of every process: logs, servers, streams, metrics.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;
use model::WorkflowName;
use runtime::telemetry::LogFormat;

use super::traces::Traces;
use super::values::workflow;

/// Help text of `--database-url`, which several commands have.
pub(super) const DATABASE_HELP: &str = "URL of Postgres 15 to 18 itself: a pooler such as pgbouncer is refused, because sessions have settings \
     and prepared statements. A worker has ten sessions and one more while it erases, a gateway eight";
pub(super) const DATABASE_HEADING: &str = "Postgres";
/// Heading of options for the partitions and streams of a fleet.
pub(super) const STREAMS_HEADING: &str = "Partitions and streams";

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Logs")]
pub(crate) struct Log {
    /// Filter of the log, for example `info` or `warn,worker=debug`.
    #[arg(long = "log", env = "ANTIPHON_LOG", default_value = "info", global = true)]
    pub(crate) filter: String,
    /// Format of the log: `text` or `json`.
    #[arg(long = "log-format", env = "ANTIPHON_LOG_FORMAT", default_value = "text", global = true)]
    pub(crate) format: LogFormat,
}

/// Address of NATS and credentials for it.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "NATS")]
pub(crate) struct NatsArguments {
    /// URL of NATS, or several URLs of one cluster, separated by commas.
    #[arg(long, env = "NATS_URL", default_value = "nats://127.0.0.1:4222", hide_env_values = true)]
    pub(crate) nats_url: String,
    /// Path of a NATS credentials file (JWT and seed).
    #[arg(long, env = "ANTIPHON_NATS_CREDENTIALS")]
    pub(crate) nats_credentials: Option<PathBuf>,
    /// Path of a file with an nkey seed.
    #[arg(long, env = "ANTIPHON_NATS_NKEY")]
    pub(crate) nats_nkey: Option<PathBuf>,
    /// Path of the certificates of the authorities that sign the NATS servers' certificates.
    #[arg(long, env = "ANTIPHON_NATS_CA")]
    pub(crate) nats_ca: Option<PathBuf>,
    /// Path of the client certificate (PEM) for NATS, instead of a password or in addition to one.
    /// The certificate and its key are read with each connection.
    #[arg(long, env = "ANTIPHON_NATS_CERTIFICATE", requires = "nats_certificate_key")]
    pub(crate) nats_certificate: Option<PathBuf>,
    /// Path of the private key (PEM) of the client certificate for NATS.
    #[arg(long, env = "ANTIPHON_NATS_CERTIFICATE_KEY", requires = "nats_certificate")]
    pub(crate) nats_certificate_key: Option<PathBuf>,
    /// Prefix of the subjects on which this process receives replies. [default: `_INBOX`]
    #[arg(long, env = "ANTIPHON_NATS_INBOX_PREFIX")]
    pub(crate) nats_inbox_prefix: Option<String>,
}

/// Addresses of Postgres and NATS.
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
    /// Number of replicas of each stream: 3 in production, with `sync_interval: always` in NATS.
    #[arg(long, env = "ANTIPHON_STREAM_REPLICAS", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=5))]
    pub(crate) stream_replicas: u8,
    /// Maximum size in bytes of each stream; that of tool calls (TOOL_CALLS) has a quarter of it.
    /// When full, the streams of partitions and of turn requests (WORK) refuse publishers;
    /// TOOL_CALLS and that of turns' ends (TURNS) drop the oldest entries.
    #[arg(long, env = "ANTIPHON_STREAM_MAX_BYTES", default_value_t = 1 << 30, value_parser = clap::value_parser!(i64).range(1 << 20..))]
    pub(crate) stream_max_bytes: i64,
    /// Names of the workflows for which consumers of turn requests are created; their services then
    /// need no permission to create one. Existing consumers are kept.
    #[arg(long, env = "ANTIPHON_WORKFLOWS", default_value = "default", value_delimiter = ',', value_parser = workflow)]
    pub(crate) workflows: Vec<WorkflowName>,
    /// Names of the programs that read the ends of turns: for each `<name>` the durable consumer
    /// `INTEGRATOR_<name>` of the stream TURNS is created.
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

/// The address at which a process can be observed.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Metrics and probes")]
pub(crate) struct Metrics {
    /// Address of `/metrics` and of the probes `/livez`, `/readyz` and `/startupz`.
    #[arg(long, env = "ANTIPHON_METRICS_ADDR", default_value = "127.0.0.1:9464")]
    pub(crate) metrics_addr: SocketAddr,
}
