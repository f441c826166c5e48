//! Encodes and decodes commands: inputs that open turns, tasks, and control commands of operators
//! and clients. Commands carry text of users, so values that Postgres or a workflow could not
//! handle are refused here.

use bytes::Bytes;
use model::{
    AgentId, Bucket, BusyPolicy, Command, CommandId, Control, ControlKind, DelayedTask, InvalidMetadata,
    MessageId, Metadata, Note, RejectedEntry, ScheduleName, Task, TaskEdit, TaskId, TaskKind, TaskOrigin,
    ThreadId, TimerId, TimerKind, Timestamp, TurnId, TurnOpened, TurnOptions, TurnOrigin,
};
use prost::Message as _;

use crate::convert::{self, InvalidField};
use crate::origin;
use crate::pb;
use crate::subject::SubjectClass;

/// Maximum bytes of the text of an input or a task.
pub const MAX_INPUT_BYTES: usize = 256 << 10;

/// Maximum bytes of the actor's name.
const MAX_ACTOR_BYTES: usize = 256;
/// Runs are stored as signed 32-bit integers.
const MAX_RUN: u32 = i32::MAX as u32;

/// The reason why a command is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCommand {
    /// A field breaks its own rule.
    #[error(transparent)]
    Field(#[from] InvalidField),
    /// The turn belongs to another thread, or to a task.
    #[error("turn {turn} is none that {place} may have")]
    TurnElsewhere {
        turn: TurnId,
        /// The thread of the subject.
        place: ThreadId,
    },
    /// The text is not an id of a timer.
    #[error(transparent)]
    Timer(#[from] model::InvalidTimerId),
    /// The timer belongs to another thread or agent, or is of another kind.
    #[error("timer {timer} is none that {place} may have")]
    TimerElsewhere {
        timer: TimerId,
        /// The thread or agent of the subject.
        place: String,
    },
    /// The note has the id of a turn's message.
    #[error("message_id {0} is that of a turn's message, which only the turn may have")]
    OfTurn(MessageId),
    /// The run exceeds what can be stored.
    #[error("run is {0}; at most {MAX_RUN} is allowed")]
    RunNumber(u32),
    /// A text contains NUL, which Postgres cannot store.
    #[error("{0} holds a NUL character")]
    Nul(&'static str),
    /// A text is too long.
    #[error("{field} has {bytes} bytes; at most {most} are allowed")]
    TooLong {
        field: &'static str,
        bytes: usize,
        /// The maximum length.
        most: usize,
    },
    /// The input or the task has no text.
    #[error("the text is empty")]
    EmptyInput,
    /// The input or the task has too much text.
    #[error("the text has {0} bytes; at most {MAX_INPUT_BYTES} are allowed")]
    InputTooLarge(usize),
    /// The task is of one kind, and the queue is for tasks of another kind.
    #[error("a task of kind {kind} belongs on tasks.{queue}")]
    WrongQueue {
        /// The kind of the task.
        kind: &'static str,
        /// The queue for tasks of that kind.
        queue: AgentId,
    },
    /// The task cannot wait for this time.
    #[error("not_before {0}")]
    NotBefore(&'static str),
    /// Only the system may send this to the queues for work after turns.
    #[error(
        "{0} belongs to what follows an agent's turns: no input is taken there, and no message but the answers of its turns"
    )]
    Internal(ThreadId),
    /// The agent belongs to another tenant than the thread. An agent answers only in threads of its
    /// own tenant.
    #[error("agent {agent} and thread {thread} are of different tenants")]
    OtherTenant {
        agent: AgentId,
        /// The thread of the subject.
        thread: ThreadId,
    },
    /// An input or task of this id cannot have the origin that it has.
    #[error("{0} cannot have this origin")]
    OriginElsewhere(String),
    /// The command was sent on a subject on which not only the fleet may publish.
    #[error(
        "{0} came on {1}.<key>: commands are taken on commands.<key> alone, which only gateways, workers and operators may publish"
    )]
    WrongSubject(&'static str, SubjectClass),
}

