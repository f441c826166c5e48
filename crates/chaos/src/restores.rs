//! Servers that go back in time while a fleet works: copies of Postgres and of NATS are restored
//! under load.
//!
//! [`run`] does each [`RestoreKind`] several times, and checks two rules after each. An
//! acknowledged message that is still in the stream or the tables must end in the tables. For a
//! message in neither, an incident must record the loss, with its partition and sequences. The
//! rules hold for messages without a turn, and for inputs and tasks, which a workflow service
//! answers.
//!
//! A subscriber that stays connected must have every stored end once, whatever it received before.

mod commands;
mod incidents;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use devservices::services::ScratchDir;
use model::{MessageKey, PartitionCount};
use simulation::checker::Published;
use sqlx::{Connection, PgConnection};
use tokio::{task::JoinHandle, time::sleep};

use crate::{turns, verify};
use commands::CommandLoad;
use incidents::IncidentRow;
use testkit::{
    acked_publishes::{AckLog, AckedMessage},
    fleet::{Fleet, FleetOptions, READY_LIMIT, invoke},
    http,
    load::{Disorder, PlannedMessage},
    publisher::{Addressing, Publisher},
    services::{NatsServer, PostgresServer},
    sse::{FollowOptions, Follower, StreamEvent, Transcript},
};

pub use commands::CommandCounts;

const PARTITIONS: u16 = 4;
const THREADS: usize = 12;
/// The thread of the subscriber.
const VIEWED: &str = "thread-0";
/// Maximum time, after everything has ended, for which a subscriber may lack some ends.
const VIEWER_LIMIT: Duration = Duration::from_secs(15);
const LEASE: Duration = Duration::from_secs(3);
const GAP_TIMEOUT: Duration = Duration::from_secs(3);
/// Age at which streams are purged. It is short, so that a copy of Postgres is behind the purge
/// after some seconds.
const PURGE_TAIL: Duration = Duration::from_secs(2);
/// Age of a copy that is certainly behind the purge, which runs every five seconds.
const BEHIND_THE_PURGE: Duration = Duration::from_secs(9);
/// Time between two messages of the load.
const PACE: Duration = Duration::from_millis(12);
/// Maximum time until everything has ended.
const LIMIT: Duration = Duration::from_secs(45);

/// The server that goes back in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RestoreKind {
    /// Postgres goes back by a second, as after the promotion of an asynchronous replica.
    Replica,
    /// Postgres goes back further than its streams were purged, as after the restore of a snapshot.
    Snapshot,
    /// NATS goes back by a second and reuses the same sequences, as after a power cut with the
    /// default `sync_interval`.
    Stream,
}

impl RestoreKind {
    pub const ALL: [Self; 3] = [Self::Replica, Self::Snapshot, Self::Stream];
}

/// The outcome of all rounds.
#[derive(Debug, Default)]
pub struct RestoreReport {
    /// The counts of each kind: rounds, acknowledged, ended, lost and recorded messages, and
    /// incidents by their kind.
    pub rounds: BTreeMap<RestoreKind, RestoreCounts>,
    /// Descriptions of violations.
    pub violations: Vec<String>,
}

/// The counts of one kind in [`RestoreReport::rounds`].
#[derive(Debug, Default)]
pub struct RestoreCounts {
    pub rounds: usize,
    /// Number of messages with an acknowledged chunk.
    pub acknowledged: usize,
    /// Number of messages and dead letters.
    pub ended: usize,
    /// Number of messages with a chunk that was lost with the stream before it was stored. All of
    /// them are recorded.
    pub gone: usize,
    pub commands: CommandCounts,
    /// Number of rounds with the expected incident.
    pub noticed: usize,
    /// Number of restarts that were sent to subscribers.
    pub restarts: usize,
    pub incidents: BTreeMap<String, usize>,
}

