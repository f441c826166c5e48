//! Part 1 of the demo: six chunks in the wrong order, and what a client sees of them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use sqlx::PgPool;
use tokio::time::{Instant, sleep};

use crate::{environment::DemoEnvironment, screen::Screen};
use testkit::{
    acked_publishes::AckLog,
    db_snapshot, http,
    load::PlannedMessage,
    sse::{FollowOptions, Follower, Received, StreamEvent},
};

const PIECES: [&str; 6] =
    ["An antiphon ", "is sung by ", "two voices ", "that answer ", "each other, ", "turn by turn."];
/// The chunk ids in order of arrival, each with the number of events it must release: chunks, and
/// `message_complete` at the end.
const ARRIVAL: [(usize, usize); 6] = [(3, 0), (1, 0), (4, 0), (0, 2), (5, 0), (2, 5)];
/// How long no event must arrive before "nothing" is reported.
const SILENCE: Duration = Duration::from_millis(200);
const LIMIT: Duration = Duration::from_secs(20);

/// Runs the part; false if a client saw anything unexpected.
pub(super) async fn show(environment: &DemoEnvironment, screen: &mut Screen) -> Result<bool> {
    let thread = format!("demo-order-{}", environment.tag);
    let gateway = environment.gateway()?;
    screen.heading(1, "Chunks arrive in any order and are released in order");
    screen.dim("A client follows a thread while its chunks are published on NATS one by one, in disorder.");
    screen.text("");
    let follower = Follower::start(&[gateway], &thread, FollowOptions::default());
    follower.opened().await?;
    let message = PlannedMessage::of_pieces(&thread, "answer-1", &PIECES.map(str::to_owned))?;
    let ack_log = AckLog::default();
    screen.text(&format!("{:<18}released to the client", "published"));
    let mut is_right = true;
    let mut shown = 0;
    for (id, released) in ARRIVAL {
        environment.publisher.publish([message.publication(id)], &ack_log).await?;
        let seen = step(&follower, shown, released).await;
        shown += seen.len();
        is_right &= seen.len() == released;
        let chunk = format!("chunk {id}{}", if id == PIECES.len() - 1 { " (final)" } else { "" });
        screen.text(&format!("{chunk:<18}{}", describe(&seen)));
    }
    let text = follower.inspect(|transcripts| transcripts.first().map(|first| first.text_of("answer-1")));
    is_right &= text.as_deref() == Some(PIECES.concat().as_str());
    show_row(&environment.pool, &thread, &message.text(), screen).await?;
    show_history(environment, &thread, screen).await?;
    Ok(is_right)
}

/// The events after the first `shown`, once there are `expected` of them, or after enough silence.
async fn step(follower: &Follower, shown: usize, expected: usize) -> Vec<Received> {
    let began = Instant::now();
    loop {
        let seen: Vec<Received> = follower.inspect(|transcripts| {
            transcripts.iter().flat_map(|transcript| &transcript.events).skip(shown).cloned().collect()
        });
        let is_quiet = expected == 0 && began.elapsed() >= SILENCE;
        if is_quiet || (expected > 0 && seen.len() >= expected) || began.elapsed() >= LIMIT {
            return seen;
        }
        sleep(Duration::from_millis(10)).await;
    }
}

fn describe(seen: &[Received]) -> String {
    if seen.is_empty() {
        return "-".to_owned();
    }
    let events = seen.iter().map(|received| match &received.event {
        StreamEvent::Chunk(chunk) => format!("{} {:?}", chunk.id, chunk.text),
        StreamEvent::Complete { .. } => "message_complete".to_owned(),
        other => format!("{other:?}"),
    });
    events.collect::<Vec<_>>().join("  ")
}

async fn show_row(pool: &PgPool, thread: &str, text: &str, screen: &mut Screen) -> Result<()> {
    let rows = db_snapshot::messages(pool).await?;
    let row = rows.iter().find(|row| row.thread_id == thread).context("the message is not in Postgres")?;
    screen.text("");
    screen.text("message_complete comes after the commit. The row, written once, in the table messages:");
    screen.item("  position", row.position);
    screen.item("  thread_id / message_id", format!("{} / {}", row.thread_id, row.message_id));
    screen.item("  batch_id, sequence_num", format!("{}, {}", row.batch_id, row.sequence_num));
    screen.item("  content", format!("{:?}", row.content));
    ensure!(row.content == text, "the row holds another text: {:?}", row.content);
    Ok(())
}

async fn show_history(environment: &DemoEnvironment, thread: &str, screen: &mut Screen) -> Result<()> {
    let path = format!("/v1/threads/{thread}/history");
    let history = http::get_json(environment.gateway()?, &path).await?;
    let count = history["messages"].as_array().map_or(0, Vec::len);
    screen.text(&format!("and GET {path} has {count} message."));
    ensure!(count == 1, "the history has {count} messages: {history}");
    Ok(())
}
