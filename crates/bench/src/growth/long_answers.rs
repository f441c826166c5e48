//! The cost of long answers for other messages while the answers are open for minutes: parts f to
//! j.

mod load;
mod probe;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use async_nats::{Client, jetstream};
use futures_util::StreamExt;
use model::PartitionCount;
use sqlx::PgPool;
use testkit::{
    db_snapshot,
    fleet::{Fleet, FleetOptions, Process},
    services::{self, TestDatabase},
};
use tokio::time::sleep;

use self::{
    load::AnswerLoad,
    probe::{Probe, ProbeTimes},
};
use super::options::GrowthBenchOptions;
use crate::{
    backlog::{Backlog, BacklogShape},
    drain,
    environment::ChunkEnvironment,
    table::Row,
    usage,
};

/// Duration of a short answer, in seconds. In contrast, an answer of a reasoning model takes
/// minutes.
const SHORT_SECONDS: u64 = 10;
/// Chunks per second of each answer.
const RATE: u32 = 40;
/// Maximum time of any step.
const LIMIT: Duration = Duration::from_secs(300);
/// Maximum factor by which other messages may be slower.
const SLOWER: f64 = 1.2;
/// Maximum factor by which the WAL may exceed the final rows.
const WRITTEN: f64 = 1.1;
/// Limit for the worker's resident memory in part h.
const RESIDENT: u64 = 200 << 20;
/// Limit for the seconds from the lease to the first answer.
const TAKEOVER_SECONDS: f64 = 8.0;
/// Default of `ANTIPHON_REPLAY_ENTRIES`, and the maximum number of entries that are read again.
const REPLAY_ENTRIES: u64 = 500_000;
const REPLAY_BYTES: u64 = 256 << 20;

/// A worker on its own services.
struct Rig {
    // Fields are dropped in this order, so the server must be after the fleet.
    fleet: Fleet,
    client: Client,
    pool: PgPool,
    _database: TestDatabase,
    environment: ChunkEnvironment,
    partitions: PartitionCount,
}

impl Rig {
    /// `with`: adds to the environment of the worker.
    async fn new(partitions: u16, with: fn(FleetOptions) -> FleetOptions) -> Result<Self> {
        Self::on(ChunkEnvironment::start(partitions)?, partitions, with).await
    }

    async fn on(
        environment: ChunkEnvironment,
        partitions: u16,
        with: fn(FleetOptions) -> FleetOptions,
    ) -> Result<Self> {
        let database = environment.database().await?;
        let fleet = Fleet::start(with(environment.fleet(database.url(), 1, 0))).await?;
        let client = async_nats::ConnectOptions::new()
            .client_capacity(16 << 10)
            .connect(environment.nats.url())
            .await?;
        let pool = services::pool(database.url()).await?;
        let partitions = PartitionCount::new(partitions.into())?;
        Ok(Self { fleet, client, pool, _database: database, environment, partitions })
    }

    async fn probe(&self) -> Result<Probe> {
        Probe::start(self.client.clone(), self.pool.clone(), self.partitions)
    }

    fn worker(&self) -> u32 {
        self.fleet.workers.first().and_then(Process::pid).unwrap_or_default()
    }

