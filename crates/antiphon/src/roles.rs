//! Composes the roles from their parts.

use std::sync::Arc;
use std::time::Duration;

use embeddings::Embeddings;
use gateway::GatewayConfig;
use model::PriceTable;
use runtime::shutdown::ShutdownReason;
use runtime::{Shutdown, spawn_named, telemetry, traces};
use scheduling::turn_limits::TurnLimits;
use tokio_util::sync::CancellationToken;
use worker::WorkerConfig;

use crate::connect::{
    Services, StreamClaim, check_partitions, connect_services, migrate_all, while_partitions_stay,
};
use crate::exit::ExitError;
use crate::options::{All, Command, Gateway, Migrate, Options, ProcessArguments, Worker, WorkerSettings};
use crate::{client, commands, mcp_role, workflow_role};

/// Timeout for sending the last spans after the roles have drained.
const TRACES_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs one command to its end.
pub(crate) async fn run(options: Options) -> Result<(), ExitError> {
    telemetry::init(&options.log.filter, options.log.format, &[bus::QUIET_LOGS, "sqlx=warn", "rmcp=warn"])
        .map_err(|error| ExitError::Configuration(error.to_string()))?;
    let role = match options.command {
        // A signal can end these commands at any time, because they leave nothing half done.
        Command::Batches(options) => return commands::run_batches(options).await,
        Command::Copies(options) => return commands::run_copies(options).await,
        Command::Memory(options) => return commands::run_memory(options).await,
        Command::Erase(options) => return commands::run_erase(options).await,
        Command::Keys(options) => return commands::run_keys(options).await,
        Command::Tenants(options) => return commands::run_tenants(options).await,
        Command::Partitions(options) => return commands::run_partitions(options).await,
        Command::Doctor(options) => return commands::run_doctor(options).await,
        Command::Config(options) => return commands::run_config(options).await,
        Command::Api(call) => return client::run((*call)?).await,
        Command::Migrate(options) if options.check => return commands::check_layout(&options).await,
        role => role,
    };
    let shutdown = Shutdown::on_signals().map_err(|error| ExitError::Failed(error.to_string()))?;
    let work = async {
        match role {
            Command::Migrate(options) => tokio::select! {
                migrated = migrate(&options) => migrated,
                () = shutdown.token().cancelled_owned() => {
                    Err(ExitError::Failed("stopped before everything was up to date; run it again".to_owned()))
                }
            },
            Command::Worker(options) => run_worker(options, &shutdown).await,
            Command::Gateway(options) => run_gateway(options, &shutdown).await,
            Command::Mcp(options) => mcp_role::run(options, &shutdown).await,
            Command::Workflow(options) => workflow_role::run(options, &shutdown).await,
            Command::All(options) => run_all(options, &shutdown).await,
            Command::Healthcheck(_)
            | Command::Config(_)
            | Command::Batches(_)
            | Command::Copies(_)
            | Command::Erase(_)
            | Command::Keys(_)
            | Command::Tenants(_)
            | Command::Partitions(_)
            | Command::Doctor(_)
            | Command::Memory(_)
            | Command::Api(_) => Ok(()),
        }
    };
    let ended = work.await;
    traces::flush(TRACES_TIMEOUT).await;
    ended
}

async fn migrate(options: &Migrate) -> Result<(), ExitError> {
    let claim = match (options.adopt_streams, options.new_installation) {
        (true, _) => StreamClaim::Adopt,
        (false, true) => StreamClaim::NewInstallation,
        (false, false) => StreamClaim::Own,
    };
    migrate_all(&options.servers, &options.streams, options.partitions, &options.embeddings, claim).await?;
    tracing::info!(partitions = options.partitions.get(), "tables and streams are up to date");
    Ok(())
}

async fn run_worker(options: Worker, shutdown: &Shutdown) -> Result<(), ExitError> {
    tokenizer::check()?;
    options.process.traces.install("worker")?;
    let parts = WorkerParts {
        prices: options.prices.read()?,
        limits: options.worker.turn_limits()?,
        embeddings: options.embeddings.client()?,
    };
    let services = connect_services(&options.process, "antiphon worker", &[], None, shutdown).await?;
    let Some(services) = services else { return Ok(()) };
    if let Some(wanted) = options.partitions {
        check_partitions(&services.store, wanted).await?;
    }
    worker_role(&services, &options.worker, parts, shutdown.token()).await
}

