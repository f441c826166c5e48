//! The measurements, each of one server with one load.

use std::{
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow};
use tokio::time::sleep;

use super::{
    super::usage::{self, Meter, Used},
    cores,
    counters::Tally,
    load::SteadyLoad,
    publisher::{Publisher, Supply},
    round::SseRound,
    servers::{Running, Servers},
    subscribers::{ViewerCommand, ViewerPlan, Viewers},
    target::ServerKind,
    timestamped_payload::Watch,
};

/// Number of chunks per message of Antiphon. The other servers have no messages.
const MESSAGE_CHUNKS: u32 = 150;
/// Maximum time to wait for the last events.
const TAIL: Duration = Duration::from_secs(20);
/// Time to wait after subscribers have their response heads, because the gateway still subscribes
/// and reads the store then.
const SETTLE: Duration = Duration::from_secs(2);
/// Pause between bursts, so that a thread's events are sent within a millisecond of when they are
/// due.
const PAUSE: Duration = Duration::from_millis(1);
const MEMORY_EVERY: Duration = Duration::from_millis(500);
/// Numbers of events of a thread in a storm: before its subscribers are disconnected, while they
/// are disconnected, and after they have reconnected.
pub(super) const STORM: [u32; 3] = [20, 200, 10];
/// Number of events that are published to a thread in a storm before the next thread's turn.
const STORM_BURST: u32 = 10;
/// Rate in events per second that every server can handle. It determines how long to wait for
/// events sent while the subscribers were disconnected.
const STORM_RATE: f64 = 20_000.0;
const STORM_LIMIT: Duration = Duration::from_secs(120);

/// A server, and its memory before the first connection.
struct MeasuredServer {
    running: Running,
    watch: Watch,
    resident: u64,
}

impl MeasuredServer {
    async fn set(servers: &mut Servers, kind: ServerKind, threads: usize) -> Result<Self> {
        let running = servers.start(kind, threads).await?;
        sleep(SETTLE / 2).await;
        let resident = usage::resident_of_all(running.server);
        Ok(Self { running, watch: Watch::start(), resident })
    }

    async fn viewers(&self, places: Vec<ViewerPlan>) -> Result<Viewers> {
        let (fast, slow) = (Tally::new(self.watch), Tally::new(self.watch));
        let viewers = Viewers::bring(&self.running.target, places, fast, slow).await?;
        sleep(SETTLE).await;
        Ok(viewers)
    }

    fn meter(&self) -> Meter {
        let mut watched = vec![("server", self.running.server)];
        watched.extend(&self.running.others);
        Meter::start(&watched)
    }

    fn resident_per(&self, viewers: usize) -> f64 {
        let grown = usage::resident_of_all(self.running.server).saturating_sub(self.resident);
        grown as f64 / viewers as f64
    }
}

/// Publishes steadily and measures the delivery to subscribers.
pub(super) async fn stream(servers: &mut Servers, kind: ServerKind, load: SteadyLoad) -> Result<SseRound> {
    let server = MeasuredServer::set(servers, kind, load.threads).await?;
    let place = |number: usize| ViewerPlan {
        thread: number % load.threads,
        is_slow: load.slow_every.is_some_and(|every| number % every == every - 1),
    };
    let mut viewers = server.viewers((0..load.viewers).map(place).collect()).await?;
    let publishing = publish(&server, load)?;
    sleep(load.warm_up).await;
    viewers.fast.time_from_now();
    let (meter, before) = (server.meter(), viewers.fast.counts());
    let slow_before = viewers.slow.counts();
    let memory = memory_during(server.running.server, load.duration).await;
    let (used, during) = (meter.used(), viewers.fast.counts().since(before));
    let slow_during = viewers.slow.counts().since(slow_before);
    let resident = server.resident_per(viewers.count());
    let PublishedCounts { by_thread, rate } = join(publishing).await?;
    let cuts = server.running.cuts().await?.unwrap_or(viewers.slow.counts().ends);
    viewers.order(ViewerCommand::Hurry);
    viewers.until_complete(1.0, &by_thread, TAIL).await?;
    let latency = viewers.fast.latency();
    let (fast, slow) = (viewers.fast.counts(), viewers.slow.counts());
    let events = during.events + slow_during.events;
    let per = |total: u64, count: u64| total as f64 / count.max(1) as f64;
    let published = (rate * used.seconds) as u64;
    Ok(SseRound {
        events,
        rate,
        server_us: us(&used, "server", events),
        ingest_us: shares(&server.running, &used, published),
        p50_ms: latency.p50,
        p99_ms: latency.p99,
        p999_ms: latency.p999,
        events_per_read: per(during.events, during.reads),
        bytes_per_event: per(during.bytes, during.events),
        resident_per_viewer: resident,
        lost: viewers.missing(&by_thread) + fast.skipped + slow.skipped,
        repeated: fast.repeated + slow.repeated,
        ends: fast.ends,
        cuts,
        memory_slope: slope(&memory),
        memory_grown: grown(&memory),
        foreign_cores: used.foreign_cores,
        ..SseRound::default()
    })
}

