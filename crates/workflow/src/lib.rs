//! The reference workflow service: takes turn requests, lets a model or a script answer them, and
//! publishes the chunks.
//!
//! Entry: [`run`]. `service` holds the requests and acknowledges them, `engine` produces the parts
//! of an answer, `tool_calls` keeps the results of tools, `frame_builder` numbers the parts as
//! chunks, and `writer` publishes. [`ScriptServer`] serves a script as an OpenAI-compatible
//! endpoint.
//!
//! Invariants: a request is acknowledged only after the last chunk of its answer is stored. Every
//! delivery is an attempt of its own. A stop, a later delivery or a drain that ends a turn also
//! ends its calls to the model and the tools. An answer that a model did not finish is never
//! treated as complete.

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

/// The engine that answers turns.
#[derive(Debug, Clone)]
pub enum EngineConfig {
    OpenAi(OpenAiConfig),
    Scripted(Script),
}

#[derive(Debug, Clone)]
pub struct WorkflowConfig {
    /// The workflow whose requests are taken.
    pub workflow: WorkflowName,
    /// Number of turns answered concurrently.
    pub concurrency: usize,
    /// Time that a drain leaves for turns in progress; unfinished turns are handed back.
    pub drain: Duration,
    pub engine: EngineConfig,
}

/// Why a workflow service cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum WorkflowError {
    /// The model's endpoint cannot be used.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// Turn requests cannot be read.
    #[error("turn requests cannot be read: {0}")]
    Bus(#[from] BusError),
}

/// Takes turn requests until `drain` is cancelled, then finishes the turns in progress.
///
/// # Errors
/// The settings are unusable, or the service is not allowed to read turn requests.
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
