//! Composing the roles from their parts.

use std::net::SocketAddr;
use std::time::Duration;

use bus::{Bus, BusConfig, BusError, StreamOptions};
use gateway::{GatewayConfig, HttpLimits};
use model::PartitionCount;
use runtime::metrics::Recorder;
use runtime::shutdown::Cause;
use runtime::{Clock, Health, Shutdown, endpoint, spawn_named, telemetry};
use store::{Layout, MigrateError, Store, StoreConfig, StoreError, TenantScope};
use tokio_util::sync::CancellationToken;
use worker::WorkerConfig;

use crate::options::{
    All, Command, Gateway, GatewaySettings, Migrate, Nats, Options, Process, Servers, Streams, Worker,
    WorkerSettings,
};
use crate::{commands, workflow_role};

/// For load balancers to forget a gateway that is to stop.
const CLOSE_DELAY: Duration = Duration::from_secs(5);
/// How often a process that waits for the first migration looks again.
const UNMIGRATED: Duration = Duration::from_secs(2);

/// Why the process ends without having been asked to.
pub(crate) enum Stop {
    /// A person has to change something.
    Configuration(String),
    /// Something that it cannot do without has ended.
    Failed(String),
}

/// Runs one command to its end.
pub(crate) async fn run(options: Options) -> Result<(), Stop> {
    telemetry::init(&options.log.filter, options.log.format, &[bus::QUIET_LOGS, "sqlx=warn"])
        .map_err(|error| Stop::Configuration(error.to_string()))?;
    let role = match options.command {
        // What a signal ends at once: nothing of it is half done.
        Command::Batches(options) => return commands::run_batches(options).await,
        Command::Threads(options) => return commands::run_threads(options).await,
        Command::DeadLetters(options) => return commands::run_dead_letters(options).await,
        Command::Erase(options) => return commands::run_erase(options).await,
        Command::Keys(options) => return commands::run_keys(options).await,
        Command::Incidents(options) => return commands::run_incidents(options).await,
        role => role,
    };
    let shutdown = Shutdown::on_signals().map_err(|error| Stop::Failed(error.to_string()))?;
    let work = async {
        match role {
            Command::Migrate(options) => tokio::select! {
                migrated = migrate(&options) => migrated,
                () = shutdown.token().cancelled_owned() => {
                    Err(Stop::Failed("stopped before everything was up to date; run it again".to_owned()))
                }
            },
            Command::Worker(options) => run_worker(options, &shutdown).await,
            Command::Gateway(options) => run_gateway(options, &shutdown).await,
            Command::Workflow(options) => workflow_role::run(options, &shutdown).await,
            Command::All(options) => run_all(options, &shutdown).await,
            Command::Healthcheck(_)
            | Command::Batches(_)
            | Command::Threads(_)
            | Command::DeadLetters(_)
            | Command::Erase(_)
            | Command::Keys(_)
            | Command::Incidents(_) => Ok(()),
        }
    };
    work.await
}

async fn migrate(options: &Migrate) -> Result<(), Stop> {
    lay_out(&options.servers, &options.streams, options.partitions).await?;
    tracing::info!(partitions = options.partitions.get(), "tables and streams are up to date");
    Ok(())
}

async fn lay_out(servers: &Servers, streams: &Streams, partitions: PartitionCount) -> Result<(), Stop> {
    store::migrate(&servers.database_url, partitions).await?;
    let bus = Bus::connect(&bus_config(&servers.nats, "antiphon migrate")).await?;
    let options = StreamOptions {
        replicas: streams.stream_replicas.into(),
        max_bytes: streams.stream_max_bytes,
        ..StreamOptions::default()
    };
    Ok(bus.ensure_streams(partitions, &options).await?)
}

/// What every role stands on.
struct Ground {
    health: Health,
    clock: Clock,
    bus: Bus,
    store: Store,
    partitions: PartitionCount,
}

/// Serves metrics and probes at once, then waits for NATS and Postgres; `None` when it was told to stop meanwhile.
///
/// What the roles say of their own readiness counts as no from here on: a probe may come before they begin.
async fn ground(
    process: &Process,
    name: &str,
    conditions: &[&str],
    shutdown: &Shutdown,
) -> Result<Option<Ground>, Stop> {
    let health = Health::default();
    conditions.iter().for_each(|condition| health.set_ready(condition, false));
    health.set_ready("postgres", false);
    health.set_ready("nats", false);
    serve_metrics(process.metrics_addr, &health, shutdown).await?;
    let clock = Clock::start();
    let connect = async {
        let bus_config = bus_config(&process.servers.nats, name);
        let store_config = StoreConfig::new(&process.servers.database_url);
        // A wrong setting ends the start with one line: before anything is said of a server that is away.
        store_config.check()?;
        // The first error counts: a wrong setting of one is not to wait for the server of the other.
        let bus = async { Bus::connect(&bus_config).await.map_err(Stop::from) };
        let store = async { Store::connect(&store_config).await.map_err(Stop::from) };
        let (bus, store) = tokio::try_join!(bus, store)?;
        let partitions = stored_partitions(&store, &health).await?;
        health.set_ready("postgres", true);
        health.set_ready("nats", true);
        health.set_started();
        Ok::<_, Stop>(Ground { health, clock, bus, store, partitions })
    };
    tokio::select! {
        () = shutdown.token().cancelled_owned() => Ok(None),
        ground = connect => ground.map(Some),
    }
}

