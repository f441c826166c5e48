//! The cost of an idle fleet.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;
use sqlx::{Connection as _, PgConnection};
use tokio::time::{Instant, sleep, timeout_at};

use super::{
    super::{
        table::Row,
        usage::{self, Meter, Used},
    },
    antiphon_runs,
    echo_workflow::EchoWorkflow,
    end_to_end,
    environment::TaskEnvironment,
    load::TaskLoad,
    options::TaskBenchOptions,
};
use testkit::{
    fleet::{Fleet, READY_LIMIT},
    publisher::{Addressing, Publisher},
};

/// Goal in percent of one core, for all processes of the fleet together.
const MOST_PERCENT: f64 = 1.0;
/// Time until the fleet is idle: checkpoints, purges, the last rows of the outbox.
const REST: Duration = Duration::from_secs(8);

/// Number of pending timers, due in a month, in all buckets.
const TIMERS: u32 = 1_000_000;
/// Maximum additional memory of a worker for these timers.
const MOST_BYTES: u64 = 20 << 20;

/// Measures a worker and a gateway after one task of each agent has been completed. Then measures
/// the same with [`TIMERS`] pending timers.
pub(super) async fn measure(
    options: &TaskBenchOptions,
    environment: &mut TaskEnvironment,
) -> Result<Vec<Row>> {
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
    restart(&mut fleet).await?;
    let without = rest(options, environment, &fleet).await;
    let timers = if options.quick { TIMERS / 100 } else { TIMERS };
    sqlx::query(sqlx::AssertSqlSafe(pending_timers(timers))).execute(&mut connection).await?;
    sqlx::query("VACUUM (ANALYZE) timers").execute(&mut connection).await?;
    connection.close().await?;
    restart(&mut fleet).await?;
    let with = rest(options, environment, &fleet).await;
    let more = with.worker_bytes.saturating_sub(without.worker_bytes);
    let memory =
        Row::new('f', "memory of a worker for waiting timers", format!("{:.1} MB", more as f64 / 1e6))
            .goal(format!("< {} MiB", MOST_BYTES >> 20), more < MOST_BYTES)
            .note(format!(
                "{timers} timers; resident {} and {} KiB",
                without.worker_bytes >> 10,
                with.worker_bytes >> 10
            ))
            .figure("bytes", json!(more));
    let beside = format!("idle worker and gateway, {timers} timers that wait");
    let agents = format!("{} agents", load.agents);
    Ok(vec![without.row("idle worker and gateway", &agents), with.row(&beside, &agents), memory])
}

/// SQL that inserts follow-ups of `count` threads, due in a month.
fn pending_timers(count: u32) -> String {
    format!(
        "INSERT INTO timers (bucket, timer_id, kind, thread_id, agent_id, agent_bucket, due_at, body)
         SELECT b, 'f' || lpad(to_hex(b), 4, '0') || '-' || n, 'follow_up', 'waiting-' || n, 'helper', 0,
                clock_timestamp() + interval '30 days' + n * interval '1 ms',
                '{{\"trigger_type\": \"check_in\", \"armed_position\": \"1\"}}'
         FROM (SELECT n, n % {} AS b FROM generate_series(1, {count}) AS n) AS n",
        model::BUCKETS
    )
}

/// Restarts the workers, which load the pending timers.
async fn restart(fleet: &mut Fleet) -> Result<()> {
    for worker in &mut fleet.workers {
        worker.kill().await?;
        worker.spawn()?;
    }
    fleet.ready(READY_LIMIT).await?;
    sleep(REST).await;
    Ok(())
}

/// The usage of an idle fleet.
struct IdleUse {
    used: Used,
    worker_bytes: u64,
}

async fn rest(options: &TaskBenchOptions, environment: &TaskEnvironment, fleet: &Fleet) -> IdleUse {
    let own =
        fleet.workers.iter().map(|it| ("worker", it)).chain(fleet.gateways.iter().map(|it| ("gateway", it)));
    let mut processes: Vec<_> = own.filter_map(|(name, process)| Some((name, process.pid()?))).collect();
    processes.extend(environment.processes());
    let meter = Meter::start(&processes);
    sleep(Duration::from_secs_f64(options.seconds.max(2.0))).await;
    let worker = processes.iter().filter(|(name, _)| *name == "worker").map(|(_, pid)| usage::resident(*pid));
    IdleUse { used: meter.used(), worker_bytes: worker.sum() }
}

impl IdleUse {
    fn percent(&self, wanted: &str) -> f64 {
        let times =
            self.used.processes.iter().filter(|(name, _)| *name == wanted).map(|(_, it)| it.as_secs_f64());
        times.sum::<f64>() / self.used.seconds * 100.0
    }

    fn row(&self, name: &str, agents: &str) -> Row {
        let (worker, gateway) = (self.percent("worker"), self.percent("gateway"));
        let note = format!(
            "worker {worker:.2} %, gateway {gateway:.2} %; postgres {:.2} %, nats-server {:.2} %; {agents}, {:.0} s",
            self.percent("postgres"),
            self.percent("nats-server"),
            self.used.seconds
        );
        let total = worker + gateway;
        Row::new('f', name, format!("{total:.2} % of a core"))
            .goal(format!("< {MOST_PERCENT} %"), total < MOST_PERCENT)
            .note(note)
            .figure("percent", json!({"worker": worker, "gateway": gateway}))
            .of_binary("% of a core", total)
    }
}
