//! Subjects and stream names.

use std::fmt;

use model::{
    AgentId, Bucket, Control, GatewayId, PartitionCount, PartitionId, ThreadId, TurnId, WorkflowName,
};

/// The class of a subject of a partition's stream. It decides which content its entries may have,
/// and so which right to publish a NATS user needs. Its name is the first token of the subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SubjectClass {
    /// `chunks.<p>.<thread>`: chunks of answers, and of messages without a turn with the role
    /// assistant.
    Chunks,
    /// `commands.<p>.<thread or agent>`: opens turns, controls agents, and carries work after
    /// turns. For gateways, workers and operators only.
    Commands,
    /// `messages.<p>.<thread>`: as `chunks`, and also chunks of messages without a turn with the
    /// roles user and system.
    Messages,
    /// `tasks.<p>.<agent>`: tasks of kind `task`.
    Tasks,
}

impl SubjectClass {
    pub const ALL: [Self; 4] = [Self::Chunks, Self::Commands, Self::Messages, Self::Tasks];

    /// The first token of the subjects of this class.
    pub fn name(self) -> &'static str {
        match self {
            Self::Chunks => "chunks",
            Self::Commands => "commands",
            Self::Messages => "messages",
            Self::Tasks => "tasks",
        }
    }

    fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.name() == name)
    }

    /// The exact subject under which the stream of partition `p` stores entries of a key.
    fn subject(self, p: PartitionId, key: &str) -> String {
        format!("{}.{p}.{key}", self.name())
    }

    /// The exact subject of a key in a fleet of `count` partitions.
    fn partition_subject(self, count: PartitionCount, key: &str) -> String {
        self.subject(Bucket::of_key(key).partition(count), key)
    }
}

impl fmt::Display for SubjectClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The subject of chunks for accounts that map `chunks.*` to the partitions.
pub fn chunks(thread: &ThreadId) -> String {
    format!("chunks.{thread}")
}

/// The exact subject under which the stream of partition `p` stores the chunks of a thread.
pub fn chunks_in(p: PartitionId, thread: &ThreadId) -> String {
    SubjectClass::Chunks.subject(p, thread.as_str())
}

/// The exact subject for a thread in a fleet of `count` partitions. Publishers use it if the
/// account has no mapping.
pub fn partition_chunks(count: PartitionCount, thread: &ThreadId) -> String {
    chunks_in(thread.bucket().partition(count), thread)
}

/// The exact subject for messages without a turn, of any role, in a fleet of `count` partitions.
pub fn partition_messages(count: PartitionCount, thread: &ThreadId) -> String {
    SubjectClass::Messages.partition_subject(count, thread.as_str())
}

/// The exact subject for the commands of a thread or an agent in a fleet of `count` partitions.
pub fn partition_commands(count: PartitionCount, key: &str) -> String {
    SubjectClass::Commands.partition_subject(count, key)
}

/// The subject on which owners send a gateway the frames of the threads that it follows (core NATS
/// only).
pub fn live(gateway: &GatewayId) -> String {
    format!("live.{gateway}")
}

/// The subject on which owners announce partitions that they now own (core NATS only).
pub const OWNERS: &str = "live.owners";

/// The subject on which owners announce facts found with an answer (core NATS only).
pub const FACTS: &str = "live.facts";

/// The subject on which the owner of a partition answers gateways.
pub fn query(p: PartitionId) -> String {
    format!("query.{p}")
}

/// The subject of tasks for accounts that map `tasks.*` to the partitions.
pub fn tasks(agent: &AgentId) -> String {
    format!("tasks.{agent}")
}

/// The exact subject for an agent in a fleet of `count` partitions.
pub fn partition_tasks(count: PartitionCount, agent: &AgentId) -> String {
    SubjectClass::Tasks.partition_subject(count, agent.as_str())
}

/// The exact subject for a control command in a fleet of `count` partitions.
pub fn control_subject(count: PartitionCount, control: &Control) -> String {
    partition_commands(count, control.subject.as_str())
}

/// The stream of turn requests: a work queue.
pub const WORK_STREAM: &str = "WORK";

/// The stream of turn events.
pub const TURNS_STREAM: &str = "TURNS";

/// The stream of tool calls: the last entry of each subject is the current record of a call.
pub const TOOL_CALLS_STREAM: &str = "TOOL_CALLS";

/// The records of calls in the stream of tool calls.
pub const ALL_TOOL_CALLS: &str = "tool_calls.*.*.*.*";

/// The other subjects of that stream, for tool calls of unknown outcome. A person decides about
/// these calls.
pub const ALL_TOOL_INCIDENTS: &str = "tool_incidents.*.*.*.*";

/// The subjects of the stream of turn requests.
pub const ALL_WORK: &str = "work.*";

/// The subjects on which services acknowledge turn requests.
pub const WORK_ACKS: &str = "$JS.ACK.WORK.>";

/// [`WORK_ACKS`] with the domain and the account in the subject.
pub const WORK_ACKS_OF_DOMAIN: &str = "$JS.ACK.*.*.WORK.>";

/// The subjects of the stream of turn events.
pub const ALL_TURNS: &str = "turns.*";

/// The subject of turn requests for a workflow.
pub fn work(workflow: &WorkflowName) -> String {
    format!("work.{workflow}")
}

/// The inverse of [`work`].
pub fn workflow_of_work(subject: &str) -> Option<WorkflowName> {
    WorkflowName::parse(subject.strip_prefix("work.")?).ok()
}

