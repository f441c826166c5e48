//! The world of one seed: virtual time, a heap of events, workers, store, streams and clients.
//!
//! A run has two phases. Until `Scenario::faults_until` everything fails now and then. Then the
//! faults stop, and everything that was acknowledged must end. Each concern has its own generator,
//! so that equal seeds have equal histories.

mod background;
mod clients;
mod compaction;
mod erasure;
mod event;
mod going_back;
mod groups;
mod in_flight_sql;
mod operators;
mod retention;
mod session;
mod settle;
mod state;
mod streams;
mod timers;
mod workers;
mod workflows;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

use model::{MessageKey, PartitionId, ThreadId};

use crate::bug::PlantedBug;
use crate::checker::turns::{Ordered, TurnEvent};
use crate::checker::{self, ExpectedOutcome, Invariant, Publish, Rules, Transcript, Violation};
use crate::client::Client;
use crate::coverage::Coverage;
use crate::gateway::SimulatedGateway;
use crate::log::Log;
use crate::publisher::{self, Planned};
use crate::rng::Rng;
use crate::scenario::{FaultRates, Scenario};
use crate::store::Store;
use event::{Address, GatewayEvent, SessionEvent, StatementEvent, WorldEvent};
use state::budgets::SpentBudgets;
use state::compaction::Compactions;
use state::erasure::Erasures;
use state::follow_ups::FollowUps;
use state::going_back::GoingBack;
use state::groups::Groups;
use state::long_answers::LongAnswers;
use state::operators::Operators;
use state::refused_rows::RefusedRows;
use state::retention::Retention;
use state::session::WorkerSession;
use state::statement::Statement;
use state::workflows::Workflows;

/// Maximum number of trace lines that are kept.
const TRACE_LINES: usize = 4_000;

/// Maximum time until clients know that everything has ended, ms. The last frame of a thread may be
/// lost, and only the second query notices this.
const CLIENTS_SETTLE_MS: i64 = 9_000;

/// The report of one seed.
#[derive(Debug)]
pub struct SeedReport {
    pub seed: u64,
    /// The violations that were found.
    pub violations: Vec<Violation>,
    /// What happened, as counts.
    pub coverage: Coverage,
    /// Equal for equal histories.
    pub trace_hash: u64,
    /// The sizes and rates that the seed drew.
    pub scenario: String,
    /// The last lines of the history; empty unless requested.
    pub trace: VecDeque<String>,
}

impl SeedReport {
    pub(crate) fn panicked(seed: u64, text: &str) -> Self {
        let violation = Violation::new(Invariant::NoPanic, format!("seed {seed}"), "no panic", text);
        Self {
            seed,
            violations: vec![violation],
            coverage: Coverage::default(),
            trace_hash: 0,
            scenario: String::new(),
            trace: VecDeque::new(),
        }
    }
}

pub(crate) struct World {
    scenario: Scenario,
    bug: Option<PlantedBug>,
    rng: Rng,
    time: i64,
    order: u64,
    heap: BinaryHeap<Reverse<Scheduled>>,
    logs: Vec<Log>,
    /// The entries that publishers will publish, the next one last.
    planned: Vec<Planned>,
    /// The sequences of the planned entries, by partition.
    planned_seqs: Vec<Vec<u64>>,
    ledger: Vec<Publish>,
    commands: Vec<Ordered>,
    workflows: Workflows,
    operators: Operators,
    turn_events: Vec<TurnEvent>,
    rules: Rules,
    missing: BTreeSet<ThreadId>,
    /// Messages that only a timeout can end, by partition: the planned entry from which this holds,
    /// the message, and the timeout, ms.
    doomed: Vec<Vec<(u64, MessageKey, i64)>>,
    /// Time since which each partition has had no owner, counted only while there are no faults.
    free_since: Vec<Option<i64>>,
    /// Number of messages published without a turn, and their keys.
    messages: usize,
    bare: Vec<MessageKey>,
    going_back: GoingBack,
    budgets: SpentBudgets,
    erasing: Erasures,
    retaining: Retention,
    compacting: Compactions,
    groups: Groups,
    follow_ups: FollowUps,
    long_answers: LongAnswers,
    refused: RefusedRows,
    /// Entries that cannot be read: the owner that their subject names, and their payloads.
    garbage: Vec<(String, bytes::Bytes)>,
    /// The number of chunks of each message that completes, for a planted bug.
    lengths: BTreeMap<MessageKey, u32>,
    store: Store,
    statements: Vec<Statement>,
    workers: Vec<Worker>,
    last_incarnation: u64,
    last_session: u64,
    clients: Vec<Client>,
    gateways: Vec<SimulatedGateway>,
    last_follower: u64,
    last_ask: u64,
    /// Queries in flight: gateway, thread and follower number.
    asked: BTreeMap<u64, (usize, ThreadId, u64)>,
    settled_at: Option<i64>,
    /// Transcripts, each with its partition and its start time.
    transcripts: Vec<(PartitionId, i64, Transcript)>,
    is_quiet: bool,
    coverage: Coverage,
    violations: Vec<Violation>,
    hash: u64,
    trace: Option<VecDeque<String>>,
}

