//! Views and compressions.

use anyhow::{Context as _, Result, ensure};
use model::{Bucket, ReasoningSessionId};
use reasoning::{CompressionRequest, NewMessage, ReasoningRole, Selection, append, compress};
use sqlx::{Connection as _, PgConnection};
use store::Store;
use tokio::time::{Duration, sleep};

use crate::table::Row;
use crate::timing::Timings;

/// Number of messages of a session in daily use.
pub(super) const USUAL: u32 = 100;
const VIEW_GOAL_MS: f64 = 5.0;
const COMPRESS_GOAL_MS: f64 = 5.0;
const ROUND_TRIPS_GOAL: f64 = 2.0;
const RATIO_GOAL: f64 = 1.2;

/// Views of one long session and of a usual one.
pub(super) async fn views(store: &Store, url: &str, messages: u32, calls: u32) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for messages in [USUAL, messages] {
        let id = session(store, url, &format!("view-{messages}"), 0, messages).await?;
        let mut timings = Timings::default();
        let mut bytes = view(store, &id).await?;
        for _ in 0..calls {
            bytes = timings.time(view(store, &id)).await?;
        }
        let trips = statements(url, calls, async |store| view(store, &id).await.map(drop)).await?;
        let p50 = timings.p50_ms();
        let row =
            Row::new('a', format!("frs_view_thread of {messages} messages"), format!("p50 {p50:.2} ms"))
                .column("p99 ms", format!("{:.2}", timings.p99_ms()))
                .column("statements", format!("{trips:.1}"))
                .note(format!("{} kB of text", bytes / 1_000))
                .figure("p50_ms", p50)
                .figure("statements", trips);
        rows.push(row.goal(format!("<= {VIEW_GOAL_MS} ms"), p50 <= VIEW_GOAL_MS));
    }
    Ok(rows)
}

/// Compressions in a usual session and in a long one. Each call reads the view, decides the
/// compression and writes one layer.
pub(super) async fn compressions(store: &Store, url: &str, messages: u32, calls: u32) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for messages in [USUAL, messages] {
        let id = session(store, url, &format!("compress-{messages}"), 0, messages).await?;
        let mut timings = Timings::default();
        for _ in 0..calls {
            timings.time(compress_two(store, &id)).await?;
            undo(store, &id).await?;
        }
        // Includes one undo per compression, which also takes two statements.
        let trips = statements(url, calls, async |store| {
            compress_two(store, &id).await?;
            undo(store, &id).await
        });
        let trips = trips.await? / 2.0;
        let p50 = timings.p50_ms();
        let is_met = p50 <= COMPRESS_GOAL_MS && trips < ROUND_TRIPS_GOAL + 0.2;
        let row =
            Row::new('b', format!("frs_compress_range in {messages} messages"), format!("p50 {p50:.2} ms"))
                .column("p99 ms", format!("{:.2}", timings.p99_ms()))
                .column("statements", format!("{trips:.1}"))
                .figure("p50_ms", p50)
                .figure("statements", trips);
        rows.push(row.goal(format!("<= {COMPRESS_GOAL_MS} ms, {ROUND_TRIPS_GOAL} statements"), is_met));
    }
    Ok(rows)
}

/// Makes the same calls in sessions whose discarded logs differ greatly in length, in turn.
pub(super) async fn discarded_logs(
    store: &Store,
    url: &str,
    layers: [u32; 2],
    calls: u32,
) -> Result<Vec<Row>> {
    let mut ids = Vec::new();
    for count in layers {
        ids.push(session(store, url, &format!("layers-{count}"), count, USUAL).await?);
    }
    let kinds = ["view", "compress", "undo", "first page of the log"];
    let mut timings: Vec<[Timings; 2]> = kinds.iter().map(|_| Default::default()).collect();
    for round in 0..=calls {
        for (at, id) in ids.iter().enumerate() {
            let mut measured =
                [Timings::default(), Timings::default(), Timings::default(), Timings::default()];
            measured[0].time(view(store, id)).await?;
            measured[1].time(compress_two(store, id)).await?;
            measured[2].time(undo(store, id)).await?;
            let page = async { Ok(store.discarded_reasoning(id, None, 5).await?) };
            measured[3].time(page).await?;
            // The first calls prepare the statements.
            if round > 0 {
                timings.iter_mut().zip(measured).for_each(|(all, one)| all[at].extend(one));
            }
        }
    }
    let [few, many] = layers;
    let row = |(kind, [short, long]): (&&str, &[Timings; 2])| {
        let (short, long) = (short.p50_ms(), long.p50_ms());
        let ratio = long / short;
        Row::new('c', format!("{kind}: {many} / {few} layers, p50"), format!("{ratio:.2}"))
            .note(format!("{long:.2} / {short:.2} ms"))
            .figure("ratio", ratio)
            .goal(format!("<= {RATIO_GOAL}"), ratio <= RATIO_GOAL)
    };
    Ok(kinds.iter().zip(&timings).map(row).collect())
}

