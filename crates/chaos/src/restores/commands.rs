//! Inputs and tasks of the load, which a scripted workflow service answers.
//!
//! Only the tables are compared, because an answer that Postgres has lost may be produced again.
//! Each input and each task has a unique text by which its rows are found, whatever turns it had.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use async_nats::jetstream::{self, stream::RawMessageErrorKind};
use bytes::Bytes;
use model::{
    AgentId, Metadata, PartitionCount, PartitionId, Task, TaskId, TaskKind, TaskOrigin, ThreadId, TurnId,
    TurnOpened, TurnOptions, TurnOrigin,
};
use serde_json::json;
use sqlx::{Connection, PgConnection};
use tokio::{task::JoinHandle, time::sleep};

use super::incidents::{self, IncidentRow};
use testkit::{
    api::Api,
    manual_workflow::ManualWorkflow,
    publisher::{Addressing, Publisher},
};
use wire::subject;

/// Number of threads with inputs, and of agents with tasks.
const THREADS: usize = 4;
/// Pause between two pairs of an input and a task.
const PACE: Duration = Duration::from_millis(250);
/// Number of answers of which one takes a second, so that some answers are in progress whenever a
/// server goes back in time.
const SLOW: usize = 3;
/// Time after which a request without an acknowledgement is redelivered.
const ACK_WAIT: Duration = Duration::from_secs(3);
/// Deadline of a run. The stream of requests drops a request that it already had before the store
/// went back in time. Then only the next run is answered.
const DEADLINE_MS: u64 = 8_000;

/// The counts of inputs and tasks.
#[derive(Debug, Default)]
pub struct CommandCounts {
    /// Number of inputs and tasks with an acknowledged entry.
    pub acknowledged: usize,
    /// Number of inputs and tasks with a stored input and answer.
    pub answered: usize,
    /// Number of inputs that failed at their deadline. Tasks are retried until they are answered.
    pub late: usize,
    /// Number of inputs and tasks in neither tables nor streams. All of them are recorded.
    pub gone: usize,
}

/// An input or a task that its stream has acknowledged.
#[derive(Debug)]
pub(super) struct AckedCommand {
    partition: PartitionId,
    seq: u64,
    payload: Bytes,
    content: String,
    answer: String,
    acked_at: Instant,
}

#[derive(Debug)]
pub(super) struct CommandLoad {
    nats_url: String,
    partitions: PartitionCount,
}

impl CommandLoad {
    /// Configures the agents of a fleet, which must be ready.
    pub(super) async fn prepare(
        nats_url: &str,
        partitions: PartitionCount,
        gateways: &[SocketAddr],
    ) -> Result<Self> {
        // This changes the consumer that the workflow service has created.
        ManualWorkflow::connect(nats_url, "default", ACK_WAIT).await?;
        let settings = json!({
            "backoff_base_ms": 100, "backoff_cap_ms": 800, "deadline_ms": DEADLINE_MS, "work_request": false, "memory": false,
        });
        let gateway = Api(*gateways.first().context("there is no gateway")?);
        for number in 0..THREADS {
            gateway.put_agent(agent(number)?.as_str(), "default", settings.clone()).await?;
        }
        Ok(Self { nats_url: nats_url.to_owned(), partitions })
    }

    /// Sends pairs of an input and a task, in sequence, until `stop`.
    pub(super) async fn begin(
        &self,
        round: usize,
        stop: Arc<AtomicBool>,
    ) -> Result<JoinHandle<Result<Vec<AckedCommand>>>> {
        let partitions = self.partitions;
        let publisher = Publisher::connect(&self.nats_url, Addressing::Exact(partitions)).await?;
        Ok(tokio::spawn(async move {
            let mut acked = Vec::new();
            for number in 0_usize.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let (slowly, id) = (number.is_multiple_of(SLOW), format!("r{round}-{number}"));
                let opened = input(&id, number, text("input", &id, slowly))?;
                let (subject, payload) = (
                    subject::partition_commands(partitions, opened.thread.as_str()),
                    wire::encode_opened(&opened),
                );
                let seq = publish(&publisher, &subject, &payload).await?;
                let partition = opened.thread.bucket().partition(partitions);
                acked.push(AckedCommand::new(partition, seq, payload, opened.content, slowly));
                let task = task(&id, number, text("task", &id, slowly))?;
                let (subject, payload) =
                    (subject::partition_tasks(partitions, &task.agent), wire::encode_task(&task));
                let seq = publish(&publisher, &subject, &payload).await?;
                let partition = task.bucket().partition(partitions);
                acked.push(AckedCommand::new(partition, seq, payload, task.content, slowly));
                sleep(PACE).await;
            }
            Ok(acked)
        }))
    }

    /// Waits up to `limit` until each command has ended, or is lost and recorded; the others are
    /// violations. An entry acknowledged after the restore cannot be lost. `since` is when the
    /// round began, by the database's clock.
    pub(super) async fn judge(
        &self,
        sent: &[AckedCommand],
        database_url: &str,
        (since, restored_at): (f64, Instant),
        limit: Duration,
        counts: &mut CommandCounts,
    ) -> Result<Vec<String>> {
        let began = Instant::now();
        let reader = Publisher::connect(&self.nats_url, Addressing::Exact(self.partitions)).await?;
        let (ended, open) = loop {
            let is_over = began.elapsed() > limit;
            match look(sent, database_url, (since, restored_at), reader.context()).await {
                Ok((ended, open)) if open.is_empty() || is_over => break (ended, open),
                Err(error) if is_over => return Err(error),
                Ok(_) | Err(_) => sleep(Duration::from_millis(250)).await,
            }
        };
        counts.acknowledged += ended.acknowledged;
        counts.answered += ended.answered;
        counts.late += ended.late;
        counts.gone += ended.gone;
        Ok(open)
    }
}