impl InvalidCommand {
    /// The code in dead letters and problem responses.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Field(InvalidField::Chunk(model::InvalidChunk::Metadata(
                InvalidMetadata::TokensUsed(_) | InvalidMetadata::Reserved(_) | InvalidMetadata::Inexact,
            )))
            | Self::OriginElsewhere(_) => "metadata_error",
            Self::Field(_)
            | Self::Timer(_)
            | Self::OfTurn(_)
            | Self::RunNumber(_)
            | Self::Nul(_)
            | Self::TooLong { .. } => "invalid_command",
            Self::TurnElsewhere { .. } => "turn_mismatch",
            Self::TimerElsewhere { .. } => "timer_mismatch",
            Self::EmptyInput => "empty_input",
            Self::InputTooLarge(_) => "input_too_large",
            Self::WrongQueue { .. } => "wrong_queue",
            Self::NotBefore(_) => "invalid_not_before",
            Self::Internal(_) => "internal_thread",
            Self::OtherTenant { .. } => "other_tenant",
            Self::WrongSubject(..) => RejectedEntry::WRONG_SUBJECT,
        }
    }
}

impl From<InvalidCommand> for RejectedEntry {
    fn from(error: InvalidCommand) -> Self {
        Self { code: error.code(), detail: error.to_string() }
    }
}

/// Checks the text of an input or a task with the rules of the partition's owner.
///
/// # Errors
/// The text is empty, too large, or contains NUL.
pub fn check_input(text: &str) -> Result<(), InvalidCommand> {
    match text.len() {
        0 => Err(InvalidCommand::EmptyInput),
        bytes if bytes > MAX_INPUT_BYTES => Err(InvalidCommand::InputTooLarge(bytes)),
        _ => without_nul("content", text),
    }
}

fn without_nul(field: &'static str, text: &str) -> Result<(), InvalidCommand> {
    if text.contains('\0') { Err(InvalidCommand::Nul(field)) } else { Ok(()) }
}

fn short(field: &'static str, text: &str, most: usize) -> Result<(), InvalidCommand> {
    match text.len() {
        bytes if bytes > most => Err(InvalidCommand::TooLong { field, bytes, most }),
        _ => without_nul(field, text),
    }
}

fn turn_of(thread: &ThreadId, text: &str) -> Result<TurnId, InvalidCommand> {
    let turn = TurnId::parse(text).map_err(InvalidField::Turn)?;
    match turn.bucket() == thread.bucket() {
        true => Ok(turn),
        false => Err(InvalidCommand::TurnElsewhere { turn, place: thread.clone() }),
    }
}

/// Decodes an input whose session is known to match the subject.
pub(crate) fn opened(thread: &ThreadId, opened: pb::TurnOpened) -> Result<TurnOpened, InvalidCommand> {
    let turn = turn_of(thread, &opened.turn_id)?;
    // Only a task itself may open its turn.
    if !turn.as_str().starts_with('u') {
        return Err(InvalidCommand::TurnElsewhere { turn, place: thread.clone() });
    }
    let agent = AgentId::parse(&opened.agent_id).map_err(|error| InvalidField::Id("agent_id", error))?;
    if let Some(internal) =
        [thread.clone(), agent.thread()].into_iter().find(|place| place.background_kind().is_some())
    {
        return Err(InvalidCommand::Internal(internal));
    }
    if agent.tenant() != thread.tenant() {
        return Err(InvalidCommand::OtherTenant { agent, thread: thread.clone() });
    }
    if opened.run > MAX_RUN {
        return Err(InvalidCommand::RunNumber(opened.run));
    }
    check_input(&opened.content)?;
    short("actor", &opened.actor, MAX_ACTOR_BYTES)?;
    let (origin, metadata) = origin_of_turn(&turn, opened.origin, metadata(opened.metadata)?)?;
    Ok(TurnOpened {
        turn,
        thread: thread.clone(),
        agent,
        run: opened.run,
        content: opened.content,
        origin,
        metadata,
        actor: (!opened.actor.is_empty()).then(|| opened.actor.into()),
        options: options(opened.options.unwrap_or_default())?,
    })
}

