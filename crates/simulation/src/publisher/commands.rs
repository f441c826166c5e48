//! Inputs of persons and tasks, as gateways and others publish them.

use model::{
    AgentId, Bucket, BusyPolicy, Command, Metadata, PartitionId, Task, TaskId, TaskKind, TaskOrigin,
    ThreadId, TurnId, TurnOpened, TurnOptions, TurnOrigin,
};

use crate::rng::Rng;
use crate::scenario::{FollowUpProfile, Scenario};
use crate::settings;

/// Plans the inputs and tasks, with time and thread; a task goes to the agent of a thread.
pub(super) fn plan(
    scenario: &Scenario,
    threads: &[(ThreadId, PartitionId)],
    rng: &mut Rng,
) -> Vec<(i64, usize, Command)> {
    let mut planned = Vec::new();
    for number in 0..scenario.turn_profile.inputs {
        let thread = rng.index(threads.len());
        let Some(opened) = input(number, &threads[thread].0, threads, scenario, rng) else { continue };
        let at = rng.range(0, scenario.faults_until * 9 / 10);
        send(at, thread, Command::Turn(Box::new(opened)), scenario, rng, &mut planned);
    }
    let burst = rng.chance(0.5).then(|| rng.range(0, scenario.faults_until / 2));
    for number in 0..scenario.turn_profile.tasks {
        let thread = rng.index(threads.len());
        let Some(task) = task(number, &threads[thread].0.agent()) else { continue };
        let at = match burst {
            Some(at) => at + rng.range(0, 300),
            None => rng.range(0, scenario.faults_until * 9 / 10),
        };
        if rng.chance(scenario.turn_profile.conflict) {
            let other = Task { content: format!("other {number}"), ..task.clone() };
            planned.push((at + rng.range(-50, 3_000).max(-at), thread, Command::Task(other)));
        }
        send(at, thread, Command::Task(task), scenario, rng, &mut planned);
    }
    planned
}

/// The ack may be lost; then the command is sent again, at once or much later.
fn send(
    at: i64,
    thread: usize,
    command: Command,
    scenario: &Scenario,
    rng: &mut Rng,
    planned: &mut Vec<(i64, usize, Command)>,
) {
    while rng.chance(scenario.turn_profile.duplicate / 2.0) {
        let later = rng.pick([20, 500, 8_000]);
        planned.push((at + rng.range(1, later), thread, command.clone()));
    }
    planned.push((at, thread, command));
}

fn input(
    number: usize,
    thread: &ThreadId,
    threads: &[(ThreadId, PartitionId)],
    scenario: &Scenario,
    rng: &mut Rng,
) -> Option<TurnOpened> {
    let is_own = rng.chance(0.6);
    let agent = if is_own { thread.agent() } else { threads[rng.index(threads.len())].0.agent() };
    let busy_policy = match rng.chance(scenario.turn_profile.impatient) {
        true => rng.pick([BusyPolicy::Reject, BusyPolicy::Interrupt, BusyPolicy::Rollback]),
        false => BusyPolicy::Enqueue,
    };
    let follow_ups = scenario.follow_ups.as_ref();
    let metadata = follow_ups.map(|profile| profile.metadata(number)).unwrap_or_default();
    Some(TurnOpened {
        turn: TurnId::foreground(thread, &format!("i{number}")).ok()?,
        thread: thread.clone(),
        agent,
        run: 0,
        content: match follow_ups {
            Some(_) => FollowUpProfile::content(number),
            None => format!("input {number}"),
        },
        origin: TurnOrigin::of_person(&metadata),
        metadata,
        actor: None,
        options: TurnOptions {
            busy_policy,
            parameters: settings::parameters(number, scenario.turn_profile.background, rng)?,
            ..TurnOptions::default()
        },
    })
}

fn task(number: usize, agent: &AgentId) -> Option<Task> {
    Some(Task {
        agent: agent.clone(),
        id: TaskId::parse(&format!("k{number}")).ok()?,
        kind: TaskKind::Task,
        content: format!("task {number}"),
        origin: TaskOrigin::of_sender(&Metadata::EMPTY),
        metadata: Metadata::EMPTY,
    })
}

/// The owner of a command's text, for erasure. The store finds the owner in the subject, and for
/// tasks in the payload.
pub(crate) fn owner_of(command: &Command) -> String {
    match command {
        Command::Turn(opened) => opened.thread.to_string(),
        Command::Task(task) => task
            .origin
            .source_thread()
            .map_or_else(|| task.agent.agent().to_string(), |source| source.to_string()),
        Command::DelayedTask(delayed) => delayed.task.agent.agent().to_string(),
        Command::Control(control) => control.subject.to_string(),
    }
}

pub(crate) fn partition_of(key: &str, partitions: u16) -> PartitionId {
    let count = model::PartitionCount::new(partitions.into()).ok();
    count.map_or(PartitionId(0), |count| Bucket::of_key(key).partition(count))
}
