//! The workflow service: turns its settings into an engine.

use std::sync::Arc;

use bus::{Bus, BusConfig};
use model::PriceTable;
use runtime::{Clock, Health, Shutdown, spawn_named};
use tokio_util::sync::CancellationToken;
use workflow::{
    EndpointLimits, EngineConfig, Interface, OpenAiConfig, Script, ScriptServer, Tools, WorkflowConfig,
};

use crate::connect::{bus_config, check_work_installation, serve_metrics};
use crate::exit::ExitError;
use crate::options::{EngineName, InterfaceName, Workflow, WorkflowSettings};

/// The checked configuration of the service.
pub(crate) struct PreparedWorkflow {
    /// `None` if only the script is served.
    config: Option<WorkflowConfig>,
    script_server: Option<ScriptServer>,
}

impl WorkflowSettings {
    /// Whether the settings ask for a workflow service, in a process of all roles.
    pub(crate) fn is_wanted(&self) -> bool {
        let has_script = self.script_file.is_some() || self.script_http_addr.is_some();
        self.workflow_engine.is_some() || self.llm_base_url.is_some() || has_script
    }

    fn engine_name(&self) -> EngineName {
        let default = if self.llm_base_url.is_some() { EngineName::Openai } else { EngineName::Scripted };
        self.workflow_engine.unwrap_or(default)
    }

    /// Reads the files and makes all checks that need no address.
    ///
    /// # Errors
    /// The service would not start.
    pub(crate) fn check(&self) -> Result<(), ExitError> {
        self.clone().read(None).map(drop)
    }

    /// Reads the files and binds the address, so that an error stops the start.
    pub(crate) async fn prepare(
        self,
        prices: Option<Arc<PriceTable>>,
    ) -> Result<PreparedWorkflow, ExitError> {
        let addr = self.script_http_addr;
        let (script, config) = self.read(prices)?;
        let script_server = match addr {
            Some(addr) => Some(ScriptServer::bind(addr, script).await.map_err(wrong)?),
            None => None,
        };
        Ok(PreparedWorkflow { config, script_server })
    }

    /// The script, and the engine's configuration unless no turns are answered.
    fn read(self, prices: Option<Arc<PriceTable>>) -> Result<(Script, Option<WorkflowConfig>), ExitError> {
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
        let (workflow, concurrency) = (self.workflow.clone(), self.workflow_concurrency as usize);
        let drain = self.workflow_drain_seconds;
        let engine = match name {
            EngineName::None => return Ok((script, None)),
            EngineName::Scripted => EngineConfig::Scripted(script.clone()),
            EngineName::Openai => EngineConfig::OpenAi(self.openai(prices)?),
        };
        let config = Some(WorkflowConfig { workflow, concurrency, drain, engine });
        Ok((script, config))
    }

    fn openai(self, prices: Option<Arc<PriceTable>>) -> Result<OpenAiConfig, ExitError> {
        let needed = |variable: &str| wrong(format!("{variable} must be set for the engine openai"));
        let tools = match &self.tools_file {
            Some(path) => Tools::read(path),
            None => Tools::none(),
        };
        let tools = match &self.mcp_url {
            Some(url) => tools.and_then(|tools| tools.with_mcp_server(url, self.mcp_api_key)),
            None => tools,
        };
        let interface = match self.llm_interface {
            InterfaceName::ChatCompletions => Interface::ChatCompletions,
            InterfaceName::Responses => Interface::Responses,
            InterfaceName::Anthropic => Interface::Anthropic,
            InterfaceName::Google => Interface::Google,
        };
        let config = OpenAiConfig {
            interface,
            base_url: self.llm_base_url.ok_or_else(|| needed("ANTIPHON_LLM_BASE_URL"))?,
            api_key: self.llm_api_key,
            model: self.llm_model.ok_or_else(|| needed("ANTIPHON_LLM_MODEL"))?,
            silence: self.llm_timeout_seconds,
            retry: self.llm_retry_seconds,
            limits: EndpointLimits {
                calls_at_once: self.llm_calls_at_once,
                calls_per_minute: self.llm_calls_per_minute,
                tokens_per_minute: self.llm_tokens_per_minute,
            },
            max_steps: self.max_steps,
            tools: tools.map_err(wrong)?,
            prices,
        };
        config.check().map_err(wrong)?;
        Ok(config)
    }
}

impl PreparedWorkflow {
    /// Whether the service needs NATS: a script alone is served without NATS.
    pub(crate) fn needs_nats(&self) -> bool {
        self.config.is_some()
    }

    /// Answers turn requests and serves the script, as configured, until `stop` is cancelled.
    pub(crate) async fn serve(
        self,
        bus: Option<Bus>,
        health: Health,
        clock: Clock,
        stop: CancellationToken,
    ) -> Result<(), ExitError> {
        let serving = async {
            let Some(server) = self.script_server else { return Ok(()) };
            server.serve(stop.clone()).await.map_err(|error| ExitError::Failed(error.to_string()))
        };
        let answering = async {
            let (Some(config), Some(bus)) = (self.config, bus) else { return Ok(()) };
            Ok(workflow::run(config, bus, health, clock, stop.clone()).await?)
        };
        tokio::try_join!(serving, answering).map(|_| ())
    }
}

/// Runs the service alone: serves metrics and probes at once, then waits for NATS.
pub(crate) async fn run(options: Workflow, shutdown: &Shutdown) -> Result<(), ExitError> {
    let prepared = options.workflow.prepare(options.prices.read()?).await?;
    options.traces.install("workflow")?;
    let health = Health::default();
    health.set_ready("nats", !prepared.needs_nats());
    serve_metrics(options.metrics.metrics_addr, "antiphon workflow", &health, shutdown).await?;
    let bus = if prepared.needs_nats() {
        let config = bus_config(&options.nats, "antiphon workflow");
        tokio::select! {
            bus = connected(&config, options.installation.as_deref()) => Some(bus?),
            () = shutdown.token().cancelled_owned() => return Ok(()),
        }
    } else {
        None
    };
    if let Some(bus) = &bus {
        spawn_named("nats failover", bus.clone().leave_isolated_servers());
    }
    health.set_ready("nats", true);
    health.set_started();
    prepared.serve(bus, health, Clock::start(), shutdown.token()).await
}

async fn connected(config: &BusConfig, installation: Option<&str>) -> Result<Bus, ExitError> {
    let bus = Bus::connect(config).await?;
    if let Some(installation) = installation {
        check_work_installation(&bus, installation).await?;
    }
    Ok(bus)
}

fn wrong(why: impl ToString) -> ExitError {
    ExitError::Configuration(why.to_string())
}
