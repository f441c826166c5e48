//! The part of the benchmark's protocol that all Rust peers share. Commands arrive as JSON lines on
//! stdin, and answers are JSON lines on stdout. Entry point: [`serve`] with a [`Queue`]. The
//! benchmark measures; a peer only obeys commands and records the calls of its handler.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use sqlx::{PgPool, postgres::PgPoolOptions};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, stdin, stdout},
    sync::Notify,
    time::{Instant, sleep_until},
};

/// The load of one round.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub struct Load {
    /// Number of agents, each with a queue.
    pub agents: u32,
    /// Tasks per queue.
    pub tasks: u32,
    /// Tasks per second, over all agents, that arrive while the queue works. `None`: all tasks
    /// exist from the start.
    pub rate: Option<f64>,
}

impl Load {
    /// The tasks in rounds: the first task of every agent, then the second task of every agent, …
    pub fn rounds(self) -> impl Iterator<Item = Vec<Task>> {
        (0..self.tasks).map(move |seq| (0..self.agents).map(|agent| Task { agent, seq }).collect())
    }

    fn total(self) -> usize {
        self.agents as usize * self.tasks as usize
    }

    fn number(self, task: Task) -> u64 {
        u64::from(task.agent) * u64::from(self.tasks) + u64::from(task.seq)
    }
}

/// The payload of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Task {
    pub agent: u32,
    /// Position in the agent's queue, from 0.
    pub seq: u32,
}

/// A queue on Postgres.
pub trait Queue {
    /// Creates the tables in an empty database and opens all connections.
    fn open(&mut self, database_url: &str, notes: Notes) -> impl Future<Output = Result<()>>;
    /// Adds one task of each agent with one call.
    fn enqueue(&mut self, round: Vec<Task>) -> impl Future<Output = Result<()>>;
    fn add(&mut self, task: Task) -> impl Future<Output = Result<()>>;
    /// Starts the handlers and returns at once.
    fn start(&mut self) -> impl Future<Output = Result<()>>;
    /// Ends all work that `open` and `start` began. Returns an error if it detects a defect.
    fn close(&mut self) -> impl Future<Output = Result<()>>;
}

/// The records of the handler in one round. Clones share them.
#[derive(Debug, Clone)]
pub struct Notes {
    load: Load,
    seen: Arc<Mutex<Seen>>,
    handled: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Seen {
    /// The marks in order: 2n when task n began, 2n + 1 when it had ended. n = agent * tasks + seq.
    marks: Vec<u64>,
    ended: usize,
    started_at: Option<Instant>,
    /// Time from the start until the first handler began.
    first_us: Option<u64>,
    due_at: HashMap<Task, Instant>,
    latencies_us: Vec<u64>,
}

impl Notes {
    fn new(load: Load) -> Self {
        let seen = Seen { marks: Vec::with_capacity(load.total() * 2), ..Seen::default() };
        Self { load, seen: Arc::new(Mutex::new(seen)), handled: Arc::new(Notify::new()) }
    }

    /// True if completions must be reported, which has a cost for the peer.
    pub fn is_paced(&self) -> bool {
        self.load.rate.is_some()
    }

    pub fn agents(&self) -> u32 {
        self.load.agents
    }

    pub fn total(&self) -> u64 {
        self.load.total() as u64
    }

    /// Records that a handler begins.
    pub fn begin(&self, task: Task) {
        let mark = 2 * self.load.number(task);
        let mut seen = self.seen();
        if seen.first_us.is_none() {
            seen.first_us = seen.started_at.map(elapsed_us);
        }
        seen.marks.push(mark);
    }

    /// Records that a handler ends.
    pub fn end(&self, task: Task) {
        let mut seen = self.seen();
        seen.marks.push(2 * self.load.number(task) + 1);
        seen.ended += 1;
        if seen.ended == self.load.total() && !self.is_paced() {
            self.handled.notify_one();
        }
    }

