//! The second part of the demo: a long text two hundred times at once, and a worker that is killed in the middle.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use rand::{SeedableRng, rngs::StdRng};
use simulation::checker::Published;
use tokio::{
    task::JoinSet,
    time::{interval, sleep},
};

use super::{
    Stage,
    screen::{Screen, grouped},
};
use crate::{
    audit::{self, Evidence, Violation},
    ledger::Ledger,
    load::{Disorder, PlannedMessage},
    publisher::{Addressing, Publication, Publisher},
    sse::{FollowOptions, Follower, Progress},
    tables,
};

const MESSAGES: usize = 200;
const WORDS: usize = 4;
const PUBLISHERS: usize = 4;
const DISORDER: Disorder = Disorder { window: 16, duplicates: 0.01, frame: 1, protobuf: 0.5 };
/// The worker is killed when clients have received this much.
const KILL_AT: f64 = 0.35;
const KILLED: usize = 0;
/// The binary's own default.
const LEASE: Duration = Duration::from_secs(10);
/// The killed worker comes back this long after its death.
const BACK_AFTER: Duration = Duration::from_secs(13);
const LIMIT: Duration = Duration::from_secs(240);

/// What is being watched.
struct Flood {
    text: Arc<str>,
    followers: Vec<Follower>,
    ledger: Arc<Ledger>,
    chunks: usize,
    began: Instant,
    killed_at: Option<Instant>,
    is_back: bool,
}

/// How far it has come.
struct Standing {
    published: usize,
    streamed: usize,
    ended: usize,
    persisted: usize,
}

/// Shows it; false when a text is not what it was.
pub(super) async fn show(stage: &mut Stage, text: &str, screen: &mut Screen) -> Result<bool> {
    let messages = plan(&stage.run, text)?;
    let chunks = messages.iter().map(|message| message.chunks.len()).sum();
    introduce(text, chunks, screen);
    let followers = follow(stage, &messages).await?;
    let ledger = Arc::new(Ledger::default());
    let mut publishing = publish(stage, &messages, &ledger);
    let mut flood = Flood {
        text: text.into(),
        followers,
        ledger,
        chunks,
        began: Instant::now(),
        killed_at: None,
        is_back: false,
    };
    let is_finished = flood.watch(stage, screen).await?;
    let elapsed = flood.began.elapsed();
    if is_finished {
        while let Some(ended) = publishing.join_next().await {
            ended??;
        }
    }
    flood.bring_back(stage, screen).await?;
    flood.judge(stage, elapsed, screen).await
}

fn introduce(text: &str, chunks: usize, screen: &mut Screen) {
    screen.heading(2, "A worker dies in the middle of 200 answers");
    screen.text(&format!(
        "The same text of {} bytes in {MESSAGES} threads: {} chunks of {WORDS} words, from {PUBLISHERS} publishers at once,",
        grouped(text.len()),
        grouped(chunks)
    ));
    screen.text("shuffled in windows of 16, with 1 % duplicates, half JSON and half protobuf. Every thread has a client.");
    screen.text("");
}

fn plan(run: &str, text: &str) -> Result<Vec<PlannedMessage>> {
    let message = |number| PlannedMessage::of_text(&format!("demo-{run}-{number:03}"), "answer", text, WORDS);
    (0..MESSAGES).map(message).collect()
}

async fn follow(stage: &Stage, messages: &[PlannedMessage]) -> Result<Vec<Follower>> {
    let gateways = stage.fleet.gateway_addrs();
    let start = |message: &PlannedMessage| {
        Follower::start(&gateways, message.key.thread.as_str(), FollowOptions::default())
    };
    let followers: Vec<Follower> = messages.iter().map(start).collect();
    for follower in &followers {
        follower.opened().await?;
    }
    Ok(followers)
}

