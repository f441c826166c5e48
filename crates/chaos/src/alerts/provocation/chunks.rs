//! Provocations through published payloads, and through losses in streams.

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result, ensure};
use async_nats::jetstream::stream::Config;
use model::{CommandId, Control, ControlKind, MessageId, MessageKey, ThreadId};
use testkit::{
    acked_publishes::AckLog,
    fleet::invoke,
    load::{Disorder, PlannedMessage},
};
use tokio::time::sleep;

use crate::alerts::scene::{Fired, MANY, Scene, partition, partition_count};

/// Number of chunks of a message that stays open for long.
const LONG: usize = 200;
/// Text size of one chunk, slightly below `ANTIPHON_MAX_CHUNK_BYTES`.
const CHUNK_BYTES: usize = 60_000;
/// Number of chunks of one message. Its size is slightly below `ANTIPHON_MAX_MESSAGE_BYTES`.
const CHUNKS: usize = 65;
/// Number of messages. They exceed the alert's threshold, but stay below
/// `ANTIPHON_MAX_BUFFER_BYTES`.
const LARGE_MESSAGES: usize = 59;

/// Time until the counters of workers that have just started have been scraped at 0. Without that
/// scrape, an increase would not include the counter's first value.
const SCRAPES: Duration = Duration::from_secs(3);

pub(super) async fn garbage(scene: &mut Scene) -> Result<()> {
    let subject = wire::subject::partition_chunks(partition_count()?, &ThreadId::parse("garbage")?);
    for _ in 0..MANY {
        scene.publisher.publish_raw(&subject, None, "no chunk".into()).await?;
    }
    Ok(())
}

/// Sends a pause command for an agent as a gateway would, but on the subject for chunks.
pub(super) async fn forged_commands(scene: &mut Scene) -> Result<()> {
    let thread = ThreadId::parse("forged")?;
    let control = Control {
        id: CommandId::parse(&scene.name("forged"))?,
        actor: "a publisher".into(),
        subject: thread.agent(),
        kind: ControlKind::Pause,
    };
    let subject = wire::subject::partition_chunks(partition_count()?, &thread);
    scene.publisher.publish_raw(&subject, None, wire::encode_control(&control)).await.map(drop)
}

pub(super) async fn lost_chunks(scene: &mut Scene) -> Result<()> {
    for _ in 0..MANY {
        let thread = scene.name("lossy");
        scene.publish(&thread, Some(2)).await?;
    }
    Ok(())
}

pub(super) async fn foreign_chunks(scene: &mut Scene) -> Result<()> {
    let thread = scene.name("foreign");
    let turn = scene.api().say(&thread, "slowly").await?;
    sleep(Duration::from_millis(500)).await;
    let message = PlannedMessage::of_text(&thread, &turn.answer, "not of this turn", 1)?;
    scene.publisher.publish([message.publication(0)], &AckLog::default()).await.map(drop)
}

/// Publishes a chunk at intervals, so that the message neither stalls nor has a gap.
pub(super) async fn long_message(scene: &mut Scene, alerts: &[&str]) -> Result<Fired> {
    let thread = scene.name("long");
    let message = PlannedMessage::of_pieces(&thread, "m", &vec!["a word ".to_owned(); LONG])?;
    let mut sent = 0;
    let fired = scene
        .watch_while(alerts, async |scene| {
            sent += 1;
            let publication = message.publication(sent - 1);
            scene.publisher.publish([publication], &AckLog::default()).await.map(drop)
        })
        .await;
    let rest = (sent..LONG).map(|id| message.publication(id));
    scene.publisher.publish(rest, &AckLog::default()).await?;
    fired
}