struct Worker {
    /// Different after each start; identifies the owner of leases.
    incarnation: u64,
    is_up: bool,
    is_paused: bool,
    paused_until: i64,
    /// Events that arrive while it is paused, in order.
    waiting: VecDeque<(Address, SessionEvent)>,
    skew: i64,
    idle_until: i64,
    /// True: the worker never comes back.
    is_gone: bool,
    sessions: BTreeMap<PartitionId, WorkerSession>,
}

struct Scheduled {
    at: i64,
    order: u64,
    /// Boxed, because the heap moves its items.
    event: Box<WorldEvent>,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}
impl Eq for Scheduled {}
impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl World {
    pub(crate) fn new(seed: u64, bug: Option<PlantedBug>, verbose: bool) -> Self {
        let mut rng = Rng::new(seed);
        let scenario = Scenario::draw(&mut rng.fork(), &mut Rng::new(seed ^ 0xf0110));
        let plan = publisher::publish(&scenario, &mut rng.fork());
        let ledger = planned_ledger(&plan.entries, scenario.partitions);
        let missing: BTreeSet<ThreadId> = match scenario.creates_threads {
            true => BTreeSet::new(),
            false => plan.threads.iter().take(1).map(|(thread, _)| thread.clone()).collect(),
        };
        let mut scenario = scenario;
        scenario.limits.create_agents = missing.is_empty();
        let bare: BTreeSet<MessageKey> = ledger.iter().filter_map(message_of).cloned().collect();
        let refused =
            RefusedRows::draw(Rng::new(seed ^ 0x4ef05ed), &scenario, &plan.entries, bare.into_iter());
        let limits = &scenario.limits;
        let rules = Rules {
            is_settled: true,
            // Pauses, unnoticed outages and changes of the clock may add to the age of a gap.
            gap_safe_ms: limits.gap_timeout_ms * 7 / 10,
            stall_safe_ms: limits.stall_timeout_ms * 7 / 10,
            chunks_per_message: limits.chunks_per_message,
            missing_threads: missing.clone(),
            refused_messages: refused.messages.clone(),
            ..Rules::default()
        };
        let fates = checker::expected_outcomes(&ledger, &rules);
        let mut world = Self {
            store: Store::new(scenario.partitions, bug),
            doomed: doomed(&ledger, &fates, &scenario),
            free_since: vec![None; usize::from(scenario.partitions)],
            messages: fates.len(),
            // Each of these has its own generator, so that it does not change the draws of the
            // other faults.
            going_back: GoingBack::new(Rng::new(seed ^ 0xb4c2)),
            budgets: SpentBudgets::new(Rng::new(seed ^ 0xb0d6e7)),
            erasing: Erasures::new(Rng::new(seed ^ 0xe7a5e)),
            retaining: Retention::new(Rng::new(seed ^ 0x4e7a14)),
            compacting: Compactions::new(Rng::new(seed ^ 0xc04ac7)),
            groups: Groups::new(Rng::new(seed ^ 0x6007)),
            follow_ups: FollowUps::new(Rng::new(seed ^ 0x71ae5)),
            long_answers: LongAnswers::new(Rng::new(seed ^ 0x10a6)),
            refused,
            garbage: Vec::new(),
            lengths: lengths(&fates),
            bare: fates.into_keys().collect(),
            rng: rng.fork(),
            bug,
            time: 0,
            order: 0,
            heap: BinaryHeap::new(),
            logs: (0..scenario.partitions).map(|_| Log::default()).collect(),
            planned: plan.entries,
            planned_seqs: vec![Vec::new(); usize::from(scenario.partitions)],
            ledger: Vec::new(),
            commands: Vec::new(),
            workflows: Workflows::new(rng.fork()),
            operators: Operators::default(),
            turn_events: Vec::new(),
            rules,
            missing,
            statements: Vec::new(),
            workers: Vec::new(),
            last_incarnation: 0,
            last_session: 0,
            clients: Vec::new(),
            gateways: Vec::new(),
            last_follower: 0,
            last_ask: 0,
            asked: BTreeMap::new(),
            settled_at: None,
            transcripts: Vec::new(),
            is_quiet: false,
            coverage: Coverage::default(),
            violations: Vec::new(),
            hash: 0,
            trace: verbose.then(VecDeque::new),
            scenario,
        };
        world.populate(&plan.threads);
        world
    }

    fn populate(&mut self, threads: &[(ThreadId, PartitionId)]) {
        for worker in 0..self.scenario.workers {
            self.workers.push(Worker::new());
            let delay = self.rng.range(0, 50);
            self.schedule(delay, WorldEvent::Restart(worker));
        }
        for gateway in 0..self.scenario.gateways {
            let link_ms = self.scenario.link_ms[gateway];
            self.gateways.push(SimulatedGateway { link_ms, ..SimulatedGateway::default() });
            for p in 0..self.scenario.partitions {
                let at = self.rng.range(0, 2_000);
                self.schedule(at, WorldEvent::Gateway(gateway, GatewayEvent::Watch(PartitionId(p))));
            }
        }
        for client in 0..self.scenario.clients {
            let (thread, partition) = threads[self.rng.index(threads.len())].clone();
            self.clients.push(Client::new(thread, partition));
            let at = self.rng.range(0, self.scenario.faults_until);
            self.schedule(at, WorldEvent::Join(client));
        }
        self.schedule(self.scenario.faults_until, WorldEvent::Quiet);
        self.plan_going_back();
        self.plan_erasing(threads);
        self.plan_timers(threads);
        self.planned.reverse();
        self.schedule_planned();
        if self.scenario.turn_profile.people_ms > 0 {
            self.schedule(self.scenario.turn_profile.people_ms, WorldEvent::Operators);
        }
    }

    /// Runs to the end and checks the result.
    pub(crate) fn run(mut self, seed: u64) -> SeedReport {
        let limit = self.time_limit();
        while let Some(Reverse(Scheduled { at, order, event })) = self.heap.pop() {
            self.time = at;
            if at > limit || self.settled_at.is_some_and(|settled| at > settled + CLIENTS_SETTLE_MS) {
                break;
            }
            if self.settled_at.is_none() && self.is_quiet && order.is_multiple_of(8) && self.is_settled() {
                self.settled_at = Some(at);
            }
            if self.trace.is_some() && !self.violations.is_empty() {
                // Stops here, because the trace should end with the events that led to the
                // violation.
                break;
            }
            self.coverage.events += 1;
            self.dispatch(*event);
        }
        self.finish(seed)
    }

    fn dispatch(&mut self, event: WorldEvent) {
        match event {
            WorldEvent::Quiet => self.quiet(),
            WorldEvent::Restart(worker) => self.restart(worker),
            WorldEvent::Acquire(worker, incarnation) => self.acquire(worker, incarnation),
            WorldEvent::Resume(worker, incarnation) => self.resume(worker, incarnation),
            WorldEvent::Session(address, event) => self.session_event(address, event),
            WorldEvent::Statement(StatementEvent::Arrive(statement)) => self.statement_arrives(statement),
            WorldEvent::Statement(StatementEvent::Done(statement)) => self.statement_done(statement),
            WorldEvent::Lookup(address, keys) => self.lookup(address, &keys),
            WorldEvent::Load(address, grant) => self.load(address, grant),
            WorldEvent::Client(client, connection, event) => self.client_event(client, connection, event),
            WorldEvent::Gateway(gateway, event) => self.gateway_event(gateway, event),
            WorldEvent::Join(client) => self.join(client),
            WorldEvent::Planned => self.publish_planned(),
            WorldEvent::Check(address) => self.check_orders(address),
            WorldEvent::LoadTasks(address, agent, after, limit) => {
                self.load_tasks(address, agent, after, limit)
            }
            WorldEvent::Request(address, start) => self.requested(address, &start),
            WorldEvent::Work(event) => self.work(event),
            WorldEvent::Relay(address, batch, outgoing, left) => self.relay(address, batch, &outgoing, left),
            WorldEvent::Operators => self.operators(),
            WorldEvent::Caretaker => self.take_care(),
            WorldEvent::GoBack(back) => self.go_back(back),
            WorldEvent::Erase(number, run) => self.erase(number, run),
            WorldEvent::Gather(address) => self.gather(address),
            WorldEvent::DecideTimers(address, due) => self.decide_timers(address, due),
            WorldEvent::LoadTimers(address, from_ms, limit) => self.load_timers(address, from_ms, limit),
            WorldEvent::Save(address, known, save) => self.save(address, known, save),
            WorldEvent::DelayTask(address, seq, delayed) => self.delay_task(address, seq, *delayed),
            WorldEvent::GoAhead => self.go_ahead(),
            WorldEvent::Person(thread) => self.person(&thread),
            WorldEvent::PutSchedule(agent, number) => self.put_schedule(&agent, number),
            WorldEvent::PutTask(agent, number) => self.put_task(&agent, number),
            WorldEvent::GroupAgain(group) => self.send_group_again(group),
            WorldEvent::GroupOver(group) => self.group_over(group),
            WorldEvent::Retain(address, round) => self.retain(address, round),
            WorldEvent::Compact(address, due) => self.compact(address, due),
            WorldEvent::Summary(address, thread, id) => self.summarise(address, &thread, id),
        }
    }

    fn schedule(&mut self, delay: i64, event: WorldEvent) {
        self.order += 1;
        let (at, order) = (self.time + delay.max(0), self.order);
        self.heap.push(Reverse(Scheduled { at, order, event: Box::new(event) }));
    }

    /// Draws whether a fault happens here.
    fn fault(&mut self, probability: impl Fn(&FaultRates) -> f64) -> bool {
        !self.is_quiet && self.rng.chance(probability(&self.scenario.faults))
    }

    /// Notes a step of the history: always in the hash, and in the trace on request.
    fn note(&mut self, code: u64, numbers: [u64; 3], text: impl FnOnce() -> String) {
        for number in [self.time as u64, code].into_iter().chain(numbers) {
            self.hash = (self.hash.rotate_left(5) ^ number).wrapping_mul(0x517c_c1b7_2722_0a95);
        }
        if let Some(trace) = &mut self.trace {
            if trace.len() == TRACE_LINES {
                trace.pop_front();
            }
            trace.push_back(format!("{:>7} {}", self.time, text()));
        }
    }

    fn log(&self, partition: PartitionId) -> &Log {
        &self.logs[usize::from(partition.0)]
    }
}