impl fmt::Display for RestoreReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (kind, counts) in &self.rounds {
            let RestoreCounts { rounds, acknowledged, ended, gone, commands, noticed, restarts, incidents } =
                counts;
            writeln!(
                f,
                "{kind:?}: {rounds} rounds, noticed in {noticed}, {acknowledged} messages acknowledged, {ended} ended, {gone} gone and named, {restarts} restarts of a viewer; {incidents:?}"
            )?;
            let CommandCounts { acknowledged, answered, late, gone } = commands;
            writeln!(
                f,
                "  {acknowledged} inputs and tasks acknowledged, {answered} answered, {late} failed at their deadline, {gone} gone and named"
            )?;
        }
        self.violations.iter().try_for_each(|violation| writeln!(f, "WRONG: {violation}"))
    }
}

struct ChaosEnvironment {
    nats: NatsServer,
    postgres: PostgresServer,
    fleet: Fleet,
    commands: CommandLoad,
    copies: ScratchDir,
    number: usize,
    is_verbose: bool,
}

/// Does each kind `rounds` times on one fleet.
///
/// # Errors
/// A server or the fleet could not be controlled. Violations are in the report.
pub async fn run(rounds: usize, is_verbose: bool) -> Result<RestoreReport> {
    let nats = NatsServer::start().await?;
    let postgres = PostgresServer::start().await?;
    let mut options = FleetOptions::new(nats.url(), postgres.url())
        .with_env("ANTIPHON_LEASE_TTL_SECONDS", LEASE.as_secs())
        .with_env("ANTIPHON_GAP_TIMEOUT_SECONDS", GAP_TIMEOUT.as_secs())
        .with_env("ANTIPHON_STREAM_RETAIN_SECONDS", PURGE_TAIL.as_secs());
    (options.workers, options.partitions) = (2, PARTITIONS);
    options.workflows = vec![turns::workflow()];
    let fleet = Fleet::start(options).await?;
    let count = PartitionCount::new(PARTITIONS.into())?;
    let commands = CommandLoad::prepare(nats.url(), count, &fleet.gateway_addrs()).await?;
    let copies = ScratchDir::new("copies")?;
    let mut environment = ChaosEnvironment { nats, postgres, fleet, commands, copies, number: 0, is_verbose };
    let mut report = RestoreReport::default();
    for _ in 0..rounds {
        for kind in RestoreKind::ALL {
            let done = environment.round(kind, &mut report).await;
            done.with_context(|| format!("{kind:?}\n{}", environment.fleet.log_tails()))?;
        }
    }
    let is_blind = |(_, counts): &(&RestoreKind, &RestoreCounts)| {
        counts.rounds > 3 && counts.noticed * 2 < counts.rounds
    };
    for (kind, counts) in report.rounds.iter().filter(is_blind) {
        report
            .violations
            .push(format!("{kind:?}: noticed in {} of {} rounds", counts.noticed, counts.rounds));
    }
    for (kind, _) in report.rounds.iter().filter(|(_, counts)| counts.commands.answered == 0) {
        report.violations.push(format!("{kind:?}: no input and no task was answered"));
    }
    Ok(report)
}

impl ChaosEnvironment {
    async fn round(&mut self, kind: RestoreKind, report: &mut RestoreReport) -> Result<()> {
        self.number += 1;
        let began = Instant::now();
        let since: f64 = self.float("SELECT extract(epoch FROM clock_timestamp())::float8").await?;
        let ack_log = Arc::new(AckLog::default());
        let stop = Arc::new(AtomicBool::new(false));
        let viewer = Follower::start(&self.fleet.gateway_addrs(), VIEWED, FollowOptions::default());
        viewer.opened().await?;
        let load = self.load(Arc::clone(&ack_log), Arc::clone(&stop)).await?;
        let commands = self.commands.begin(self.number, Arc::clone(&stop)).await?;
        sleep(Duration::from_millis(700)).await;
        self.go_back(kind).await?;
        let restored_at = Instant::now();
        sleep(Duration::from_millis(1_000)).await;
        stop.store(true, Ordering::Relaxed);
        load.await??;
        let commands = commands.await??;
        let counts = report.rounds.entry(kind).or_default();
        let judged = self.judge(&ack_log.snapshot(), since, counts).await?;
        let noticed = match kind {
            RestoreKind::Replica => "store_stepped_back",
            RestoreKind::Snapshot => "entries_gone",
            RestoreKind::Stream => "stream_parted",
        };
        let mut violations = judged.violations;
        let (database, counts) = (self.postgres.url(), &mut counts.commands);
        violations
            .extend(self.commands.judge(&commands, database, (since, restored_at), LIMIT, counts).await?);
        violations.extend(self.compare_viewer(&viewer, report.rounds.entry(kind).or_default()).await?);
        let is_noticed = judged.incidents.iter().any(|incident| incident.kind == noticed);
        report.rounds.entry(kind).or_default().noticed += usize::from(is_noticed);
        // If a partition changes its owner while Postgres is unreachable, the new owner knows only
        // the older store. Nothing is lost by that.
        if !is_noticed && kind != RestoreKind::Replica {
            violations.push(format!("no incident of the expected kind: {:?}", judged.incidents));
        }
        if kind != RestoreKind::Replica {
            violations.extend(self.acknowledge().await?);
        }
        if self.is_verbose {
            println!("round {} {kind:?}: {:.1?}, {} wrong", self.number, began.elapsed(), violations.len());
        }
        let number = self.number;
        report
            .violations
            .extend(violations.into_iter().map(|text| format!("round {number}, {kind:?}: {text}")));
        Ok(())
    }

