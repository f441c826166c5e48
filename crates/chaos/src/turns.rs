//! The load of turns and tasks: people who talk, interrupt, stop and retry, agents with queues, an
//! operator, and a scripted workflow that sometimes fails.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use model::{AgentId, PartitionCount};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use sqlx::PgPool;
use tokio::time::{Instant, sleep};

use crate::{
    load,
    options::{ChaosSettings, TalkSettings},
    verify::{
        client_transcripts,
        turns::{Promise, TurnEvidence},
    },
};
use testkit::{
    api::{AcceptedTurn, Api},
    db_snapshot::{self, turns},
    fleet::WorkflowOptions,
    locked,
    manual_workflow::ManualWorkflow,
    publisher::Publisher,
    sse::{FollowOptions, Follower},
    turn_events,
};

/// Number of agents. Each person uses one of them.
const AGENTS: usize = 6;
/// Time after which a request without an acknowledgement is redelivered. It is short, so that a
/// killed service has little effect.
const ACK_WAIT: Duration = Duration::from_secs(3);
/// Time after which a repeated request makes the run fail.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(120);
/// The texts that are sent, with their weights. They are keywords of the script.
const WORDS: [(&str, u32); 6] = [
    ("hello", 50),
    ("tools", 15),
    ("slowly", 20),
    ("fails-once", 8),
    ("fails-twice", 4),
    ("fails-for-good", 3),
];
/// The texts that calm people send.
const CALM_WORDS: [(&str, u32); 1] = [("steadily", 1)];

/// The accepted turns and tasks.
#[derive(Debug, Default)]
pub(super) struct Promised {
    turns: Mutex<BTreeMap<String, Promise>>,
    tasks: Mutex<BTreeMap<(String, String), Promise>>,
    awaited: Mutex<Vec<AwaitedAnswer>>,
}

/// An answer that clients are waiting for, from the time at which its input was accepted.
#[derive(Debug, Clone)]
pub(super) struct AwaitedAnswer {
    pub(super) thread: String,
    pub(super) message: String,
    pub(super) since: std::time::Instant,
}

impl Promised {
    /// Number of turns and tasks.
    pub(super) fn count(&self) -> (usize, usize) {
        (locked(&self.turns).len(), locked(&self.tasks).len())
    }

    /// The answers of all turns, in the order of acceptance.
    pub(super) fn awaited(&self) -> Vec<AwaitedAnswer> {
        locked(&self.awaited).clone()
    }

    fn accept(&self, turn: &AcceptedTurn, thread: &str, content: String) {
        let promise = Promise { place: thread.to_owned(), content };
        locked(&self.turns).insert(turn.id.clone(), promise);
        let (thread, message) = (thread.to_owned(), turn.answer.clone());
        locked(&self.awaited).push(AwaitedAnswer { thread, message, since: std::time::Instant::now() });
    }
}

/// The workflow of a chaos run.
pub(super) fn workflow() -> WorkflowOptions {
    WorkflowOptions::script(script())
}

/// The script of the workflow.
pub(super) fn script() -> Value {
    let error = |class: &str| json!({"class": class, "message": "by script"});
    let said = json!({"text": {"content": "You said: {input}", "chars": 5, "every_ms": 2}});
    let slowly =
        json!({"text": {"content": "{input}, as slowly as it goes, {input}", "chars": 3, "every_ms": 60}});
    let steadily =
        json!({"text": {"content": "{input}, at a steady pace, {input}", "chars": 6, "every_ms": 100}});
    let tools = json!({"tools": [{"name": "clock", "result": "noon"}, {"name": "sky", "result": "blue"}]});
    let when =
        |word: &str, steps: Value| json!({"name": word, "when": {"input_contains": word}, "steps": steps});
    let fails = |runs: u32| json!({"fail_first": {"runs": runs, "error": error("transient")}});
    let half = json!({"text": {"content": "Half of what I", "chars": 4}});
    json!({"scenarios": [
        when("fails-once", json!([half, fails(1), said])),
        when("fails-twice", json!([fails(2), said])),
        when("fails-for-good", json!([half, {"error": error("permanent")}])),
        // A task after a turn contains the text of the turn. It fails in the same way, but is not
        // as slow.
        when("this turn", json!([said])),
        when("tools", json!([half, tools, said])),
        when("slowly", json!([{"reorder": 3}, slowly])),
        when("steadily", json!([steadily])),
        {"name": "echo", "steps": [{"duplicate": 1}, said]},
    ]})
}