    /// Records that a task of a paced round is durably completed. Its time counts from when the
    /// task was due, not from when it was sent.
    pub fn completed(&self, task: Task) {
        let mut seen = self.seen();
        let Some(due_at) = seen.due_at.get(&task).copied() else { return };
        seen.latencies_us.push(elapsed_us(due_at));
        if seen.latencies_us.len() == self.load.total() {
            self.handled.notify_one();
        }
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn elapsed_us(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}

#[derive(Debug, Deserialize)]
#[serde(tag = "command", rename_all = "lowercase")]
enum Command {
    Open {
        database_url: String,
        #[serde(flatten)]
        load: Load,
    },
    Enqueue,
    Start,
    Close,
}

#[derive(Debug, Serialize)]
#[serde(tag = "answer", rename_all = "lowercase")]
enum Answer {
    Open,
    Enqueue,
    Handled,
    Report { marks: Vec<u64>, latencies_us: Vec<u64>, first_us: Option<u64> },
    Error { text: String },
}

/// Obeys commands of the benchmark until it closes stdin.
pub async fn serve(mut queue: impl Queue) -> Result<()> {
    let outcome = obey(&mut queue).await;
    if let Err(error) = &outcome {
        answer(&Answer::Error { text: format!("{error:#}") }).await?;
    }
    outcome
}

async fn obey(queue: &mut impl Queue) -> Result<()> {
    let mut lines = BufReader::new(stdin()).lines();
    let mut notes = None;
    while let Some(line) = lines.next_line().await? {
        match serde_json::from_str(&line)? {
            Command::Open { database_url, load } => {
                let new = Notes::new(load);
                queue.open(&database_url, new.clone()).await?;
                notes = Some(new);
                answer(&Answer::Open).await?;
            }
            Command::Enqueue => {
                for round in opened(notes.as_ref())?.load.rounds() {
                    queue.enqueue(round).await?;
                }
                answer(&Answer::Enqueue).await?;
            }
            Command::Start => {
                let notes = opened(notes.as_ref())?;
                notes.seen().started_at = Some(Instant::now());
                queue.start().await?;
                if let Some(rate) = notes.load.rate {
                    feed(queue, notes, rate).await?;
                }
                notes.handled.notified().await;
                answer(&Answer::Handled).await?;
            }
            Command::Close => {
                queue.close().await?;
                let notes = notes.take();
                let mut seen = opened(notes.as_ref())?.seen();
                let Seen { marks, latencies_us, first_us, .. } = std::mem::take(&mut *seen);
                drop(seen);
                answer(&Answer::Report { marks, latencies_us, first_us }).await?;
            }
        }
    }
    Ok(())
}

fn opened(notes: Option<&Notes>) -> Result<&Notes> {
    notes.context("a command came before `open`")
}

async fn feed(queue: &mut impl Queue, notes: &Notes, rate: f64) -> Result<()> {
    let begun = Instant::now();
    for (number, task) in notes.load.rounds().flatten().enumerate() {
        let due_at = begun + Duration::from_secs_f64(number as f64 / rate);
        sleep_until(due_at).await;
        notes.seen().due_at.insert(task, due_at);
        queue.add(task).await?;
    }
    Ok(())
}

async fn answer(answer: &Answer) -> Result<()> {
    let mut line = serde_json::to_vec(answer)?;
    line.push(b'\n');
    let mut out = stdout();
    out.write_all(&line).await?;
    Ok(out.flush().await?)
}

/// A pool with all connections open, as in a long-running service.
pub async fn pool(database_url: &str, connections: u32) -> Result<PgPool> {
    let options = PgPoolOptions::new().max_connections(connections).min_connections(connections);
    let pool = options.connect(database_url).await?;
    let mut all = Vec::new();
    for _ in 0..connections {
        all.push(pool.acquire().await?);
    }
    Ok(pool)
}