impl AckedCommand {
    fn new(partition: PartitionId, seq: u64, payload: Bytes, content: String, slowly: bool) -> Self {
        // The texts are the same as in the script.
        let answer = match slowly {
            true => format!("{content}, as slowly as it goes, {content}"),
            false => format!("You said: {content}"),
        };
        Self { partition, seq, payload, content, answer, acked_at: Instant::now() }
    }

    /// True if an incident records that the command's entry may be lost, and the entry is lost.
    async fn is_gone(&self, incidents: &[IncidentRow], context: &jetstream::Context) -> Result<bool> {
        if !incidents.iter().any(|incident| incident.names(self.partition.0, self.seq)) {
            return Ok(false);
        }
        let stream = context.get_stream(subject::stream_name(self.partition)).await?;
        match stream.get_raw_message(self.seq).await {
            // A stream that has continued has another entry at this sequence.
            Ok(entry) => Ok(entry.payload != self.payload),
            Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => Ok(true),
            Err(error) => Err(error.into()),
        }
    }
}

/// The current counts, and the commands that have neither ended once nor are lost and recorded.
async fn look(
    sent: &[AckedCommand],
    database_url: &str,
    (since, restored_at): (f64, Instant),
    context: &jetstream::Context,
) -> Result<(CommandCounts, Vec<String>)> {
    let texts: Vec<&str> = sent.iter().flat_map(|sent| [sent.content.as_str(), &sent.answer]).collect();
    let mut connection = PgConnection::connect(database_url).await?;
    let rows: Vec<(String, String)> = sqlx::query_as(
        "SELECT content, state
         FROM (SELECT content, 'stored' AS state FROM messages
               UNION ALL SELECT content, CASE code WHEN 'deadline' THEN 'late' ELSE code END FROM failed_turns
               UNION ALL SELECT content, 'pending' FROM spilled_turns
               UNION ALL SELECT content, 'pending' FROM agent_tasks WHERE status <> 'completed') AS rows
         WHERE content = ANY($1)",
    )
    .bind(texts)
    .fetch_all(&mut connection)
    .await?;
    let incidents = incidents::since(&mut connection, since).await?;
    connection.close().await?;
    let count = |text: &str, state: &str| rows.iter().filter(|(of, is)| of == text && is == state).count();
    let (mut counts, mut open) =
        (CommandCounts { acknowledged: sent.len(), ..CommandCounts::default() }, Vec::new());
    for command in sent {
        let (content, seq) = (&command.content, command.seq);
        let found = (
            count(content, "stored"),
            count(&command.answer, "stored"),
            count(content, "late"),
            count(content, "pending"),
        );
        match found {
            (1, 1, 0, 0) => counts.answered += 1,
            (0, 0, 1, 0) => counts.late += 1,
            (0, 0, 0, 0) if command.acked_at < restored_at && command.is_gone(&incidents, context).await? => {
                counts.gone += 1
            }
            (inputs, answers, failures, pending) => open.push(format!(
                "{content:?}, entry {seq} of partition {}, is stored {inputs} times with {answers} answers, has failed {failures} times, \
                 and is pending {pending} times",
                command.partition.0
            )),
        }
    }
    Ok((counts, open))
}

fn text(what: &str, id: &str, slowly: bool) -> String {
    if slowly { format!("{what} {id} slowly") } else { format!("{what} {id}") }
}

fn agent(number: usize) -> Result<AgentId> {
    Ok(AgentId::parse(&format!("agent-{}", number % THREADS))?)
}

fn input(id: &str, number: usize, content: String) -> Result<TurnOpened> {
    let thread = ThreadId::parse(&format!("talk-{}", number % THREADS))?;
    Ok(TurnOpened {
        turn: TurnId::foreground(&thread, id)?,
        thread,
        agent: agent(number)?,
        run: 0,
        content,
        origin: TurnOrigin::PERSON,
        metadata: Metadata::EMPTY,
        actor: None,
        options: TurnOptions::default(),
    })
}

fn task(id: &str, number: usize, content: String) -> Result<Task> {
    let (agent, id) = (agent(number)?, TaskId::parse(id)?);
    Ok(Task { agent, id, kind: TaskKind::Task, content, origin: TaskOrigin::SENT, metadata: Metadata::EMPTY })
}

/// Publishes a payload, and repeats that until it is acknowledged.
async fn publish(publisher: &Publisher, subject: &str, payload: &Bytes) -> Result<u64> {
    let began = Instant::now();
    loop {
        match publisher.publish_raw(subject, None, payload.clone()).await {
            Ok(seq) => return Ok(seq),
            Err(error) if began.elapsed() > Publisher::DEADLINE => return Err(error),
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    }
}
