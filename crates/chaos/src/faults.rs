//! Makes the faults of the fleet and its services.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use model::PartitionCount;
use rand::{
    RngExt, SeedableRng,
    rngs::StdRng,
    seq::{IteratorRandom, SliceRandom},
};
use tokio::time::sleep;

use crate::{
    environment::ChaosEnvironment,
    fault::Fault,
    load::LoadStats,
    options::ChaosSettings,
    recovery::{self, FaultBegin},
    verify::evidence::RuleViolation,
};
use testkit::{
    fleet::{self, Process},
    nats_cluster::NatsCluster,
    proxy::Cut,
};

/// Maximum time until the replicas of a restarted NATS server have all entries.
const CATCH_UP_LIMIT: Duration = Duration::from_secs(60);
/// Maximum number of retries of faults that had no opportunity, over all kinds.
const MOST_TRIED_AGAIN: usize = 5;

/// Makes faults one after another. At first it makes each kind once.
pub(super) struct Injector {
    rng: StdRng,
    lease: Duration,
    duration: Duration,
    possible: Vec<Fault>,
    is_verbose: bool,
    builds: Option<[PathBuf; 2]>,
    made: BTreeMap<Fault, usize>,
    begins: Vec<FaultBegin>,
    /// How often the servers were not restarted in turn, because a NATS replica had not caught up.
    replicas_left_behind: usize,
    /// Number of times that the other build was started.
    started_other: usize,
    violations: Vec<RuleViolation>,
}

impl Injector {
    pub(super) fn new(settings: &ChaosSettings) -> Result<Self> {
        let other = settings.other_binary.clone();
        let builds = other.map(|other| anyhow::Ok([fleet::binary()?, other])).transpose()?;
        Ok(Self {
            rng: StdRng::seed_from_u64(settings.seed),
            lease: settings.lease,
            duration: settings.duration,
            possible: Fault::possible(settings.nats_servers),
            is_verbose: settings.is_verbose,
            builds,
            made: BTreeMap::new(),
            begins: Vec::new(),
            replicas_left_behind: 0,
            started_other: 0,
            violations: Vec::new(),
        })
    }

    /// Number of processes of the other build that were started; `None`: there is no other build.
    pub(super) fn started_other(&self) -> Option<usize> {
        self.builds.as_ref().map(|_| self.started_other)
    }

    /// Number of faults of this kind that were made.
    pub(super) fn made(&self, fault: Fault) -> usize {
        self.made.get(&fault).copied().unwrap_or_default()
    }

    /// True if NATS itself gave no opportunity for the fault.
    pub(super) fn is_excused(&self, fault: Fault) -> bool {
        fault == Fault::RestartNatsInTurn && self.replicas_left_behind > 0
    }

    /// How often a replica was still behind after [`CATCH_UP_LIMIT`].
    pub(super) fn replicas_left_behind(&self) -> usize {
        self.replicas_left_behind
    }

    pub(super) fn begins(&self) -> &[FaultBegin] {
        &self.begins
    }

    pub(super) fn violations(&self) -> Vec<RuleViolation> {
        self.violations.clone()
    }

    /// Makes faults for the duration of the run, and until every kind was made once.
    pub(super) async fn run(&mut self, environment: &mut ChaosEnvironment, stats: &LoadStats) -> Result<()> {
        let began = Instant::now();
        let (mut first, mut tried_again) = (self.possible.clone(), 0);
        first.shuffle(&mut self.rng);
        sleep(Duration::from_secs(1)).await;
        while began.elapsed() < self.duration || !first.is_empty() {
            let fault =
                first.pop().unwrap_or_else(|| self.possible[self.rng.random_range(0..self.possible.len())]);
            if self.is_verbose {
                let sent = stats.messages.load(std::sync::atomic::Ordering::Relaxed);
                println!("{:6.1} s  {:32} {sent} messages sent", began.elapsed().as_secs_f64(), fault.name());
            }
            self.begins.push(FaultBegin { fault, at_ms: recovery::now_ms() });
            if self.make(fault, environment).await.with_context(|| fault.name())? {
                *self.made.entry(fault).or_default() += 1;
            } else if self.made(fault) == 0 && !self.is_excused(fault) && tried_again < MOST_TRIED_AGAIN {
                // An opportunity may follow a moment later: a stream that has lost its leader
                // elects another one.
                tried_again += 1;
                first.insert(0, fault);
            }
            self.revive(environment)?;
            self.pause(500, 2500).await;
        }
        environment.fleet.ready(testkit::fleet::READY_LIMIT).await
    }

