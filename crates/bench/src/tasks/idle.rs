//! What a fleet costs that has nothing to do.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;
use sqlx::{Connection as _, PgConnection};
use tokio::time::{Instant, sleep, timeout_at};

use super::{
    super::{table::Row, usage::Meter},
    antiphon_runs,
    echo_workflow::EchoWorkflow,
    end_to_end,
    environment::TaskEnvironment,
    load::TaskLoad,
    options::TaskBenchOptions,
};
use testkit::{
    fleet::READY_LIMIT,
    publisher::{Addressing, Publisher},
};

/// Of one core, of the fleet's own processes together.
const MOST_PERCENT: f64 = 1.0;
/// Until it is idle: checkpoints, purges, the last rows of the outbox.
const REST: Duration = Duration::from_secs(8);

/// A worker and a gateway, after one task of each agent has been completed.
pub(super) async fn measure(options: &TaskBenchOptions, environment: &mut TaskEnvironment) -> Result<Row> {
    let load = TaskLoad { tasks: 1, ..options.load('b') };
    let database = environment.database().await?;
    let mut fleet = end_to_end::fleet(environment, &database, 1).await?;
    let echo_workflow = EchoWorkflow::start(&environment.nats_url(), load, None).await?;
    let publisher =
        Publisher::connect(&environment.nats_url(), Addressing::Exact(antiphon_runs::partitions()?)).await?;
    fleet.spawn()?;
    fleet.ready(READY_LIMIT).await?;
    end_to_end::publish_all(&publisher, load).await?;
    let deadline = Instant::now() + load.limit;
    timeout_at(deadline, echo_workflow.notes.done.notified()).await.context("the tasks are not answered")?;
    sleep(REST).await;
    let mut connection = PgConnection::connect(database.url()).await?;
    let left = antiphon_runs::LEFT.replace("{total}", &load.total().to_string());
    let left: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(left)).fetch_one(&mut connection).await?;
    anyhow::ensure!(left == 0, "{left} tasks are not completed");
    connection.close().await?;
    let own =
        fleet.workers.iter().map(|it| ("worker", it)).chain(fleet.gateways.iter().map(|it| ("gateway", it)));
    let mut processes: Vec<_> = own.filter_map(|(name, process)| Some((name, process.pid()?))).collect();
    processes.extend(environment.processes());
    let meter = Meter::start(&processes);
    sleep(Duration::from_secs_f64(options.seconds.max(2.0))).await;
    let used = meter.used();
    let percent = |wanted: &str| {
        let times = used.processes.iter().filter(|(name, _)| *name == wanted).map(|(_, it)| it.as_secs_f64());
        times.sum::<f64>() / used.seconds * 100.0
    };
    let (worker, gateway) = (percent("worker"), percent("gateway"));
    let note = format!(
        "worker {worker:.2} %, gateway {gateway:.2} %; postgres {:.2} %, nats-server {:.2} %; {} agents, {:.0} s",
        percent("postgres"),
        percent("nats-server"),
        load.agents,
        used.seconds
    );
    let total = worker + gateway;
    Ok(Row::new('f', "idle worker and gateway", format!("{total:.2} % of a core"))
        .goal(format!("< {MOST_PERCENT} %"), total < MOST_PERCENT)
        .note(note)
        .figure("percent", json!({"worker": worker, "gateway": gateway})))
}