pub(crate) async fn serve_metrics(
    addr: SocketAddr,
    health: &Health,
    shutdown: &Shutdown,
) -> Result<(), Stop> {
    let recorder = Recorder::install().map_err(|error| Stop::Failed(error.to_string()))?;
    let listener = endpoint::bind(addr).await.map_err(|error| Stop::Configuration(error.to_string()))?;
    recorder.spawn_upkeep(shutdown.token());
    let router = endpoint::metrics_router(recorder, health.clone());
    // It goes on answering probes while the roles drain: the process ends with them.
    spawn_named("metrics", endpoint::serve(listener, router, CancellationToken::new()));
    Ok(())
}

/// The order of deployment does not matter: whoever comes before the migration of its version waits for it.
async fn stored_partitions(store: &Store, health: &Health) -> Result<PartitionCount, Stop> {
    let migrated = health.condition("database");
    let mut said = false;
    loop {
        let found = async { Ok((store.layout().await?, store.partition_count().await?)) }.await;
        match found {
            Ok((Layout::Enough, Some(partitions))) => return Ok(partitions),
            // The number is the last thing that a migration writes.
            Ok((Layout::Enough, None)) => {}
            Ok((Layout::Differs(migration), _)) => {
                return Err(Stop::Failed(format!(
                    "the database was laid out by another build (migration {migration} differs): it needs a new database"
                )));
            }
            Ok((layout @ (Layout::Nothing | Layout::Lacks(_)), _)) => {
                let older = if let Layout::Lacks(migration) = layout {
                    format!("it lacks migration {migration}")
                } else {
                    "it is not laid out yet".to_owned()
                };
                let why = format!("{older}: waiting for `antiphon migrate` of this version");
                if !std::mem::replace(&mut said, true) {
                    tracing::warn!("the database is not ready: {why}");
                }
                migrated.unmet(why);
            }
            Err(error) if StoreError::disposition(&error) == store::Disposition::Fatal => {
                return Err(error.into());
            }
            Err(error) => tracing::debug!(%error, "still waiting for Postgres"),
        }
        tokio::time::sleep(UNMIGRATED).await;
    }
}

async fn run_worker(options: Worker, shutdown: &Shutdown) -> Result<(), Stop> {
    let ground = ground(&options.process, "antiphon worker", &[], shutdown).await?;
    let Some(ground) = ground else { return Ok(()) };
    if let Some(wanted) = options.partitions {
        ground.store.check_partition_count(wanted).await?;
    }
    worker_role(&ground, &options.worker, shutdown.token()).await
}

async fn run_gateway(options: Gateway, shutdown: &Shutdown) -> Result<(), Stop> {
    let config = gateway_config(&options.gateway).await?;
    let ground = ground(&options.process, "antiphon gateway", &[gateway::READINESS], shutdown).await?;
    let Some(ground) = ground else { return Ok(()) };
    gateway_role(&ground, &options.process, config, shutdown.token()).await
}

/// The roles together; when one ends the others drain.
async fn run_all(options: All, shutdown: &Shutdown) -> Result<(), Stop> {
    let config = gateway_config(&options.gateway).await?;
    let workflow = match options.workflow.is_wanted() {
        true => Some(options.workflow.prepare().await?),
        false => None,
    };
    let migrated = tokio::select! {
        () = shutdown.token().cancelled_owned() => return Ok(()),
        migrated = lay_out(&options.process.servers, &options.streams, options.partitions) => migrated,
    };
    migrated?;
    let ground = ground(&options.process, "antiphon all", &[gateway::READINESS], shutdown).await?;
    let Some(ground) = ground else { return Ok(()) };
    let worker = async {
        let ended = worker_role(&ground, &options.worker, shutdown.token()).await;
        shutdown.trip(Cause::Internal);
        ended
    };
    let gateway = async {
        let ended = gateway_role(&ground, &options.process, config, shutdown.token()).await;
        shutdown.trip(Cause::Internal);
        ended
    };
    let workflow = async {
        let Some(prepared) = workflow else { return Ok(()) };
        let ended = prepared
            .serve(Some(ground.bus.clone()), ground.health.clone(), ground.clock, shutdown.token())
            .await;
        shutdown.trip(Cause::Internal);
        ended
    };
    let (worker, gateway, workflow) = tokio::join!(worker, gateway, workflow);
    worker.and(gateway).and(workflow)
}

