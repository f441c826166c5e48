//! Subjects and stream names.

use model::{
    AgentId, Bucket, Control, ControlKind, GatewayId, PartitionCount, PartitionId, ThreadId, TimerKind,
    TurnId, WorkflowName,
};

/// Where publishers send chunks when the account maps `chunks.*` to the partitions.
pub fn chunks(thread: &ThreadId) -> String {
    format!("chunks.{thread}")
}

/// The exact subject under which the stream of partition `p` stores the chunks of a thread.
pub fn chunks_in(p: PartitionId, thread: &ThreadId) -> String {
    format!("chunks.{p}.{thread}")
}

/// The exact subject for a thread in a fleet of `count` partitions: for publishers without the account mapping.
pub fn partition_chunks(count: PartitionCount, thread: &ThreadId) -> String {
    chunks_in(thread.bucket().partition(count), thread)
}

/// Where owners send a gateway the frames of the threads that it follows (core NATS only).
pub fn live(gateway: &GatewayId) -> String {
    format!("live.{gateway}")
}

/// Where owners say that they own a partition from now on (core NATS only).
pub const OWNERS: &str = "live.owners";

/// Where the owner of a partition answers gateways.
pub fn query(p: PartitionId) -> String {
    format!("query.{p}")
}

/// Where anyone sends tasks when the account maps `tasks.*` to the partitions.
pub fn tasks(agent: &AgentId) -> String {
    format!("tasks.{agent}")
}

/// The exact subject for an agent in a fleet of `count` partitions.
pub fn partition_tasks(count: PartitionCount, agent: &AgentId) -> String {
    format!("tasks.{}.{agent}", Bucket::of_key(agent.as_str()).partition(count))
}

/// The exact subject for a control command in a fleet of `count` partitions: commands about turns go the way of chunks, others that of tasks.
pub fn control_subject(count: PartitionCount, control: &Control) -> String {
    match is_about_turn(&control.kind) {
        true => partition_chunks(count, &control.subject.thread()),
        false => partition_tasks(count, &control.subject),
    }
}

pub(crate) fn is_about_turn(kind: &ControlKind) -> bool {
    match kind {
        ControlKind::StopTurn(_) | ControlKind::DropFailedTurn(_) | ControlKind::EraseThread => true,
        ControlKind::CancelTimer(timer) | ControlKind::SnoozeTimer { timer, .. } => {
            timer.kind() == TimerKind::FollowUp
        }
        ControlKind::Pause
        | ControlKind::Resume
        | ControlKind::ClearBackoff
        | ControlKind::RetryTask(_)
        | ControlKind::DropTask(_)
        | ControlKind::EditTask { .. }
        | ControlKind::PutSchedule(_)
        | ControlKind::DeleteSchedule(_)
        | ControlKind::DelayTask(_) => false,
    }
}

/// The stream of turn requests: a work queue.
pub const WORK_STREAM: &str = "WORK";

/// The stream of turn events.
pub const TURNS_STREAM: &str = "TURNS";

/// What the stream of turn requests stores.
pub const ALL_WORK: &str = "work.*";

/// What the stream of turn events stores.
pub const ALL_TURNS: &str = "turns.*";

/// Where turn requests for a workflow go.
pub fn work(workflow: &WorkflowName) -> String {
    format!("work.{workflow}")
}

/// The workflow of which [`work`] is.
pub fn workflow_of_work(subject: &str) -> Option<WorkflowName> {
    WorkflowName::parse(subject.strip_prefix("work.")?).ok()
}

/// The id by which the stream of requests drops a repetition: another owner that begins the same run again asks for the same.
/// A request whose answer goes to another subject, of another number of partitions, is no repetition.
pub fn work_id(turn: &str, run: u32, answer_subject: &str) -> String {
    let partition = answer_subject.split('.').nth(1).unwrap_or_default();
    format!("{turn}.{run}.{partition}")
}

const CONSUMER_OF_WORKFLOW: &str = "WORKFLOW_";

/// The durable consumer through which the services of a workflow read their requests.
pub fn work_consumer(workflow: &WorkflowName) -> String {
    format!("{CONSUMER_OF_WORKFLOW}{workflow}")
}

/// The workflow of which [`work_consumer`] is.
pub fn workflow_of_consumer(consumer: &str) -> Option<&str> {
    consumer.strip_prefix(CONSUMER_OF_WORKFLOW)
}

/// Where a workflow hears that a run is not waited for any more (core NATS).
pub fn stop(turn: &TurnId, run: u32) -> String {
    format!("stop.{turn}.{run}")
}

/// Where integrators hear how the turns of a thread ended.
pub fn turns(thread: &ThreadId) -> String {
    format!("turns.{thread}")
}

/// The name of a partition's stream.
pub fn stream_name(p: PartitionId) -> String {
    format!("PARTITION_{p}")
}

/// The subjects that a partition's stream stores.
pub fn stream_subjects(p: PartitionId) -> Vec<String> {
    vec![format!("chunks.{p}.*"), format!("tasks.{p}.*")]
}

/// The only subject that the stream of partition `p` takes while the number of partitions is changed.
pub fn moving_subjects(p: PartitionId) -> String {
    format!("{MOVING}*.{p}.*")
}

/// What the stream of partition `p` makes of [`moving_subjects`]: what is published to [`moving`] of a subject is stored under that subject.
pub fn moved_subjects(p: PartitionId) -> String {
    format!("{{{{wildcard(1)}}}}.{p}.{{{{wildcard(2)}}}}")
}

/// Where an entry that is to be stored under `stored` is published while the number of partitions is changed.
pub fn moving(stored: &str) -> String {
    format!("{MOVING}{stored}")
}

const MOVING: &str = "moving.";

/// Where the key of a stored subject belongs in a fleet of `count` partitions, and the subject that it has there; `None` when it is no stored
/// subject. The key need not be a valid id: it is refused there as well.
pub fn in_fleet(count: PartitionCount, stored: &str) -> Option<(PartitionId, String)> {
    let mut tokens = stored.splitn(3, '.');
    let (kind, _, key) = (tokens.next()?, tokens.next()?, tokens.next()?);
    if !matches!(kind, "chunks" | "tasks") || key.contains('.') {
        return None;
    }
    let p = Bucket::of_key(key).partition(count);
    Some((p, format!("{kind}.{p}.{key}")))
}

/// What a stored subject names.
#[derive(Debug, PartialEq, Eq)]
pub enum Stored<'a> {
    /// `chunks.<p>.<thread>`: the thread's token, not yet checked.
    Chunks(&'a str),
    /// `tasks.<p>.<agent>`: the agent's token, not yet checked.
    Tasks(&'a str),
}

/// Reads a subject as the stream of partition `p` stores it; `None` when it is not one.
pub fn parse_stored(p: PartitionId, subject: &str) -> Option<Stored<'_>> {
    let (kind, rest) = subject.split_once('.')?;
    let (partition, token) = rest.split_once('.')?;
    let same = partition.parse() == Ok(p.0);
    match kind {
        "chunks" if same => Some(Stored::Chunks(token)),
        "tasks" if same => Some(Stored::Tasks(token)),
        _ => None,
    }
}
