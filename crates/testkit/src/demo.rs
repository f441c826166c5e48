//! Antiphon at work on a terminal: two workers and a gateway, chunks in the wrong order, a worker that dies.
//!
//! Entry: [`run`]. Everything shown is seen from outside, over NATS, SSE and SQL.

mod flood;
mod order;
mod screen;

use std::{net::SocketAddr, path::PathBuf};

use anyhow::{Context, Result};
use model::PartitionCount;
use sqlx::PgPool;

use crate::{
    audit,
    fleet::{Fleet, FleetOptions},
    publisher::{Addressing, Publisher},
    services, text,
};
use screen::Screen;

/// What the demo is run with.
#[derive(Debug, Clone)]
pub struct DemoOptions {
    /// Where NATS is.
    pub nats_url: String,
    /// Where Postgres is.
    pub database_url: String,
    /// Number of partitions.
    pub partitions: u16,
    /// A text to send instead of the licence.
    pub text: Option<PathBuf>,
    /// Ends after the verdict.
    pub is_once: bool,
}

/// The fleet and what it is watched with.
struct Stage {
    /// Tells the threads of this run from those of others in the same database.
    run: String,
    nats_url: String,
    addressing: Addressing,
    publisher: Publisher,
    pool: PgPool,
    fleet: Fleet,
}

impl Stage {
    fn gateway(&self) -> Result<SocketAddr> {
        self.fleet.gateway_addrs().first().copied().context("the fleet has no gateway")
    }
}

/// Runs the demo; false when something was not as it must be.
pub async fn run(options: &DemoOptions) -> Result<bool> {
    let source = text::source(options.text.as_deref())?;
    let mut screen = Screen::new();
    screen.line("Antiphon: chunks in any order in, answers in order out, each once, whatever dies.");
    let mut stage = set(options, &mut screen).await?;
    let is_ordered = order::show(&stage, &mut screen).await?;
    let is_whole = flood::show(&mut stage, &source, &mut screen).await?;
    let is_right = is_ordered && is_whole;
    screen.line("");
    screen.line(match is_right {
        true => "PASS  every text is whole, in order and stored once.",
        false => "FAIL  see above; the logs of the fleet follow.",
    });
    if !is_right {
        screen.line(&stage.fleet.log_tails());
    }
    if !options.is_once {
        stay(&stage, &mut screen).await?;
    }
    Ok(is_right)
}

async fn set(options: &DemoOptions, screen: &mut Screen) -> Result<Stage> {
    let mut fleet_options = FleetOptions::new(&options.nats_url, &options.database_url)
        .with_env(audit::KEEP_LOG.0, audit::KEEP_LOG.1);
    fleet_options.partitions = options.partitions;
    screen.line("");
    screen.item("NATS", &options.nats_url);
    screen.item("Postgres", &options.database_url);
    screen.status("migrating, starting two workers and a gateway ...");
    let fleet = Fleet::start(fleet_options).await?;
    let addressing = Addressing::Exact(PartitionCount::new(options.partitions.into())?);
    let stage = Stage {
        run: format!("{:06x}", rand::random::<u32>() & 0xff_ffff),
        nats_url: options.nats_url.clone(),
        addressing,
        publisher: Publisher::connect(&options.nats_url, addressing).await?,
        pool: services::pool(&options.database_url).await?,
        fleet,
    };
    for worker in &stage.fleet.workers {
        screen.item(
            worker.name(),
            format!("pid {}, http://{}/metrics", worker.pid().unwrap_or(0), worker.metrics_addr()),
        );
    }
    screen.item("gateway", format!("http://{}", stage.gateway()?));
    screen.item("logs", stage.fleet.log_dir().display());
    Ok(stage)
}

/// The fleet stays up until Ctrl-C.
async fn stay(stage: &Stage, screen: &mut Screen) -> Result<()> {
    let gateway = stage.gateway()?;
    let thread = "hello";
    let subject = stage.publisher.subject(&model::ThreadId::parse(thread)?);
    screen.line("");
    screen.line("The fleet keeps running; Ctrl-C ends it. Try:");
    screen.text(&format!("curl -N http://{gateway}/v1/threads/{thread}/events"));
    screen.text(&format!("curl -s http://{gateway}/v1/threads/{thread}/history"));
    let chunk = format!(
        r#"{{"session_id":"{thread}","message_id":"m1","chunk_id":0,"chunk":"Hello","is_final":true}}"#
    );
    screen.text(&format!("nats --server {} pub {subject} '{chunk}'", stage.nats_url));
    tokio::signal::ctrl_c().await?;
    screen.line("");
    Ok(())
}