/// Each publisher sends its share of the messages at once: one chunk of each in turn.
fn publish(stage: &Stage, messages: &[PlannedMessage], ledger: &Arc<Ledger>) -> JoinSet<Result<()>> {
    let mut tasks = JoinSet::new();
    for (number, share) in messages.chunks(MESSAGES.div_ceil(PUBLISHERS)).enumerate() {
        let mut rng = StdRng::seed_from_u64(number as u64);
        let queues = share.iter().map(|message| message.publications(DISORDER, None, &mut rng)).collect();
        let publications = in_turn(queues);
        let (url, addressing, ledger) = (stage.nats_url.clone(), stage.addressing, Arc::clone(ledger));
        tasks.spawn(async move {
            let publisher = Publisher::connect(&url, addressing).await?.with_window(400);
            publisher.publish(publications, &ledger).await.map(|_| ())
        });
    }
    tasks
}

fn in_turn(queues: Vec<Vec<Publication>>) -> Vec<Publication> {
    let mut queues: Vec<_> = queues.into_iter().map(Vec::into_iter).collect();
    let mut all = Vec::new();
    while !queues.is_empty() {
        queues.retain_mut(|queue| queue.next().map(|publication| all.push(publication)).is_some());
    }
    all
}

impl Flood {
    /// Watches until every client has seen its end; false when that takes too long.
    async fn watch(&mut self, stage: &mut Stage, screen: &mut Screen) -> Result<bool> {
        let mut tick = interval(Duration::from_millis(200));
        loop {
            tick.tick().await;
            let standing = self.standing(stage).await?;
            screen.status(&self.describe(&standing));
            if standing.ended >= MESSAGES {
                return Ok(true);
            }
            if self.began.elapsed() > LIMIT {
                screen.text(&format!("not finished after {LIMIT:?}"));
                return Ok(false);
            }
            if self.killed_at.is_none() && standing.streamed as f64 > KILL_AT * self.chunks as f64 {
                self.kill(stage, screen).await?;
            }
            if self.killed_at.is_some_and(|at| at.elapsed() > BACK_AFTER) {
                self.bring_back(stage, screen).await?;
            }
        }
    }

    async fn standing(&self, stage: &Stage) -> Result<Standing> {
        let progress: Vec<Progress> = self.followers.iter().map(Follower::progress).collect();
        let persisted = sqlx::query_scalar::<_, i64>("SELECT count(*) FROM messages WHERE thread_id LIKE $1")
            .bind(format!("demo-{}-%", stage.run))
            .fetch_one(&stage.pool)
            .await?;
        let ended: usize = progress.iter().map(|progress| progress.terminals).sum();
        Ok(Standing {
            published: self.ledger.stored_chunks(),
            streamed: progress.iter().map(|progress| progress.events).sum::<usize>() - ended,
            ended,
            persisted: usize::try_from(persisted)?,
        })
    }

    fn describe(&self, standing: &Standing) -> String {
        let Standing { published, streamed, ended, persisted } = standing;
        let percent = |part: usize| (100 * part) / self.chunks.max(1);
        let mut line = format!(
            "{:5.1} s  published {:>3} %  streamed {:>3} %  persisted {persisted:>3}  complete at clients {ended:>3}",
            self.began.elapsed().as_secs_f64(),
            percent(*published).min(100),
            percent(*streamed)
        );
        if let Some(left) = self.killed_at.and_then(|at| LEASE.checked_sub(at.elapsed())) {
            line.push_str(&format!("  lease of the dead worker: {:.0} s left", left.as_secs_f64().ceil()));
        }
        line
    }

    async fn kill(&mut self, stage: &mut Stage, screen: &mut Screen) -> Result<()> {
        let worker = stage.fleet.workers.get_mut(KILLED).context("no worker")?;
        let name = worker.name().to_owned();
        worker.kill().await?;
        self.killed_at = Some(Instant::now());
        screen.line("");
        screen.text(&format!("{name} is killed (SIGKILL), with everything it had in memory."));
        screen.text("Its partitions stand still until its lease runs out: 10 s by the database's clock. The other half goes on.");
        screen.text(
            "Then the other worker takes them over and reads their streams again from the last checkpoint.",
        );
        screen.line("");
        Ok(())
    }

