//! The common parts of all tests: a separate NATS, a separate database, a fleet, a publisher and a
//! log of what was acknowledged.

use std::time::{Duration, Instant};

use chaos::verify::{self, evidence::Evidence};
use model::PartitionCount;
use rand::{SeedableRng, rngs::StdRng};
use sqlx::PgPool;
use testkit::{
    WAIT_TIMEOUT,
    acked_publishes::AckLog,
    db_snapshot,
    fleet::{Fleet, FleetOptions},
    http,
    load::{Disorder, PlannedMessage},
    publisher::{Addressing, Publisher},
    services::{self, NatsServer, TestDatabase},
    sse::{FollowOptions, Follower},
    text,
};
use tokio::time::sleep;

/// The lease of most tests: short, so that the tests are short.
pub(crate) const LEASE: Duration = Duration::from_secs(3);
pub(crate) const PARTITIONS: u16 = 8;
pub(crate) const DISORDER: Disorder = Disorder { window: 16, duplicates: 0.05, frame: 3, protobuf: 0.5 };

pub(crate) struct Fixture {
    pub(crate) fleet: Fleet,
    pub(crate) nats: NatsServer,
    pub(crate) publisher: Publisher,
    pub(crate) ack_log: AckLog,
    pub(crate) pool: PgPool,
    pub(crate) rng: StdRng,
    pub(crate) gap_timeout: Duration,
    database: Option<TestDatabase>,
}

impl Fixture {
    /// Two workers and a gateway, ready, each worker with its share.
    pub(crate) async fn new() -> Self {
        Self::with(|options| options).await
    }

    pub(crate) async fn with(change: impl FnOnce(FleetOptions) -> FleetOptions) -> Self {
        let nats = NatsServer::start().await.unwrap();
        let database = TestDatabase::create().await.unwrap();
        let options = change(options(&nats, database.url()));
        let is_shared = options.workers == 2;
        let fleet = Fleet::start(options).await.unwrap();
        let pool = database.pool().await.unwrap();
        let fixture = Self::on(fleet, nats, pool, Some(database)).await;
        if is_shared {
            fixture.until("both workers have their share", WAIT_TIMEOUT, || fixture.is_shared_evenly()).await;
            fixture.until("every owner answers", WAIT_TIMEOUT, || fixture.is_answered()).await;
        }
        fixture
    }

    /// A fixture of parts that the test has created and keeps.
    pub(crate) async fn on(
        fleet: Fleet,
        nats: NatsServer,
        pool: PgPool,
        database: Option<TestDatabase>,
    ) -> Self {
        let addressing = Addressing::Exact(PartitionCount::new(PARTITIONS.into()).unwrap());
        let publisher = Publisher::connect(nats.url(), addressing).await.unwrap();
        let rng = StdRng::seed_from_u64(7);
        let gap_timeout = Duration::from_secs(5);
        Self { fleet, nats, publisher, ack_log: AckLog::default(), pool, rng, gap_timeout, database }
    }

    /// The url of its own database.
    pub(crate) fn database_url(&self) -> String {
        self.database.as_ref().unwrap().url().to_owned()
    }

    pub(crate) fn follow(&self, thread: &str) -> Follower {
        Follower::start(&self.fleet.gateway_addrs(), thread, FollowOptions::default())
    }

    /// The variables with which commands reach this fleet: commands of the API, and commands that
    /// need its servers.
    pub(crate) fn command_env(&self) -> Vec<(String, String)> {
        let mut env = vec![
            ("DATABASE_URL".to_owned(), self.database_url()),
            ("NATS_URL".to_owned(), self.nats.url().to_owned()),
        ];
        env.extend(self.fleet.gateways.first().map(|gateway| api_url(gateway.http_addr())));
        env
    }

    /// A follower that is open.
    pub(crate) async fn following(&self, thread: &str) -> Follower {
        let follower = self.follow(thread);
        follower.opened().await.unwrap();
        follower
    }

    /// Publishes a whole message in disorder.
    pub(crate) async fn send(&mut self, message: &PlannedMessage) {
        let publications = message.publications(DISORDER, None, &mut self.rng);
        self.publisher.publish(publications, &self.ack_log).await.unwrap();
    }

