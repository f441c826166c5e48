//! The workflow service: its settings, and how they become an engine.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bus::Bus;
use clap::{Args, ValueEnum};
use model::WorkflowName;
use runtime::{Clock, Health, Shutdown};
use tokio_util::sync::CancellationToken;
use workflow::{EngineConfig, OpenAiConfig, Script, ScriptServer, Tools, WorkflowConfig, WorkflowError};

use crate::options::{Nats, seconds};
use crate::roles::{self, Stop};

/// Who answers turn requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum EngineName {
    /// A model behind an OpenAI-compatible endpoint.
    Openai,
    /// A script.
    Scripted,
    /// Nobody: the script is only served over HTTP.
    None,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct Workflow {
    #[command(flatten)]
    nats: Nats,
    /// Where /metrics and the probes are served.
    #[arg(long, env = "ANTIPHON_METRICS_ADDR", default_value = "127.0.0.1:9464")]
    metrics_addr: SocketAddr,
    #[command(flatten)]
    workflow: WorkflowSettings,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct WorkflowSettings {
    /// Whose turn requests are taken.
    #[arg(long, env = "ANTIPHON_WORKFLOW", default_value = "default", value_parser = name)]
    pub(crate) workflow: WorkflowName,
    /// Turns that are answered at a time.
    #[arg(long, env = "ANTIPHON_WORKFLOW_CONCURRENCY", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) workflow_concurrency: u32,
    /// What is in hand when the service is to stop may take so long to finish; the rest is handed back.
    #[arg(long, env = "ANTIPHON_WORKFLOW_DRAIN_SECONDS", default_value = "20", value_parser = seconds)]
    pub(crate) workflow_drain_seconds: Duration,
    /// Who answers. When absent, `openai` if there is an LLM base URL, else `scripted`.
    #[arg(long, env = "ANTIPHON_WORKFLOW_ENGINE")]
    pub(crate) workflow_engine: Option<EngineName>,
    /// What /chat/completions is appended to, for example https://api.openai.com/v1.
    #[arg(long, env = "ANTIPHON_LLM_BASE_URL")]
    pub(crate) llm_base_url: Option<String>,
    /// Sent to the model's endpoint as a bearer token.
    #[arg(long, env = "ANTIPHON_LLM_API_KEY", hide_env_values = true)]
    pub(crate) llm_api_key: Option<String>,
    /// The model, where an agent's settings name none.
    #[arg(long, env = "ANTIPHON_LLM_MODEL")]
    pub(crate) llm_model: Option<String>,
    /// A model that sends nothing for so long has failed.
    #[arg(long, env = "ANTIPHON_LLM_TIMEOUT_SECONDS", default_value = "120", value_parser = seconds)]
    pub(crate) llm_timeout_seconds: Duration,
    /// Model calls of one turn; a turn that needs more fails.
    #[arg(long, env = "ANTIPHON_MAX_STEPS", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub(crate) max_steps: u32,
    /// A JSON file of the HTTP tools that the model may call.
    #[arg(long, env = "ANTIPHON_TOOLS_FILE")]
    pub(crate) tools_file: Option<PathBuf>,
    /// A JSON file of scripted answers; without one every input is answered with itself.
    #[arg(long, env = "ANTIPHON_SCRIPT_FILE")]
    pub(crate) script_file: Option<PathBuf>,
    /// Serves the script as an OpenAI-compatible endpoint, for tests of what talks to one.
    #[arg(long = "serve-openai", env = "ANTIPHON_SCRIPT_HTTP_ADDR")]
    pub(crate) script_http_addr: Option<SocketAddr>,
}

fn name(text: &str) -> Result<WorkflowName, String> {
    WorkflowName::parse(text).map_err(|error| error.to_string())
}

/// What the settings come to.
pub(crate) struct Prepared {
    /// None: only the script is served.
    config: Option<WorkflowConfig>,
    script_server: Option<ScriptServer>,
}

impl WorkflowSettings {
    /// In a process of all roles: whether a workflow service was asked for.
    pub(crate) fn is_wanted(&self) -> bool {
        let has_script = self.script_file.is_some() || self.script_http_addr.is_some();
        self.workflow_engine.is_some() || self.llm_base_url.is_some() || has_script
    }

    fn engine_name(&self) -> EngineName {
        let default = if self.llm_base_url.is_some() { EngineName::Openai } else { EngineName::Scripted };
        self.workflow_engine.unwrap_or(default)
    }

    /// Reads the files and takes the address, so that what is wrong stops the start.
    pub(crate) async fn prepare(self) -> Result<Prepared, Stop> {
        let name = self.engine_name();
        if name == EngineName::None && self.script_http_addr.is_none() {
            return Err(wrong(
                "the engine is off (ANTIPHON_WORKFLOW_ENGINE), and ANTIPHON_SCRIPT_HTTP_ADDR is not set either",
            ));
        }
        let script = match &self.script_file {
            Some(path) => Script::read(path).map_err(wrong)?,
            None => Script::echo(),
        };
        let script_server = match self.script_http_addr {
            Some(addr) => Some(ScriptServer::bind(addr, script.clone()).await.map_err(wrong)?),
            None => None,
        };
        let (workflow, concurrency) = (self.workflow.clone(), self.workflow_concurrency as usize);
        let drain = self.workflow_drain_seconds;
        let engine = match name {
            EngineName::None => return Ok(Prepared { config: None, script_server }),
            EngineName::Scripted => EngineConfig::Scripted(script),
            EngineName::Openai => EngineConfig::OpenAi(self.openai()?),
        };
        let config = Some(WorkflowConfig { workflow, concurrency, drain, engine });
        Ok(Prepared { config, script_server })
    }

    fn openai(self) -> Result<OpenAiConfig, Stop> {
        let needed = |variable: &str| wrong(format!("{variable} must be set for the engine openai"));
        let tools = match &self.tools_file {
            Some(path) => Tools::read(path),
            None => Tools::none(),
        };
        let config = OpenAiConfig {
            base_url: self.llm_base_url.ok_or_else(|| needed("ANTIPHON_LLM_BASE_URL"))?,
            api_key: self.llm_api_key,
            model: self.llm_model.ok_or_else(|| needed("ANTIPHON_LLM_MODEL"))?,
            silence: self.llm_timeout_seconds,
            max_steps: self.max_steps,
            tools: tools.map_err(wrong)?,
        };
        config.check().map_err(wrong)?;
        Ok(config)
    }
}

impl Prepared {
    /// A script is served without NATS.
    pub(crate) fn needs_nats(&self) -> bool {
        self.config.is_some()
    }

    /// Answers turn requests, and serves the script if it is to be served, until `stop` is cancelled.
    pub(crate) async fn serve(
        self,
        bus: Option<Bus>,
        health: Health,
        clock: Clock,
        stop: CancellationToken,
    ) -> Result<(), Stop> {
        let serving = async {
            let Some(server) = self.script_server else { return Ok(()) };
            server.serve(stop.clone()).await.map_err(|error| Stop::Failed(error.to_string()))
        };
        let answering = async {
            let (Some(config), Some(bus)) = (self.config, bus) else { return Ok(()) };
            Ok(workflow::run(config, bus, health, clock, stop.clone()).await?)
        };
        tokio::try_join!(serving, answering).map(|_| ())
    }
}

/// Runs the service alone: metrics and probes at once, then it waits for NATS.
pub(crate) async fn run(options: Workflow, shutdown: &Shutdown) -> Result<(), Stop> {
    let prepared = options.workflow.prepare().await?;
    let health = Health::default();
    health.set_ready("nats", !prepared.needs_nats());
    roles::serve_metrics(options.metrics_addr, &health, shutdown).await?;
    let bus = if prepared.needs_nats() {
        let config = roles::bus_config(&options.nats, "antiphon workflow");
        tokio::select! {
            bus = Bus::connect(&config) => Some(bus?),
            () = shutdown.token().cancelled_owned() => return Ok(()),
        }
    } else {
        None
    };
    health.set_ready("nats", true);
    health.set_started();
    prepared.serve(bus, health, Clock::start(), shutdown.token()).await
}

impl From<WorkflowError> for Stop {
    fn from(error: WorkflowError) -> Self {
        match error {
            WorkflowError::Endpoint(_) => Self::Configuration(error.to_string()),
            WorkflowError::Bus(_) => Self::Failed(error.to_string()),
        }
    }
}

fn wrong(why: impl ToString) -> Stop {
    Stop::Configuration(why.to_string())
}
