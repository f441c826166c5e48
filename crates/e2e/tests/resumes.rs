//! Subscribers that are cut and reconnect at the worst time: when all their open messages end,
//! while the frames are still in flight to their gateway. Each gets everything once and in order.

use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

use testkit::{
    WAIT_TIMEOUT,
    fleet::Fleet,
    link::Link,
    load::PlannedMessage,
    services::{NatsServer, TestDatabase},
    sse::{FollowOptions, Follower, StreamEvent, Transcript},
};
use tokio::time::sleep;

use crate::{
    api_client::alone,
    fixture::{Fixture, options},
};

/// Messages that are open at the cut; a cursor names 64 at most.
const OPEN: usize = 60;
/// A subscriber that resumes has all ends within this time.
const ENDS_TIMEOUT: Duration = Duration::from_secs(5);
/// The gateways' NATS delay in each direction, and when the subscriber reconnects relative to the
/// publication of the ends, both in ms; negative is before.
const TRIES: [(u64, i64); 12] = [
    (0, -20),
    (0, 0),
    (0, 5),
    (0, 10),
    (0, 20),
    (0, 40),
    (0, 80),
    (150, -300),
    (150, -150),
    (150, -100),
    (150, 0),
    (150, 150),
];

#[tokio::test(flavor = "multi_thread")]
async fn viewers_resume_elsewhere_while_60_messages_end() {
    let (fixture, link) = with_late_gateways(2).await;
    for number in 0..TRIES.len() {
        fixture.until_owned(&format!("many-{number}")).await;
    }
    let mut faults = Vec::new();
    for (number, (late_ms, after_ms)) in TRIES.into_iter().enumerate() {
        link.set_delay(Duration::from_millis(late_ms));
        let found = resumed_while_all_end(&fixture, &format!("many-{number}"), after_ms).await;
        let what = format!("{late_ms} ms late, resumed after {after_ms} ms");
        faults.extend(found.into_iter().map(|fault| format!("{what}: {fault}")));
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// Follows a thread with [`OPEN`] open messages, and reconnects to another gateway when they end.
/// Returns the faults in what the subscriber was shown.
async fn resumed_while_all_end(fixture: &Fixture, thread: &str, after_ms: i64) -> Vec<String> {
    let gateways = fixture.fleet.gateway_addrs();
    let messages: Vec<_> = (0..OPEN).map(|number| planned(thread, number, 2)).collect();
    let part = |id| messages.iter().map(|message| message.publication(id)).collect::<Vec<_>>();
    let viewer = follow_once(gateways[0], thread, None);
    viewer.opened().await.unwrap();
    fixture.publisher.publish(part(0), &fixture.ack_log).await.unwrap();
    viewer.wait(WAIT_TIMEOUT, |progress| progress.events >= OPEN).await.unwrap();
    let first = viewer.stop().remove(0);
    let cursor = first.events.last().and_then(|received| received.id.clone()).unwrap();
    assert_eq!(cursor.matches('~').count(), OPEN, "open messages of {cursor}");
    let (wait, lead) = (after_ms.max(0).unsigned_abs(), (-after_ms).max(0).unsigned_abs());
    let resume = async {
        sleep(Duration::from_millis(wait)).await;
        follow_once(gateways[1], thread, Some(cursor))
    };
    let end = async {
        sleep(Duration::from_millis(lead)).await;
        fixture.publisher.publish(part(1), &fixture.ack_log).await.unwrap();
    };
    let (viewer, ()) = tokio::join!(resume, end);
    let waited = viewer.wait(ENDS_TIMEOUT, |progress| progress.terminals >= OPEN).await;
    let mut found: Vec<String> = waited.err().map(|error| format!("{error:#}")).into_iter().collect();
    found.extend(fixture.faults(&continued(first, viewer.stop()), &messages).await);
    found
}

/// The delay of everything that the gateway receives from NATS, and sends to it.
const NATS_DELAY: Duration = Duration::from_secs(1);
/// Messages that are stored before the gateway receives them.
const MESSAGES: usize = 7;
/// Time from the subscriber's admission until its first chunk is published, and from there until
/// the others are, in milliseconds. With 0 its gateway does not know the state of the thread yet.
const CHUNK_TIMINGS: [(u64, u64); 7] =
    [(0, 0), (0, 300), (1_500, 300), (2_500, 0), (2_500, 300), (5_000, 0), (5_000, 300)];

#[tokio::test(flavor = "multi_thread")]
async fn viewer_cut_in_frames_that_are_late_gets_what_is_stored() {
    let (fixture, link) = with_late_gateways(1).await;
    let threads: Vec<_> = (0..CHUNK_TIMINGS.len()).map(|number| format!("late-{number}")).collect();
    for thread in &threads {
        fixture.until_owned(thread).await;
    }
    link.set_delay(NATS_DELAY);
    let tries = threads.iter().zip(CHUNK_TIMINGS).map(|(thread, pace)| cut_in_first(&fixture, thread, pace));
    let found = futures_util::future::join_all(tries).await;
    let was_stored = found.iter().any(|(was_stored, _)| *was_stored);
    let faults: Vec<String> = found.into_iter().flat_map(|(_, faults)| faults).collect();
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    assert!(was_stored, "no viewer was cut in a message whose end was stored and still on its way");
}

/// Cuts a subscriber after the first chunk of the first message, and makes it reconnect at once.
/// Returns whether all messages were stored by then and the chunk came from a frame, and the faults
/// in what it was shown.
async fn cut_in_first(fixture: &Fixture, thread: &str, (before, pause): (u64, u64)) -> (bool, Vec<String>) {
    let gateway = fixture.fleet.gateway_addrs()[0];
    let messages: Vec<_> = (0..MESSAGES).map(|number| planned(thread, number, 8)).collect();
    let viewer = follow_once(gateway, thread, None);
    viewer.opened().await.unwrap();
    sleep(Duration::from_millis(before)).await;
    fixture.send_part(&messages[0], 0..1).await;
    sleep(Duration::from_millis(pause)).await;
    let chunks = messages.iter().flat_map(|message| (0..8).map(|id| message.publication(id)));
    fixture.publisher.publish(chunks.skip(1), &fixture.ack_log).await.unwrap();
    viewer.wait(WAIT_TIMEOUT, |progress| progress.events >= 1).await.unwrap();
    let mut first = viewer.stop().remove(0);
    // Anything that came together with the first chunk counts as lost.
    first.events.truncate(1);
    let are_stored = fixture.messages_of(thread).await.len() == MESSAGES;
    let is_live = matches!(&first.events[0].event, StreamEvent::Chunk(chunk) if !chunk.is_compacted);
    let viewer = follow_once(gateway, thread, first.events[0].id.clone());
    let waited = viewer.wait(WAIT_TIMEOUT, |progress| progress.terminals >= MESSAGES).await;
    let mut found: Vec<String> = waited.err().map(|error| format!("{error:#}")).into_iter().collect();
    found.extend(fixture.faults(&continued(first, viewer.stop()), &messages).await);
    let what = format!("first chunk after {before} ms, others {pause} ms later");
    (are_stored && is_live, found.into_iter().map(|fault| format!("{what}: {fault}")).collect())
}

/// A worker, and gateways that reach NATS over a link.
async fn with_late_gateways(gateways: usize) -> (Fixture, Link) {
    let (nats, database) = (NatsServer::start().await.unwrap(), TestDatabase::create().await.unwrap());
    let link = Link::before(nats.url()).await.unwrap();
    let url = link.url(nats.url()).unwrap();
    let mut options = alone(options(&nats, database.url())).with_role_env("gateway", "NATS_URL", url);
    options.gateways = gateways;
    let fleet = Fleet::start(options).await.unwrap();
    (Fixture::on(fleet, nats, database.pool().await.unwrap(), Some(database)).await, link)
}

fn planned(thread: &str, number: usize, chunks: usize) -> PlannedMessage {
    let pieces: Vec<String> = (0..chunks).map(|id| format!("{number}.{id} ")).collect();
    PlannedMessage::of_pieces(thread, &format!("m{number}"), &pieces).unwrap()
}

/// A subscriber that does not reconnect by itself when it is cut.
fn follow_once(gateway: SocketAddr, thread: &str, last_event_id: Option<String>) -> Follower {
    let options = FollowOptions { last_event_id, once: true, ..FollowOptions::default() };
    Follower::start(&[gateway], thread, options)
}

/// The combined record of a subscriber that was resumed.
fn continued(mut first: Transcript, rest: Vec<Transcript>) -> Transcript {
    for transcript in rest {
        first.events.extend(transcript.events);
        first.end = transcript.end;
    }
    first
}

impl Fixture {
    /// The faults in what a subscriber was shown of a thread with these messages: each must be
    /// complete, shown once, and end in the order of the store.
    async fn faults(&self, shown: &Transcript, messages: &[PlannedMessage]) -> Vec<String> {
        let mut faults: Vec<String> =
            shown.end.iter().map(|end| format!("it was cut again: {end:?}")).collect();
        for message in messages {
            let (id, expected) = (message.key.message.as_str(), message.text());
            let text = shown.text_of(id);
            if text != expected {
                faults.push(format!("{id} is {text:?} instead of {expected:?}"));
            }
        }
        let (mut ends, mut ids) = (Vec::new(), BTreeSet::new());
        for received in &shown.events {
            match &received.event {
                StreamEvent::Complete { message, .. } => ends.push(message.as_str()),
                StreamEvent::Chunk(_) => {}
                // What the client dropped may come again with the same id.
                StreamEvent::Reset { .. } => ids.clear(),
                other => faults.push(format!("it was shown {other:?}")),
            }
            let is_new = received.id.as_ref().is_none_or(|id| ids.insert(id));
            faults.extend((!is_new).then(|| format!("id {:?} came twice", received.id)));
        }
        let stored = self.messages_of(&messages[0].key.thread.to_string()).await;
        let stored: Vec<_> = stored.iter().map(|message| message.message_id.as_str()).collect();
        if stored.len() != messages.len() || ends != stored {
            faults.push(format!("the ends are {ends:?}, stored are {stored:?}"));
        }
        faults
    }
}