/// Decodes a note whose session is known to match the subject.
pub(crate) fn note(thread: &ThreadId, note: pb::Note) -> Result<Note, InvalidCommand> {
    if thread.background_kind().is_some() {
        return Err(InvalidCommand::Internal(thread.clone()));
    }
    let message = convert::message_id(&note.message_id)?;
    if TurnId::of_answer(&message).is_some() || TurnId::is_reserved(&message) {
        return Err(InvalidCommand::OfTurn(message));
    }
    check_input(&note.content)?;
    short("author", &note.author, MAX_ACTOR_BYTES)?;
    Ok(Note {
        thread: thread.clone(),
        message,
        content: note.content,
        author: note.author.into(),
        is_hidden: note.hidden,
    })
}

fn options(options: pb::TurnOptions) -> Result<TurnOptions, InvalidCommand> {
    without_nul("correlation_id", &options.correlation_id)?;
    let parameters = convert::metadata(options.parameters)?;
    parameters.check_numbers().map_err(InvalidField::from)?;
    if parameters.size() > TurnOptions::MAX_PARAMETERS {
        let (field, bytes, most) = ("parameters", parameters.size(), TurnOptions::MAX_PARAMETERS);
        return Err(InvalidCommand::TooLong { field, bytes, most });
    }
    Ok(TurnOptions {
        busy_policy: numbered("busy_policy", options.busy_policy, &BusyPolicy::ALL)?,
        parameters,
        correlation_id: convert::correlation_id(&options.correlation_id)?,
        accepted_at: options.accepted_ms.map(Timestamp),
    })
}

fn pb_options(options: &TurnOptions) -> pb::TurnOptions {
    pb::TurnOptions {
        busy_policy: options.busy_policy as i32,
        parameters: convert::pb_metadata(&options.parameters),
        correlation_id: options.correlation_id.as_deref().unwrap_or_default().to_owned(),
        accepted_ms: options.accepted_at.map(|at| at.0),
    }
}

/// Checks that a task is in the queue for its kind: work after turns must not delay tasks,
/// regardless of its sender.
pub(crate) fn in_its_queue(agent: &AgentId, kind: TaskKind) -> Result<TaskKind, InvalidCommand> {
    let queue = agent.queue_of(kind);
    match queue == *agent {
        true => Ok(kind),
        false => Err(InvalidCommand::WrongQueue { kind: kind.name(), queue }),
    }
}

/// Decodes a task on `tasks.<agent>`. Its metadata are its sender's alone.
pub(crate) fn task(agent: &AgentId, task: pb::Task) -> Result<Command, InvalidCommand> {
    let kind = kind_of_others(agent, numbered("kind", task.kind, &TaskKind::ALL)?)?;
    if task.origin.is_some() {
        return Err(InvalidCommand::WrongSubject("the origin of a task", SubjectClass::Tasks));
    }
    read_task(agent, task, kind, |_, metadata| {
        metadata.check_from_client().map_err(InvalidField::from)?;
        Ok((TaskOrigin::of_sender(&metadata), metadata))
    })
}

/// Decodes a task on `commands.<agent>`.
pub(crate) fn task_of_fleet(agent: &AgentId, mut task: pb::Task) -> Result<Command, InvalidCommand> {
    let kind = in_its_queue(agent, numbered("kind", task.kind, &TaskKind::ALL)?)?;
    let encoded = task.origin.take();
    read_task(agent, task, kind, |id, metadata| origin_of_task((agent, id, kind), encoded, metadata))
}

/// Checks that the task is not of kind `task`. Tasks of other kinds carry text that the fleet found
/// in a thread, and their results become facts or replace messages.
pub(crate) fn kind_of_others(agent: &AgentId, kind: TaskKind) -> Result<TaskKind, InvalidCommand> {
    match kind {
        TaskKind::Task => in_its_queue(agent, kind),
        TaskKind::WorkRequest => Err(InvalidCommand::WrongSubject("a work_request", SubjectClass::Tasks)),
        TaskKind::Memory => Err(InvalidCommand::WrongSubject("a task of kind memory", SubjectClass::Tasks)),
        TaskKind::Compaction => {
            Err(InvalidCommand::WrongSubject("a task of kind compaction", SubjectClass::Tasks))
        }
    }
}

