//! The reference workflow service: takes turn requests, has a model or a script answer them, and publishes the chunks.
//!
//! Entry: [`run`]. `service` holds the requests and acknowledges them, `engine` produces the parts of an
//! answer, `tool_calls` keeps what tools have given, `frame_builder` numbers the parts as chunks, `writer` publishes. A script can also be served as an OpenAI-compatible
//! endpoint: [`ScriptServer`].
//!
//! Invariants: a request is acknowledged only when the last chunk of its answer is stored; every delivery is an attempt
//! of its own; whatever ends a turn early (a stop, a later delivery, a drain) ends the calls to the model and the
//! tools with it; an answer of a model that was cut off is never taken for a whole one.

mod endpoint_errors;
mod engine;
mod engine_event;
mod frame_builder;
mod interface;
mod metrics;
mod openai;
mod reader;
mod request;
mod script;
mod service;
mod tool_calls;
mod tools;
mod writer;

use std::time::Duration;

use bus::{Bus, BusError};
use model::WorkflowName;
use runtime::{Clock, Health};
use tokio_util::sync::CancellationToken;

pub use interface::Interface;
pub use metrics::METRICS;
pub use openai::{EndpointError, EndpointLimits, OpenAiConfig};
pub use runtime::http::ClientError;
pub use script::serve::{ScriptServer, ServedCounts};
pub use script::{Script, ScriptError};
pub use tools::{Tools, ToolsError};

use engine::Engine;
use service::Service;
use tool_calls::ToolCalls;

/// What answers the turns.
#[derive(Debug, Clone)]
pub enum EngineConfig {
    /// A model.
    OpenAi(OpenAiConfig),
    /// A script.
    Scripted(Script),
}

/// Settings of a workflow service.
#[derive(Debug, Clone)]
pub struct WorkflowConfig {
    /// Whose requests are taken.
    pub workflow: WorkflowName,
    /// Turns at a time.
    pub concurrency: usize,
    /// What is in hand when the drain begins may take so long to finish; the rest is handed back.
    pub drain: Duration,
    /// What answers the turns.
    pub engine: EngineConfig,
}

/// Why a workflow service cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum WorkflowError {
    /// The model's endpoint cannot be used.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// Turn requests cannot be read.
    #[error("turn requests cannot be read: {0}")]
    Bus(#[from] BusError),
}

/// Takes turn requests until `drain` is cancelled, and finishes what is in hand.
///
/// # Errors
/// The settings cannot work, or the service may not read turn requests.
pub async fn run(
    config: WorkflowConfig,
    bus: Bus,
    health: Health,
    clock: Clock,
    drain: CancellationToken,
) -> Result<(), WorkflowError> {
    metrics::describe();
    let engine = match config.engine {
        EngineConfig::OpenAi(openai) => {
            let tool_calls = ToolCalls::new(bus.clone(), config.workflow.clone(), clock);
            Engine::OpenAi(Box::new(openai::OpenAi::new(openai, tool_calls, clock)?))
        }
        EngineConfig::Scripted(script) => Engine::Scripted(script),
    };
    tracing::info!(workflow = %config.workflow, concurrency = config.concurrency, "taking turn requests");
    let service = Service::new(bus, engine, clock);
    service.serve(&config.workflow, config.concurrency, config.drain, &health, drain).await?;
    Ok(())
}
