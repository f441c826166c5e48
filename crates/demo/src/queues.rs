//! Part 3 of the demo: ten agents, two hundred tasks, some of which fail, and a worker that dies in
//! the middle.

pub(super) mod plan;
mod status_table;

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use tokio::time::{interval, sleep};

use self::status_table::StatusTable;
use crate::{
    environment::{DemoAgent, DemoEnvironment},
    screen::Screen,
    workflows::Engine,
};
use testkit::db_snapshot;

/// Interval of reading Postgres.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long a paused agent is shown before it is resumed.
const PAUSED_FOR: Duration = Duration::from_millis(1_500);
/// Time from the takeover of its partitions until the dead worker is restarted.
const BACK_AFTER: Duration = Duration::from_millis(1_500);
/// Three times what an otherwise idle machine needs.
const LIMIT: Duration = Duration::from_secs(90);
/// Limit until both workers have their share; after it the demo continues anyway.
const SHARE_LIMIT: Duration = Duration::from_secs(15);
/// How often a task is sent if the stream does not answer.
const SENDS: usize = 5;

/// Runs the part; true if all tasks ended in time and in order, according to the status table. The
/// verdict is separate.
pub(super) async fn show(environment: &mut DemoEnvironment, screen: &mut Screen) -> Result<bool> {
    introduce(environment, screen);
    let settings = plan::settings();
    for agent in &environment.agents {
        environment.api.put_agent(agent.id.as_str(), Engine::Script.workflow(), settings.clone()).await?;
    }
    until_shared(environment).await?;
    let began = Instant::now();
    send(environment).await?;
    let mut watch =
        Watch { began, paused_at: None, is_resumed: false, killed: None, took_over: None, is_back: false };
    watch.watch(environment, screen).await
}

fn introduce(environment: &DemoEnvironment, screen: &mut Screen) {
    let total = environment.agents.len() * plan::TASKS;
    screen.heading(3, &format!("Ten agents, {total} tasks, and a worker that dies"));
    screen.dim("Each agent works at its oldest task, one at a time. Any client can send tasks like this:");
    if let Some(agent) = environment.agents.first() {
        screen.text(&format!("nats pub {} '{}'", environment.task_subject(agent), agent.example()));
    }
    screen.dim(
        "A script answers for them. ben, eli and ivo meet an overloaded model and back off, fay gets a task",
    );
    screen.dim("that cannot be done, dora's key is refused, which pauses her. Half-way a worker is killed.");
    screen.text("");
}

/// Sends the tasks in the order of their numbers, one per agent and round.
async fn send(environment: &DemoEnvironment) -> Result<()> {
    for number in 1..=plan::TASKS {
        for agent in &environment.agents {
            deliver(environment, agent, number).await?;
        }
    }
    Ok(())
}