fn read_task(
    agent: &AgentId,
    task: pb::Task,
    kind: TaskKind,
    origin: impl FnOnce(&TaskId, Metadata) -> Result<(TaskOrigin, Metadata), InvalidCommand>,
) -> Result<Command, InvalidCommand> {
    let not_before = task.not_before_ms.map(Timestamp);
    check_input(&task.content)?;
    let id = task_id(&task.task_id)?;
    let (origin, metadata) = origin(&id, metadata(task.metadata)?)?;
    let task = Task { agent: agent.clone(), id, kind, content: task.content, origin, metadata };
    from_then_on(task, not_before)
}

/// Creates a task, or a delayed task if there is a time.
pub(crate) fn from_then_on(task: Task, not_before: Option<Timestamp>) -> Result<Command, InvalidCommand> {
    let Some(not_before) = not_before else { return Ok(Command::Task(task)) };
    match (task.kind, not_before) {
        (TaskKind::Task, Timestamp(0..)) => {
            Ok(Command::DelayedTask(Box::new(DelayedTask { task, not_before })))
        }
        (TaskKind::Task, _) => Err(InvalidCommand::NotBefore("must not be before 1970")),
        _ => Err(InvalidCommand::NotBefore("is for tasks of kind task alone")),
    }
}

/// Decodes a control command about a thread or an agent with this key.
pub(crate) fn control(key: &AgentId, control: pb::Control) -> Result<Control, InvalidCommand> {
    use pb::control::Kind;
    let read = control.kind.ok_or(InvalidField::Missing("kind"))?;
    let kind = match read {
        Kind::Pause(_) => ControlKind::Pause,
        Kind::Resume(_) => ControlKind::Resume,
        Kind::ClearBackoff(_) => ControlKind::ClearBackoff,
        Kind::RetryTask(task) => ControlKind::RetryTask(task_id(&task)?),
        Kind::DropTask(task) => ControlKind::DropTask(task_id(&task)?),
        Kind::EditTask(edit) => edited(edit)?,
        Kind::StopTurn(turn) => ControlKind::StopTurn(turn_of(&key.thread(), &turn)?),
        Kind::DropFailedTurn(turn) => ControlKind::DropFailedTurn(turn_of(&key.thread(), &turn)?),
        Kind::EraseThread(_) => ControlKind::EraseThread,
        Kind::CancelTimer(timer) => ControlKind::CancelTimer(timer_of(key, &timer)?),
        Kind::SnoozeTimer(snooze) => {
            let timer = timer_of(key, &snooze.timer_id)?;
            if timer.kind() != TimerKind::FollowUp {
                return Err(InvalidCommand::TimerElsewhere { timer, place: key.as_str().to_owned() });
            }
            ControlKind::SnoozeTimer { timer, until: Timestamp(snooze.until_ms) }
        }
        Kind::PutSchedule(name) => ControlKind::PutSchedule(schedule_name(&name)?),
        Kind::DeleteSchedule(name) => ControlKind::DeleteSchedule(schedule_name(&name)?),
        Kind::DelayTask(task) => ControlKind::DelayTask(task_id(&task)?),
    };
    checked_control(&control.command_id, &control.actor, key.clone(), kind)
}

fn edited(edit: pb::EditTask) -> Result<ControlKind, InvalidCommand> {
    edit.content.as_deref().map(check_input).transpose()?;
    let metadata = edit.metadata.map(|fields| metadata(Some(fields))).transpose()?;
    metadata.as_ref().map(Metadata::check_from_client).transpose().map_err(InvalidField::from)?;
    if edit.content.is_none() && metadata.is_none() {
        return Err(InvalidField::Missing("content or metadata").into());
    }
    let task = task_id(&edit.task_id)?;
    Ok(ControlKind::EditTask { task, edit: TaskEdit { content: edit.content, metadata } })
}