    /// Publishes some chunks of a message in order.
    pub(crate) async fn send_part(&self, message: &PlannedMessage, ids: std::ops::Range<usize>) {
        let publications = ids.map(|id| message.publication(id));
        self.publisher.publish(publications, &self.ack_log).await.unwrap();
    }

    /// Publishes one short message in each of `count` threads.
    pub(crate) async fn send_many(&mut self, prefix: &str, count: usize) {
        let mut publications = Vec::new();
        for number in 0..count {
            let message = short(&format!("{prefix}-{number}"), "m", number);
            publications.extend(message.publications(DISORDER, None, &mut self.rng));
        }
        self.publisher.publish(publications, &self.ack_log).await.unwrap();
    }

    /// Waits until everything that was acknowledged has ended.
    pub(crate) async fn until_ended(&self, limit: Duration) {
        let expected = self.ack_log.len();
        self.until(&format!("{expected} messages have ended"), limit, async || {
            let (messages, letters) = db_snapshot::ended(&self.pool).await.unwrap_or_default();
            usize::try_from(messages + letters).unwrap() >= expected
        })
        .await;
    }

    /// Waits until `done`, and returns how long that took.
    pub(crate) async fn until(
        &self,
        what: &str,
        limit: Duration,
        mut done: impl AsyncFnMut() -> bool,
    ) -> Duration {
        let began = Instant::now();
        while !done().await {
            assert!(began.elapsed() < limit, "not within {limit:?}: {what}");
            sleep(Duration::from_millis(20)).await;
        }
        began.elapsed()
    }

    /// Waits until a worker answers for this thread: a ready worker may still be reading the
    /// entries of its partitions.
    pub(crate) async fn until_owned(&self, thread: &str) {
        let path = format!("/v1/threads/{thread}");
        self.until("a worker answers for the thread", WAIT_TIMEOUT, async || {
            self.api().send("GET", &path, None, &[]).await.is_ok_and(|answer| answer.status != 503)
        })
        .await;
    }

    /// The number of partitions of each owner with a valid lease.
    pub(crate) async fn shares(&self) -> std::collections::BTreeMap<String, usize> {
        let mut shares = std::collections::BTreeMap::new();
        for partition in db_snapshot::partitions(&self.pool).await.unwrap_or_default() {
            if let Some(owner) = partition.owner.filter(|_| partition.leased) {
                *shares.entry(owner).or_default() += 1;
            }
        }
        shares
    }

    pub(crate) async fn is_shared_evenly(&self) -> bool {
        let half = usize::from(PARTITIONS) / 2;
        self.shares().await.values().copied().collect::<Vec<_>>() == [half, half]
    }

    /// True if the owner of each partition answers and has read all entries. Until then a
    /// subscriber without a cursor gets none, and could not resume.
    pub(crate) async fn is_answered(&self) -> bool {
        let Some(gateway) = self.fleet.gateway_addrs().into_iter().next() else { return true };
        let of = |partition: u16| {
            (0..)
                .map(|n| format!("missing-{n}"))
                .find(|name| model::Bucket::of_key(name).get() % PARTITIONS == partition)
        };
        let asks = (0..PARTITIONS).filter_map(of).map(|name| async move {
            let shown = http::get(gateway, &format!("/v1/threads/{name}")).await;
            shown.is_ok_and(|shown| shown.status != 503)
        });
        futures_util::future::join_all(asks).await.into_iter().all(|is_there| is_there)
    }

    /// The index of the worker that owns a thread's partition; workers are named by their id.
    pub(crate) async fn worker_of(&self, thread: &str) -> usize {
        let partition = model::Bucket::of_key(thread).get() % PARTITIONS;
        let partitions = db_snapshot::partitions(&self.pool).await.unwrap();
        let row = partitions.into_iter().find(|row| row.partition_id == partition as i16);
        let owner = row.and_then(|row| row.owner).expect("the partition has an owner");
        let workers = &self.fleet.workers;
        workers
            .iter()
            .position(|worker| worker.name() == owner)
            .unwrap_or_else(|| panic!("{owner} is no worker"))
    }

