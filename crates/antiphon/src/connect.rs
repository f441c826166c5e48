//! Connects a process to its servers and serves its metrics.

use std::net::SocketAddr;
use std::time::Duration;

use bus::{Bus, BusConfig, BusError, StreamOptions, StreamOwner};
use model::PartitionCount;
use runtime::metrics::Recorder;
use runtime::{Backoff, Clock, Health, Shutdown, endpoint, retry, spawn_named};
use store::{Disposition, Layout, Store, StoreConfig, StoreError, VectorTables, lay_out_vectors};
use tokio_util::sync::CancellationToken;

use crate::exit::ExitError;
use crate::mapping;
use crate::options::{EmbeddingsArguments, NatsArguments, ProcessArguments, Servers, StreamArguments};

/// Interval of checks while a process waits for the first migration.
const MIGRATION_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Interval at which a role checks that the number of partitions is unchanged. `antiphon partitions
/// change` keeps the streams closed for longer, so that no process addresses them by the old
/// number.
const PARTITIONS_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// Number of these checks after which a role also checks that its streams are still its own.
const INSTALLATION_CHECK_ROUNDS: u32 = 5;

/// Which streams a migration accepts as those of its database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StreamClaim {
    /// Streams with its id, and streams without an id.
    Own,
    /// Also streams of another installation.
    Adopt,
    /// Like `Own`, but the database first gets a new id.
    NewInstallation,
}

/// Creates or updates the tables and the streams.
pub(crate) async fn migrate_all(
    servers: &Servers,
    streams: &StreamArguments,
    partitions: PartitionCount,
    embeddings: &EmbeddingsArguments,
    claim: StreamClaim,
) -> Result<(), ExitError> {
    let embeddings = embeddings.config()?;
    store::migrate(&servers.database_url, partitions).await?;
    if let Some(embeddings) = embeddings {
        migrate_vectors(&servers.database_url, &embeddings.vectors_of()).await?;
    }
    let bus = Bus::connect(&bus_config(&servers.nats, "antiphon migrate")).await?;
    let store = Store::connect(&StoreConfig::new(&servers.database_url)).await?;
    if claim == StreamClaim::NewInstallation {
        store.renew_installation_id().await?;
    }
    let id = store.installation_id().await?;
    let owner = match claim {
        StreamClaim::Own | StreamClaim::NewInstallation => StreamOwner::Installation(id),
        StreamClaim::Adopt => StreamOwner::Adopted(id),
    };
    let options = StreamOptions {
        replicas: streams.stream_replicas.into(),
        max_bytes: streams.stream_max_bytes,
        owner,
        ..StreamOptions::default()
    };
    bus.ensure_streams(partitions, &options).await?;
    for workflow in &streams.workflows {
        bus.ensure_workflow_consumer(workflow).await?;
    }
    for integrator in &streams.integrators {
        bus.ensure_integrator_consumer(integrator).await?;
    }
    match mapping::check(&bus, partitions).await {
        Ok(None) => {}
        Ok(Some(wrong)) => tracing::warn!("{wrong}"),
        Err(error) => tracing::debug!(%error, "the mapping of the NATS account could not be checked"),
    }
    Ok(())
}

/// Memory works without vectors, so a database that cannot have them only causes a warning.
async fn migrate_vectors(database_url: &str, vectors_of: &str) -> Result<(), ExitError> {
    match lay_out_vectors(database_url, vectors_of).await? {
        VectorTables::Ready => {}
        VectorTables::Made => {
            tracing::info!(model = vectors_of, "workers make the vectors of all facts from now on");
        }
        VectorTables::Unavailable(why) => tracing::warn!(
            "memory is searched by words alone, for Postgres has no vectors ({why}): install pgvector 0.7 or newer, have a superuser run \
             CREATE EXTENSION vector in the database, then run `antiphon migrate` again"
        ),
    }
    Ok(())
}

/// The connected services of a process.
pub(crate) struct Services {
    pub(crate) health: Health,
    pub(crate) clock: Clock,
    pub(crate) bus: Bus,
    pub(crate) store: Store,
    pub(crate) partitions: PartitionCount,
}