fn checked_control(
    id: &str,
    actor: &str,
    subject: AgentId,
    kind: ControlKind,
) -> Result<Control, InvalidCommand> {
    short("actor", actor, MAX_ACTOR_BYTES)?;
    let id = CommandId::parse(id).map_err(|error| InvalidField::Id("command_id", error))?;
    Ok(Control { id, actor: actor.into(), subject, kind })
}

/// Parses the timer of a thread or an agent. It must be in the same bucket, and so in the partition
/// of the command.
fn timer_of(place: &AgentId, text: &str) -> Result<TimerId, InvalidCommand> {
    let timer = TimerId::parse(text)?;
    match timer.bucket() == Bucket::of_key(place.as_str()) {
        true => Ok(timer),
        false => Err(InvalidCommand::TimerElsewhere { timer, place: place.as_str().to_owned() }),
    }
}

fn schedule_name(text: &str) -> Result<ScheduleName, InvalidField> {
    ScheduleName::parse(text).map_err(|error| InvalidField::Id("schedule", error))
}

pub(crate) fn task_id(text: &str) -> Result<TaskId, InvalidField> {
    TaskId::parse(text).map_err(|error| InvalidField::Id("task_id", error))
}

/// Metadata of a future message.
fn metadata(fields: Option<prost_types::Struct>) -> Result<Metadata, InvalidField> {
    let metadata = convert::metadata(fields)?;
    metadata.tokens_used()?;
    Ok(metadata)
}

/// Origin of an input, and the rest of its metadata. `encoded` is `None` in a command of an earlier
/// build.
fn origin_of_turn(
    turn: &TurnId,
    encoded: Option<pb::TurnOrigin>,
    metadata: Metadata,
) -> Result<(TurnOrigin, Metadata), InvalidCommand> {
    let (origin, rest) = TurnOrigin::split(encoded.map(origin::turn_origin).transpose()?, metadata);
    rest.check_from_client().map_err(InvalidField::from)?;
    match origin.fits(turn) {
        true => Ok((origin, rest)),
        false => Err(InvalidCommand::OriginElsewhere(turn.as_str().to_owned())),
    }
}

/// Origin of a task of the fleet, and the rest of its metadata. `encoded` is `None` in a command of
/// an earlier build.
fn origin_of_task(
    (agent, id, kind): (&AgentId, &TaskId, TaskKind),
    encoded: Option<pb::TaskOrigin>,
    metadata: Metadata,
) -> Result<(TaskOrigin, Metadata), InvalidCommand> {
    let decoded = encoded.map(origin::task_origin).transpose()?;
    let (origin, rest) = TaskOrigin::split(decoded, (agent, id, kind), metadata);
    rest.check_from_client().map_err(InvalidField::from)?;
    if let Some(thread) = origin.source_thread().filter(|thread| thread.tenant() != agent.tenant()) {
        return Err(InvalidCommand::OtherTenant { agent: agent.clone(), thread: thread.clone() });
    }
    match origin.fits(id, kind) {
        true => Ok((origin, rest)),
        false => Err(InvalidCommand::OriginElsewhere(id.as_str().to_owned())),
    }
}

fn numbered<T: Copy>(field: &'static str, number: i32, all: &[T]) -> Result<T, InvalidField> {
    let known = usize::try_from(number).ok().and_then(|index| all.get(index).copied());
    known.ok_or_else(|| InvalidField::Enum(field, number.to_string()))
}

/// The payload that opens a turn, for `commands.<thread>`.
pub fn encode_opened(opened: &TurnOpened) -> Bytes {
    let opened = pb::TurnOpened {
        turn_id: opened.turn.as_str().to_owned(),
        session_id: opened.thread.as_str().to_owned(),
        agent_id: opened.agent.as_str().to_owned(),
        run: opened.run,
        content: opened.content.clone(),
        metadata: convert::pb_metadata(&opened.input_metadata()),
        actor: opened.actor.as_deref().unwrap_or_default().to_owned(),
        options: Some(pb_options(&opened.options)),
        origin: Some(origin::pb_turn_origin(&opened.origin)),
    };
    command_entry(pb::CommandEntry { opened: Some(opened), ..pb::CommandEntry::default() })
}

