//! Antiphon at work on a terminal: a person talks with a model, ten agents work through their
//! queues, a worker dies.
//!
//! Entry: [`run`]. Everything shown is observed from outside, over NATS, HTTP and SQL, and the
//! verdict is computed in Postgres.
#![allow(
    clippy::disallowed_methods,
    reason = "tooling at the edge: it reads the environment and spawns what it likes"
)]

mod agent;
mod check;
mod dialog;
mod environment;
mod follow_ups;
mod input;
mod options;
mod queues;
mod reordering;
mod screen;
mod subscriber;
mod workflows;

use std::{
    io::{IsTerminal, stdin},
    time::Duration,
};

use anyhow::{Context, Result};
use model::PartitionCount;
use tokio::{net::TcpStream, time::timeout};

pub use options::DemoOptions;

use self::{dialog::Dialog, environment::DemoEnvironment, input::Lines, screen::Screen};
use testkit::{
    api::Api,
    fleet::{Fleet, FleetOptions, READY_LIMIT},
    host_and_port,
    publisher::{Addressing, Publisher},
    services,
};

/// A running server accepts a connection at once.
const NATS_LIMIT: Duration = Duration::from_secs(5);

/// How the demo ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DemoOutcome {
    /// Everything was as expected.
    Pass,
    /// Something was not as expected.
    Fail,
    /// The person left before the end.
    Left,
}

/// Runs the demo.
///
/// # Errors
/// A required service is missing or does not answer. The text says what to check.
pub async fn run(options: &DemoOptions) -> Result<DemoOutcome> {
    let mut screen = Screen::new();
    let mut lines =
        if options.is_once || !stdin().is_terminal() { Lines::scripted() } else { Lines::typed() };
    screen.line("Antiphon: answers stream while they are made, turns are stored once, agents work in order, whatever dies.");
    let mut environment = set(options, &mut screen).await?;
    let shown = show(&mut environment, &mut lines, &mut screen).await;
    if !matches!(shown, Ok(DemoOutcome::Pass | DemoOutcome::Left)) {
        screen.line("");
        screen.line("The logs of the fleet end with:");
        screen.line(&environment.fleet.log_tails());
    }
    let outcome = shown?;
    if outcome != DemoOutcome::Left {
        conclude(&environment, outcome, &mut lines, &mut screen).await;
    }
    Ok(outcome)
}

async fn show(
    environment: &mut DemoEnvironment,
    lines: &mut Lines,
    screen: &mut Screen,
) -> Result<DemoOutcome> {
    let is_ordered = reordering::show(environment, screen).await?;
    let dialog: Dialog = dialog::show(environment, lines, screen).await?;
    if !dialog.goes_on {
        return Ok(DemoOutcome::Left);
    }
    let is_finished = queues::show(environment, screen).await?;
    let is_compressed = agent::show(environment, screen).await?;
    let is_following = follow_ups::show(environment, screen).await?;
    let is_right = check::show(environment, &dialog, screen).await?;
    Ok(if is_ordered && is_finished && is_compressed && is_following && is_right {
        DemoOutcome::Pass
    } else {
        DemoOutcome::Fail
    })
}

async fn set(options: &DemoOptions, screen: &mut Screen) -> Result<DemoEnvironment> {
    let count = PartitionCount::new(options.partitions.into())?;
    let tag = queues::plan::tag(count)?;
    screen.dim(&format!(
        "looking for NATS at {} and Postgres at {} ...",
        options.nats_url, options.database_url
    ));
    find_nats(&options.nats_url).await?;
    let pool = services::pool(&options.database_url).await;
    let pool =
        pool.context("Postgres does not answer; without DATABASE_URL, `cargo xtask demo` starts one itself")?;
    screen.dim("migrating, starting two workers, a gateway and a workflow service ...");
    let mut fleet_options = FleetOptions::new(&options.nats_url, &options.database_url);
    fleet_options.partitions = options.partitions;
    let mut fleet = Fleet::start(workflows::add(fleet_options)?).await?;
    for service in &mut fleet.workflows {
        workflows::ready(service, READY_LIMIT).await?;
    }
    let addr = fleet.gateway_addrs().first().copied().context("the fleet has no gateway")?;
    let publisher = Publisher::connect(&options.nats_url, Addressing::Exact(count)).await?;
    let environment = DemoEnvironment {
        agents: queues::plan::agents(&tag)?,
        tag,
        options: options.clone(),
        partitions: options.partitions,
        count,
        api: Api(addr),
        publisher,
        pool,
        fleet,
    };
    show_fleet(&environment, screen);
    Ok(environment)
}

/// Checks the connection first, because a fleet waits for NATS without limit, but a person wants to
/// know at once.
async fn find_nats(url: &str) -> Result<()> {
    // Several servers, or one without a port: the fleet checks those itself.
    let Ok((host, port)) = host_and_port(url) else { return Ok(()) };
    let advice =
        || format!("NATS does not answer at {url}; without NATS_URL, `cargo xtask demo` starts one itself");
    let connected = timeout(NATS_LIMIT, TcpStream::connect((host, port))).await;
    connected.with_context(advice)?.with_context(advice)?;
    Ok(())
}

fn show_fleet(environment: &DemoEnvironment, screen: &mut Screen) {
    screen.item("NATS", &environment.options.nats_url);
    screen.item("Postgres", &environment.options.database_url);
    for process in environment.fleet.workers.iter().chain(&environment.fleet.workflows) {
        let pid = process.pid().unwrap_or_default();
        screen.item(process.name(), format!("pid {pid}, http://{}/metrics", process.metrics_addr()));
    }
    screen.item("gateway", format!("http://{}", environment.api.0));
    screen.item("logs", environment.fleet.log_dir().display());
}

/// Prints the outcome; on a terminal the fleet keeps running until Enter.
async fn conclude(
    environment: &DemoEnvironment,
    outcome: DemoOutcome,
    lines: &mut Lines,
    screen: &mut Screen,
) {
    screen.line("");
    screen.line(match outcome {
        DemoOutcome::Pass => {
            "PASS  every turn is there once and whole, every agent worked in order, nothing is lost."
        }
        DemoOutcome::Fail | DemoOutcome::Left => "FAIL  see WRONG above, and the ends of the logs.",
    });
    screen.line("");
    if lines.are_scripted() {
        screen.dim("Where to look next: the same in a terminal, without --once, lets you talk, and stays for a look at");
        screen.dim("the tables. With NATS_URL and DATABASE_URL of your own it leaves them as they are now.");
        return;
    }
    let (gateway, tag) = (environment.api.0, &environment.tag);
    screen.line("The fleet keeps running until you press Enter. Where to look next:");
    screen.text(&format!("curl -s http://{gateway}/v1/threads/demo-{tag}/history"));
    screen.text(&format!("curl -s http://{gateway}/v1/agents/fay-{tag}"));
    screen.text(&format!("curl -s http://{gateway}/v1/agents/fay-{tag}/tasks"));
    screen.text(&format!(
        "psql {} -c \"SELECT agent_id, status, count(*) FROM agent_tasks GROUP BY 1, 2 ORDER BY 1, 2\"",
        environment.options.database_url
    ));
    lines.forget();
    lines.next().await;
}
