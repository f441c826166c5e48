//! What is done to a fleet so that its alerts fire.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use model::{PartitionCount, ThreadId};
use serde_json::json;
use sqlx::AssertSqlSafe;
use testkit::{
    acked_publishes::AckLog,
    fleet::invoke,
    load::PlannedMessage,
    proxy::Cut,
    sse::{FollowOptions, Follower},
};
use tokio::time::sleep;

use super::scene::{Fired, LEASE, MODEL_WORKFLOW, PARTITIONS, Scene};

/// Threads and agents of a provocation: more than any threshold.
const MANY: usize = 30;
/// Entries of one partition, more than its checkpoint may be behind.
const ENTRIES: usize = 1_500;
/// Of each message of the protocol, of which a statement has five.
const SLOW: Duration = Duration::from_millis(300);
/// Writes of messages fail as they do on a page that is broken.
const DAMAGE: &str = "CREATE FUNCTION damaged() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    RAISE EXCEPTION 'invalid page in block 1' USING ERRCODE = 'XX001'; END $$;
    CREATE TRIGGER damaged BEFORE INSERT ON messages FOR EACH STATEMENT EXECUTE FUNCTION damaged()";
const MEND: &str = "DROP TRIGGER damaged ON messages; DROP FUNCTION damaged()";

/// One of them, in the order in which they are made: the later ones leave more behind.
#[derive(Debug, Clone, Copy)]
pub(super) enum Provocation {
    Garbage,
    LostChunks,
    ForeignChunks,
    FailingTurns,
    FailingTasks,
    FailingModel,
    DyingWorkflow,
    CutCommits,
    SlowCommits,
    DamagedPages,
    SilentPostgres,
    SilentNats,
    FrozenWorker,
    KilledWorker,
    PurgedEntries,
    NoWorkers,
    NoWorkflow,
}

impl Provocation {
    pub(super) const ALL: [Self; 17] = [
        Self::Garbage,
        Self::LostChunks,
        Self::ForeignChunks,
        Self::FailingTurns,
        Self::FailingTasks,
        Self::FailingModel,
        Self::DyingWorkflow,
        Self::CutCommits,
        Self::SlowCommits,
        Self::DamagedPages,
        Self::SilentPostgres,
        Self::SilentNats,
        Self::FrozenWorker,
        Self::KilledWorker,
        Self::PurgedEntries,
        Self::NoWorkers,
        Self::NoWorkflow,
    ];

