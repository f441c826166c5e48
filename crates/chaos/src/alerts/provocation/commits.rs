//! Provocations between workers and Postgres.

use std::time::Duration;

use anyhow::Result;
use sqlx::AssertSqlSafe;
use testkit::{acked_publishes::AckLog, load::PlannedMessage, proxy::Cut};

use crate::alerts::scene::{Fired, MANY, Scene};

/// Number of messages of five chunks to one partition. They have more entries than the checkpoint
/// may be behind, but are fewer messages than a worker reads ahead.
const MESSAGES: usize = 300;
/// Number of messages of one chunk to one partition: more than a worker reads ahead of its commits.
const UNREAD: usize = 12_000;
/// Delay of each protocol message. A statement has five of them.
const SLOW: Duration = Duration::from_millis(300);
/// SQL that makes writes of messages fail as on a broken page.
const DAMAGE: &str = "CREATE FUNCTION damaged() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    RAISE EXCEPTION 'invalid page in block 1' USING ERRCODE = 'XX001'; END $$;
    CREATE TRIGGER damaged BEFORE INSERT ON messages FOR EACH STATEMENT EXECUTE FUNCTION damaged()";
/// SQL that locks a table. The timeout is disabled because the development Postgres ends idle
/// transactions after ten seconds.
const LOCK: &str = "SET LOCAL idle_in_transaction_session_timeout = 0; LOCK TABLE messages";
const MEND: &str = "DROP TRIGGER damaged ON messages; DROP FUNCTION damaged()";

pub(super) async fn cut_commits(scene: &mut Scene) -> Result<()> {
    scene.proxy.arm(Cut::After);
    let thread = scene.name("cut");
    scene.publish(&thread, None).await
}

pub(super) async fn slow_commits(scene: &mut Scene, alerts: &[&str]) -> Result<Fired> {
    scene.proxy.disarm();
    scene.proxy.set_delay(SLOW);
    let fired = scene.watch_while(alerts, publish_many).await;
    scene.proxy.set_delay(Duration::ZERO);
    fired
}

async fn publish_many(scene: &mut Scene) -> Result<()> {
    for _ in 0..MANY {
        let thread = scene.name("thread");
        scene.publish(&thread, None).await?;
    }
    Ok(())
}

pub(super) async fn damaged_pages(scene: &mut Scene, alerts: &[&str]) -> Result<Fired> {
    sqlx::raw_sql(AssertSqlSafe(DAMAGE)).execute(&scene.pool).await?;
    let fired = scene.watch_while(alerts, publish_many).await;
    sqlx::raw_sql(AssertSqlSafe(MEND)).execute(&scene.pool).await?;
    fired
}

/// Simulates another program that has renamed a table which is read when turns begin.
pub(super) async fn missing_table(scene: &mut Scene, alerts: &[&str]) -> Result<Fired> {
    sqlx::raw_sql("ALTER TABLE compactions RENAME TO compactions_elsewhere").execute(&scene.pool).await?;
    let thread = scene.name("refused");
    scene.api().say(&thread, "hello").await?;
    let fired = scene.watch(alerts).await;
    sqlx::raw_sql("ALTER TABLE compactions_elsewhere RENAME TO compactions").execute(&scene.pool).await?;
    fired
}

/// Simulates another program that holds a lock on a table. Workers continue to read until the
/// messages for a few commits have ended; later entries wait in the stream.
pub(super) async fn locked_table(scene: &mut Scene, alerts: &[&str]) -> Result<Fired> {
    let mut lock = scene.pool.begin().await?;
    sqlx::raw_sql(LOCK).execute(&mut *lock).await?;
    let thread = scene.name("unread");
    let message = |number| PlannedMessage::of_text(&thread, &format!("m-{number}"), "word", 1);
    let messages = (0..UNREAD).map(message).collect::<Result<Vec<_>>>()?;
    let publications = messages.iter().map(|message| message.publication(0));
    scene.publisher.publish(publications, &AckLog::default()).await?;
    let fired = scene.watch(alerts).await;
    lock.rollback().await?;
    fired
}

pub(super) async fn silent_postgres(scene: &mut Scene, alerts: &[&str]) -> Result<Fired> {
    scene.postgres.freeze();
    let thread = scene.name("silent");
    for _ in 0..MESSAGES {
        scene.publish(&thread, None).await?;
    }
    let fired = scene.watch(alerts).await;
    scene.postgres.thaw();
    fired
}

/// Requests erasures that workers have tried as many times as they may. A worker ends each at once.
pub(super) async fn failed_erasures(scene: &mut Scene) -> Result<()> {
    let thread = scene.name("not-erased");
    let sql = "INSERT INTO erasures (erasure_id, tenant, kind, subject, is_preview, actor, attempts)
               VALUES (replace(gen_random_uuid()::text, '-', ''), '-', 'thread', $1, false, 'chaos', 20)";
    sqlx::query(sql).bind(thread).execute(&scene.pool).await?;
    Ok(())
}