/// Serves metrics and probes at once, then waits for NATS and Postgres. Returns `None` if a
/// shutdown begins meanwhile.
///
/// The readiness conditions of the roles are unmet from here on, because a probe may come before
/// the roles start. With `layout`, tables and streams are created or updated first.
pub(crate) async fn connect_services(
    process: &ProcessArguments,
    name: &str,
    conditions: &[&str],
    layout: Option<(&StreamArguments, PartitionCount, &EmbeddingsArguments)>,
    shutdown: &Shutdown,
) -> Result<Option<Services>, ExitError> {
    let health = Health::default();
    conditions.iter().for_each(|condition| health.set_ready(condition, false));
    health.set_ready("postgres", false);
    health.set_ready("nats", false);
    serve_metrics(process.metrics.metrics_addr, name, &health, shutdown).await?;
    let clock = Clock::start();
    let connect = async {
        let bus_config = bus_config(&process.servers.nats, name);
        let store_config = StoreConfig::new(&process.servers.database_url);
        // Checked first, so that a wrong setting stops the start with one line even if a server is
        // unavailable.
        store_config.check()?;
        if let Some((streams, partitions, embeddings)) = layout {
            migrate_all(&process.servers, streams, partitions, embeddings, StreamClaim::Own).await?;
        }
        // The first error ends the start: a wrong setting of one server must not wait for the other
        // server.
        let bus = async { Bus::connect(&bus_config).await.map_err(ExitError::from) };
        let store = async { Store::connect(&store_config).await.map_err(ExitError::from) };
        let (bus, store) = tokio::try_join!(bus, store)?;
        let partitions = stored_partitions(&store, &health).await?;
        check_partitions(&store, partitions).await?;
        check_installation(&bus, &store, partitions).await?;
        spawn_named("nats failover", bus.clone().leave_isolated_servers());
        let weak = until_answered("reading the settings of Postgres", || store.weak_commits()).await?;
        if let Some(why) = weak {
            tracing::warn!("{why}");
        }
        health.set_ready("postgres", true);
        health.set_ready("nats", true);
        health.set_started();
        Ok::<_, ExitError>(Services { health, clock, bus, store, partitions })
    };
    tokio::select! {
        () = shutdown.token().cancelled_owned() => Ok(None),
        services = connect => services.map(Some),
    }
}

/// Serves metrics and probes until the process ends. `name` is that of the binary, a space, and the
/// role.
pub(crate) async fn serve_metrics(
    addr: SocketAddr,
    name: &str,
    health: &Health,
    shutdown: &Shutdown,
) -> Result<(), ExitError> {
    let recorder = Recorder::install().map_err(|error| ExitError::Failed(error.to_string()))?;
    let (version, revision) = (env!("CARGO_PKG_VERSION"), env!("BUILD_REVISION"));
    runtime::metrics::set_build_info(version, revision, name.trim_start_matches("antiphon "));
    runtime::traces::describe_metrics();
    let listener = endpoint::bind(addr).await.map_err(|error| {
        ExitError::Configuration(format!("{error}; set ANTIPHON_METRICS_ADDR to another address"))
    })?;
    recorder.spawn_upkeep(shutdown.token());
    let router = endpoint::metrics_router(recorder, health.clone());
    // The endpoint is never cancelled, so that it answers probes while the roles drain. It ends
    // with the process.
    spawn_named("metrics", endpoint::serve(listener, router, CancellationToken::new()));
    Ok(())
}