    /// For people.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Garbage => "payloads that are no chunks",
            Self::LostChunks => "messages without one of their chunks",
            Self::ForeignChunks => "chunks of a turn without its token",
            Self::FailingTurns => "turns that fail for good",
            Self::FailingTasks => "tasks of many agents that fail for a passing reason",
            Self::FailingModel => "a model that cannot be reached",
            Self::DyingWorkflow => "requests whose workflow service says nothing",
            Self::CutCommits => "connections cut after commits",
            Self::SlowCommits => "commits that take more than a second",
            Self::DamagedPages => "writes refused as on a broken page",
            Self::SilentPostgres => "Postgres halted (SIGSTOP)",
            Self::SilentNats => "NATS halted (SIGSTOP)",
            Self::FrozenWorker => "a worker halted beyond its leases",
            Self::KilledWorker => "a worker killed",
            Self::PurgedEntries => "entries purged that are not read yet",
            Self::NoWorkers => "all workers killed",
            Self::NoWorkflow => "a workflow that no service serves",
        }
    }

    /// What is to fire.
    pub(super) fn alerts(self) -> &'static [&'static str] {
        match self {
            Self::Garbage => &["AntiphonDeadLetters"],
            Self::LostChunks => &["AntiphonGapTimeouts"],
            Self::ForeignChunks => &["AntiphonUnauthorizedChunks"],
            Self::FailingTurns => &["AntiphonTurnsFailing"],
            Self::FailingTasks => &["AntiphonAgentsBackingOff"],
            Self::FailingModel => &["AntiphonModelCallsFailing"],
            Self::DyingWorkflow => &["AntiphonRequestsRedelivered"],
            Self::CutCommits => &["AntiphonCommitsUnknown"],
            Self::SlowCommits => &["AntiphonCommitsSlow"],
            Self::DamagedPages => &["AntiphonDamagedPostgres"],
            Self::SilentPostgres => &["AntiphonCommitsStopped", "AntiphonCheckpointStuck"],
            Self::SilentNats => &["AntiphonInputsUnconfirmed"],
            Self::FrozenWorker => &["AntiphonLeasesLost"],
            Self::KilledWorker => &["AntiphonPartitionsWithoutOwner"],
            Self::PurgedEntries => &["AntiphonOpenIncidents"],
            Self::NoWorkers => &["AntiphonNoWorkers", "AntiphonOwnersUnreachable"],
            Self::NoWorkflow => &["AntiphonInputsWaiting", "AntiphonTurnsUnanswered"],
        }
    }

    /// Makes it until its alerts fire, and undoes it.
    pub(super) async fn make(self, scene: &mut Scene) -> Result<Fired> {
        let alerts = self.alerts();
        match self {
            Self::Garbage => scene.watch_while(alerts, garbage).await,
            Self::LostChunks => scene.watch_while(alerts, lost_chunks).await,
            Self::ForeignChunks => scene.watch_while(alerts, foreign_chunks).await,
            Self::FailingTurns => {
                scene.watch_while(alerts, async |scene| say_many(scene, "fails-for-good").await).await
            }
            Self::FailingTasks => {
                failing_tasks(scene).await?;
                scene.watch(alerts).await
            }
            Self::FailingModel => scene.watch_while(alerts, failing_model).await,
            Self::DyingWorkflow => {
                scene.watch_while(alerts, async |scene| say_many(scene, "dies").await).await
            }
            Self::CutCommits => scene.watch_while(alerts, cut_commits).await,
            Self::SlowCommits => slow_commits(scene, alerts).await,
            Self::DamagedPages => damaged_pages(scene, alerts).await,
            Self::SilentPostgres => silent_postgres(scene, alerts).await,
            Self::SilentNats => silent_nats(scene, alerts).await,
            Self::FrozenWorker => scene.watch_while(alerts, frozen_worker).await,
            Self::KilledWorker => killed_worker(scene, alerts).await,
            Self::PurgedEntries => purged_entries(scene, alerts).await,
            Self::NoWorkers => no_workers(scene, alerts).await,
            Self::NoWorkflow => {
                no_workflow(scene).await?;
                scene.watch(alerts).await
            }
        }
    }
}

fn count() -> Result<PartitionCount> {
    Ok(PartitionCount::new(PARTITIONS.into())?)
}

async fn garbage(scene: &mut Scene) -> Result<()> {
    let subject = wire::subject::partition_chunks(count()?, &ThreadId::parse("garbage")?);
    for _ in 0..MANY {
        scene.publisher.publish_raw(&subject, None, "no chunk".into()).await?;
    }
    Ok(())
}

async fn lost_chunks(scene: &mut Scene) -> Result<()> {
    for _ in 0..MANY {
        let thread = scene.name("lossy");
        scene.publish(&thread, Some(2)).await?;
    }
    Ok(())
}

async fn foreign_chunks(scene: &mut Scene) -> Result<()> {
    let thread = scene.name("foreign");
    let turn = scene.api().say(&thread, "slowly").await?;
    sleep(Duration::from_millis(500)).await;
    let message = PlannedMessage::of_text(&thread, &turn.answer, "not of this turn", 1)?;
    scene.publisher.publish([message.publication(0)], &AckLog::default()).await.map(drop)
}

async fn say_many(scene: &mut Scene, content: &str) -> Result<()> {
    for _ in 0..MANY {
        let thread = scene.name("talk");
        scene.api().say(&thread, content).await?;
    }
    Ok(())
}

async fn failing_tasks(scene: &mut Scene) -> Result<()> {
    let settings = json!({"backoff_base_ms": 60_000, "backoff_cap_ms": 60_000});
    for _ in 0..MANY {
        let agent = scene.name("unlucky");
        scene.api().put_agent(&agent, "default", settings.clone()).await?;
        scene.api().send_task(&agent, "task", "fails-always").await?;
    }
    Ok(())
}

async fn failing_model(scene: &mut Scene) -> Result<()> {
    let (agent, thread) = (scene.name("agent"), scene.name("talk"));
    scene.api().put_agent(&agent, MODEL_WORKFLOW, json!({})).await?;
    scene.api().create_thread(&json!({"thread_id": thread, "agent_id": agent})).await?;
    scene.api().say(&thread, "hello").await.map(drop)
}

async fn cut_commits(scene: &mut Scene) -> Result<()> {
    scene.proxy.arm(Cut::After);
    let thread = scene.name("cut");
    scene.publish(&thread, None).await
}