/// Disconnects all subscribers at once, publishes in the meantime, and lets all reconnect at once.
pub(super) async fn storm(
    servers: &mut Servers,
    kind: ServerKind,
    threads: usize,
    viewers: usize,
) -> Result<SseRound> {
    let server = MeasuredServer::set(servers, kind, threads).await?;
    let place = |number: usize| ViewerPlan { thread: number % threads, is_slow: false };
    let mut viewers = server.viewers((0..viewers).map(place).collect()).await?;
    let [before, behind, after] = STORM;
    // The message ends with the last event of all, so that all subscribers are disconnected in the
    // middle of the message.
    let supply = Supply { threads, bytes: 100, message_chunks: before + behind + after, is_staggered: false };
    let target = &server.running.target;
    let mut outlet = Publisher::connect(target, &server.running.nats_url, supply, server.watch).await?;
    let sent = send_all(&mut outlet, threads, before).await?;
    anyhow::ensure!(viewers.until_complete(1.0, &sent, TAIL).await?, "the first events do not arrive");

    viewers.order(ViewerCommand::Leave);
    viewers.until_attached(0).await?;
    let sent = send_all(&mut outlet, threads, behind).await?;
    let absent: u32 = sent.iter().sum();
    sleep(SETTLE + Duration::from_secs_f64(f64::from(absent) / STORM_RATE)).await;
    let (meter, began) = (server.meter(), viewers.fast.counts());
    let begun = Instant::now();
    viewers.order(ViewerCommand::Follow);
    let is_half = viewers.until_complete(0.5, &sent, STORM_LIMIT).await?;
    let half = begun.elapsed();
    let is_whole = is_half && viewers.until_complete(1.0, &sent, STORM_LIMIT).await?;
    let whole = begun.elapsed();
    let (used, during) = (meter.used(), viewers.fast.counts().since(began));

    let sent = send_all(&mut outlet, threads, after).await?;
    viewers.until_complete(1.0, &sent, TAIL).await?;
    let counts = viewers.fast.counts();
    Ok(SseRound {
        events: during.events,
        server_us: us(&used, "server", during.events),
        ingest_us: shares(&server.running, &used, during.events),
        half_ms: half.as_secs_f64() * 1e3,
        whole_ms: if is_whole { whole.as_secs_f64() * 1e3 } else { f64::INFINITY },
        events_per_read: during.events as f64 / during.reads.max(1) as f64,
        bytes_per_event: during.bytes as f64 / during.events.max(1) as f64,
        lost: viewers.missing(&sent) + counts.skipped,
        repeated: counts.repeated,
        ends: counts.ends,
        foreign_cores: used.foreign_cores,
        ..SseRound::default()
    })
}

/// Measures subscribers that receive only heartbeats.
pub(super) async fn idle(
    servers: &mut Servers,
    kind: ServerKind,
    threads: usize,
    viewers: usize,
    duration: Duration,
) -> Result<SseRound> {
    let files = if kind == ServerKind::Durable { viewers + threads } else { viewers };
    cores::allow_files(files as u64 + 1_000)?;
    let server = MeasuredServer::set(servers, kind, threads).await?;
    let slab = cores::slab_bytes();
    let place = |number: usize| ViewerPlan { thread: number % threads, is_slow: false };
    let viewers = server.viewers((0..viewers).map(place).collect()).await?;
    sleep(SETTLE).await;
    let count = viewers.count();
    let kernel = slab.zip(cores::slab_bytes()).map(|(before, now)| now.saturating_sub(before));
    let resident = server.resident_per(count);
    let meter = server.meter();
    sleep(duration).await;
    let used = meter.used();
    let of_server = used.processes.first().map_or(Duration::ZERO, |(_, used)| *used);
    Ok(SseRound {
        resident_per_viewer: resident,
        kernel_per_viewer: kernel.map(|bytes| bytes as f64 / count as f64),
        idle_cores: of_server.as_secs_f64() / used.seconds,
        ends: viewers.fast.counts().ends,
        foreign_cores: used.foreign_cores,
        ..SseRound::default()
    })
}

struct PublishedCounts {
    by_thread: Vec<u32>,
    /// Measured events per second.
    rate: f64,
}