/// Waits for the migration of this version, so that the order of deployment does not matter.
pub(crate) async fn stored_partitions(store: &Store, health: &Health) -> Result<PartitionCount, ExitError> {
    let migrated = health.condition("database");
    let mut said = false;
    loop {
        let found = async { Ok((store.layout().await?, store.partition_count().await?)) }.await;
        match found {
            Ok((Layout::Enough, Some(partitions))) => return Ok(partitions),
            // A migration writes the number last.
            Ok((Layout::Enough, None)) => {}
            Ok((Layout::Differs(migration), _)) => {
                return Err(ExitError::Failed(format!(
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
            Err(error)
                if !matches!(
                    StoreError::disposition(&error),
                    Disposition::Retry | Disposition::Unknown | Disposition::TooSlow
                ) =>
            {
                return Err(error.into());
            }
            Err(error) => tracing::debug!(%error, "still waiting for Postgres"),
        }
        tokio::time::sleep(MIGRATION_CHECK_INTERVAL).await;
    }
}

/// Fails when the fleet has another number of partitions.
pub(crate) async fn check_partitions(store: &Store, wanted: PartitionCount) -> Result<(), ExitError> {
    until_answered("reading the number of partitions", || store.check_partition_count(wanted)).await
}

/// Fails when the streams belong to another installation. A fleet that used them would answer and
/// store requests to that installation.
pub(crate) async fn check_installation(
    bus: &Bus,
    store: &Store,
    partitions: PartitionCount,
) -> Result<(), ExitError> {
    let ours = until_answered("reading the id of the installation", || store.installation_id()).await?;
    Ok(until_bus_answers(|| bus.check_installation(&ours, partitions)).await?)
}

/// Like [`check_installation`], for a process without a database, which has the id from its
/// settings.
pub(crate) async fn check_work_installation(bus: &Bus, ours: &str) -> Result<(), ExitError> {
    let stream = wire::subject::WORK_STREAM;
    Ok(until_bus_answers(|| bus.check_stream_installation(stream, ours)).await?)
}

async fn until_bus_answers<F: Future<Output = Result<(), BusError>>>(
    mut ask: impl FnMut() -> F,
) -> Result<(), BusError> {
    retry(Backoff::default(), "asking whose streams these are", || {
        let asked = ask();
        async {
            match asked.await {
                Err(error) if error.disposition() == bus::Disposition::Retry => Err(error),
                answer => Ok(answer),
            }
        }
    })
    .await
}

/// Retries until Postgres answers; an error that a retry cannot solve is returned. `what` is for
/// the log.
async fn until_answered<T, F: Future<Output = Result<T, StoreError>>>(
    what: &'static str,
    mut ask: impl FnMut() -> F,
) -> Result<T, ExitError> {
    let answer = retry(Backoff::default(), what, || {
        let asked = ask();
        async {
            match asked.await {
                Err(error) if error.disposition() == Disposition::Retry => Err(error),
                answer => Ok(answer),
            }
        }
    });
    Ok(answer.await?)
}

/// Runs a role and checks regularly that the number of partitions is unchanged and that the streams
/// are still its own. Otherwise the role is cancelled.
pub(crate) async fn while_partitions_stay(
    services: &Services,
    role: impl Future<Output = Result<(), ExitError>>,
) -> Result<(), ExitError> {
    let changed = async {
        for round in 1_u32.. {
            tokio::time::sleep(PARTITIONS_CHECK_INTERVAL).await;
            if round % INSTALLATION_CHECK_ROUNDS == 0
                && let Ok(ours) = services.store.installation_id().await
                && let Err(error @ BusError::OtherInstallation { .. }) =
                    services.bus.check_stream_installation(wire::subject::WORK_STREAM, &ours).await
            {
                return Err(error.into());
            }
            let checked = services.store.check_partition_count(services.partitions).await;
            if let Err(error @ (StoreError::PartitionsChanging { .. } | StoreError::PartitionCount { .. })) =
                checked
            {
                return Err(error.into());
            }
        }
        Ok(())
    };
    tokio::select! {
        ended = role => ended,
        changed = changed => changed,
    }
}

/// Connects a command to NATS. Fails if NATS does not answer within `timeout`, or if the streams
/// are not those of this database.
pub(crate) async fn connect_own_bus(
    store: &Store,
    nats: &NatsArguments,
    name: &str,
    timeout: Duration,
) -> Result<Bus, ExitError> {
    let config = bus_config(nats, name);
    let silent = || ExitError::Failed(format!("NATS does not answer within {} s", timeout.as_secs()));
    let bus = tokio::time::timeout(timeout, Bus::connect(&config)).await.map_err(|_| silent())??;
    let count = store.partition_count().await?;
    let count = count.ok_or_else(|| ExitError::Failed("the database is not laid out".to_owned()))?;
    let ours = store.installation_id().await?;
    tokio::time::timeout(timeout, bus.check_installation(&ours, count)).await.map_err(|_| silent())??;
    Ok(bus)
}

pub(crate) fn bus_config(nats: &NatsArguments, name: &str) -> BusConfig {
    BusConfig {
        credentials_file: nats.nats_credentials.clone(),
        nkey_seed_file: nats.nats_nkey.clone(),
        root_certificates: nats.nats_ca.clone(),
        client_certificate: nats.nats_certificate.clone().zip(nats.nats_certificate_key.clone()),
        inbox_prefix: nats.nats_inbox_prefix.clone(),
        ..BusConfig::new(&nats.nats_url, name)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn postgres_that_goes_away_during_a_start_is_waited_for() {
        let asked = Cell::new(0);
        let ask = |then: fn() -> Result<u8, StoreError>| {
            let asked = &asked;
            move || {
                asked.set(asked.get() + 1);
                let first = asked.get() < 4;
                async move { if first { Err(StoreError::TimedOut) } else { then() } }
            }
        };
        assert!(matches!(until_answered("asking", ask(|| Ok(7))).await, Ok(7)));
        assert_eq!(asked.replace(0), 4);
        let fatal = || Err(StoreError::PartitionCount { stored: 8, wanted: 4 });
        assert!(until_answered("asking", ask(fatal)).await.is_err());
        assert_eq!(asked.get(), 4);
    }
}
