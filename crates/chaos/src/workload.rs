//! The load that clients put on a fleet, in whatever way its processes run, and the evidence at the
//! end.

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use anyhow::Result;
use model::PartitionCount;
use rand::{SeedableRng, rngs::StdRng};
use simulation::checker::Published;
use sqlx::PgPool;
use tokio::time::sleep;

use crate::{
    evidence::CollectedEvidence,
    load::{self, LoadStats, LoadTask},
    options::ChaosSettings,
    turns::TurnLoad,
    verify::{self, evidence::RuleViolation},
};
use testkit::{
    acked_publishes::AckLog,
    db_snapshot,
    publisher::{Addressing, Publisher},
    services,
    sse::Follower,
};

/// Publishers, people, agents and subscribers, with the acknowledgements that they received.
pub(super) struct Workload {
    nats_url: String,
    database_url: String,
    gateways: Vec<SocketAddr>,
    followers: Vec<Follower>,
    pub(super) ack_log: Arc<AckLog>,
    pub(super) turns: TurnLoad,
    /// The partitions as they were first granted.
    pub(super) granted: Vec<db_snapshot::PartitionRow>,
}

impl Workload {
    /// Creates threads and agents in a fleet, which must be ready.
    pub(super) async fn prepare(
        settings: &ChaosSettings,
        nats_url: &str,
        database_url: &str,
        gateways: Vec<SocketAddr>,
    ) -> Result<Self> {
        let count = PartitionCount::new(settings.partitions.into())?;
        let turns = TurnLoad::prepare(settings, nats_url, count, &gateways).await?;
        let granted = db_snapshot::partitions(&services::pool(database_url).await?).await?;
        Ok(Self {
            nats_url: nats_url.to_owned(),
            database_url: database_url.to_owned(),
            gateways,
            followers: Vec::new(),
            ack_log: Arc::default(),
            turns,
            granted,
        })
    }

    /// Starts all clients. When `stop` is set, they complete what they have begun.
    pub(super) async fn begin(
        &mut self,
        settings: &ChaosSettings,
        stop: &Arc<AtomicBool>,
        stats: &Arc<LoadStats>,
    ) -> Result<Vec<LoadTask>> {
        self.followers = load::follow(settings, &self.gateways);
        for follower in &self.followers {
            follower.opened().await?;
        }
        let count = PartitionCount::new(settings.partitions.into())?;
        let mut tasks = Vec::new();
        for number in 0..load::PUBLISHERS {
            let publisher = Publisher::connect(&self.nats_url, Addressing::Exact(count)).await?;
            let rng = StdRng::seed_from_u64(settings.seed.wrapping_add(1 + number as u64));
            let source =
                load::MessageSource::new(settings, number, publisher, Arc::clone(&self.ack_log), rng);
            tasks.push(tokio::spawn(source.run(Arc::clone(stop), Arc::clone(stats))));
        }
        tasks.extend(self.turns.begin(stop).await?);
        Ok(tasks)
    }

    /// Waits after the faults have ended: acknowledged messages must end, and clients must receive
    /// the ends.
    pub(super) async fn come_to_rest(&mut self, settings: &ChaosSettings) -> Result<Vec<RuleViolation>> {
        // A long run leaves queues that take minutes, so only a lack of progress indicates a
        // defect.
        let (mut moved_at, mut last) = (Instant::now(), (0, None));
        let limit = settings.gap_timeout + settings.lease * 2 + Duration::from_secs(45);
        let pool = services::pool(&self.database_url).await?;
        let expected = self.ack_log.len();
        let mut violations = Vec::new();
        loop {
            let (messages, dead_letters) = ended(&pool).await?;
            let left = self.turns.left(&pool).await?;
            if messages + dead_letters >= expected && left.is_none() {
                break;
            }
            let now = (messages + dead_letters, left.clone());
            if now != last {
                (moved_at, last) = (Instant::now(), now);
            }
            if moved_at.elapsed() > limit {
                let found = format!(
                    "{expected} acknowledged, {messages} persisted, {dead_letters} dead letters; left: {left:?}"
                );
                violations.push(RuleViolation::new(
                    "everything ends once there is peace",
                    format!("nothing moved for {limit:?}"),
                    found,
                ));
                break;
            }
            sleep(Duration::from_millis(200)).await;
        }
        self.let_clients_learn(&pool).await?;
        self.turns.let_clients_learn(&pool).await?;
        Ok(violations)
    }

    /// Waits while clients are still receiving ends, up to a limit.
    async fn let_clients_learn(&self, pool: &PgPool) -> Result<()> {
        let began = Instant::now();
        let ends = db_snapshot::ends(pool).await?;
        while began.elapsed() < Duration::from_secs(20) {
            let satisfied = |follower: &Follower| {
                follower.inspect(|transcripts| verify::knows_all(follower.thread(), transcripts, &ends))
            };
            if self.followers.iter().all(satisfied) {
                break;
            }
            sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    }

    /// Stops the subscribers, and collects all compared data.
    pub(super) async fn evidence(&mut self, settings: &ChaosSettings) -> Result<CollectedEvidence> {
        let count = PartitionCount::new(settings.partitions.into())?;
        let reader = Publisher::connect(&self.nats_url, Addressing::Exact(count)).await?;
        let pool = services::pool(&self.database_url).await?;
        let followers = std::mem::take(&mut self.followers);
        let (turns, views) = self.turns.evidence(&pool, &reader).await?;
        let mut messages = db_snapshot::messages(&pool).await?;
        messages.retain(|row| load::is_bare(&row.thread_id));
        let commit_times = db_snapshot::commit_times(&pool).await?;
        let mut log = verify::read_log(reader.context(), count).await?;
        log.retain(|publish| match &publish.body {
            Published::Chunk { key, .. } => load::is_bare(key.thread.as_str()),
            _ => true,
        });
        Ok(CollectedEvidence {
            ack_log: self.ack_log.snapshot(),
            log,
            messages,
            commit_times,
            turns,
            views,
            dead_letters: db_snapshot::dead_letters(&pool).await?,
            ends: db_snapshot::ends(&pool).await?,
            partitions: db_snapshot::partitions(&pool).await?,
            transcripts: followers
                .into_iter()
                .map(|follower| (follower.thread().to_owned(), follower.stop()))
                .collect(),
        })
    }
}

/// Counts of persisted messages without a turn, and of dead letters.
async fn ended(pool: &PgPool) -> Result<(usize, usize)> {
    let messages =
        db_snapshot::messages(pool).await?.iter().filter(|row| load::is_bare(&row.thread_id)).count();
    Ok((messages, db_snapshot::dead_letters(pool).await?.len()))
}