/// Runs a publisher on its own thread and runtime, because sending must not wait for receiving.
fn publish(server: &MeasuredServer, load: SteadyLoad) -> Result<thread::JoinHandle<Result<PublishedCounts>>> {
    let supply = Supply {
        threads: load.threads,
        bytes: load.bytes,
        message_chunks: MESSAGE_CHUNKS,
        is_staggered: true,
    };
    let (target, nats_url) = (server.running.target.clone(), server.running.nats_url.clone());
    let watch = server.watch;
    let publishing = async move {
        let mut outlet = Publisher::connect(&target, &nats_url, supply, watch).await?;
        let per_second = load.rate * load.threads as f64 / f64::from(load.burst);
        let (begun, lasting) = (Instant::now(), load.warm_up + load.duration);
        let mut bursts = 0_u64;
        while begun.elapsed() < lasting {
            let due = (begun.elapsed().as_secs_f64() * per_second) as u64;
            while bursts < due {
                outlet.send((bursts % load.threads as u64) as usize, load.burst).await?;
                bursts += 1;
            }
            outlet.flush().await?;
            sleep(PAUSE).await;
        }
        let seconds = begun.elapsed().as_secs_f64();
        let rate = (bursts * u64::from(load.burst)) as f64 / seconds;
        Ok(PublishedCounts { by_thread: outlet.settle().await?, rate })
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(thread::Builder::new().name("publisher".to_owned()).spawn(move || runtime.block_on(publishing))?)
}

async fn join<T: Send + 'static>(handle: thread::JoinHandle<Result<T>>) -> Result<T> {
    let joined = tokio::task::spawn_blocking(move || handle.join()).await?;
    joined.map_err(|_| anyhow!("the publisher panicked"))?.context("publishing")
}

/// Sends `count` events of each thread, in bursts, all threads in turn.
async fn send_all(outlet: &mut Publisher, threads: usize, count: u32) -> Result<Vec<u32>> {
    for _ in 0..count / STORM_BURST {
        for thread in 0..threads {
            outlet.send(thread, STORM_BURST).await?;
            if thread % 10 == 9 {
                outlet.flush().await?;
            }
        }
        outlet.flush().await?;
    }
    outlet.settle().await
}

/// Samples of a server's resident bytes, with the seconds since the beginning.
async fn memory_during(server: u32, duration: Duration) -> Vec<(f64, u64)> {
    let begun = Instant::now();
    let mut samples = Vec::new();
    loop {
        samples.push((begun.elapsed().as_secs_f64(), usage::resident_of_all(server)));
        let left = duration.saturating_sub(begun.elapsed());
        if left.is_zero() {
            return samples;
        }
        sleep(left.min(MEMORY_EVERY)).await;
    }
}

/// Growth in bytes per second, computed by least squares.
fn slope(samples: &[(f64, u64)]) -> f64 {
    let count = samples.len() as f64;
    let (at, bytes) = samples.iter().fold((0.0, 0.0), |(x, y), (at, bytes)| (x + at, y + *bytes as f64));
    let (at, bytes) = (at / count, bytes / count);
    let (over, under) = samples.iter().fold((0.0, 0.0), |(over, under), (x, y)| {
        (over + (x - at) * (*y as f64 - bytes), under + (x - at) * (x - at))
    });
    if under > 0.0 { over / under } else { 0.0 }
}

/// The largest sample minus the first one.
fn grown(samples: &[(f64, u64)]) -> u64 {
    let largest = samples.iter().map(|(_, bytes)| *bytes).max().unwrap_or_default();
    largest - samples.first().map_or(largest, |(_, bytes)| *bytes)
}

fn us(used: &Used, name: &str, count: u64) -> f64 {
    let time = used.processes.iter().filter(|(it, _)| *it == name).map(|(_, time)| time.as_secs_f64());
    time.sum::<f64>() * 1e6 / count.max(1) as f64
}

fn shares(running: &Running, used: &Used, published: u64) -> Vec<(&'static str, f64)> {
    running.others.iter().map(|(name, _)| (*name, us(used, name, published))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slopes_are_in_bytes_a_second() {
        let growing: Vec<(f64, u64)> = (0..10).map(|at| (f64::from(at) / 2.0, 100 + 7 * at as u64)).collect();
        assert!((slope(&growing) - 14.0).abs() < 1e-9);
        assert_eq!(slope(&[(0.0, 5)]), 0.0);
        assert_eq!((grown(&[(0.0, 5), (1.0, 9), (2.0, 7)]), grown(&[]), grown(&[(0.0, 5)])), (4, 0, 0));
    }
}