/// The ledger as it will be if nothing else is published.
fn planned_ledger(entries: &[Planned], partitions: u16) -> Vec<Publish> {
    let mut counts = vec![0; usize::from(partitions)];
    let mut ledger = Vec::new();
    for entry in entries {
        let count = &mut counts[usize::from(entry.partition.0)];
        *count += 1;
        let (partition, seq, at_ms) = (entry.partition, *count, entry.at);
        ledger.extend(entry.published.iter().cloned().map(|body| Publish { partition, seq, at_ms, body }));
    }
    ledger
}

fn message_of(publish: &Publish) -> Option<&MessageKey> {
    match &publish.body {
        checker::Published::Chunk { key, .. } => Some(key),
        checker::Published::Garbage(_) => None,
    }
}

fn doomed(
    ledger: &[Publish],
    fates: &BTreeMap<MessageKey, ExpectedOutcome>,
    scenario: &Scenario,
) -> Vec<Vec<(u64, MessageKey, i64)>> {
    let limits = &scenario.limits;
    let partition_of: BTreeMap<&MessageKey, PartitionId> =
        ledger.iter().filter_map(|publish| Some((message_of(publish)?, publish.partition))).collect();
    let mut doomed = vec![Vec::new(); usize::from(scenario.partitions)];
    for (key, fate) in fates {
        if fate.end != checker::ExpectedEnd::Open {
            continue;
        }
        let (seq, after_ms) = match fate.gap_since_seq {
            Some(seq) => (seq, limits.gap_timeout_ms),
            None => (fate.last_seq, limits.stall_timeout_ms + limits.sweep_ms),
        };
        let partition = partition_of.get(key).map_or(0, |partition| partition.0);
        doomed[usize::from(partition)].push((seq, key.clone(), after_ms));
    }
    doomed
}

fn lengths(fates: &BTreeMap<MessageKey, ExpectedOutcome>) -> BTreeMap<MessageKey, u32> {
    fates.iter().filter_map(|(key, fate)| Some((key.clone(), fate.final_chunk()?.id + 1))).collect()
}