    /// Makes one fault completely. Returns false if there was no opportunity.
    async fn make(&mut self, fault: Fault, environment: &mut ChaosEnvironment) -> Result<bool> {
        match fault {
            Fault::KillWorker => self.kill(ProcessRole::Worker, environment).await?,
            Fault::KillGateway => self.kill(ProcessRole::Gateway, environment).await?,
            Fault::KillWorkflow => self.kill(ProcessRole::Workflow, environment).await?,
            Fault::DrainWorker => self.drain(ProcessRole::Worker, environment).await?,
            Fault::DrainGateway => self.drain(ProcessRole::Gateway, environment).await?,
            Fault::DrainWorkflow => self.drain(ProcessRole::Workflow, environment).await?,
            Fault::FreezeWorker => {
                let worker = pick(&mut environment.fleet.workers, &mut self.rng);
                worker.pause();
                sleep(self.lease).await;
                self.pause(1000, 3000).await;
                worker.resume();
            }
            Fault::KillNats => {
                let server = self.nats_server(environment);
                self.kill_nats(&environment.nats, server).await?;
            }
            Fault::FreezeNats => {
                let server = &environment.nats.servers()[self.nats_server(environment)];
                server.freeze();
                self.pause(500, 9000).await;
                server.thaw();
            }
            Fault::KillStreamLeader => {
                let count = environment.workload.granted.len().try_into()?;
                let partition =
                    PartitionCount::new(count)?.all().choose(&mut self.rng).context("partitions")?;
                let leader = environment.nats.leader(&wire::subject::stream_name(partition)).await;
                let Ok(Some(server)) = leader else { return Ok(false) };
                self.kill_nats(&environment.nats, server).await?;
            }
            Fault::IsolateNats => {
                let server = self.nats_server(environment);
                environment.nats.set_isolated(server, true);
                self.pause(500, 15_000).await;
                environment.nats.set_isolated(server, false);
            }
            Fault::RestartNatsInTurn => {
                for server in environment.nats.servers() {
                    // An operator must not stop a second server while another one lacks entries.
                    if environment.nats.in_sync(CATCH_UP_LIMIT).await.is_err() {
                        self.replicas_left_behind += 1;
                        return Ok(false);
                    }
                    server.stop().await?;
                    server.restart().await?;
                }
            }
            Fault::KillPostgres => {
                environment.postgres.kill().await?;
                self.pause(200, 1500).await;
                environment.postgres.restart().await?;
            }
            Fault::HalfOpen => {
                environment.proxy.set_half_open(true);
                self.pause(1000, 4000).await;
                environment.proxy.set_half_open(false);
            }
            Fault::CutBefore => return Ok(cut(Cut::Before, environment).await),
            Fault::CutAfter => return Ok(cut(Cut::After, environment).await),
            Fault::CutLate => {
                let delay = Duration::from_millis(self.rng.random_range(50..1500));
                return Ok(cut(Cut::Late(delay), environment).await);
            }
        }
        Ok(true)
    }

    fn nats_server(&mut self, environment: &ChaosEnvironment) -> usize {
        self.rng.random_range(0..environment.nats.servers().len())
    }

    async fn kill_nats(&mut self, nats: &NatsCluster, server: usize) -> Result<()> {
        nats.servers()[server].kill().await?;
        // Sometimes longer than a publisher waits for an acknowledgement, so that it must publish
        // again.
        self.pause(200, 3500).await;
        nats.servers()[server].restart().await
    }

    async fn kill(&mut self, role: ProcessRole, environment: &mut ChaosEnvironment) -> Result<()> {
        let process = pick(processes(role, environment), &mut self.rng);
        process.kill().await?;
        let longest = self.lease.as_millis() as u64 * 2;
        let pause = Duration::from_millis(self.rng.random_range(0..longest));
        sleep(pause).await;
        self.start(process)
    }

    /// Starts a process. If there are two builds, uses either one.
    fn start(&mut self, process: &mut Process) -> Result<()> {
        if let Some(builds) = &self.builds {
            let build = self.rng.random_range(0..builds.len());
            process.use_binary(&builds[build]);
            self.started_other += build;
        }
        process.spawn()
    }

    async fn drain(&mut self, role: ProcessRole, environment: &mut ChaosEnvironment) -> Result<()> {
        let process = pick(processes(role, environment), &mut self.rng);
        process.terminate();
        match process.ended(Duration::from_secs(45)).await {
            Ok(status) if status.success() => {}
            Ok(status) => self.violations.push(RuleViolation::new(
                "a drained process exits with 0",
                process.name(),
                status.to_string(),
            )),
            Err(error) => {
                self.violations.push(RuleViolation::new("a drain ends", process.name(), format!("{error:#}")))
            }
        }
        self.pause(0, 1000).await;
        let process = processes(role, environment).iter_mut().find(|process| process.pid().is_none());
        process.map_or(Ok(()), |process| self.start(process))
    }

    /// Restarts processes that ended by themselves, so that the run continues. Each such end is a
    /// violation.
    fn revive(&mut self, environment: &mut ChaosEnvironment) -> Result<()> {
        let fleet = &mut environment.fleet;
        for process in fleet.workers.iter_mut().chain(&mut fleet.gateways).chain(&mut fleet.workflows) {
            if let Some(status) = process.has_ended() {
                let found = format!("{status}; its log ends with:\n{}", process.log_tail());
                self.violations.push(RuleViolation::new(
                    "a process never ends by itself",
                    process.name(),
                    found,
                ));
                process.spawn()?;
            }
        }
        Ok(())
    }

    async fn pause(&mut self, from_ms: u64, to_ms: u64) {
        let pause = Duration::from_millis(self.rng.random_range(from_ms..to_ms));
        sleep(pause).await;
    }
}

/// Cuts the connection at the next commit. Returns false if there was no commit in time.
async fn cut(cut: Cut, environment: &ChaosEnvironment) -> bool {
    let before = environment.proxy.cuts().total();
    environment.proxy.arm(cut);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(10) {
        if environment.proxy.cuts().total() > before {
            return true;
        }
        sleep(Duration::from_millis(20)).await;
    }
    environment.proxy.disarm();
    false
}

#[derive(Debug, Clone, Copy)]
enum ProcessRole {
    Worker,
    Gateway,
    Workflow,
}

fn processes(role: ProcessRole, environment: &mut ChaosEnvironment) -> &mut [Process] {
    match role {
        ProcessRole::Worker => &mut environment.fleet.workers,
        ProcessRole::Gateway => &mut environment.fleet.gateways,
        ProcessRole::Workflow => &mut environment.fleet.workflows,
    }
}

fn pick<'a>(processes: &'a mut [Process], rng: &mut StdRng) -> &'a mut Process {
    let at = rng.random_range(0..processes.len());
    &mut processes[at]
}