    /// Verifies all evidence and panics with the violations.
    pub(crate) async fn audit(&self, followers: Vec<Follower>) {
        let transcripts: Vec<_> =
            followers.into_iter().map(|follower| (follower.thread().to_owned(), follower.stop())).collect();
        let partitions = PartitionCount::new(PARTITIONS.into()).unwrap();
        let violations = verify::verify(&Evidence {
            partitions,
            ack_log: &self.ack_log.snapshot(),
            log: &verify::read_log(self.publisher.context(), partitions).await.unwrap(),
            messages: &db_snapshot::messages(&self.pool).await.unwrap(),
            dead_letters: &db_snapshot::dead_letters(&self.pool).await.unwrap(),
            ends: &db_snapshot::ends(&self.pool).await.unwrap(),
            transcripts: &transcripts,
            gap_timeout: self.gap_timeout,
            allow_entry_letters: true,
        });
        let lines: Vec<String> = violations.iter().map(ToString::to_string).collect();
        assert!(violations.is_empty(), "{} violations:\n{}", lines.len(), lines.join("\n"));
    }
}

/// Where commands find a gateway.
pub(crate) fn api_url(gateway: std::net::SocketAddr) -> (String, String) {
    ("ANTIPHON_URL".to_owned(), format!("http://{gateway}"))
}

/// A gateway on a database that no worker uses.
pub(crate) struct LoneGateway {
    fleet: Fleet,
    _nats: NatsServer,
}

impl LoneGateway {
    /// Starts a gateway with these variables, on a database with this number of partitions.
    pub(crate) async fn start(database_url: &str, partitions: u16, env: &[(&str, String)]) -> Self {
        let nats = NatsServer::start().await.unwrap();
        let mut options = FleetOptions::new(nats.url(), database_url);
        (options.workers, options.gateways, options.partitions) = (0, 1, partitions);
        options = env.iter().fold(options, |options, (name, value)| options.with_env(name, value));
        Self { fleet: Fleet::start(options).await.unwrap(), _nats: nats }
    }

    /// Resident memory in bytes.
    pub(crate) async fn resident_bytes(&self) -> u64 {
        resident_bytes(self.fleet.gateways[0].metrics_addr()).await
    }

    /// The variable with which commands reach it.
    pub(crate) fn env(&self) -> (String, String) {
        api_url(self.fleet.gateways[0].http_addr())
    }
}

/// Resident memory in bytes of the process with these metrics.
pub(crate) async fn resident_bytes(metrics: std::net::SocketAddr) -> u64 {
    let metrics = testkit::http::get(metrics, "/metrics").await.unwrap().text;
    let line = metrics.lines().find_map(|line| line.strip_prefix("process_resident_memory_bytes "));
    line.unwrap().trim().parse::<f64>().unwrap() as u64
}

/// Two workers named `worker-0` and `worker-1`, and a gateway.
pub(crate) fn options(nats: &NatsServer, database_url: &str) -> FleetOptions {
    let mut options = FleetOptions::new(nats.url(), database_url)
        .with_env("ANTIPHON_LEASE_TTL_SECONDS", LEASE.as_secs())
        .with_env("ANTIPHON_GAP_TIMEOUT_SECONDS", 5)
        .with_env(verify::KEEP_LOG.0, verify::KEEP_LOG.1);
    options.partitions = PARTITIONS;
    options
}

/// A message of about ten chunks.
pub(crate) fn short(thread: &str, message: &str, salt: usize) -> PlannedMessage {
    let pieces = text::cut(text::LICENSE, 3);
    let start = (salt * 7) % (pieces.len() - 12);
    PlannedMessage::of_pieces(thread, message, &pieces[start..start + 8 + salt % 4]).unwrap()
}

/// The whole licence, in chunks of four words.
pub(crate) fn long(thread: &str, message: &str) -> PlannedMessage {
    PlannedMessage::of_text(thread, message, text::LICENSE, 4).unwrap()
}

/// A pool on a database of a server that the test may kill.
pub(crate) async fn pool(url: &str) -> PgPool {
    services::pool(url).await.unwrap()
}