pub(super) struct TurnLoad {
    pub(super) promised: Arc<Promised>,
    followers: Vec<Follower>,
    nats_url: String,
    partitions: PartitionCount,
    gateways: Vec<Api>,
    seed: u64,
    talks: TalkSettings,
    /// Kept for the consumer that it has created.
    _consumer: ManualWorkflow,
}

fn talk(number: usize) -> String {
    format!("talk-{number}")
}

fn agent(number: usize) -> String {
    format!("agent-{number}")
}

impl TurnLoad {
    /// Creates threads and agents, and subscribes to the threads.
    pub(super) async fn prepare(
        settings: &ChaosSettings,
        nats_url: &str,
        partitions: PartitionCount,
        gateways: &[SocketAddr],
    ) -> Result<Self> {
        let consumer = ManualWorkflow::connect(nats_url, "default", ACK_WAIT).await?;
        let gateways: Vec<_> = gateways.iter().copied().map(Api).collect();
        let api = *gateways.first().context("there is no gateway")?;
        let talks = settings.talks.clone();
        let rules = json!({
            "backoff_base_ms": 100, "backoff_cap_ms": 800, "deadline_ms": 15_000,
            "work_request": !talks.is_calm, "memory": !talks.is_calm,
        });
        for number in 0..AGENTS {
            api.put_agent(&agent(number), "default", rules.clone()).await?;
        }
        let addrs: Vec<_> = gateways.iter().map(|api| api.0).collect();
        let mut followers = Vec::new();
        for number in 0..talks.people {
            api.create_thread(&json!({"thread_id": talk(number), "agent_id": agent(number % AGENTS)}))
                .await?;
            let hang_up_after = (!talks.is_calm && number % 3 == 2).then_some(Duration::from_secs(2));
            let options = FollowOptions { hang_up_after, ..FollowOptions::default() };
            for _ in 0..talks.followers {
                followers.push(Follower::start(&addrs, &talk(number), options.clone()));
            }
        }
        for follower in &followers {
            follower.opened().await?;
        }
        Ok(Self {
            promised: Arc::default(),
            followers,
            nats_url: nats_url.to_owned(),
            partitions,
            gateways,
            seed: settings.seed,
            talks,
            _consumer: consumer,
        })
    }

    /// Starts all clients. When `stop` is set, they complete what they have begun.
    pub(super) async fn begin(&self, stop: &Arc<AtomicBool>) -> Result<Vec<load::LoadTask>> {
        let mut tasks = Vec::new();
        for number in 0..self.talks.people {
            let person = Person {
                number,
                talks: self.talks.clone(),
                gateways: self.gateways.clone(),
                promised: Arc::clone(&self.promised),
                rng: StdRng::seed_from_u64(self.seed.wrapping_add(100 + number as u64)),
            };
            tasks.push(tokio::spawn(person.run(Arc::clone(stop))));
        }
        for number in 0..AGENTS {
            let addressing = testkit::publisher::Addressing::Exact(self.partitions);
            let sender = Sender {
                agent: agent(number),
                subject: wire::subject::partition_tasks(self.partitions, &AgentId::parse(&agent(number))?),
                publisher: Publisher::connect(&self.nats_url, addressing).await?,
                promised: Arc::clone(&self.promised),
                is_calm: self.talks.is_calm,
                rng: StdRng::seed_from_u64(self.seed.wrapping_add(200 + number as u64)),
            };
            tasks.push(tokio::spawn(sender.run(Arc::clone(stop))));
        }
        let operator = Operator {
            gateways: self.gateways.clone(),
            rng: StdRng::seed_from_u64(self.seed.wrapping_add(300)),
        };
        if !self.talks.is_calm {
            tasks.push(tokio::spawn(operator.run(Arc::clone(stop))));
        }
        Ok(tasks)
    }

