//! Messages of one chunk, each in its own thread, timed from publish to row.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use async_nats::Client;
use model::{Chunk, Frame, IncomingChunk, MessageId, PartitionCount, Role, ThreadId};
use sqlx::PgPool;
use tokio::task::JoinHandle;

/// Time between two messages, whether or not the earlier one is stored.
const EVERY: Duration = Duration::from_millis(100);
/// Precision with which the time of a stored row is found.
const POLL: Duration = Duration::from_millis(4);
/// Maximum time to wait for the last message.
const LIMIT: Duration = Duration::from_secs(180);

/// Times in milliseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProbeTimes {
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) max: f64,
    /// Time from the moment passed to [`Probe::finish`] until the row of the first message sent
    /// after it is found.
    pub(super) first: f64,
    count: usize,
}

impl fmt::Display for ProbeTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { p50, p99, max, count, .. } = self;
        write!(f, "{count} messages, p50 {p50:.1} ms, p99 {p99:.1} ms, longest {max:.0} ms")
    }
}

/// When a message was sent, and when its row was found.
type SentAndStored = (Instant, Instant);

/// Sends messages until it is finished.
pub(super) struct Probe {
    stop: Arc<AtomicBool>,
    task: Option<JoinHandle<Result<Vec<SentAndStored>>>>,
}

impl Probe {
    pub(super) fn start(client: Client, pool: PgPool, count: PartitionCount) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let run = ProbeRun {
            client,
            pool,
            count,
            stop: Arc::clone(&stop),
            name: format!("{:08x}", rand::random::<u32>()),
        };
        Ok(Self { stop, task: Some(tokio::spawn(run.run())) })
    }

    /// Waits for the rows of all messages. Returns the times of those sent after `from`.
    pub(super) async fn finish(&mut self, from: Instant) -> Result<ProbeTimes> {
        self.stop.store(true, Ordering::Relaxed);
        let all = self.task.take().context("it has been finished")?.await??;
        let after: Vec<_> = all.into_iter().filter(|(sent, _)| *sent >= from).collect();
        let first = after.iter().min().context("no message was sent")?.1.duration_since(from);
        let mut times: Vec<f64> =
            after.iter().map(|(sent, there)| there.duration_since(*sent).as_secs_f64() * 1e3).collect();
        times.sort_by(f64::total_cmp);
        let at = |part: f64| times[((times.len() - 1) as f64 * part).round() as usize];
        Ok(ProbeTimes {
            p50: at(0.5),
            p99: at(0.99),
            max: at(1.0),
            first: first.as_secs_f64() * 1e3,
            count: times.len(),
        })
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

struct ProbeRun {
    client: Client,
    pool: PgPool,
    count: PartitionCount,
    stop: Arc<AtomicBool>,
    name: String,
}

impl ProbeRun {
    async fn run(self) -> Result<Vec<SentAndStored>> {
        let (mut pending, mut times) = (HashMap::new(), Vec::new());
        let (began, mut sent, mut stopped) = (Instant::now(), 0, None);
        loop {
            if stopped.is_none() && self.stop.load(Ordering::Relaxed) {
                stopped = Some(Instant::now());
            }
            if stopped.is_none() && began.elapsed() >= EVERY * sent {
                let thread = ThreadId::parse(&format!("probe-{}-{sent:06}", self.name))?;
                self.send(&thread).await?;
                pending.insert(thread.to_string(), (i16::try_from(thread.bucket().get())?, Instant::now()));
                sent += 1;
            }
            if !pending.is_empty() {
                for thread in self.stored(&pending).await? {
                    let (_, sent) = pending.remove(&thread).context("a row that was not asked for")?;
                    times.push((sent, Instant::now()));
                }
            }
            match stopped {
                Some(_) if pending.is_empty() => return Ok(times),
                Some(at) => ensure!(at.elapsed() < LIMIT, "{} messages are not stored", pending.len()),
                None => {}
            }
            tokio::time::sleep(POLL).await;
        }
    }

    async fn send(&self, thread: &ThreadId) -> Result<()> {
        let chunk = IncomingChunk {
            message: MessageId::parse("probe")?,
            attempt: 0,
            step: 0,
            role: Role::Assistant,
            chunk: Arc::new(Chunk::content(0, "one chunk", true)),
        };
        let frame = Frame { token: None, thread: thread.clone(), chunks: vec![chunk] };
        let subject = wire::subject::partition_chunks(self.count, thread);
        self.client.publish(subject, wire::encode_frame(&frame)).await?;
        Ok(self.client.flush().await?)
    }

    async fn stored(&self, pending: &HashMap<String, (i16, Instant)>) -> Result<Vec<String>> {
        let (threads, buckets): (Vec<&str>, Vec<i16>) =
            pending.iter().map(|(thread, (bucket, _))| (thread.as_str(), *bucket)).unzip();
        let rows = "SELECT m.thread_id FROM unnest($1::smallint[], $2::text[]) AS p (bucket, thread_id)
                    JOIN messages AS m ON m.bucket = p.bucket AND m.thread_id = p.thread_id AND m.message_id = 'probe'";
        Ok(sqlx::query_scalar(rows).bind(buckets).bind(threads).fetch_all(&self.pool).await?)
    }
}
