//! Latency from publish to client, compared with core NATS and with a minimal relay from a stream
//! to clients. All use the same payloads at the same rate, sent and received by the same two
//! threads of this process.
//!
//! Every payload contains its send time by this process's clock, and its number in its thread. So
//! latency needs no second clock, and losses and repeats are detected.

mod core;
pub(super) mod load;
mod publisher;
mod recorder;
mod relay;
mod subscribers;

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::AtomicBool},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow};
use tokio::net::TcpListener;

use self::{
    load::{LatencyLoad, PathTiming, WARM_UP},
    recorder::Board,
};
use crate::{
    environment::ChunkEnvironment,
    usage::{self, Meter},
};
use testkit::fleet::Fleet;

/// Maximum time to wait for the last chunks.
const TAIL: Duration = Duration::from_secs(15);
/// Time to wait after subscribers have their response heads, because gateways are still subscribing
/// then.
const SETTLE: Duration = Duration::from_secs(2);

/// The results of all routes.
#[derive(Debug, Clone)]
pub(super) struct Latency {
    pub(super) core: PathTiming,
    pub(super) relay: PathTiming,
    pub(super) fleet: PathTiming,
    /// Resident bytes of the worker and the gateway after the warm-up, in the middle and at the
    /// end.
    pub(super) worker_memory: Vec<u64>,
    pub(super) gateway_memory: Vec<u64>,
}

/// A route from the publisher to clients.
#[derive(Debug, Clone, Copy)]
enum Route {
    Core,
    Relay,
    Fleet(SocketAddr),
}

/// Measures core NATS and the relay, then a worker and a gateway. These two run idle from the
/// beginning.
pub(super) async fn measure(environment: &ChunkEnvironment, load: LatencyLoad) -> Result<Latency> {
    let database = environment.database().await?;
    let fleet = Fleet::start(environment.fleet(database.url(), 1, 1)).await?;
    let processes = [fleet.workers.first(), fleet.gateways.first()].map(|it| it.and_then(|it| it.pid()));
    let [Some(worker), Some(gateway)] = processes else { return Err(anyhow!("the fleet has ended")) };
    let mut watched = environment.processes();
    watched.extend([("worker", worker), ("gateway", gateway)]);

    let (core, _) = run(environment, load, Route::Core, &watched).await?;
    relay::prepare(&environment.nats.url()).await?;
    let (relay, _) = run(environment, load, Route::Relay, &watched).await?;
    let addr = fleet.gateway_addrs().first().copied().context("no gateway")?;
    let outcome = run(environment, load, Route::Fleet(addr), &watched).await;
    let (timed, memory) = outcome.inspect_err(|_| eprintln!("{}", fleet.log_tails()))?;
    let of = |pid: u32| memory.iter().filter(|(it, _)| *it == pid).map(|(_, bytes)| *bytes).collect();
    Ok(Latency { core, relay, fleet: timed, worker_memory: of(worker), gateway_memory: of(gateway) })
}

async fn run(
    environment: &ChunkEnvironment,
    load: LatencyLoad,
    route: Route,
    watched: &[(&'static str, u32)],
) -> Result<(PathTiming, Vec<(u32, u64)>)> {
    let board = Arc::new(Board::new(load.streams, WARM_UP));
    let stop = Arc::new(AtomicBool::new(false));
    let nats_url = environment.nats.url();
    let relay = TcpListener::bind("127.0.0.1:0").await?;
    let relay_addr = relay.local_addr()?;
    let relaying = match route {
        Route::Relay => {
            let (stop, url, relay) = (Arc::clone(&stop), nats_url.clone(), relay.into_std()?);
            Some(on_a_thread("relay", async move {
                relay::run(&url, TcpListener::from_std(relay)?, load.streams, &stop).await
            })?)
        }
        Route::Core | Route::Fleet(_) => None,
    };
    let receiving = {
        let (board, stop, url) = (Arc::clone(&board), Arc::clone(&stop), nats_url.clone());
        on_a_thread("receivers", async move {
            match route {
                Route::Fleet(addr) => subscribers::receive(addr, load.streams, &board, &stop).await,
                Route::Relay => relay::receive(relay_addr, load.streams, &board, &stop).await,
                Route::Core => core::receive(&url, &board, &stop).await,
            }
        })?
    };
    board.wait_attached(TAIL).await?;
    tokio::time::sleep(SETTLE).await;
    let sending = {
        let (board, url) = (Arc::clone(&board), nats_url);
        let target = match route {
            Route::Core => publisher::Target::Core,
            Route::Relay => publisher::Target::Relay,
            Route::Fleet(_) => publisher::Target::Stream,
        };
        on_a_thread("publisher", async move { publisher::publish(&url, target, load, &board).await })?
    };
    tokio::time::sleep(WARM_UP).await;
    let meter = Meter::start(watched);
    let memory = sample_memory(load.duration, watched).await;
    let used = meter.used();
    let sent = join(sending).await?;
    board.wait_received(sent.chunks, TAIL).await;
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    join(receiving).await?;
    if let Some(relaying) = relaying {
        join(relaying).await?;
    }
    Ok((board.timed(sent, used), memory))
}

/// Samples resident bytes at the beginning, in the middle and at the end of `duration`.
async fn sample_memory(duration: Duration, watched: &[(&'static str, u32)]) -> Vec<(u32, u64)> {
    let started = Instant::now();
    let mut samples = Vec::new();
    for part in [0.0, 0.5, 1.0] {
        tokio::time::sleep(duration.mul_f64(part).saturating_sub(started.elapsed())).await;
        samples.extend(watched.iter().map(|(_, pid)| (*pid, usage::resident(*pid))));
    }
    samples
}

/// Runs a future on its own thread and runtime, because sending and receiving must not wait for
/// each other.
fn on_a_thread<T: Send + 'static>(
    name: &str,
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<thread::JoinHandle<Result<T>>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(thread::Builder::new().name(name.to_owned()).spawn(move || runtime.block_on(work))?)
}

async fn join<T: Send + 'static>(handle: thread::JoinHandle<Result<T>>) -> Result<T> {
    let joined = tokio::task::spawn_blocking(move || handle.join()).await?;
    joined.map_err(|_| anyhow!("a thread of the bench panicked"))?
}