    /// Describes the turns and tasks that have not ended yet; `None` if all have.
    pub(super) async fn left(&self, pool: &PgPool) -> Result<Option<String>> {
        let evidence = self.rows(pool).await?;
        let ended: std::collections::BTreeSet<_> = evidence
            .messages
            .iter()
            .filter_map(|row| row.message_id.strip_suffix("-q"))
            .chain(evidence.failed_turns.iter().map(|failed| failed.turn_id.as_str()))
            .collect();
        let turns = evidence.turns.keys().filter(|turn| !ended.contains(turn.as_str())).count();
        let pending = evidence.stored_tasks.iter().filter(|task| task.status == "pending").count();
        let unsettled = turns::unsettled(pool).await?;
        let lost = evidence.tasks.len().saturating_sub(evidence.stored_tasks.len());
        let left = format!("{turns} turns, {pending} tasks, {lost} not stored, unsettled {unsettled:?}");
        Ok((turns + pending + lost > 0 || unsettled != (0, 0)).then_some(left))
    }

    /// Waits while clients are still receiving ends, up to a limit.
    pub(super) async fn let_clients_learn(&self, pool: &PgPool) -> Result<()> {
        let (began, messages) = (Instant::now(), turns::messages(pool).await?);
        let satisfied = |follower: &Follower| {
            follower.inspect(|transcripts| {
                client_transcripts::have_seen_all(follower.thread(), transcripts, &messages)
            })
        };
        while began.elapsed() < Duration::from_secs(20) && !self.followers.iter().all(satisfied) {
            sleep(Duration::from_millis(200)).await;
        }
        Ok(())
    }

    /// The data that the verification of turns compares, and the events that clients received.
    pub(super) async fn evidence(
        &mut self,
        pool: &PgPool,
        reader: &Publisher,
    ) -> Result<(TurnEvidence, Vec<(String, Vec<testkit::sse::Transcript>)>)> {
        let mut evidence = self.rows(pool).await?;
        evidence.dead_letters = db_snapshot::dead_letters(pool).await?;
        evidence.ends = turn_events::all(reader.context()).await?;
        evidence.acts = turns::count_acts(pool).await?;
        evidence.usage = turns::usage(pool).await?;
        let followers = std::mem::take(&mut self.followers).into_iter();
        let seen = followers.map(|follower| (follower.thread().to_owned(), follower.stop()));
        Ok((evidence, seen.collect()))
    }

    async fn rows(&self, pool: &PgPool) -> Result<TurnEvidence> {
        let mut messages = turns::messages(pool).await?;
        messages.retain(|row| !load::is_bare(&row.thread_id));
        let turns = locked(&self.promised.turns).clone();
        let tasks = locked(&self.promised.tasks).clone();
        Ok(TurnEvidence {
            turns,
            tasks,
            messages,
            agents: turns::agents(pool).await?,
            stored_tasks: turns::tasks(pool).await?,
            failed_turns: turns::failed_turns(pool).await?,
            ..TurnEvidence::default()
        })
    }
}

struct Person {
    number: usize,
    talks: TalkSettings,
    gateways: Vec<Api>,
    promised: Arc<Promised>,
    rng: StdRng,
}

impl Person {
    async fn run(mut self, stop: Arc<AtomicBool>) -> Result<()> {
        let thread = talk(self.number);
        // A pause, so that people start at different times.
        self.pause().await;
        for round in 0.. {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let content = format!("{} {round}", word(self.talks.is_calm, &mut self.rng));
            let turn = self.say(&thread, &content, round).await?;
            self.promised.accept(&turn, &thread, content);
            if self.talks.is_calm {
                sleep(self.talks.pause).await;
                continue;
            }
            self.pause().await;
            let at = self.rng.random_range(0..self.gateways.len());
            // Either request may be too late, or reach a gateway that is down.
            match self.rng.random_range(0..10) {
                0 => drop(self.gateways[at].stop(&turn.id).await),
                1 => drop(self.retry(at, &thread).await),
                _ => {}
            }
        }
        Ok(())
    }

    async fn say(&mut self, thread: &str, content: &str, round: usize) -> Result<AcceptedTurn> {
        let policy = match self.rng.random_range(0..12) {
            0 if !self.talks.is_calm => "interrupt",
            1 if !self.talks.is_calm => "rollback",
            _ => "enqueue",
        };
        let body = json!({"content": content, "busy_policy": policy});
        self.gateways.rotate_left(1);
        let key = format!("round-{round}");
        Api::say_until_taken(&self.gateways, thread, &body, &key, REQUEST_TIMEOUT).await
    }