async fn view(store: &Store, id: &ReasoningSessionId) -> Result<usize> {
    let seen = store.reasoning_thread(id, true, None).await?.context("no session")?;
    Ok(seen.view(false).len())
}

/// Compresses two messages like the tool does.
async fn compress_two(store: &Store, id: &ReasoningSessionId) -> Result<()> {
    let seen = store.reasoning_thread(id, false, None).await?.context("no session")?;
    let summary = "What was found, in one sentence.".to_owned();
    let request = CompressionRequest { selection: Selection::Range(10, 11), summary, token: None };
    let decided = compress(&seen.thread, &request).ok().context("refused")?;
    let written = store.compress_reasoning(&seen, &decided, &request.summary, None, "bench").await?;
    ensure!(written.is_some(), "another call was faster");
    Ok(())
}

async fn undo(store: &Store, id: &ReasoningSessionId) -> Result<()> {
    let seen = store.restorable_reasoning(id).await?.context("no session")?;
    ensure!(store.undo_reasoning(id, &seen, None, "bench").await?, "nothing to take back");
    Ok(())
}

/// A session with this number of visible messages. The last one is appended like an agent appends
/// it, so that the blocks of the earlier ones exist.
async fn session(
    store: &Store,
    url: &str,
    name: &str,
    layers: u32,
    messages: u32,
) -> Result<ReasoningSessionId> {
    let mut connection = PgConnection::connect(url).await?;
    let id = ReasoningSessionId::parse(name).ok().context("the name of a session")?;
    sqlx::query(include_str!("fill.sql"))
        .bind(Bucket::of_key(name).get() as i16)
        .bind(name)
        .bind(i64::from(layers))
        .bind(i64::from(messages) - 1)
        .execute(&mut connection)
        .await?;
    let last = append(vec![NewMessage {
        role: ReasoningRole::User,
        content: "What is next?".to_owned(),
        thinking: None,
        signature: None,
        calls: Vec::new(),
        answers: None,
        tool: None,
    }]);
    store.append_reasoning(&id, &last.ok().context("refused")?, None).await?;
    sqlx::query("VACUUM (ANALYZE)").execute(&mut connection).await?;
    connection.close().await?;
    Ok(id)
}

/// The number of statements per call. It is Postgres' count of transactions, because each statement
/// is one. Connecting and preparing are included, which is negligible over many calls.
async fn statements(url: &str, calls: u32, call: impl AsyncFn(&Store) -> Result<()>) -> Result<f64> {
    let mut observer = PgConnection::connect(url).await?;
    let before = transactions(&mut observer).await?;
    let store = Store::connect(&store::StoreConfig::new(url)).await?;
    for _ in 0..calls {
        call(&store).await?;
    }
    store.close().await;
    let after = transactions(&mut observer).await?;
    observer.close().await?;
    Ok((after - before) as f64 / f64::from(calls))
}

/// The number of transactions. It is complete only after all sessions have ended, because a session
/// reports its own at the latest then.
async fn transactions(observer: &mut PgConnection) -> Result<i64> {
    sleep(Duration::from_millis(1_500)).await;
    let sql = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()";
    Ok(sqlx::query_scalar(sql).fetch_one(observer).await?)
}
