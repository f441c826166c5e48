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

/// What answers turn requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineName {
    /// A model behind an endpoint (chat completions, Responses, Anthropic, Google).
    Openai,
    /// A script.
    Scripted,
    /// None: the script is only served over HTTP.
    None,
}

/// What a model's endpoint understands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum InterfaceName {
    /// Chat completions of OpenAI, which most endpoints have.
    ChatCompletions,
    /// Responses of OpenAI.
    Responses,
    /// Messages of Anthropic.
    Anthropic,
    /// `generateContent` of Google.
    Google,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Workflow {
    #[command(flatten)]
    pub(crate) nats: NatsArguments,
    /// The id of the installation whose turn requests are answered, as `antiphon doctor` prints it: where the streams belong to another one the
    /// service does not start. Absent: it is not checked, for the service knows no database.
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
    /// Whose turn requests the workflow service takes.
    #[arg(long, env = "ANTIPHON_WORKFLOW", default_value = "default", value_parser = workflow)]
    pub(crate) workflow: WorkflowName,
    /// Turns that are answered at a time.
    #[arg(long, env = "ANTIPHON_WORKFLOW_CONCURRENCY", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) workflow_concurrency: u32,
    /// What is in hand when the service is to stop may take so long to finish; the rest is handed back, which takes up to 11 s more while
    /// NATS does not answer.
    #[arg(long, env = "ANTIPHON_WORKFLOW_DRAIN_SECONDS", default_value = "20", value_parser = seconds)]
    pub(crate) workflow_drain_seconds: Duration,
    /// What answers; with `none` nothing does, and the script is only served over HTTP.
    /// [default: `openai` if there is an LLM base URL, else `scripted`]
    #[arg(long, env = "ANTIPHON_WORKFLOW_ENGINE")]
    pub(crate) workflow_engine: Option<EngineName>,
    /// What the path of the interface is appended to (`/chat/completions`, `/responses`, `/messages`, `/models/…`), for example
    /// https://api.openai.com/v1, https://api.anthropic.com/v1 or https://generativelanguage.googleapis.com/v1beta.
    #[arg(long, env = "ANTIPHON_LLM_BASE_URL")]
    pub(crate) llm_base_url: Option<String>,
    /// The interface of the model's endpoint.
    #[arg(long, env = "ANTIPHON_LLM_INTERFACE", default_value = "chat-completions")]
    pub(crate) llm_interface: InterfaceName,
    /// Sent to the model's endpoint as its interface wants it: a bearer token, `x-api-key` or `x-goog-api-key`.
    #[arg(long, env = "ANTIPHON_LLM_API_KEY", hide_env_values = true)]
    pub(crate) llm_api_key: Option<String>,
    /// The model, where an agent's settings name none.
    #[arg(long, env = "ANTIPHON_LLM_MODEL")]
    pub(crate) llm_model: Option<String>,
    /// A model that sends nothing for so long has failed.
    #[arg(long, env = "ANTIPHON_LLM_TIMEOUT_SECONDS", default_value = "120", value_parser = seconds)]
    pub(crate) llm_timeout_seconds: Duration,
    /// Before the model has said anything, a call is made again when its endpoint is busy (429), fails for a time (409, 423, 425, 498, 499,
    /// 5xx), is away or breaks off. It is repeated with growing pauses and not before its `Retry-After`, until this many seconds have passed; 0 is never.
    #[arg(long, env = "ANTIPHON_LLM_RETRY_SECONDS", default_value = "20", value_parser = delay)]
    pub(crate) llm_retry_seconds: Duration,
    /// Model calls of this process at once. [default: as many as there are]
    #[arg(long, env = "ANTIPHON_LLM_CALLS_AT_ONCE", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) llm_calls_at_once: Option<u32>,
    /// Model calls that this process begins in a minute; others wait. [default: as many as there are]
    #[arg(long, env = "ANTIPHON_LLM_CALLS_PER_MINUTE", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) llm_calls_per_minute: Option<u32>,
    /// Tokens that the model calls of this process read and write in a minute; calls wait for what others have used beyond that.
    /// [default: as many as there are]
    #[arg(long, env = "ANTIPHON_LLM_TOKENS_PER_MINUTE", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) llm_tokens_per_minute: Option<u32>,
    /// Model calls of one turn; a turn that needs more fails.
    #[arg(long, env = "ANTIPHON_MAX_STEPS", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) max_steps: u32,
    /// A JSON file of the HTTP tools that the model may call.
    #[arg(long, env = "ANTIPHON_TOOLS_FILE")]
    pub(crate) tools_file: Option<PathBuf>,
    /// The MCP server whose tools the model may call besides, for example that of `antiphon mcp`: http://127.0.0.1:8090/mcp.
    #[arg(long, env = "ANTIPHON_MCP_URL", value_parser = mcp_url)]
    pub(crate) mcp_url: Option<String>,
    /// Sent to the MCP server as a bearer token.
    #[arg(long, env = "ANTIPHON_MCP_API_KEY", hide_env_values = true)]
    pub(crate) mcp_api_key: Option<String>,
    /// A JSON file of scripted answers; without one every input is answered with itself.
    #[arg(long, env = "ANTIPHON_SCRIPT_FILE")]
    pub(crate) script_file: Option<PathBuf>,
    /// Serves the script as an OpenAI-compatible endpoint, for tests of what talks to one.
    #[arg(long = "serve-openai", env = "ANTIPHON_SCRIPT_HTTP_ADDR")]
    pub(crate) script_http_addr: Option<SocketAddr>,
}