/// Publishes all messages to the partitions of one worker, because the alert sums over each worker.
pub(super) async fn large_messages(scene: &mut Scene, alerts: &[&str]) -> Result<Fired> {
    let owner = scene.fleet.workers[0].name();
    let statement = "SELECT partition_id FROM partitions WHERE owner = $1";
    let owned: Vec<i16> = sqlx::query_scalar(statement).bind(owner).fetch_all(&scene.pool).await?;
    let owned: BTreeSet<_> = owned.into_iter().filter_map(|id| u16::try_from(id).ok()).collect();
    ensure!(!owned.is_empty(), "a worker has no partitions");
    let pieces = vec!["x".repeat(CHUNK_BYTES); CHUNKS];
    let model = PlannedMessage::of_pieces("large", "m", &pieces)?;
    let mut messages = Vec::new();
    while messages.len() < LARGE_MESSAGES {
        let thread = ThreadId::parse(&scene.name("large"))?;
        if owned.contains(&partition(&thread)?.0) {
            let key = MessageKey { thread, message: MessageId::parse("m")? };
            messages.push(PlannedMessage { key, ..model.clone() });
        }
    }
    let disorder = Disorder { frame: 8, protobuf: 1.0, ..Disorder::NONE };
    for message in &messages {
        let publications = message.publications(disorder, Some(CHUNKS - 1), &mut scene.rng);
        scene.publisher.publish(publications, &AckLog::default()).await?;
    }
    let fired = scene.watch(alerts).await;
    let ends = messages.iter().map(|message| message.publication(CHUNKS - 1));
    scene.publisher.publish(ends, &AckLog::default()).await?;
    fired
}

/// Limits the stream to slightly more than its current size.
pub(super) async fn full_stream(scene: &mut Scene, alerts: &[&str]) -> Result<Fired> {
    let thread = scene.name("full");
    scene.publish(&thread, None).await?;
    let name = wire::subject::stream_name(partition(&ThreadId::parse(&thread)?)?);
    let context = scene.publisher.context().clone();
    let mut stream = context.get_stream(name).await?;
    let info = stream.info().await?.clone();
    let held = i64::try_from(info.state.bytes)?;
    context.update_stream(Config { max_bytes: held + held / 50, ..info.config.clone() }).await?;
    let fired = scene.watch(alerts).await;
    context.update_stream(info.config).await?;
    fired
}

/// Purges one subject of a stream. NATS lets an operator do that even if the stream denies deleting
/// single entries.
pub(super) async fn removed_entries(scene: &mut Scene, alerts: &[&str]) -> Result<Fired> {
    sleep(SCRAPES).await;
    scene.kill_workers().await?;
    let taken = ThreadId::parse(&scene.name("torn"))?;
    let other = loop {
        let thread = ThreadId::parse(&scene.name("whole"))?;
        if partition(&thread)? == partition(&taken)? {
            break thread;
        }
    };
    for thread in [&other, &taken, &other] {
        scene.publish(thread.as_str(), None).await?;
    }
    let name = wire::subject::stream_name(partition(&taken)?);
    let stream = scene.publisher.context().get_stream(name).await?;
    stream.purge().filter(scene.publisher.subject(&taken)).await.context("removing entries")?;
    scene.spawn_workers()?;
    let fired = scene.watch(alerts).await;
    acknowledge_incidents(scene).await?;
    fired
}

/// Purges entries only once. An incident of a later purge could be recorded after the incidents
/// were acknowledged.
pub(super) async fn purged_entries(scene: &mut Scene, alerts: &[&str]) -> Result<Fired> {
    scene.kill_workers().await?;
    let thread = scene.name("torn");
    scene.publish(&thread, None).await?;
    let name = wire::subject::stream_name(partition(&ThreadId::parse(&thread)?)?);
    let mut stream = scene.publisher.context().get_stream(name).await?;
    let last = stream.info().await?.state.last_sequence;
    stream.purge().sequence(last).await.context("purging entries")?;
    scene.spawn_workers()?;
    let fired = scene.watch(alerts).await;
    acknowledge_incidents(scene).await?;
    fired
}

/// Acknowledges the incidents, because before that workers are not ready.
async fn acknowledge_incidents(scene: &Scene) -> Result<()> {
    let env = [("ANTIPHON_URL".to_owned(), format!("http://{}", scene.api().0))];
    let done = invoke(&["incidents", "acknowledge", "all"], &env).await?;
    ensure!(done.code == Some(0), "incidents could not be acknowledged: {}", done.stderr);
    Ok(())
}