/// The message id with which the stream of requests drops a repetition. If another owner begins the
/// same run again, it publishes the same request. After a change of the number of partitions, the
/// answer subject differs, so the request is not a repetition.
pub fn work_id(turn: &str, run: u32, answer_subject: &str) -> String {
    let partition = answer_subject.split('.').nth(1).unwrap_or_default();
    format!("{turn}.{run}.{partition}")
}

const CONSUMER_OF_WORKFLOW: &str = "WORKFLOW_";

/// The durable consumer through which the services of a workflow read their requests.
pub fn work_consumer(workflow: &WorkflowName) -> String {
    format!("{CONSUMER_OF_WORKFLOW}{workflow}")
}

/// The durable consumer through which an integrator reads the ends of turns.
pub fn integrator_consumer(integrator: &WorkflowName) -> String {
    format!("INTEGRATOR_{integrator}")
}

/// The payload of a notice on [`stop`]. A message there with another payload is not from a worker:
/// other publishers can make JetStream reply to any subject.
pub const STOP: &[u8] = b"stop";

/// The inverse of [`work_consumer`].
pub fn workflow_of_consumer(consumer: &str) -> Option<&str> {
    consumer.strip_prefix(CONSUMER_OF_WORKFLOW)
}

/// The subject on which a workflow is notified that a run is no longer awaited (core NATS).
pub fn stop(turn: &TurnId, run: u32) -> String {
    format!("stop.{turn}.{run}")
}

/// The subject for the ends of a thread's turns, read by integrators.
pub fn turns(thread: &ThreadId) -> String {
    format!("turns.{thread}")
}

/// The subject of a workflow service's record of a tool call.
pub fn tool_call(workflow: &WorkflowName, thread: &ThreadId, turn: &TurnId, call: &str) -> String {
    format!("tool_calls.{workflow}.{thread}.{turn}.{call}")
}

/// The subject for a person's decision about a tool call of unknown outcome.
pub fn tool_incident(workflow: &WorkflowName, thread: &ThreadId, turn: &TurnId, call: &str) -> String {
    format!("tool_incidents.{workflow}.{thread}.{turn}.{call}")
}

/// The parts of a subject of [`TOOL_CALLS_STREAM`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCallPlace {
    /// The workflow of the service that made the call.
    pub workflow: WorkflowName,
    pub thread: ThreadId,
    pub turn: TurnId,
    /// The id of the call within the turn.
    pub call: String,
}

/// Parses a subject of the stream of tool calls; `None` when it is not one.
pub fn parse_tool_call(subject: &str) -> Option<ToolCallPlace> {
    let rest = subject.strip_prefix("tool_calls.").or_else(|| subject.strip_prefix("tool_incidents."))?;
    let [workflow, thread, turn, call] = rest.split('.').collect::<Vec<_>>().try_into().ok()?;
    Some(ToolCallPlace {
        workflow: WorkflowName::parse(workflow).ok()?,
        thread: ThreadId::parse(thread).ok()?,
        turn: TurnId::parse(turn).ok()?,
        call: (!call.is_empty()).then(|| call.to_owned())?,
    })
}

/// The name of a partition's stream.
pub fn stream_name(p: PartitionId) -> String {
    format!("PARTITION_{p}")
}

/// The subjects that a partition's stream stores.
pub fn stream_subjects(p: PartitionId) -> Vec<String> {
    SubjectClass::ALL.map(|class| class.subject(p, "*")).to_vec()
}

/// The only subject that the stream of partition `p` accepts while the number of partitions is
/// changed.
pub fn moving_subjects(p: PartitionId) -> String {
    format!("{MOVING}*.{p}.*")
}

/// The subject transform in the stream of partition `p` for [`moving_subjects`]. A message
/// published on the [`moving`] subject for an entry is stored under the original subject of the
/// entry.
pub fn moved_subjects(p: PartitionId) -> String {
    format!("{{{{wildcard(1)}}}}.{p}.{{{{wildcard(2)}}}}")
}

/// The subject to which an entry for `stored` is published while the number of partitions is
/// changed.
pub fn moving(stored: &str) -> String {
    format!("{MOVING}{stored}")
}

const MOVING: &str = "moving.";

/// Converts a stored subject to a fleet of `count` partitions: the partition of its key, and its
/// new subject. `None` when it is not a stored subject. The key need not be a valid id, because the
/// new partition also refuses an invalid one.
pub fn in_fleet(count: PartitionCount, stored: &str) -> Option<(PartitionId, String)> {
    let mut tokens = stored.splitn(3, '.');
    let (class, _, key) = (SubjectClass::of_name(tokens.next()?)?, tokens.next()?, tokens.next()?);
    if key.contains('.') {
        return None;
    }
    let p = Bucket::of_key(key).partition(count);
    Some((p, class.subject(p, key)))
}

/// The parts of a stored subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored<'a> {
    /// The class, which decides which content the entry may have.
    pub class: SubjectClass,
    /// The thread or the agent, not yet validated.
    pub key: &'a str,
}

/// Parses a subject under which the stream of partition `p` stores an entry; `None` for any other
/// subject.
pub fn parse_stored(p: PartitionId, subject: &str) -> Option<Stored<'_>> {
    let (class, rest) = subject.split_once('.')?;
    let (partition, key) = rest.split_once('.')?;
    let class = SubjectClass::of_name(class)?;
    (partition.parse() == Ok(p.0)).then_some(Stored { class, key })
}
