//! The constant load of a chaos run. It has short messages in disorder, some of which lose a chunk
//! or start again, and answers of one to two minutes.

use std::{
    net::SocketAddr,
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Result;
use rand::{RngExt, rngs::StdRng};
use tokio::{
    task::{JoinHandle, JoinSet},
    time::sleep,
};

use crate::options::ChaosSettings;
use testkit::{
    acked_publishes::AckLog,
    load::{Disorder, PlannedMessage},
    publisher::{Publication, Publisher},
    sse::{FollowOptions, Follower},
    text,
};

/// Number of connections that publish.
pub(super) const PUBLISHERS: usize = 3;
/// Maximum number of messages in progress per connection.
const UNDER_WAY: usize = 100;
/// Number of messages of which one is a long answer.
const LONG_EVERY: usize = 40;
/// Duration of long answers, seconds.
const LONG: RangeInclusive<u64> = 60..=120;
/// Prefix of thread ids.
const THREAD: &str = "thread-";
const LOST_CHUNK: f64 = 0.03;
const SECOND_ATTEMPT: f64 = 0.03;
const DISORDER: Disorder = Disorder { window: 16, duplicates: 0.02, frame: 3, protobuf: 0.5 };

pub(super) type LoadTask = JoinHandle<Result<()>>;

#[derive(Debug, Default)]
pub(super) struct LoadStats {
    pub(super) messages: AtomicUsize,
    pub(super) payloads: AtomicUsize,
    pub(super) retries: AtomicUsize,
    pub(super) lost: AtomicUsize,
    pub(super) second_attempts: AtomicUsize,
    /// Number of answers that took longer than a minute.
    pub(super) long: AtomicUsize,
}

/// Starts one client per thread. Most clients stay connected; every third one disconnects and
/// reconnects repeatedly.
pub(super) fn follow(settings: &ChaosSettings, gateways: &[SocketAddr]) -> Vec<Follower> {
    let start = |number: usize| {
        let mut gateways = gateways.to_vec();
        let at = number % gateways.len().max(1);
        gateways.rotate_left(at);
        let hang_up_after = (number % 3 == 2).then(|| Duration::from_millis(1500 + 100 * number as u64));
        let options = FollowOptions { hang_up_after, ..FollowOptions::default() };
        Follower::start(&gateways, &thread(number), options)
    };
    (0..settings.threads).map(start).collect()
}

fn thread(number: usize) -> String {
    format!("{THREAD}{number:03}")
}

/// True for a thread whose messages belong to no turn.
pub(super) fn is_bare(thread: &str) -> bool {
    thread.starts_with(THREAD)
}

/// The messages that one connection publishes.
pub(super) struct MessageSource {
    number: usize,
    threads: usize,
    pause: Duration,
    /// The time until which long answers may begin, so that they end with the faults.
    long_until: Duration,
    publisher: Publisher,
    ack_log: Arc<AckLog>,
    rng: StdRng,
}

/// The publications of one message, in steps. A pause precedes each step.
struct PublishPlan {
    steps: Vec<(Duration, Vec<Publication>)>,
}

impl MessageSource {
    pub(super) fn new(
        settings: &ChaosSettings,
        number: usize,
        publisher: Publisher,
        ack_log: Arc<AckLog>,
        rng: StdRng,
    ) -> Self {
        let pause = Duration::from_secs_f64(PUBLISHERS as f64 / settings.messages_per_second);
        let long_until = settings.duration.saturating_sub(Duration::from_secs(*LONG.end()));
        Self { number, threads: settings.threads, pause, long_until, publisher, ack_log, rng }
    }

    /// Begins messages until it is stopped, and completes those that it has begun.
    pub(super) async fn run(mut self, stop: Arc<AtomicBool>, stats: Arc<LoadStats>) -> Result<()> {
        let mut under_way: JoinSet<Result<()>> = JoinSet::new();
        let begun = Instant::now();
        for count in 0.. {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let script = match count % LONG_EVERY == 0 && begun.elapsed() < self.long_until {
                true => self.long_answer(count, &stats)?,
                false => self.script(count, &stats)?,
            };
            let (publisher, ack_log, stats) =
                (self.publisher.clone(), Arc::clone(&self.ack_log), Arc::clone(&stats));
            under_way.spawn(async move { script.play(&publisher, &ack_log, &stats).await });
            while let Some(ended) = under_way.try_join_next() {
                ended??;
            }
            if under_way.len() >= UNDER_WAY
                && let Some(ended) = under_way.join_next().await
            {
                ended??;
            }
            sleep(self.pause).await;
        }
        while let Some(ended) = under_way.join_next().await {
            ended??;
        }
        Ok(())
    }

    fn script(&mut self, count: usize, stats: &LoadStats) -> Result<PublishPlan> {
        let thread = thread(self.rng.random_range(0..self.threads));
        let pieces = self.pieces();
        let message = PlannedMessage::of_pieces(&thread, &format!("m-{}-{count}", self.number), &pieces)?;
        stats.messages.fetch_add(1, Ordering::Relaxed);
        let mut publications = Vec::new();
        if self.rng.random_bool(SECOND_ATTEMPT) {
            // The first attempt stays incomplete; otherwise the first one would be valid.
            stats.second_attempts.fetch_add(1, Ordering::Relaxed);
            let lost = self.rng.random_range(0..pieces.len() - 1);
            publications.extend(message.publications(DISORDER, Some(lost), &mut self.rng));
            let again = PlannedMessage::of_pieces(&thread, message.key.message.as_str(), &self.pieces())?;
            publications.extend(again.with_attempt(1).publications(DISORDER, None, &mut self.rng));
        } else {
            let is_lossy = self.rng.random_bool(LOST_CHUNK);
            stats.lost.fetch_add(usize::from(is_lossy), Ordering::Relaxed);
            let lost = is_lossy.then(|| self.rng.random_range(0..pieces.len() - 1));
            publications.extend(message.publications(DISORDER, lost, &mut self.rng));
        }
        Ok(self.spread(publications))
    }

    /// Plans an answer like that of a reasoning model. Pieces arrive steadily for one to two
    /// minutes, and sometimes the answer starts again in the middle.
    fn long_answer(&mut self, count: usize, stats: &LoadStats) -> Result<PublishPlan> {
        /// Duration of a step of the plan. No chunk may be missing for longer than a few steps.
        const STEP: Duration = Duration::from_millis(500);
        stats.messages.fetch_add(1, Ordering::Relaxed);
        stats.long.fetch_add(1, Ordering::Relaxed);
        let pieces = text::cut(text::LICENSE, 3);
        let thread = thread(self.rng.random_range(0..self.threads));
        let id = format!("m-{}-{count}", self.number);
        let message = PlannedMessage::of_pieces(&thread, &id, &pieces)?;
        let mut publications = message.publications(DISORDER, None, &mut self.rng);
        if self.rng.random_bool(SECOND_ATTEMPT * 5.0) {
            stats.second_attempts.fetch_add(1, Ordering::Relaxed);
            publications.truncate(publications.len() / 2);
            let again = PlannedMessage::of_pieces(&thread, &id, &pieces)?.with_attempt(1);
            publications.extend(again.publications(DISORDER, None, &mut self.rng));
        }
        let duration = Duration::from_secs(self.rng.random_range(LONG));
        let size = publications.len().div_ceil((duration.as_millis() / STEP.as_millis()) as usize).max(1);
        let mut steps = Vec::new();
        let mut rest = publications.into_iter().peekable();
        while rest.peek().is_some() {
            steps.push((STEP, rest.by_ref().take(size).collect()));
        }
        Ok(PublishPlan { steps })
    }

    /// Creates 5 to 60 pieces, from a random place of the text.
    fn pieces(&mut self) -> Vec<String> {
        let words = self.rng.random_range(1..5);
        let all = text::cut(text::LICENSE, words);
        let length = self.rng.random_range(5..=60);
        let start = self.rng.random_range(0..all.len() - length);
        all[start..start + length].to_vec()
    }

    /// Plans the times of publications. Most messages are published at once, the others over two
    /// seconds, so that faults affect them.
    fn spread(&mut self, publications: Vec<Publication>) -> PublishPlan {
        if self.rng.random_bool(0.4) {
            return PublishPlan { steps: vec![(Duration::ZERO, publications)] };
        }
        let size = publications.len().div_ceil(10).max(1);
        let mut steps = Vec::new();
        let mut rest = publications.into_iter().peekable();
        while rest.peek().is_some() {
            let pause = Duration::from_millis(self.rng.random_range(0..400));
            steps.push((pause, rest.by_ref().take(size).collect()));
        }
        PublishPlan { steps }
    }
}

impl PublishPlan {
    async fn play(self, publisher: &Publisher, ack_log: &AckLog, stats: &LoadStats) -> Result<()> {
        for (pause, publications) in self.steps {
            sleep(pause).await;
            let delivered = publisher.publish(publications, ack_log).await?;
            stats.payloads.fetch_add(delivered.acked, Ordering::Relaxed);
            stats.retries.fetch_add(delivered.retries, Ordering::Relaxed);
        }
        Ok(())
    }
}
