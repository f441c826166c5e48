//! Other queues, and our worker alone. Each is a program in `peers/` that obeys commands on its
//! stdin. `cargo xtask bench tasks` installs them below cargo's target folder.

use std::{path::PathBuf, process::Stdio, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use devservices::workspace;
use serde::Deserialize;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{
    antiphon_runs,
    environment::{self, Cost, TaskEnvironment},
    load::TaskLoad,
    order,
    round::TaskRound,
};
use testkit::services::TestDatabase;

/// Maximum time for each step except the round itself.
const LIMIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(2);

/// The queue with the library's defaults.
pub(super) const GRAPHILE: &str = "graphile-worker";
/// The queue with the configuration that its documentation recommends for throughput.
pub(super) const GRAPHILE_BATCHED: &str = "graphile-worker, batched";
/// The queue with handlers that store two messages, like our turns.
pub(super) const GRAPHILE_ROWS: &str = "graphile-worker, batched, 2 message rows";
/// The crate from the registry, with the configuration that its documentation recommends for
/// throughput.
pub(super) const GRAPHILE_CRATE: &str = "graphile_worker crate, batched";
/// A queue that does not guarantee the order.
pub(super) const RIVER: &str = "riverqueue crate (no order)";
/// The queue with handlers that send a request to a workflow.
pub(super) const GRAPHILE_NATS: &str = "graphile-worker, batched, NATS request";
/// The queue with handlers that send a request to a workflow and also store the messages.
pub(super) const GRAPHILE_NATS_ROWS: &str = "graphile-worker, batched, NATS request, 2 message rows";
/// Our worker with its defaults.
pub(super) const WORKER: &str = "antiphon worker";
/// Our worker with messages as long as those of the other queues.
pub(super) const WORKER_ROWS: &str = "antiphon worker, 400 B messages";
/// Our worker with tasks in the stream, so that the time includes ingesting them.
pub(super) const WORKER_INGESTING: &str = "antiphon worker, ingest included";
/// Our worker with long queues.
pub(super) const LONG: &str = "antiphon worker, long queues";
/// Our worker with long queues while another transaction holds a snapshot.
pub(super) const LONG_SNAPSHOT: &str = "antiphon worker, long queues, a snapshot is held";
/// Our worker as the new owner of all tasks.
pub(super) const TAKEOVER: &str = "antiphon worker, one partition";

/// SQL for the number of tasks that are not durably completed; `{total}` is replaced.
const GRAPHILE_LEFT: &str = "SELECT count(*) FROM graphile_worker._private_jobs";
const RIVER_LEFT: &str = "SELECT count(*) FROM river_job WHERE state \
    IN ('available', 'cancelled', 'discarded', 'pending', 'retryable', 'running', 'scheduled')";

/// Another queue in one configuration.
#[derive(Debug)]
pub(super) struct Peer {
    name: String,
    program: PathBuf,
    arguments: Vec<String>,
    left: &'static str,
    is_slow: bool,
    /// Number of messages that each turn must have stored; `None` for other queues, whose messages
    /// are not checked.
    rows: Option<u64>,
    holds_snapshot: bool,
    process: Option<PeerProcess>,
    prepared: Option<PreparedPeer>,
}

#[derive(Debug)]
struct PreparedPeer {
    database: Arc<TestDatabase>,
    load: TaskLoad,
    enqueued: Option<Cost>,
}

impl Peer {
    /// The peers with a handler that does nothing.
    pub(super) fn alone() -> Vec<Self> {
        vec![
            Self::npm(GRAPHILE, &json!({})),
            Self::npm(GRAPHILE_BATCHED, &json!({ "batched": true })),
            Self::npm(GRAPHILE_ROWS, &json!({ "batched": true, "rows": 2 })),
            Self { is_slow: true, ..Self::graphile_crate("graphile_worker crate", "") },
            Self::graphile_crate(GRAPHILE_CRATE, "batched"),
            Self::river(),
        ]
    }

    /// Our worker with a workflow that does nothing. Its tasks are in Postgres, as for the others,
    /// or in the stream.
    pub(super) fn workers(nats_url: &str) -> Vec<Self> {
        let history = json!({ "ingested": true, "history": true, "bytes": 400 });
        vec![
            Self::antiphon(nats_url),
            Self::worker(WORKER_INGESTING, nats_url, json!({})),
            Self::worker(WORKER_ROWS, nats_url, json!({ "ingested": true, "bytes": 400 })),
            Self::worker("antiphon worker, requests with history", nats_url, history),
        ]
    }

    /// Our worker with messages and statements as large as those of raw inserts.
    pub(super) fn sized_workers(nats_url: &str) -> Vec<Self> {
        let sized = |rows, turns| {
            let settings =
                json!({ "ingested": true, "bytes": 400, "rows": rows, "turns": turns, "writers": 8 });
            Self::worker(sized_worker(rows, turns), nats_url, settings)
        };
        vec![sized(4, 1), sized(4, 16), sized(2, 1), sized(2, 16)]
    }

    /// Our worker with and without a transaction that holds a snapshot.
    pub(super) fn snapshots(nats_url: &str) -> Vec<Self> {
        let long = |name| Self::worker(name, nats_url, json!({ "ingested": true }));
        vec![long(LONG), Self { holds_snapshot: true, ..long(LONG_SNAPSHOT) }]
    }

    /// Our worker as the owner of one partition with all tasks.
    pub(super) fn takeover(nats_url: &str) -> Self {
        Self::worker(TAKEOVER, nats_url, json!({ "ingested": true, "partitions": 1 }))
    }

    pub(super) fn antiphon(nats_url: &str) -> Self {
        Self::worker(WORKER, nats_url, json!({ "ingested": true }))
    }

    fn worker(name: impl Into<String>, nats_url: &str, mut settings: Value) -> Self {
        settings["nats_url"] = nats_url.into();
        let rows = settings["rows"].as_u64().unwrap_or(2);
        let arguments = vec![settings.to_string()];
        Self { rows: Some(rows), ..Self::new(name, built("peer_antiphon"), arguments, antiphon_runs::LEFT) }
    }

    /// The peers with a handler that asks a workflow over NATS, and with one that also stores the
    /// messages.
    pub(super) fn behind_nats(nats_url: &str) -> Vec<Self> {
        // There can be many handlers that wait for another service: 500 handlers took half of the
        // server time of 24.
        let asking = json!({ "batched": true, "nats_url": nats_url, "concurrency": 500 });
        let keeping = json!({ "batched": true, "nats_url": nats_url, "concurrency": 100, "rows": 2 });
        vec![Self::npm(GRAPHILE_NATS, &asking), Self::npm(GRAPHILE_NATS_ROWS, &keeping)]
    }

    /// The peers that are fast enough for tasks that arrive one by one.
    pub(super) fn paced() -> Vec<Self> {
        Self::alone().into_iter().filter(|peer| !peer.is_slow && peer.name != GRAPHILE_ROWS).collect()
    }

    fn npm(name: &'static str, settings: &Value) -> Self {
        let dir = workspace::target_dir().join("peers/node");
        let script = dir.join("graphile.mjs").display().to_string();
        let arguments = vec![script, settings.to_string()];
        Self::new(name, dir.join("node_modules/.bin/node"), arguments, GRAPHILE_LEFT)
    }

    fn graphile_crate(name: &'static str, argument: &str) -> Self {
        Self::new(name, built("peer_graphile"), vec![argument.to_owned()], GRAPHILE_LEFT)
    }

    fn river() -> Self {
        Self::new(RIVER, built("peer_river"), Vec::new(), RIVER_LEFT)
    }

    fn new(name: impl Into<String>, program: PathBuf, arguments: Vec<String>, left: &'static str) -> Self {
        Self {
            name: name.into(),
            program,
            arguments,
            left,
            is_slow: false,
            rows: None,
            holds_snapshot: false,
            process: None,
            prepared: None,
        }
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn is_slow(&self) -> bool {
        self.is_slow
    }

    pub(super) fn missing(&self) -> Option<String> {
        (!self.program.exists()).then(|| format!("{} is not there", self.program.display()))
    }

    /// Keeps the prepared database, so that it can be read after the round and is not removed.
    pub(super) fn keep_database(&mut self) -> Option<Arc<TestDatabase>> {
        self.prepared.as_ref().map(|prepared| Arc::clone(&prepared.database))
    }

    pub(super) async fn prepare(&mut self, environment: &mut TaskEnvironment, load: TaskLoad) -> Result<()> {
        let database = environment.database().await?;
        // One process is used for all rounds, so that it is warm, like a long-running service.
        let mut process = match self.process.take() {
            Some(process) => process,
            None => PeerProcess::start(&self.program, &self.arguments)?,
        };
        let mut open = serde_json::to_value(load)?;
        open["command"] = "open".into();
        open["database_url"] = database.url().into();
        process.send(&open).await?;
        process.expect(&PeerMessage::Open).await?;
        let mut enqueued = None;
        if load.rate.is_none() {
            let gauge = environment.gauge(&[process.pid]).await?;
            process.send(&json!({ "command": "enqueue" })).await?;
            process.expect(&PeerMessage::Enqueue).await?;
            enqueued = Some(environment.cost(&gauge, load.total()).await?);
        }
        environment::settle(&database).await?;
        self.process = Some(process);
        self.prepared = Some(PreparedPeer { database: Arc::new(database), load, enqueued });
        Ok(())
    }

    pub(super) async fn run(&mut self, environment: &mut TaskEnvironment) -> Result<TaskRound> {
        let PreparedPeer { database, load, enqueued } = self.prepared.take().context("not prepared")?;
        // The process is put back if the round succeeds. Otherwise its program is killed, so that
        // it does not disturb the others.
        let mut process = self.process.take().context("not prepared")?;
        let mut connection = PgConnection::connect(database.url()).await?;
        let left = self.left.replace("{total}", &load.total().to_string());
        let snapshot = if self.holds_snapshot { Some(hold_snapshot(database.url()).await?) } else { None };
        let gauge = environment.gauge(&[process.pid]).await?;
        process.send(&json!({ "command": "start" })).await?;
        let outcome = until_done(&mut process, &mut connection, &left, load.limit).await?;
        if let RoundOutcome::Cut { left } = outcome {
            // If tasks arrive during the round, the number of tasks not sent yet is unknown.
            let completed = if load.rate.is_none() { load.total() - left } else { 0 };
            let cost = environment.cost(&gauge, completed.max(1)).await?;
            return Ok(TaskRound { is_cut: true, enqueued, ..TaskRound::new(completed, &cost) });
        }
        let cost = environment.cost(&gauge, load.total()).await?;
        connection.close().await?;
        drop(snapshot);
        process.send(&json!({ "command": "close" })).await?;
        let PeerMessage::Report { marks, mut latencies_us, first_us } = process.soon().await? else {
            bail!("no report came")
        };
        self.process = Some(process);
        if let Some(rows) = self.rows {
            antiphon_runs::verify(database.url(), load.total(), rows).await?;
        }
        let verdict = order::judge(load.agents, load.tasks, &marks).context("marks of unknown tasks")?;
        ensure!(verdict.missing == 0, "{} tasks were never handled", verdict.missing);
        let mut round = TaskRound::new(load.total(), &cost);
        (round.out_of_order, round.repeated) = (Some(verdict.out_of_order), verdict.repeated);
        round.enqueued = enqueued;
        round.first_ms = first_us.map(|us| us as f64 / 1e3);
        Ok(round.timed(&mut latencies_us))
    }
}

/// The way in which a round ended.
#[derive(Debug)]
enum RoundOutcome {
    /// The database has every completion.
    Done,
    /// The round took too long, and `left` completions are missing.
    Cut { left: u64 },
}

/// Waits until the database has every completion, which happens after the end of the last handler.
async fn until_done(
    process: &mut PeerProcess,
    connection: &mut PgConnection,
    left: &str,
    limit: Duration,
) -> Result<RoundOutcome> {
    let deadline = Instant::now() + limit;
    let handled = timeout_at(deadline, process.answer()).await.ok().transpose()?;
    ensure!(matches!(handled, None | Some(PeerMessage::Handled)), "{handled:?} came unasked");
    loop {
        let left: i64 = sqlx::query_scalar(AssertSqlSafe(left)).fetch_one(&mut *connection).await?;
        if left == 0 && handled.is_some() {
            return Ok(RoundOutcome::Done);
        }
        if Instant::now() >= deadline {
            return Ok(RoundOutcome::Cut { left: left.try_into()? });
        }
        sleep(POLL).await;
    }
}

/// A transaction that reads once and then does nothing, like a forgotten session.
async fn hold_snapshot(url: &str) -> Result<PgConnection> {
    let mut connection = PgConnection::connect(url).await?;
    sqlx::raw_sql("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM agents")
        .execute(&mut connection)
        .await?;
    Ok(connection)
}

/// The name of the worker that is compared with a raw insert.
pub(super) fn sized_worker(rows: usize, turns: usize) -> String {
    format!("antiphon worker, {rows} rows, k={turns}, 8 conn")
}

fn built(name: &str) -> PathBuf {
    workspace::target_dir().join("peers/cargo/release").join(name)
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(tag = "answer", rename_all = "lowercase")]
enum PeerMessage {
    Open,
    Enqueue,
    Handled,
    Report {
        marks: Vec<u64>,
        latencies_us: Vec<u64>,
        /// Time until the first handler began; only Rust peers report it.
        #[serde(default)]
        first_us: Option<u64>,
    },
    Error {
        text: String,
    },
}

#[derive(Debug)]
struct PeerProcess {
    pid: u32,
    commands: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    /// The child process, which is killed when this value is dropped.
    _child: Child,
}

impl PeerProcess {
    fn start(program: &PathBuf, arguments: &[String]) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().with_context(|| format!("starting {}", program.display()))?;
        let commands = child.stdin.take().context("no stdin")?;
        let answers = BufReader::new(child.stdout.take().context("no stdout")?).lines();
        Ok(Self { pid: child.id().context("it has ended")?, commands, answers, _child: child })
    }

    async fn send(&mut self, command: &Value) -> Result<()> {
        let line = format!("{command}\n");
        self.commands.write_all(line.as_bytes()).await.context("the peer has gone")
    }

    async fn answer(&mut self) -> Result<PeerMessage> {
        let line = self.answers.next_line().await?.context("the peer has gone")?;
        let answer = serde_json::from_str(&line)?;
        if let PeerMessage::Error { text } = answer {
            bail!("the peer has failed: {text}");
        }
        Ok(answer)
    }

    async fn soon(&mut self) -> Result<PeerMessage> {
        timeout(LIMIT, self.answer()).await.context("the peer does not answer")?
    }

    async fn expect(&mut self, expected: &PeerMessage) -> Result<()> {
        let answer = self.soon().await?;
        ensure!(answer == *expected, "{answer:?} came instead of {expected:?}");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two agents with two tasks each.
    const LOAD: TaskLoad = TaskLoad { agents: 2, tasks: 2, rate: None, limit: Duration::from_secs(1) };
    const IN_ORDER: &str = "0,1,4,5,2,3,6,7";
    const OVERTAKEN: &str = "2,3,0,1,4,5,6,7";

    /// A peer that is a script, and SQL for the number of tasks left.
    fn scripted(handled: &str, marks: &str, left: &'static str) -> Peer {
        let script = format!(
            r#"while read -r line; do case "$line" in
                *'"command":"open"'*) echo '{{"answer":"open"}}' ;;
                *'"command":"enqueue"'*) echo '{{"answer":"enqueue"}}' ;;
                *'"command":"start"'*) echo '{handled}' ;;
                *'"command":"close"'*) echo '{{"answer":"report","marks":[{marks}],"latencies_us":[]}}' ;;
            esac; done"#
        );
        Peer::new("scripted", PathBuf::from("/bin/sh"), vec!["-c".to_owned(), script], left)
    }

    async fn round(peer: &mut Peer) -> Result<TaskRound> {
        let mut environment = TaskEnvironment::start().await?;
        peer.prepare(&mut environment, LOAD).await?;
        peer.run(&mut environment).await
    }

    const HANDLED: &str = r#"{"answer":"handled"}"#;

    #[tokio::test(flavor = "multi_thread")]
    async fn the_marks_of_handlers_are_judged() {
        let mut peer = scripted(HANDLED, IN_ORDER, "SELECT 0::bigint");
        let good = round(&mut peer).await.unwrap();
        assert_eq!((good.tasks, good.out_of_order, good.is_cut), (4, Some(0), false));
        assert!(good.enqueued.is_some() && peer.process.is_some());
        let bad = round(&mut scripted(HANDLED, OVERTAKEN, "SELECT 0::bigint")).await.unwrap();
        assert_eq!(bad.out_of_order, Some(1));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn tasks_without_a_handler_are_a_failure() {
        let error = round(&mut scripted(HANDLED, "0,1,4,5", "SELECT 0::bigint")).await.unwrap_err();
        assert_eq!(error.to_string(), "2 tasks were never handled");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn who_says_done_before_the_database_has_it_is_not_believed() {
        let mut peer = scripted(HANDLED, IN_ORDER, "SELECT 3::bigint");
        let cut = round(&mut peer).await.unwrap();
        assert_eq!((cut.tasks, cut.out_of_order, cut.is_cut), (1, None, true));
        assert!(cut.seconds >= 1.0 && peer.process.is_none());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn complaint_of_a_peer_is_reported() {
        let mut peer = scripted(r#"{"answer":"error","text":"no luck"}"#, "", "SELECT 4::bigint");
        let error = round(&mut peer).await.unwrap_err();
        assert_eq!(error.to_string(), "the peer has failed: no luck");
        assert!(peer.process.is_none());
    }
}
