//! Provocations through turns and tasks, and through work that follows them.

use std::time::Duration;

use anyhow::Result;
use async_nats::jetstream::stream::Config;
use serde_json::json;
use testkit::manual_workflow::ManualWorkflow;
use tokio::time::sleep;
use wire::subject::TURNS_STREAM;

use crate::alerts::scene::{Fired, MANY, MODEL_WORKFLOW, Scene, TOOL_WORKFLOW};

/// Number of concurrent turns: enough that several commits contain their ends.
const TURNS: usize = 200;
/// The workflow of a service that answers late. `LATENESS` is its delay.
const LATE: &str = "late";
const LATENESS: Duration = Duration::from_secs(33);
/// Number of turns that wait for this service; more than the alert's threshold.
const LATE_TURNS: usize = 10;
const ANSWERED_WITHIN: Duration = Duration::from_secs(20);
/// Maximum message size that is smaller than the event of any turn's end.
const TOO_SMALL: i32 = 16;

pub(super) async fn say_many(scene: &mut Scene, content: &str) -> Result<()> {
    say(scene, content, MANY).await
}

async fn say(scene: &mut Scene, content: &str, times: usize) -> Result<()> {
    for _ in 0..times {
        let thread = scene.name("talk");
        scene.api().say(&thread, content).await?;
    }
    Ok(())
}

pub(super) async fn failing_tasks(scene: &mut Scene) -> Result<()> {
    let settings = json!({"backoff_base_ms": 60_000, "backoff_cap_ms": 60_000});
    for _ in 0..MANY {
        let agent = scene.name("unlucky");
        scene.api().put_agent(&agent, "default", settings.clone()).await?;
        scene.api().send_task(&agent, "task", "fails-always").await?;
    }
    Ok(())
}

pub(super) async fn failing_model(scene: &mut Scene) -> Result<()> {
    say_to(scene, MODEL_WORKFLOW).await
}

/// Starts a turn that waits for a person until the fleet stops.
pub(super) async fn silent_tool(scene: &mut Scene) -> Result<()> {
    say_to(scene, TOOL_WORKFLOW).await
}

/// Sends a message to an agent of this workflow.
async fn say_to(scene: &mut Scene, workflow: &str) -> Result<()> {
    let (agent, thread) = (scene.name("agent"), scene.name("talk"));
    scene.api().put_agent(&agent, workflow, json!({})).await?;
    scene.api().create_thread(&json!({"thread_id": thread, "agent_id": agent})).await?;
    scene.api().say(&thread, "hello").await.map(drop)
}

/// Makes the stream of turn ends accept only events that are smaller than the event of any end.
pub(super) async fn refused_ends(scene: &mut Scene, alerts: &[&str]) -> Result<Fired> {
    let context = scene.publisher.context().clone();
    let config = context.get_stream(TURNS_STREAM).await?.cached_info().config.clone();
    context.update_stream(Config { max_message_size: TOO_SMALL, ..config.clone() }).await?;
    let fired = scene.watch_while(alerts, async |scene| say_many(scene, "hello").await).await;
    context.update_stream(config).await?;
    fired
}

/// Deletes the stream of turn ends, and later creates it again as an operator would.
pub(super) async fn unpublished_ends(scene: &mut Scene, alerts: &[&str]) -> Result<Fired> {
    scene.publisher.context().delete_stream(TURNS_STREAM).await?;
    let fired = scene.watch_while(alerts, async |scene| say(scene, "hello", TURNS).await).await;
    scene.fleet.migrate().await?;
    fired
}

/// Runs turns whose first answers begin later than the alert allows.
pub(super) async fn late_workflow(scene: &mut Scene, alerts: &[&str]) -> Result<Fired> {
    let agent = scene.name("late");
    scene.api().put_agent(&agent, LATE, json!({})).await?;
    for _ in 0..LATE_TURNS {
        let thread = scene.name("late");
        scene.api().create_thread(&json!({"thread_id": thread, "agent_id": agent})).await?;
        scene.api().say(&thread, "hello").await?;
    }
    sleep(LATENESS).await;
    let workflow = ManualWorkflow::connect(scene.nats.url(), LATE, ANSWERED_WITHIN).await?;
    for _ in 0..LATE_TURNS {
        workflow.next(ANSWERED_WITHIN).await?.answer("at last").await?;
    }
    scene.watch(alerts).await
}

pub(super) async fn no_workflow(scene: &mut Scene) -> Result<()> {
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
