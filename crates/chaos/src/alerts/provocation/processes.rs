//! Provocations through processes: workers, gateways with their clients, and NATS.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use futures_util::future::join_all;
use testkit::{
    acked_publishes::AckLog,
    fleet::{Process, binary},
    load::PlannedMessage,
    sse::{FollowOptions, Follower},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    time::sleep,
};

use crate::alerts::scene::{Fired, LEASE, Scene};

/// Number of clients that do not read; more than the alert's threshold.
const SLOW_CLIENTS: usize = 120;
/// Number of messages of one chunk that are sent to each of these clients: twice what a client may
/// lag behind (`ANTIPHON_SUBSCRIBER_BUFFER_BYTES`).
const UNREAD: usize = 35;
/// Number of concurrent inputs that get a 503 response; more than the alert's threshold within its
/// range.
const UNCONFIRMED: usize = 6;
const UNREAD_BYTES: usize = 60_000;

/// Connects clients that read only the head of the response.
pub(super) async fn slow_clients(scene: &mut Scene, clients: &mut Vec<TcpStream>) -> Result<()> {
    let thread = scene.name("watched");
    let request = format!("GET /v1/threads/{thread}/events HTTP/1.1\r\nhost: localhost\r\n\r\n");
    for _ in 0..SLOW_CLIENTS {
        let socket = TcpSocket::new_v4()?;
        // A small buffer, because the gateway cannot see bytes that the kernel buffers for a client
        // as lag.
        socket.set_recv_buffer_size(4_096)?;
        let mut client = socket.connect(scene.fleet.gateways[0].http_addr()).await?;
        client.write_all(request.as_bytes()).await?;
        ensure!(client.read(&mut [0; 512]).await? > 0, "a client gets no answer");
        clients.push(client);
    }
    let text = "x".repeat(UNREAD_BYTES);
    for number in 0..UNREAD {
        let message =
            PlannedMessage::of_pieces(&thread, &format!("m-{number}"), std::slice::from_ref(&text))?;
        scene.publisher.publish([message.publication(0)], &AckLog::default()).await?;
    }
    Ok(())
}

pub(super) async fn silent_nats(scene: &mut Scene, alerts: &[&str]) -> Result<Fired> {
    scene.nats.freeze();
    // After a while the gateway reports an unknown outcome. If the client times out first, it
    // reports the same.
    let fired = scene
        .watch_while(alerts, async |scene| {
            let api = scene.api();
            join_all((0..UNCONFIRMED).map(|_| api.say("unconfirmed", "hello"))).await;
            Ok(())
        })
        .await;
    scene.nats.thaw();
    fired
}

pub(super) async fn other_version(scene: &mut Scene, alerts: &[&str]) -> Result<Fired> {
    let other = scene.other_binary.clone().context("no other build of the binary was given")?;
    restart_with(scene, &other).await?;
    let fired = scene.watch(alerts).await;
    restart_with(scene, &binary()?).await?;
    fired
}

async fn restart_with(scene: &mut Scene, binary: &Path) -> Result<()> {
    let worker = &mut scene.fleet.workers[0];
    worker.use_binary(binary);
    worker.restart().await
}

pub(super) async fn frozen_worker(scene: &mut Scene) -> Result<()> {
    scene.fleet.workers[0].pause();
    sleep(LEASE * 2).await;
    scene.fleet.workers[0].resume();
    scene.ready().await
}

/// Kills a worker while another worker is idle but still counts as live. The idle one keeps its
/// share of partitions free, so the partitions of the killed worker stay without an owner.
pub(super) async fn killed_worker(scene: &mut Scene, alerts: &[&str]) -> Result<Fired> {
    let idle = "INSERT INTO workers (worker_id, lease_until) VALUES ('idle', now() + interval '1 hour')";
    sqlx::raw_sql(idle).execute(&scene.pool).await?;
    scene.fleet.workers[0].kill().await?;
    let fired = scene.watch(alerts).await;
    sqlx::raw_sql("DELETE FROM workers WHERE worker_id = 'idle'").execute(&scene.pool).await?;
    scene.fleet.workers[0].restart().await?;
    fired
}

pub(super) async fn restarting_worker(scene: &mut Scene) -> Result<()> {
    scene.fleet.workers[0].restart().await
}

pub(super) async fn no_gateways(scene: &mut Scene, alerts: &[&str]) -> Result<Fired> {
    for gateway in &mut scene.fleet.gateways {
        gateway.kill().await?;
    }
    let fired = scene.watch(alerts).await;
    scene.fleet.gateways.iter_mut().try_for_each(Process::spawn)?;
    scene.ready().await?;
    fired
}

pub(super) async fn nothing_left(scene: &mut Scene, alerts: &[&str]) -> Result<Fired> {
    let fleet = &mut scene.fleet;
    for process in fleet.workers.iter_mut().chain(&mut fleet.gateways).chain(&mut fleet.workflows) {
        process.kill().await?;
    }
    let fired = scene.watch(alerts).await;
    let fleet = &mut scene.fleet;
    let mut all = fleet.workers.iter_mut().chain(&mut fleet.gateways).chain(&mut fleet.workflows);
    all.try_for_each(Process::spawn)?;
    scene.ready().await?;
    fired
}

pub(super) async fn no_workers(scene: &mut Scene, alerts: &[&str]) -> Result<Fired> {
    scene.kill_workers().await?;
    let mut followers = Vec::new();
    let fired = scene
        .watch_while(alerts, async |scene| {
            let thread = scene.name("unowned");
            followers.push(Follower::start(&scene.fleet.gateway_addrs(), &thread, FollowOptions::default()));
            Ok(())
        })
        .await;
    scene.spawn_workers()?;
    scene.ready().await?;
    fired
}