async fn slow_commits(scene: &mut Scene, alerts: &[&str]) -> Result<Fired> {
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

async fn damaged_pages(scene: &mut Scene, alerts: &[&str]) -> Result<Fired> {
    sqlx::raw_sql(AssertSqlSafe(DAMAGE)).execute(&scene.pool).await?;
    let fired = scene.watch_while(alerts, publish_many).await;
    sqlx::raw_sql(AssertSqlSafe(MEND)).execute(&scene.pool).await?;
    fired
}

async fn silent_postgres(scene: &mut Scene, alerts: &[&str]) -> Result<Fired> {
    scene.postgres.freeze();
    let thread = scene.name("silent");
    for _ in 0..ENTRIES / 10 {
        scene.publish(&thread, None).await?;
    }
    let fired = scene.watch(alerts).await;
    scene.postgres.thaw();
    fired
}

async fn silent_nats(scene: &mut Scene, alerts: &[&str]) -> Result<Fired> {
    scene.nats.freeze();
    // The gateway says after a while that it does not know; so does the client, if it is sooner.
    let fired = scene
        .watch_while(alerts, async |scene| {
            drop(scene.api().say("unconfirmed", "hello").await);
            Ok(())
        })
        .await;
    scene.nats.thaw();
    fired
}

async fn frozen_worker(scene: &mut Scene) -> Result<()> {
    scene.fleet.workers[0].pause();
    sleep(LEASE * 2).await;
    scene.fleet.workers[0].resume();
    scene.ready().await
}

async fn killed_worker(scene: &mut Scene, alerts: &[&str]) -> Result<Fired> {
    let fired = scene
        .watch_while(alerts, async |scene| {
            scene.fleet.workers[0].restart().await?;
            scene.ready().await?;
            // Until it has its share again.
            sleep(LEASE).await;
            scene.fleet.workers[0].kill().await
        })
        .await;
    scene.fleet.workers[0].restart().await?;
    fired
}

async fn purged_entries(scene: &mut Scene, alerts: &[&str]) -> Result<Fired> {
    let fired = scene.watch_while(alerts, purge).await;
    // Until then its workers are not ready.
    let env = [("DATABASE_URL".to_owned(), scene.postgres.url().to_owned())];
    let done = invoke(&["incidents", "acknowledge", "all"], &env).await?;
    ensure!(done.code == Some(0), "incidents could not be acknowledged: {}", done.stderr);
    fired
}

async fn purge(scene: &mut Scene) -> Result<()> {
    kill_workers(scene).await?;
    let thread = scene.name("torn");
    scene.publish(&thread, None).await?;
    let id = ThreadId::parse(&thread)?;
    let name = wire::subject::stream_name(id.bucket().partition(count()?));
    let mut stream = scene.publisher.context().get_stream(name).await?;
    let last = stream.info().await?.state.last_sequence;
    stream.purge().sequence(last).await.context("purging entries")?;
    for worker in &mut scene.fleet.workers {
        worker.spawn()?;
    }
    Ok(())
}

async fn no_workers(scene: &mut Scene, alerts: &[&str]) -> Result<Fired> {
    kill_workers(scene).await?;
    let mut followers = Vec::new();
    let fired = scene
        .watch_while(alerts, async |scene| {
            let thread = scene.name("unowned");
            followers.push(Follower::start(&scene.fleet.gateway_addrs(), &thread, FollowOptions::default()));
            Ok(())
        })
        .await;
    start_workers(scene).await?;
    fired
}

async fn no_workflow(scene: &mut Scene) -> Result<()> {
    let agent = scene.name("unheard");
    scene.api().put_agent(&agent, "absent", json!({})).await?;
    for _ in 0..MANY {
        let thread = scene.name("unheard");
        scene.api().create_thread(&json!({"thread_id": thread, "agent_id": agent})).await?;
        for number in 0..5 {
            scene.api().say(&thread, &format!("hello {number}")).await?;
        }
    }
    Ok(())
}

async fn kill_workers(scene: &mut Scene) -> Result<()> {
    for worker in &mut scene.fleet.workers {
        worker.kill().await?;
    }
    Ok(())
}

async fn start_workers(scene: &mut Scene) -> Result<()> {
    for worker in &mut scene.fleet.workers {
        worker.spawn()?;
    }
    scene.ready().await
}