/// The payload of a note, for `commands.<thread>`.
pub fn encode_note(note: &Note) -> Bytes {
    let note = pb::Note {
        message_id: note.message.as_str().to_owned(),
        session_id: note.thread.as_str().to_owned(),
        content: note.content.clone(),
        author: note.author.to_string(),
        hidden: note.is_hidden,
    };
    command_entry(pb::CommandEntry { note: Some(note), ..pb::CommandEntry::default() })
}

/// The payload of a control command, for the subject from [`crate::subject::control_subject`].
pub fn encode_control(control: &Control) -> Bytes {
    let encoded = pb::Control {
        command_id: control.id.as_str().to_owned(),
        actor: control.actor.to_string(),
        kind: Some(pb_kind(&control.kind)),
    };
    command_entry(pb::CommandEntry { control: Some(encoded), ..pb::CommandEntry::default() })
}

fn command_entry(entry: pb::CommandEntry) -> Bytes {
    entry.encode_to_vec().into()
}

fn pb_kind(kind: &ControlKind) -> pb::control::Kind {
    use pb::control::Kind;
    match kind {
        ControlKind::Pause => Kind::Pause(()),
        ControlKind::Resume => Kind::Resume(()),
        ControlKind::ClearBackoff => Kind::ClearBackoff(()),
        ControlKind::StopTurn(turn) => Kind::StopTurn(turn.as_str().to_owned()),
        ControlKind::RetryTask(task) => Kind::RetryTask(task.as_str().to_owned()),
        ControlKind::DropTask(task) => Kind::DropTask(task.as_str().to_owned()),
        ControlKind::EditTask { task, edit } => Kind::EditTask(pb::EditTask {
            task_id: task.as_str().to_owned(),
            content: edit.content.clone(),
            // Encoded even if empty, because an empty object differs from an absent one.
            metadata: edit.metadata.as_ref().map(|new| convert::pb_metadata(new).unwrap_or_default()),
        }),
        ControlKind::DropFailedTurn(turn) => Kind::DropFailedTurn(turn.as_str().to_owned()),
        ControlKind::EraseThread => Kind::EraseThread(()),
        ControlKind::CancelTimer(timer) => Kind::CancelTimer(timer.as_str().to_owned()),
        ControlKind::SnoozeTimer { timer, until } => {
            Kind::SnoozeTimer(pb::SnoozeTimer { timer_id: timer.as_str().to_owned(), until_ms: until.0 })
        }
        ControlKind::PutSchedule(name) => Kind::PutSchedule(name.as_str().to_owned()),
        ControlKind::DeleteSchedule(name) => Kind::DeleteSchedule(name.as_str().to_owned()),
        ControlKind::DelayTask(task) => Kind::DelayTask(task.as_str().to_owned()),
    }
}

/// The payload of a task from outside the fleet, for `tasks.<agent>`.
pub fn encode_task(task: &Task) -> Bytes {
    pb::TaskEntry { task: Some(pb_task(task, None)) }.encode_to_vec().into()
}

/// The payload of a delayed task from outside the fleet, for `tasks.<agent>`.
pub fn encode_delayed_task(delayed: &DelayedTask) -> Bytes {
    pb::TaskEntry { task: Some(pb_task(&delayed.task, Some(delayed.not_before))) }.encode_to_vec().into()
}

/// The payload of a task from the fleet, for `commands.<agent>`.
pub fn encode_task_of_fleet(task: &Task) -> Bytes {
    let encoded = pb::Task { origin: Some(origin::pb_task_origin(&task.origin)), ..pb_task(task, None) };
    command_entry(pb::CommandEntry { task: Some(encoded), ..pb::CommandEntry::default() })
}

fn pb_task(task: &Task, not_before: Option<Timestamp>) -> pb::Task {
    pb::Task {
        task_id: task.id.as_str().to_owned(),
        content: task.content.clone(),
        metadata: convert::pb_metadata(&task.task_metadata()),
        kind: task.kind as i32,
        not_before_ms: not_before.map(|at| at.0),
        origin: None,
    }
}

#[cfg(test)]
mod tests;