async fn run_gateway(options: Gateway, shutdown: &Shutdown) -> Result<(), ExitError> {
    tokenizer::check()?;
    let embeddings = options.embeddings.client()?;
    let config = GatewayConfig { embeddings, ..options.gateway.config().await? };
    options.process.traces.install("gateway")?;
    let services =
        connect_services(&options.process, "antiphon gateway", &[gateway::READINESS], None, shutdown).await?;
    let Some(services) = services else { return Ok(()) };
    gateway_role(&services, &options.process, config, shutdown.token()).await
}

/// Runs all roles together; when one ends the others drain.
async fn run_all(options: All, shutdown: &Shutdown) -> Result<(), ExitError> {
    tokenizer::check()?;
    let embeddings = options.embeddings.client()?;
    let config = GatewayConfig { embeddings: embeddings.clone(), ..options.gateway.config().await? };
    let mut tools = options.mcp.config(&options.gateway.access, &options.gateway.http).await?;
    tools.embeddings.clone_from(&embeddings);
    let parts =
        WorkerParts { prices: config.prices.clone(), limits: options.worker.turn_limits()?, embeddings };
    let workflow = match options.workflow.is_wanted() {
        true => Some(options.workflow.prepare(config.prices.clone()).await?),
        false => None,
    };
    options.process.traces.install("all")?;
    let conditions = [gateway::READINESS, mcp::READINESS];
    let layout = Some((&options.streams, options.partitions, &options.embeddings));
    let services = connect_services(&options.process, "antiphon all", &conditions, layout, shutdown).await?;
    let Some(services) = services else { return Ok(()) };
    let metrics = options.process.metrics.metrics_addr;
    tracing::info!(
        "addresses: API and its documents http://{}/docs, tools of agents (MCP) http://{}/mcp, metrics and probes http://{metrics}/metrics",
        config.http.addr,
        tools.http.addr
    );
    if workflow.is_none() {
        tracing::info!(
            "no workflow service runs in this process: turns wait until one runs elsewhere; `antiphon all --help` lists the settings of engines, for example ANTIPHON_SCRIPT_FILE"
        );
    }
    let worker = async {
        let ended = worker_role(&services, &options.worker, parts, shutdown.token()).await;
        shutdown.trigger(ShutdownReason::Internal);
        ended
    };
    let gateway = async {
        let ended = gateway_role(&services, &options.process, config, shutdown.token()).await;
        shutdown.trigger(ShutdownReason::Internal);
        ended
    };
    let workflow = async {
        let Some(prepared) = workflow else { return Ok(()) };
        let ended = prepared
            .serve(Some(services.bus.clone()), services.health.clone(), services.clock, shutdown.token())
            .await;
        shutdown.trigger(ShutdownReason::Internal);
        ended
    };
    let tools = async {
        let url = &options.process.servers.database_url;
        let store = mcp_role::scoped_store(services.store.clone(), url, tools.http.access.insecure).await?;
        let ended = mcp_role::serve(tools, store, services.health.clone(), shutdown.token()).await;
        shutdown.trigger(ShutdownReason::Internal);
        ended
    };
    let (worker, gateway, workflow, tools) = tokio::join!(worker, gateway, workflow, tools);
    worker.and(gateway).and(workflow).and(tools)
}

/// Parts of a worker that are not in its settings.
struct WorkerParts {
    prices: Option<Arc<PriceTable>>,
    limits: TurnLimits,
    embeddings: Option<Embeddings>,
}

async fn worker_role(
    services: &Services,
    settings: &WorkerSettings,
    parts: WorkerParts,
    stop: CancellationToken,
) -> Result<(), ExitError> {
    let WorkerParts { prices, limits, embeddings } = parts;
    let config = WorkerConfig { turn_limits: limits, embeddings, ..settings.config(services.partitions) };
    tracing::info!(worker = config.worker_id, partitions = services.partitions.get(), "worker starting");
    let store = services.store.with_prices(prices);
    let (bus, health) = (services.bus.clone(), services.health.clone());
    spawn_named("stalled consumers", bus.clone().recover_stalled_consumers());
    let running = async {
        let ran = worker::run(config, bus, store, health, services.clock, stop).await;
        ran.map_err(|error| ExitError::Failed(error.to_string()))
    };
    while_partitions_stay(services, running).await
}

async fn gateway_role(
    services: &Services,
    process: &ProcessArguments,
    config: GatewayConfig,
    stop: CancellationToken,
) -> Result<(), ExitError> {
    let (bus, health) = (services.bus.clone(), services.health.clone());
    let url = &process.servers.database_url;
    let store = mcp_role::scoped_store(services.store.clone(), url, config.http.access.insecure).await?;
    let serving = async {
        let served = gateway::run(config, bus, store, health, services.clock, stop).await;
        served.map_err(|error| ExitError::Configuration(error.to_string()))
    };
    while_partitions_stay(services, serving).await
}