    async fn checkpoints(&self) -> Result<Vec<(i16, i64)>> {
        let mut connection = PgConnection::connect(self.postgres.url()).await?;
        let sql = "SELECT partition_id, checkpoint FROM partitions";
        let rows = sqlx::query_as(sql).fetch_all(&mut connection).await?;
        connection.close().await?;
        Ok(rows)
    }

    /// True if a stream no longer has entries after one of these checkpoints.
    async fn is_purged_beyond(&self, checkpoints: &[(i16, i64)]) -> Result<bool> {
        let client = async_nats::connect(self.nats.url()).await?;
        let context = async_nats::jetstream::new(client);
        for (partition, checkpoint) in checkpoints {
            let name = wire::subject::stream_name(model::PartitionId(partition.cast_unsigned()));
            let stream = context.get_stream(name).await?;
            if stream.cached_info().state.first_sequence > checkpoint.cast_unsigned() + 1 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn go_back(&self, kind: RestoreKind) -> Result<()> {
        let copy = self.copies.path().join("copy");
        match kind {
            RestoreKind::Replica => {
                self.postgres.copy(&copy).await?;
                sleep(Duration::from_secs(1)).await;
                self.postgres.put_back(&copy).await
            }
            RestoreKind::Snapshot => {
                let checkpoints = self.checkpoints().await?;
                self.postgres.copy(&copy).await?;
                sleep(BEHIND_THE_PURGE).await;
                let began = Instant::now();
                while !self.is_purged_beyond(&checkpoints).await? && began.elapsed() < LIMIT {
                    sleep(Duration::from_millis(250)).await;
                }
                self.postgres.put_back(&copy).await
            }
            RestoreKind::Stream => {
                self.nats.copy(&copy).await?;
                sleep(Duration::from_secs(1)).await;
                self.nats.put_back(&copy).await
            }
        }
    }

    /// Publishes messages of three chunks, one after the other, until `stop`.
    async fn load(&self, ack_log: Arc<AckLog>, stop: Arc<AtomicBool>) -> Result<JoinHandle<Result<()>>> {
        let count = PartitionCount::new(PARTITIONS.into())?;
        let publisher = Publisher::connect(self.nats.url(), Addressing::Exact(count)).await?;
        let round = self.number;
        Ok(tokio::spawn(async move {
            for number in 0_usize.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let (thread, message) =
                    (format!("thread-{}", number % THREADS), format!("m{round}-{number}"));
                let message = PlannedMessage::of_text(&thread, &message, "one two three", 1)?;
                let publications = message.publications(Disorder::NONE, None, &mut rand::rng());
                publisher.publish(publications, &ack_log).await?;
                sleep(PACE).await;
            }
            Ok(())
        }))
    }

    /// Waits until every message has ended or is recorded as lost, and compares.
    async fn judge(
        &self,
        sent: &BTreeMap<MessageKey, AckedMessage>,
        since: f64,
        counts: &mut RestoreCounts,
    ) -> Result<JudgedRound> {
        let began = Instant::now();
        let (texts, incidents, open) = loop {
            let looked = self.look(sent, since).await;
            match looked {
                Ok((texts, incidents)) => {
                    let open: Vec<&MessageKey> =
                        sent.keys().filter(|key| !texts.contains_key(*key)).collect();
                    let is_named = |key: &&&MessageKey| {
                        sent.get(**key).is_some_and(|sent| is_named(key, sent, &incidents))
                    };
                    let has_settled = open.iter().filter(is_named).count() == open.len();
                    if (has_settled && began.elapsed() > GAP_TIMEOUT * 2) || began.elapsed() > LIMIT {
                        let open: Vec<MessageKey> = open.into_iter().cloned().collect();
                        break (texts, incidents, open);
                    }
                }
                Err(error) if began.elapsed() > LIMIT => return Err(error),
                Err(_) => {}
            }
            sleep(Duration::from_millis(250)).await;
        };
        counts.rounds += 1;
        counts.acknowledged += sent.len();
        counts.ended += sent.len() - open.len();
        counts.gone += open.len();
        for incident in &incidents {
            *counts.incidents.entry(incident.kind.clone()).or_default() += 1;
        }
        let mut violations = Vec::new();
        for (key, text) in &texts {
            if text.as_deref().is_some_and(|text| text != "one two three") {
                violations.push(format!("{key} is {text:?}"));
            }
        }
        let streamed = self.streamed().await?;
        for key in open {
            let sent = &sent[&key];
            if !is_named(&key, sent, &incidents) {
                violations
                    .push(format!("{key}, entries {:?}, has not ended and nothing names it", seqs(sent)));
            } else if streamed.get(&key).is_some_and(|chunks| *chunks == 3) {
                violations.push(format!("{key} is whole in its stream and has not ended"));
            }
        }
        Ok(JudgedRound { violations, incidents })
    }

    /// The incidents, and the messages that have ended, with their texts unless they failed.
    async fn look(
        &self,
        sent: &BTreeMap<MessageKey, AckedMessage>,
        since: f64,
    ) -> Result<(BTreeMap<MessageKey, Option<String>>, Vec<IncidentRow>)> {
        let mut connection = PgConnection::connect(self.postgres.url()).await?;
        let rows: Vec<(String, String, Option<String>)> = sqlx::query_as(
            "SELECT thread_id, message_id, content FROM messages
             UNION ALL SELECT thread_id, message_id, NULL FROM dead_letters WHERE kind = 'message'",
        )
        .fetch_all(&mut connection)
        .await?;
        let incidents = incidents::since(&mut connection, since).await?;
        connection.close().await?;
        let mut ended: BTreeMap<(&str, &str), &Option<String>> = BTreeMap::new();
        for (thread, message, text) in &rows {
            ended.insert((thread, message), text);
        }
        let texts = sent.keys().filter_map(|key| {
            let text = ended.get(&(key.thread.as_str(), key.message.as_str()))?;
            Some((key.clone(), (*text).clone()))
        });
        Ok((texts.collect(), incidents))
    }

    /// Compares the subscriber's ends after its restarts with the ends stored since it connected.
    async fn compare_viewer(&self, viewer: &Follower, counts: &mut RestoreCounts) -> Result<Option<String>> {
        let began = Instant::now();
        loop {
            let transcripts = viewer.transcripts();
            let viewed = ViewedEnds::of(&transcripts);
            let mut connection = PgConnection::connect(self.postgres.url()).await?;
            let stored: Vec<(i64, String)> = sqlx::query_as(
                "SELECT position, message_id FROM messages WHERE thread_id = $1 AND position > $2
                 UNION ALL SELECT position, message_id FROM failed_messages WHERE thread_id = $1 AND position > $2
                 ORDER BY position",
            )
            .bind(VIEWED)
            .bind(viewed.since)
            .fetch_all(&mut connection)
            .await?;
            connection.close().await?;
            if viewed.ends == stored {
                counts.restarts += viewed.restarts;
                return Ok(None);
            }
            if began.elapsed() > VIEWER_LIMIT {
                let ends: Vec<_> = transcripts.iter().map(|transcript| &transcript.end).collect();
                return Ok(Some(format!(
                    "a viewer has {viewed:?}, stored is {stored:?}; its connections: {ends:?}"
                )));
            }
            sleep(Duration::from_millis(250)).await;
        }
    }

    /// Number of distinct chunks of each message in the streams.
    async fn streamed(&self) -> Result<BTreeMap<MessageKey, usize>> {
        let count = PartitionCount::new(PARTITIONS.into())?;
        let reader = Publisher::connect(self.nats.url(), Addressing::Exact(count)).await?;
        let mut ids: BTreeMap<MessageKey, Vec<u32>> = BTreeMap::new();
        for publish in verify::read_log(reader.context(), count).await? {
            if let Published::Chunk { key, chunk, .. } = publish.body {
                ids.entry(key).or_default().push(chunk.id);
            }
        }
        Ok(ids
            .into_iter()
            .map(|(key, mut ids)| {
                ids.sort_unstable();
                ids.dedup();
                (key, ids.len())
            })
            .collect())
    }

    /// Checks that the owners are not ready until the incidents are acknowledged.
    async fn acknowledge(&mut self) -> Result<Vec<String>> {
        let (mut said, began) = (false, Instant::now());
        while !said && began.elapsed() < LEASE * 2 {
            for worker in &self.fleet.workers {
                let answer = http::get(worker.metrics_addr(), "/readyz").await;
                said |=
                    answer.is_ok_and(|answer| answer.status == 503 && answer.text.contains("incidents: "));
            }
            sleep(Duration::from_millis(200)).await;
        }
        let gateway = self.fleet.gateways.first().context("there is no gateway")?.http_addr();
        let env = [("ANTIPHON_URL".to_owned(), format!("http://{gateway}"))];
        let done = invoke(&["incidents", "acknowledge", "all", "--actor", "tester"], &env).await?;
        if done.code != Some(0) {
            bail!("acknowledging: {}", done.stderr);
        }
        self.fleet.ready(READY_LIMIT).await?;
        Ok(if said { Vec::new() } else { vec!["no worker said that it is not ready".to_owned()] })
    }

    async fn float(&self, sql: &'static str) -> Result<f64> {
        let mut connection = PgConnection::connect(self.postgres.url()).await?;
        Ok(sqlx::query_scalar(sql).fetch_one(&mut connection).await?)
    }
}

/// The ends that a subscriber has, without those that a restart has withdrawn.
#[derive(Debug, Default)]
struct ViewedEnds {
    /// The position after which the subscriber must receive every end.
    since: i64,
    /// The ends in order of arrival.
    ends: Vec<(i64, String)>,
    restarts: usize,
}

impl ViewedEnds {
    fn of(transcripts: &[Transcript]) -> Self {
        let number = |text: &str| text.split('~').next().and_then(|base| base.parse().ok()).unwrap_or(0);
        let mut viewed = Self::default();
        for transcript in transcripts {
            if let Some(ready) = &transcript.ready {
                viewed = Self { since: number(ready), restarts: viewed.restarts, ends: Vec::new() };
            }
            for received in &transcript.events {
                match &received.event {
                    StreamEvent::Complete { message, position: Some(position), .. }
                    | StreamEvent::Failed { message, position: Some(position), .. } => {
                        viewed.ends.push((number(position), message.clone()));
                    }
                    StreamEvent::Restart { after } => {
                        let after = number(after);
                        viewed.since = viewed.since.min(after);
                        viewed.ends.retain(|(position, _)| *position <= after);
                        viewed.restarts += 1;
                    }
                    _ => {}
                }
            }
        }
        viewed
    }
}

struct JudgedRound {
    violations: Vec<String>,
    incidents: Vec<IncidentRow>,
}

fn seqs(sent: &AckedMessage) -> Vec<u64> {
    let chunks = sent.attempts.values().flat_map(BTreeMap::values);
    chunks.flat_map(|acked| acked.seqs.clone()).collect()
}

fn is_named(key: &MessageKey, sent: &AckedMessage, incidents: &[IncidentRow]) -> bool {
    let Ok(count) = PartitionCount::new(PARTITIONS.into()) else { return false };
    let partition = key.thread.bucket().partition(count).0;
    seqs(sent).iter().any(|seq| incidents.iter().any(|incident| incident.names(partition, *seq)))
}