/// Tasks are idempotent by their ids, so a task is sent again until the stream has stored it.
async fn deliver(environment: &DemoEnvironment, agent: &DemoAgent, number: usize) -> Result<()> {
    let (subject, payload) = (environment.task_subject(agent), agent.task(number).to_string());
    let mut tries = 0;
    while let Err(error) = environment.publisher.publish_raw(&subject, None, payload.clone().into()).await {
        tries += 1;
        if tries == SENDS {
            return Err(
                error.context("a task could not be stored: is NATS there, with room for its streams?")
            );
        }
        sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

async fn until_shared(environment: &DemoEnvironment) -> Result<()> {
    let began = Instant::now();
    while began.elapsed() < SHARE_LIMIT {
        let partitions = db_snapshot::partitions(&environment.pool).await?;
        let has_some =
            |name: &str| partitions.iter().any(|row| row.leased && row.owner.as_deref() == Some(name));
        if partitions.iter().all(|row| row.leased)
            && environment.fleet.workers.iter().all(|it| has_some(it.name()))
        {
            return Ok(());
        }
        sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// The state of the observation.
struct Watch {
    began: Instant,
    paused_at: Option<Instant>,
    is_resumed: bool,
    killed: Option<Killed>,
    took_over: Option<Instant>,
    is_back: bool,
}

#[derive(Clone)]
struct Killed {
    worker: usize,
    name: String,
    at: Instant,
}

impl Watch {
    async fn watch(&mut self, environment: &mut DemoEnvironment, screen: &mut Screen) -> Result<bool> {
        let total = i64::try_from(environment.agents.len() * plan::TASKS)?;
        let mut ticks = interval(LOOK_EVERY);
        let mut table;
        loop {
            ticks.tick().await;
            table = StatusTable::read(&environment.pool, &environment.agents, environment.partitions).await?;
            if table.done() >= total {
                break;
            }
            screen.table(&self.lines(&table, environment), false);
            if self.began.elapsed() > LIMIT {
                screen.keep_table();
                screen.text(&format!(
                    "Not finished after {} s: the table says who waits for what.",
                    LIMIT.as_secs()
                ));
                return Ok(false);
            }
            self.resume(&table, environment, screen).await;
            self.kill(&table, total, environment, screen).await?;
            self.take_over(&table, environment, screen).await?;
            self.bring_back(environment, screen)?;
        }
        screen.table(&self.lines(&table, environment), true);
        screen.keep_table();
        Ok(table.0.iter().all(|agent| agent.is_in_order()))
    }

    fn lines(&self, table: &StatusTable, environment: &DemoEnvironment) -> Vec<String> {
        let dead = self.killed.as_ref().filter(|_| !self.is_back).map(|killed| killed.name.as_str());
        table.lines(&environment.agents, dead, self.began.elapsed())
    }

    /// Resumes the paused agent, as after correcting its key.
    async fn resume(&mut self, table: &StatusTable, environment: &DemoEnvironment, screen: &mut Screen) {
        let Some(paused) = table.0.iter().find(|agent| agent.paused).filter(|_| !self.is_resumed) else {
            return;
        };
        let since = *self.paused_at.get_or_insert_with(Instant::now);
        if since.elapsed() < PAUSED_FOR {
            return;
        }
        let path = format!("POST /v1/agents/{}/resume", paused.agent_id);
        // Repeated if there is no answer: resuming twice has the effect of resuming once.
        match environment.api.act(&paused.agent_id, "resume").await {
            Ok(_) => {
                self.is_resumed = true;
                screen.text(&format!(
                    "{} may go on, its key is right now: {path}",
                    name_of(environment, &paused.agent_id)
                ));
            }
            Err(error) => screen.text(&format!("{path} did not succeed, and is tried again: {error:#}")),
        }
    }

    /// Kills the worker with the most remaining work half-way.
    async fn kill(
        &mut self,
        table: &StatusTable,
        total: i64,
        environment: &mut DemoEnvironment,
        screen: &mut Screen,
    ) -> Result<()> {
        if self.killed.is_some() || table.done() * 2 < total {
            return Ok(());
        }
        let left = |name: &str| -> i64 {
            table
                .0
                .iter()
                .filter(|agent| agent.owner.as_deref() == Some(name))
                .map(|agent| agent.pending)
                .sum()
        };
        let workers = environment.fleet.workers.iter_mut().enumerate();
        let (number, worker) =
            workers.max_by_key(|(_, worker)| left(worker.name())).context("no worker runs")?;
        let (name, waiting) = (worker.name().to_owned(), left(worker.name()));
        worker.kill().await?;
        self.killed = Some(Killed { worker: number, name: name.clone(), at: Instant::now() });
        screen.text(&format!("{name} is killed (SIGKILL), and what it had in memory is gone. {waiting} tasks wait for another owner:"));
        screen.text(
            "its lease runs out 10 s after its last sign of life, by the database's clock. The others go on.",
        );
        Ok(())
    }

    async fn take_over(
        &mut self,
        table: &StatusTable,
        environment: &DemoEnvironment,
        screen: &mut Screen,
    ) -> Result<()> {
        let Some(killed) = self.killed.clone().filter(|_| self.took_over.is_none()) else { return Ok(()) };
        if table.0.iter().any(|agent| agent.owner.as_ref() == Some(&killed.name)) {
            return Ok(());
        }
        let partitions = db_snapshot::partitions(&environment.pool).await?;
        let Some(epoch) = partitions.iter().map(|row| row.epoch).max() else {
            bail!("there are no partitions")
        };
        self.took_over = Some(Instant::now());
        let heirs: Vec<_> = environment.fleet.workers.iter().filter(|it| it.name() != killed.name).collect();
        screen.text(&format!(
            "{} took over after {:.1} s with a higher epoch ({epoch}), and reads on from the checkpoint.",
            heirs.first().map_or("another worker", |worker| worker.name()),
            killed.at.elapsed().as_secs_f64()
        ));
        Ok(())
    }

    fn bring_back(&mut self, environment: &mut DemoEnvironment, screen: &mut Screen) -> Result<()> {
        let is_due = self.took_over.is_some_and(|at| at.elapsed() >= BACK_AFTER);
        let Some(killed) = self.killed.as_ref().filter(|_| is_due && !self.is_back) else { return Ok(()) };
        let worker = environment.fleet.workers.get_mut(killed.worker).context("no worker")?;
        worker.spawn()?;
        self.is_back = true;
        screen.text(&format!("{} is started again, and gets its share of the partitions back.", killed.name));
        Ok(())
    }
}

fn name_of<'a>(environment: &DemoEnvironment, agent: &'a str) -> &'a str {
    let known = environment.agents.iter().find(|one| one.id.as_str() == agent);
    known.map_or(agent, |agent| agent.name)
}