    /// Waits until `messages` messages are stored.
    async fn stored(&self, messages: usize) -> Result<()> {
        let begun = Instant::now();
        while db_snapshot::ended(&self.pool).await?.0 < messages as i64 {
            ensure!(begun.elapsed() < LIMIT, "the messages are not stored after {LIMIT:?}");
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }
}

/// Part f: the time of a message of one chunk while 500 answers are open, short ones and long ones.
pub(super) async fn others(options: &GrowthBenchOptions) -> Result<Row> {
    let mut times = Vec::new();
    for seconds in [SHORT_SECONDS, options.seconds] {
        let rig = Rig::new(8, |options| options).await?;
        let load = AnswerLoad {
            streams: options.streams,
            rate: f64::from(RATE),
            chunks: RATE * u32::try_from(seconds)?,
            text_bytes: 20,
            is_endless: true,
        };
        let duration = options.warm_up() + Duration::from_secs(options.seconds);
        let mut probe = rig.probe().await?;
        let publishing = load.start(&rig.environment.nats.url(), rig.partitions, duration)?;
        sleep(options.warm_up()).await;
        let from = Instant::now();
        let sent = load::join(publishing).await?;
        let found = probe.finish(from).await?;
        eprintln!("    answers of {seconds} s, {sent} chunks: {found}");
        times.push(found);
    }
    let [short, long] = &times[..] else { anyhow::bail!("nothing was measured") };
    let factor = |of: fn(&ProbeTimes) -> f64| of(long) / of(short);
    let most = factor(|times| times.p50).max(factor(|times| times.max));
    let (streams, seconds) = (options.streams, options.seconds);
    Ok(Row::new(
        'f',
        format!("{streams} answers of {SHORT_SECONDS} s to {seconds} s"),
        format!("x {most:.2}"),
    )
    .goal(format!("<= {SLOWER}"), most <= SLOWER)
    .column("p50 ms", format!("{:.0} to {:.0}", short.p50, long.p50))
    .column("longest ms", format!("{:.0} to {:.0}", short.max, long.max))
    .note("a message of one chunk in another thread, from publish to row")
    .of_binary("p50 ms, short", short.p50)
    .of_binary("p50 ms, long", long.p50)
    .of_binary("longest ms, short", short.max)
    .of_binary("longest ms, long", long.max))
}

/// Part g: the WAL of an answer of 3,000 chunks in a minute, compared with the same text sent at
/// once.
pub(super) async fn written(options: &GrowthBenchOptions) -> Result<Row> {
    const ANSWERS: usize = 20;
    let seconds = options.seconds.min(60);
    let chunks = 50 * u32::try_from(seconds)?;
    // Without these settings, Postgres itself would write statistics meanwhile, as whole pages.
    let quiet = [("autovacuum", "off"), ("checkpoint_timeout", "1h")];
    let rig = Rig::on(ChunkEnvironment::start_with(8, &quiet)?, 8, |options| options).await?;
    let mut bytes = Vec::new();
    let idle = {
        let (before, began) = (drain::wal(&rig.pool).await?, Instant::now());
        sleep(Duration::from_secs(options.seconds.min(20))).await;
        (drain::wal(&rig.pool).await? - before) as f64 / began.elapsed().as_secs_f64()
    };
    for (round, seconds) in [1, seconds].into_iter().enumerate() {
        let load = AnswerLoad {
            streams: ANSWERS,
            rate: f64::from(chunks) / seconds as f64,
            chunks,
            text_bytes: 5,
            is_endless: false,
        };
        let (before, began) = (drain::wal(&rig.pool).await?, Instant::now());
        let load = load.named(round);
        load::join(load.start(&rig.environment.nats.url(), rig.partitions, LIMIT)?).await?;
        rig.stored(ANSWERS * (round + 1)).await?;
        let all = (drain::wal(&rig.pool).await? - before) as f64;
        bytes.push((all - idle * began.elapsed().as_secs_f64()) / ANSWERS as f64);
    }
    let [at_once, long] = bytes[..] else { anyhow::bail!("nothing was measured") };
    let factor = long / at_once;
    Ok(Row::new(
        'g',
        format!("an answer of {chunks} chunks, in 1 s to {seconds} s"),
        format!("x {factor:.2}"),
    )
    .goal(format!("<= {WRITTEN}"), factor <= WRITTEN)
    .column("WAL", format!("{at_once:.0} to {long:.0}"))
    .note(format!("bytes for each answer; an idle worker's {idle:.0} a second are taken off"))
    .of_binary("WAL, at once", at_once)
    .of_binary("WAL, long", long))
}

/// Part h: the time of other messages while as many messages are open as a worker can hold.
pub(super) async fn open(options: &GrowthBenchOptions) -> Result<Row> {
    let (streams, chunks, seconds) = (options.open, 100, options.seconds.min(30));
    let rig = Rig::new(8, |options| options).await?;
    let watched = Duration::from_secs(options.seconds);
    let mut probe = rig.probe().await?;
    let from = Instant::now();
    sleep(watched.min(Duration::from_secs(40))).await;
    let without = probe.finish(from).await?;
    let load = AnswerLoad {
        streams,
        rate: f64::from(chunks) / seconds as f64,
        // The number of chunks is one more than is sent, so the final chunk never arrives.
        chunks: chunks + 1,
        text_bytes: 20,
        is_endless: false,
    };
    load::join(load.start(&rig.environment.nats.url(), rig.partitions, Duration::from_secs(seconds))?)
        .await?;
    let mut probe = rig.probe().await?;
    let from = Instant::now();
    sleep(watched.min(Duration::from_secs(60))).await;
    let with = probe.finish(from).await?;
    let resident = usage::resident(rig.worker());
    eprintln!("    without: {without}; with: {with}");
    let factor = with.p99 / without.p99;
    let mib = resident as f64 / f64::from(1 << 20);
    Ok(Row::new(
        'h',
        format!("{streams} open messages of {chunks} chunks"),
        format!("x {factor:.2}, {mib:.0} MiB"),
    )
    .goal(format!("<= {SLOWER}, <= {} MiB", RESIDENT >> 20), factor <= SLOWER && resident <= RESIDENT)
    .column("p50 ms", format!("{:.1} to {:.1}", without.p50, with.p50))
    .column("p99 ms", format!("{:.1} to {:.1}", without.p99, with.p99))
    .column("longest ms", format!("{:.0} to {:.0}", without.max, with.max))
    .note("a message of one chunk in another thread, without and with; the worker's memory")
    .of_binary("p99 ms, without", without.p99)
    .of_binary("p99 ms, with", with.p99)
    .of_binary("MiB", mib))
}

/// Part i: the time from the lease to the first answer, after the maximum number of entries that a
/// replay may have.
pub(super) async fn takeover(options: &GrowthBenchOptions) -> Result<Row> {
    let entries = options.replayed;
    let mut rig = Rig::new(1, |options| options).await?;
    let open = AnswerLoad { streams: 1, rate: 1_000.0, chunks: 2, text_bytes: 20, is_endless: false };
    load::join(open.start(&rig.environment.nats.url(), rig.partitions, Duration::from_millis(1))?).await?;
    let backlog = Backlog::plan(&BacklogShape {
        name: "takeover",
        chunks: entries,
        lengths: 100..=100,
        frame: 1,
        open: 64,
        threads: Some(1_000),
    })?;
    backlog.publish(&rig.client, rig.partitions).await?;
    rig.stored(backlog.messages.len()).await?;
    // Earlier builds save by age, so give them the time.
    sleep(options.warm_up()).await;
    let worker = rig.fleet.workers.first_mut().context("no worker")?;
    worker.kill().await?;
    worker.spawn()?;
    let owner = "SELECT bool_and(owner IS NOT NULL AND lease_until > clock_timestamp() AND epoch > $1) FROM partitions";
    let epoch: i64 = sqlx::query_scalar("SELECT max(epoch) FROM partitions").fetch_one(&rig.pool).await?;
    let begun = Instant::now();
    while !sqlx::query_scalar::<_, bool>(owner).bind(epoch).fetch_one(&rig.pool).await? {
        ensure!(begun.elapsed() < LIMIT, "the new worker takes no lease");
        sleep(Duration::from_millis(10)).await;
    }
    let leased = Instant::now();
    let mut probe = rig.probe().await?;
    sleep(Duration::from_millis(300)).await;
    let found = probe.finish(leased).await?;
    let seconds = found.first / 1_000.0;
    Ok(Row::new('i', format!("takeover behind {entries} entries"), format!("{seconds:.2} s"))
        .goal(format!("<= {TAKEOVER_SECONDS} s"), seconds <= TAKEOVER_SECONDS)
        .note("from the lease to the row of a message that was published then")
        .of_binary("s", seconds))
}

/// Part j: the size of the stream while one message stays open and others begin and end.
pub(super) async fn stream(options: &GrowthBenchOptions) -> Result<Row> {
    let seconds = options.seconds;
    let rig = Rig::new(1, |options| options.with_env("ANTIPHON_STREAM_RETAIN_SECONDS", 5)).await?;
    let duration = options.warm_up() + Duration::from_secs(seconds);
    let length = u32::try_from(duration.as_secs())? * 2;
    let open = AnswerLoad { streams: 1, rate: 1.0, chunks: length, text_bytes: 200, is_endless: false };
    let open = open.named(1).start(&rig.environment.nats.url(), rig.partitions, duration)?;
    let load = AnswerLoad {
        streams: options.streams,
        rate: f64::from(RATE),
        chunks: RATE * u32::try_from(SHORT_SECONDS)?,
        text_bytes: 200,
        is_endless: true,
    };
    let publishing = load.start(&rig.environment.nats.url(), rig.partitions, duration)?;
    let (begun, mut most) = (Instant::now(), 0);
    while begun.elapsed() < duration {
        sleep(Duration::from_secs(1)).await;
        most = most.max(stream_bytes(&rig.client).await?);
    }
    let sent = load::join(publishing).await?;
    load::join(open).await?;
    let saves = "SELECT coalesce(sum(n_tup_ins + n_tup_upd), 0)::bigint FROM pg_stat_user_tables WHERE relname LIKE 'spilled_%'";
    // Sessions report their statistics up to a second later.
    sleep(Duration::from_secs(2)).await;
    let saves: i64 = sqlx::query_scalar(saves).fetch_one(&rig.pool).await?;
    let most_saves = i64::try_from(sent / REPLAY_ENTRIES)? + 1;
    // The bound exceeds the replayed entries by two amounts: five seconds of entries that are kept,
    // and entries of a purge that proceeds in steps.
    let (mib, bound) = (most >> 20, (REPLAY_BYTES + REPLAY_BYTES / 2) >> 20);
    Ok(Row::new(
        'j',
        format!("a message stays open beside {sent} entries"),
        format!("{mib} MiB, {saves} saves"),
    )
    .goal(format!("<= {bound} MiB, <= {most_saves} saves"), mib <= bound && saves <= most_saves)
    .note("the most that the stream held, and rows written for what was open")
    .of_binary("MiB", mib as f64)
    .of_binary("saves", saves as f64))
}

/// Bytes of all streams.
async fn stream_bytes(client: &Client) -> Result<u64> {
    let context = jetstream::new(client.clone());
    let mut streams = context.streams();
    let mut bytes = 0;
    while let Some(stream) = streams.next().await {
        bytes += stream.context("listing the streams")?.state.bytes;
    }
    Ok(bytes)
}
