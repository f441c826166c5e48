//! Options of the workflow service.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use model::WorkflowName;

use super::prices::Prices;
use super::process::{Metrics, NatsArguments};
use super::traces::Traces;
use super::values::{delay, mcp_url, seconds, workflow};

/// The engine that answers turn requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineName {
    /// A model behind an endpoint (chat completions, Responses, Anthropic, Google).
    Openai,
    /// Scripted answers without a model.
    Scripted,
    /// No engine: the script is only served over HTTP.
    None,
}

/// The interface of a model's endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum InterfaceName {
    /// Chat completions of OpenAI, which most endpoints support.
    ChatCompletions,
    /// Responses API of OpenAI.
    Responses,
    /// Messages API of Anthropic.
    Anthropic,
    /// `generateContent` API of Google.
    Google,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Workflow {
    #[command(flatten)]
    pub(crate) nats: NatsArguments,
    /// Id of the installation whose turn requests are answered, as `antiphon doctor` prints it: the
    /// service does not start if the streams belong to another one. Without it the id is not
    /// checked, because the service has no database.
    #[arg(long, env = "ANTIPHON_INSTALLATION", help_heading = "NATS")]
    pub(crate) installation: Option<String>,
    #[command(flatten)]
    pub(crate) metrics: Metrics,
    #[command(flatten)]
    pub(crate) traces: Traces,
    #[command(flatten)]
    pub(crate) prices: Prices,
    #[command(flatten)]
    pub(crate) workflow: WorkflowSettings,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Workflow service")]
pub(crate) struct WorkflowSettings {
    /// Name of the workflow whose turn requests the service takes.
    #[arg(long, env = "ANTIPHON_WORKFLOW", default_value = "default", value_parser = workflow)]
    pub(crate) workflow: WorkflowName,
    /// Maximum number of turns that are answered at once.
    #[arg(long, env = "ANTIPHON_WORKFLOW_CONCURRENCY", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) workflow_concurrency: u32,
    /// Maximum time in seconds for turns in progress when the service stops; the rest is handed
    /// back. This takes up to 11 s more while NATS does not answer.
    #[arg(long, env = "ANTIPHON_WORKFLOW_DRAIN_SECONDS", default_value = "20", value_parser = seconds)]
    pub(crate) workflow_drain_seconds: Duration,
    /// Engine that answers turns; with `none` no turn is answered, and the script is only served
    /// over HTTP. [default: `openai` if there is an LLM base URL, else `scripted`]
    #[arg(long, env = "ANTIPHON_WORKFLOW_ENGINE")]
    pub(crate) workflow_engine: Option<EngineName>,
    /// Base URL of the model's endpoint, to which the path of the interface is appended
    /// (`/chat/completions`, `/responses`, `/messages`, `/models/…`). Examples:
    /// https://api.openai.com/v1, https://api.anthropic.com/v1,
    /// https://generativelanguage.googleapis.com/v1beta.
    #[arg(long, env = "ANTIPHON_LLM_BASE_URL")]
    pub(crate) llm_base_url: Option<String>,
    /// Interface of the model's endpoint.
    #[arg(long, env = "ANTIPHON_LLM_INTERFACE", default_value = "chat-completions")]
    pub(crate) llm_interface: InterfaceName,
    /// API key of the model's endpoint, sent in the form of its interface: a bearer token,
    /// `x-api-key` or `x-goog-api-key`.
    #[arg(long, env = "ANTIPHON_LLM_API_KEY", hide_env_values = true)]
    pub(crate) llm_api_key: Option<String>,
    /// Name of the model for agents whose settings have none.
    #[arg(long, env = "ANTIPHON_LLM_MODEL")]
    pub(crate) llm_model: Option<String>,
    /// Timeout in seconds of a model that sends nothing.
    #[arg(long, env = "ANTIPHON_LLM_TIMEOUT_SECONDS", default_value = "120", value_parser = seconds)]
    pub(crate) llm_timeout_seconds: Duration,
    /// Maximum time in seconds for retries of a model call before the model has sent anything; 0
    /// for no retries. Retried are a busy endpoint (429), temporary failures (409, 423, 425, 498,
    /// 499, 5xx) and broken connections, with growing pauses and not before `Retry-After`.
    #[arg(long, env = "ANTIPHON_LLM_RETRY_SECONDS", default_value = "20", value_parser = delay)]
    pub(crate) llm_retry_seconds: Duration,
    /// Maximum number of model calls of this process at once. [default: no limit]
    #[arg(long, env = "ANTIPHON_LLM_CALLS_AT_ONCE", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) llm_calls_at_once: Option<u32>,
    /// Maximum number of model calls that this process begins per minute; others wait. [default: no
    /// limit]
    #[arg(long, env = "ANTIPHON_LLM_CALLS_PER_MINUTE", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) llm_calls_per_minute: Option<u32>,
    /// Maximum number of tokens that the model calls of this process read and write per minute;
    /// after an excess calls wait. [default: no limit]
    #[arg(long, env = "ANTIPHON_LLM_TOKENS_PER_MINUTE", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) llm_tokens_per_minute: Option<u32>,
    /// Maximum number of model calls of one turn; a turn that needs more fails.
    #[arg(long, env = "ANTIPHON_MAX_STEPS", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) max_steps: u32,
    /// Path of a JSON file with the HTTP tools that the model can call.
    #[arg(long, env = "ANTIPHON_TOOLS_FILE")]
    pub(crate) tools_file: Option<PathBuf>,
    /// URL of an MCP server whose tools the model can also call, for example that of `antiphon
    /// mcp`: http://127.0.0.1:8090/mcp.
    #[arg(long, env = "ANTIPHON_MCP_URL", value_parser = mcp_url)]
    pub(crate) mcp_url: Option<String>,
    /// API key of the MCP server, sent as a bearer token.
    #[arg(long, env = "ANTIPHON_MCP_API_KEY", hide_env_values = true)]
    pub(crate) mcp_api_key: Option<String>,
    /// Path of a JSON file with scripted answers; without it every input is answered with itself.
    #[arg(long, env = "ANTIPHON_SCRIPT_FILE")]
    pub(crate) script_file: Option<PathBuf>,
    /// Address at which the script is served as an OpenAI-compatible endpoint, for tests of its
    /// clients.
    #[arg(long = "serve-openai", env = "ANTIPHON_SCRIPT_HTTP_ADDR")]
    pub(crate) script_http_addr: Option<SocketAddr>,
}
