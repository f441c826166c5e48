//! Follows threads like a gateway, for measurements that need the time of a message's commit.

use std::time::Duration;

use anyhow::{Result, ensure};
use async_nats::{Client, Subscriber};
use futures_util::{StreamExt as _, future};
use model::LiveFrame;
use model::{GatewayId, PartitionCount, ThreadId};
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval, sleep};
use wire::query::{self, ChangedThreadsQuery, SnapshotRequest};
use wire::subject;

/// Limit until partitions have owners.
const OWNERS: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_millis(100);
/// Owners drop a gateway that is silent for 20 s.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Receives frames of some threads until it is dropped.
#[derive(Debug)]
pub struct LiveFollower {
    frames: Subscriber,
    keeping_alive: JoinHandle<()>,
}

impl LiveFollower {
    /// Returns when the owners of all `threads` send their frames.
    ///
    /// # Errors
    /// NATS is unreachable, or a partition has no owner within a minute.
    pub async fn start(client: &Client, partitions: PartitionCount, threads: Vec<ThreadId>) -> Result<Self> {
        let gateway = GatewayId::of_number(rand::random());
        let frames = client.subscribe(subject::live(&gateway)).await?;
        client.flush().await?;
        for some in threads.chunks(100) {
            let following = some.iter().map(|thread| follow(client, partitions, &gateway, thread));
            future::try_join_all(following).await?;
        }
        let client = client.clone();
        let keeping_alive = tokio::spawn(async move {
            let question = query::encode_changed_threads_query(&gateway, &ChangedThreadsQuery::default());
            let mut ticks = interval(KEEP_ALIVE);
            loop {
                ticks.tick().await;
                for p in partitions.all() {
                    let _ = client.request(subject::query(p), question.clone()).await;
                }
            }
        });
        Ok(Self { frames, keeping_alive })
    }

    /// The next frames; `None` if the connection has ended.
    pub async fn next(&mut self) -> Option<Vec<LiveFrame>> {
        let message = self.frames.next().await?;
        let frames = wire::live::frames(&message.payload).unwrap_or_default();
        Some(frames.iter().filter_map(|(_, frame)| wire::live::decode(frame).ok()?.into_frame()).collect())
    }
}

impl Drop for LiveFollower {
    fn drop(&mut self) {
        self.keeping_alive.abort();
    }
}

async fn follow(
    client: &Client,
    partitions: PartitionCount,
    gateway: &GatewayId,
    thread: &ThreadId,
) -> Result<()> {
    let request = SnapshotRequest { thread: thread.clone(), known: Vec::new(), max_messages: 64 };
    let payload = query::encode_snapshot_request(gateway, &request);
    let subject = subject::query(thread.bucket().partition(partitions));
    let deadline = Instant::now() + OWNERS;
    while client.request(subject.clone(), payload.clone()).await.is_err() {
        ensure!(Instant::now() < deadline, "the partition of {thread} has no owner");
        sleep(RETRY).await;
    }
    Ok(())
}