async fn worker_role(
    ground: &Ground,
    settings: &WorkerSettings,
    stop: CancellationToken,
) -> Result<(), Stop> {
    let config = worker_config(settings, ground.partitions);
    tracing::info!(worker = config.worker_id, partitions = ground.partitions.get(), "worker starting");
    let (bus, store, health) = (ground.bus.clone(), ground.store.clone(), ground.health.clone());
    worker::run(config, bus, store, health, ground.clock, stop)
        .await
        .map_err(|error| Stop::Failed(error.to_string()))
}

fn worker_config(settings: &WorkerSettings, partitions: PartitionCount) -> WorkerConfig {
    let worker_id =
        settings.worker_id.clone().unwrap_or_else(|| format!("w-{}", uuid::Uuid::now_v7().simple()));
    let mut config = WorkerConfig::new(worker_id, partitions, settings.default_workflow.clone());
    let ms = |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    config.lease = settings.lease_ttl_seconds;
    config.create_threads = settings.auto_create_threads;
    config.open_messages = settings.max_open_messages as usize;
    config.buffer_bytes = usize::try_from(settings.max_buffer_bytes).unwrap_or(usize::MAX);
    config.chunk_bytes = settings.max_chunk_bytes as usize;
    config.writers = settings.commit_connections.into();
    config.purge_tail = settings.stream_retain_seconds;
    config.keep_keys = settings.idempotency_key_ttl_seconds;
    config.keep = settings.keep.config();
    config.retention_every = settings.retention_interval_seconds;
    config.rules.deadline_ms = ms(settings.turn_deadline_seconds);
    config.rules.backoff_base_ms = ms(settings.backoff_base_seconds);
    config.rules.backoff_cap_ms = ms(settings.backoff_cap_seconds);
    config.limits.create_agents = settings.auto_create_agents;
    config.limits.active_turns = settings.max_active_turns_per_partition as usize;
    config.limits.gap_timeout_ms = ms(settings.gap_timeout_seconds);
    config.limits.stall_timeout_ms = ms(settings.stall_timeout_seconds);
    config.limits.straggler_ms = ms(settings.spill_after_seconds);
    config.limits.chunks_per_message = settings.max_chunks_per_message;
    config.limits.message_bytes = settings.max_message_bytes as usize;
    config
}

async fn gateway_config(settings: &GatewaySettings) -> Result<GatewayConfig, Stop> {
    let mut config = GatewayConfig::new(settings.http_addr, settings.access.config().await?);
    let http = &settings.http;
    config.limits.connections = http.max_connections as usize;
    config.limits.lag_bytes = http.subscriber_buffer_bytes as usize;
    config.limits.http = HttpLimits {
        connections_per_peer: http.max_connections_per_ip as usize,
        head_timeout: http.header_timeout_seconds,
        idle_timeout: http.idle_timeout_seconds,
        body_timeout: http.body_timeout_seconds,
        write_timeout: http.write_timeout_seconds,
        // Nothing balances between the addresses of one machine.
        close_delay: http.http_close_delay_seconds.unwrap_or(match settings.http_addr.ip().is_loopback() {
            true => Duration::ZERO,
            false => CLOSE_DELAY,
        }),
        drain: http.http_drain_seconds,
    };
    config.check().map_err(|error| Stop::Configuration(error.to_string()))?;
    Ok(config)
}

async fn gateway_role(
    ground: &Ground,
    process: &Process,
    config: GatewayConfig,
    stop: CancellationToken,
) -> Result<(), Stop> {
    let (bus, health) = (ground.bus.clone(), ground.health.clone());
    let store = match config.access.insecure {
        true => ground.store.clone(),
        // Sessions that see nothing unless a request says for whom it reads.
        false => {
            let tenant_scope = TenantScope::Nothing;
            Store::connect(&StoreConfig { tenant_scope, ..StoreConfig::new(&process.servers.database_url) })
                .await?
        }
    };
    let served = gateway::run(config, bus, store, health, ground.clock, stop).await;
    served.map_err(|error| Stop::Configuration(error.to_string()))
}

pub(crate) fn bus_config(nats: &Nats, name: &str) -> BusConfig {
    BusConfig {
        credentials_file: nats.nats_credentials.clone(),
        nkey_seed_file: nats.nats_nkey.clone(),
        root_certificates: nats.nats_ca.clone(),
        inbox_prefix: nats.nats_inbox_prefix.clone(),
        ..BusConfig::new(&nats.nats_url, name)
    }
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Url(_)
            | StoreError::Refused(_)
            | StoreError::Pooler(_)
            | StoreError::PartitionCount { .. } => Self::Configuration(error.to_string()),
            error => Self::Failed(error.to_string()),
        }
    }
}

impl From<MigrateError> for Stop {
    fn from(error: MigrateError) -> Self {
        match error {
            MigrateError::Store(error) => error.into(),
            error => Self::Failed(error.to_string()),
        }
    }
}

impl From<BusError> for Stop {
    fn from(error: BusError) -> Self {
        match error {
            BusError::Config(_) => Self::Configuration(error.to_string()),
            error => Self::Failed(error.to_string()),
        }
    }
}