    async fn bring_back(&mut self, stage: &mut Stage, screen: &mut Screen) -> Result<()> {
        if self.killed_at.is_none() || self.is_back {
            return Ok(());
        }
        self.is_back = true;
        let worker = stage.fleet.workers.get_mut(KILLED).context("no worker")?;
        worker.spawn()?;
        screen
            .text(&format!("{} is started again; it gets its share of the partitions back.", worker.name()));
        Ok(())
    }

    async fn judge(self, stage: &Stage, elapsed: Duration, screen: &mut Screen) -> Result<bool> {
        // The last terminals are behind the last commits; rows need no more time.
        sleep(Duration::from_millis(200)).await;
        let prefix = format!("demo-{}-", stage.run);
        let messages: Vec<_> = tables::messages(&stage.pool)
            .await?
            .into_iter()
            .filter(|row| row.thread_id.starts_with(&prefix))
            .collect();
        let of_this_run = |letter: &tables::StoredDeadLetter| {
            letter.thread_id.as_ref().is_some_and(|thread| thread.starts_with(&prefix))
        };
        let dead_letters: Vec<_> =
            tables::dead_letters(&stage.pool).await?.into_iter().filter(of_this_run).collect();
        let stored: BTreeMap<_, _> =
            messages.iter().map(|row| (row.thread_id.as_str(), row.content.as_str())).collect();
        let same_rows = stored.values().filter(|content| **content == &*self.text).count();
        let transcripts: Vec<_> = self
            .followers
            .into_iter()
            .map(|follower| (follower.thread().to_owned(), follower.stop()))
            .collect();
        let received = |transcripts: &[crate::sse::Transcript]| -> String {
            transcripts.iter().map(|transcript| transcript.text_of("answer")).collect()
        };
        let same_streams =
            transcripts.iter().filter(|(_, transcripts)| received(transcripts) == *self.text).count();
        let Addressing::Exact(partitions) = stage.addressing else { bail!("the demo addresses partitions") };
        let mut log = audit::read_log(stage.publisher.context(), partitions).await?;
        log.retain(|publish| match &publish.body {
            Published::Chunk { key, .. } => key.thread.as_str().starts_with(&prefix),
            Published::Garbage(_) => false,
        });
        let violations = audit::audit(&Evidence {
            partitions,
            ledger: &self.ledger.snapshot(),
            log: &log,
            messages: &messages,
            dead_letters: &dead_letters,
            transcripts: &transcripts,
            gap_timeout: Duration::from_secs(30),
            allow_entry_letters: false,
        });
        let is_right = same_rows == MESSAGES && same_streams == MESSAGES && violations.is_empty();
        let stored_chunks = self.ledger.stored_chunks();
        let rate =
            |count: usize, time: Duration| grouped((count as f64 / time.as_secs_f64().max(0.001)) as usize);
        screen.heading(3, "The verdict");
        screen.item("texts in Postgres like the source", format!("{same_rows} of {MESSAGES}"));
        screen.item("texts over SSE like the source", format!("{same_streams} of {MESSAGES}"));
        screen.item(
            "chunks in the stream",
            format!("{}, {} of them twice", grouped(stored_chunks), grouped(stored_chunks - self.chunks)),
        );
        screen.item("chunks at clients", format!("{}, each once and in order", grouped(self.chunks)));
        screen.item(
            "from first chunk to last row",
            format!("{:.1} s, {} chunks/s", elapsed.as_secs_f64(), rate(self.chunks, elapsed)),
        );
        let working = elapsed.saturating_sub(LEASE);
        screen.item(
            "the same without the lease's 10 s",
            format!("{:.1} s, {} chunks/s", working.as_secs_f64(), rate(self.chunks, working)),
        );
        screen.item("rules broken", violations.len());
        violations.iter().take(10).for_each(|violation: &Violation| screen.text(&format!("  {violation}")));
        Ok(is_right)
    }
}