    async fn retry(&self, at: usize, thread: &str) -> Result<()> {
        let failed = self.gateways[at].failed_turns(thread).await?;
        let Some(turn) = failed.first().and_then(|turn| turn["turn_id"].as_str()) else { return Ok(()) };
        self.gateways[at].retry_turn(thread, turn).await?;
        Ok(())
    }

    async fn pause(&mut self) {
        sleep(self.rng.random_range(Duration::ZERO..self.talks.pause)).await;
    }
}

/// Pauses agents, clears backoffs and retries failed tasks. At the end no agent is paused.
struct Operator {
    gateways: Vec<Api>,
    rng: StdRng,
}

impl Operator {
    async fn run(mut self, stop: Arc<AtomicBool>) -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            let agent = agent(self.rng.random_range(0..AGENTS));
            let at = self.rng.random_range(0..self.gateways.len());
            // Each request may reach a gateway that is down.
            match self.rng.random_range(0..4) {
                0 => drop(self.gateways[at].act(&agent, "pause").await),
                1 => drop(self.gateways[at].act(&agent, "resume").await),
                2 => drop(self.gateways[at].act(&agent, "clear-backoff").await),
                _ => drop(self.retry(at, &agent).await),
            }
            let pause = Duration::from_millis(self.rng.random_range(200..800));
            sleep(pause).await;
        }
        for number in 0..AGENTS {
            self.resume(&agent(number)).await?;
        }
        Ok(())
    }

    async fn retry(&self, at: usize, agent: &str) -> Result<()> {
        let page =
            self.gateways[at].call("GET", &format!("/v1/agents/{agent}/tasks?status=failed"), None).await?;
        let Some(task) = page["tasks"][0]["task_id"].as_str() else { return Ok(()) };
        self.gateways[at].retry_task(agent, task).await?;
        Ok(())
    }

    /// Resumes an agent. Retries until that succeeds, because a paused agent would never complete
    /// its queue.
    async fn resume(&self, agent: &str) -> Result<()> {
        let began = Instant::now();
        for gateway in self.gateways.iter().cycle() {
            match gateway.act(agent, "resume").await {
                Ok(answer) if answer["status"] == "done" => break,
                Ok(answer) if began.elapsed() > REQUEST_TIMEOUT => {
                    bail!("{agent} cannot be resumed: {answer}")
                }
                Err(error) if began.elapsed() > REQUEST_TIMEOUT => return Err(error),
                Ok(_) | Err(_) => sleep(Duration::from_millis(200)).await,
            }
        }
        Ok(())
    }
}

struct Sender {
    agent: String,
    subject: String,
    publisher: Publisher,
    promised: Arc<Promised>,
    is_calm: bool,
    rng: StdRng,
}

impl Sender {
    async fn run(mut self, stop: Arc<AtomicBool>) -> Result<()> {
        for number in 0.. {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let (id, content) =
                (format!("task-{number}"), format!("{} {number}", word(self.is_calm, &mut self.rng)));
            self.send(&id, &content).await?;
            let promise = Promise { place: self.agent.clone(), content: content.clone() };
            locked(&self.promised.tasks).insert((self.agent.clone(), id.clone()), promise);
            if self.rng.random_bool(0.1) {
                self.send(&id, &content).await?;
            }
            // The tasks of an agent run one after the other, and tasks of calm people take longer.
            let factor = if self.is_calm { 3 } else { 1 };
            let pause = Duration::from_millis(self.rng.random_range(200..900) * factor);
            sleep(pause).await;
        }
        Ok(())
    }

    async fn send(&self, id: &str, content: &str) -> Result<()> {
        let (began, task) = (Instant::now(), json!({"task_id": id, "content": content}).to_string());
        while let Err(error) =
            self.publisher.publish_raw(&self.subject, None, task.clone().into_bytes().into()).await
        {
            if began.elapsed() > REQUEST_TIMEOUT {
                bail!("{}: {id} could not be sent: {error:#}", self.agent);
            }
            sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }
}

fn word(is_calm: bool, rng: &mut StdRng) -> &'static str {
    let words: &[(&str, u32)] = if is_calm { &CALM_WORDS } else { &WORDS };
    let all: u32 = words.iter().map(|(_, weight)| weight).sum();
    let mut at = rng.random_range(0..all);
    for (word, weight) in words {
        match at.checked_sub(*weight) {
            Some(left) => at = left,
            None => return word,
        }
    }
    words[0].0
}
