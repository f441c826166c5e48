//! The workflow services of the demo: always a script, and additionally a model if one is
//! configured.

use std::{
    env,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use devservices::workspace;
use tokio::time::sleep;

use testkit::{
    fleet::{self, FleetOptions, Process, WorkflowOptions, WorkflowProgram},
    http,
};

/// The script of the scripted service.
pub(super) const SCRIPT: &str = include_str!("script.json");
/// Our variables that concern the model.
const OF_MODEL: [&str; 4] =
    ["ANTIPHON_LLM_", "ANTIPHON_TOOLS_FILE", "ANTIPHON_MAX_STEPS", "ANTIPHON_WORKFLOW_CONCURRENCY"];

/// The kind of service that answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Engine {
    Script,
    /// The endpoint in `ANTIPHON_LLM_BASE_URL`.
    Model,
}

impl Engine {
    /// The model, if one is configured; otherwise the script.
    pub(super) fn for_people() -> Self {
        match env::var_os("ANTIPHON_LLM_BASE_URL").is_some_and(|url| !url.is_empty()) {
            true => Self::Model,
            false => Self::Script,
        }
    }

    /// The name of its workflow.
    pub(super) fn workflow(self) -> &'static str {
        match self {
            Self::Script => "demo-script",
            Self::Model => "demo-model",
        }
    }
}

/// Adds the services to the fleet. The script is always there, because only it makes tasks fail as
/// planned.
pub(super) fn add(mut options: FleetOptions) -> Result<FleetOptions> {
    let script = serde_json::from_str(SCRIPT).context("the script of the demo")?;
    options = options.with_workflow(WorkflowOptions::script(script).of(Engine::Script.workflow()));
    if Engine::for_people() == Engine::Script {
        return Ok(options);
    }
    for (name, value) in env::vars() {
        if OF_MODEL.iter().any(|own| name.starts_with(own)) {
            options = options.with_env(&name, value);
        }
    }
    let arguments = ["workflow", "--workflow-engine", "openai"].map(str::to_owned).into();
    let program = WorkflowProgram::Program { binary: fleet::binary()?, arguments, dir: workspace::root() };
    let model = WorkflowOptions { workflow: Engine::Model.workflow().to_owned(), program };
    Ok(options.with_workflow(model))
}

/// Waits until a service takes turn requests; the fleet does not wait for services that it treats
/// as other programs.
pub(super) async fn ready(service: &mut Process, limit: Duration) -> Result<()> {
    let deadline = Instant::now() + limit;
    loop {
        let answer = http::get(service.metrics_addr(), "/readyz").await;
        if answer.is_ok_and(|answer| answer.status == 200) {
            return Ok(());
        }
        if let Some(status) = service.has_ended() {
            bail!("the workflow service ended ({status}): {}", service.log_tail());
        }
        if Instant::now() > deadline {
            bail!("the workflow service is not ready; its log ends with:\n{}", service.log_tail());
        }
        sleep(Duration::from_millis(20)).await;
    }
}
