//! Orders: inputs that open turns, tasks, and acts of operators and clients. What people write comes in with them, so
//! everything that Postgres or a workflow would choke on is refused here.

use bytes::Bytes;
use model::{
    Act, ActId, ActKind, AgentId, Bucket, BusyPolicy, InvalidMetadata, Metadata, Refusal, Task, TaskId,
    TaskKind, ThreadId, TurnId, TurnOpened,
};
use prost::Message as _;

use crate::convert::{self, InvalidField};
use crate::pb;
use crate::subject::is_about_turn;

/// Bytes of the text of an input or a task.
pub const MAX_INPUT_BYTES: usize = 256 << 10;

/// Bytes of the name of whoever acts.
const MAX_ACTOR_BYTES: usize = 256;
/// Runs are stored as 32 bits with a sign.
const MAX_RUN: u32 = i32::MAX as u32;

/// What an entry of the stream asks for besides chunks.
#[derive(Debug, Clone, PartialEq)]
pub enum Order {
    /// An input opens a turn.
    Turn(Box<TurnOpened>),
    /// A task for an agent.
    Task(Task),
    /// An act of an operator or a client.
    Act(Act),
}

/// What is wrong with an order.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidOrder {
    /// A field that breaks a rule of its own.
    #[error(transparent)]
    Field(#[from] InvalidField),
    /// A turn of another thread, or of a task.
    #[error("turn {turn} is none that {place} may have")]
    TurnElsewhere {
        /// The turn.
        turn: TurnId,
        /// The thread of the subject.
        place: ThreadId,
    },
    /// Above what can be stored.
    #[error("run is {0}; at most {MAX_RUN} is allowed")]
    RunNumber(u32),
    /// A text with a NUL, which Postgres cannot store.
    #[error("{0} holds a NUL character")]
    Nul(&'static str),
    /// A text that is too long for what it is.
    #[error("{field} has {bytes} bytes; at most {most} are allowed")]
    TooLong {
        /// Which.
        field: &'static str,
        /// How long it is.
        bytes: usize,
        /// How long it may be.
        most: usize,
    },
    /// An input or a task without text.
    #[error("the text is empty")]
    EmptyInput,
    /// An input or a task with too much text.
    #[error("the text has {0} bytes; at most {MAX_INPUT_BYTES} are allowed")]
    InputTooLarge(usize),
    /// A task of one kind in the queue of another.
    #[error("a task of kind {kind} belongs on tasks.{queue}")]
    WrongQueue {
        /// What it is about.
        kind: &'static str,
        /// Where tasks of that kind wait.
        queue: AgentId,
    },
    /// Something that only the system may send to what follows turns.
    #[error(
        "{0} belongs to what follows an agent's turns: no input is taken there, and no message but the answers of its turns"
    )]
    Internal(ThreadId),
    /// An act on a turn on the subject of an agent, or the other way round.
    #[error(
        "{0} does not belong on this subject: acts on turns go to chunks.<thread>, others to tasks.<agent>"
    )]
    WrongSubject(&'static str),
}

impl InvalidOrder {
    /// The code that dead letters and problems carry.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Field(InvalidField::Chunk(model::InvalidChunk::Metadata(
                InvalidMetadata::TokensUsed(_) | InvalidMetadata::Reserved(_) | InvalidMetadata::Inexact,
            ))) => "metadata_error",
            Self::Field(_) | Self::RunNumber(_) | Self::Nul(_) | Self::TooLong { .. } => "invalid_order",
            Self::TurnElsewhere { .. } => "turn_mismatch",
            Self::EmptyInput => "empty_input",
            Self::InputTooLarge(_) => "input_too_large",
            Self::WrongQueue { .. } => "wrong_queue",
            Self::Internal(_) => "internal_thread",
            Self::WrongSubject(_) => "wrong_subject",
        }
    }
}

impl From<InvalidOrder> for Refusal {
    fn from(error: InvalidOrder) -> Self {
        Self { code: error.code(), detail: error.to_string() }
    }
}

/// Checks the text of an input or a task, as the owner of the partition will.
///
/// # Errors
/// It is empty, too large, or holds a NUL.
pub fn check_input(text: &str) -> Result<(), InvalidOrder> {
    match text.len() {
        0 => Err(InvalidOrder::EmptyInput),
        bytes if bytes > MAX_INPUT_BYTES => Err(InvalidOrder::InputTooLarge(bytes)),
        _ => without_nul("content", text),
    }
}

fn without_nul(field: &'static str, text: &str) -> Result<(), InvalidOrder> {
    if text.contains('\0') { Err(InvalidOrder::Nul(field)) } else { Ok(()) }
}

fn short(field: &'static str, text: &str, most: usize) -> Result<(), InvalidOrder> {
    match text.len() {
        bytes if bytes > most => Err(InvalidOrder::TooLong { field, bytes, most }),
        _ => without_nul(field, text),
    }
}

fn turn_of(thread: &ThreadId, text: &str) -> Result<TurnId, InvalidOrder> {
    let turn = TurnId::parse(text).map_err(InvalidField::Turn)?;
    match turn.bucket() == Bucket::of(thread) {
        true => Ok(turn),
        false => Err(InvalidOrder::TurnElsewhere { turn, place: thread.clone() }),
    }
}

/// An input on `chunks.<thread>`, of which the session is known to be the subject's.
pub(crate) fn opened(thread: &ThreadId, opened: pb::TurnOpened) -> Result<TurnOpened, InvalidOrder> {
    let turn = turn_of(thread, &opened.turn_id)?;
    // A task's turn is opened by its task alone.
    if !turn.as_str().starts_with('u') {
        return Err(InvalidOrder::TurnElsewhere { turn, place: thread.clone() });
    }
    let agent = AgentId::parse(&opened.agent_id).map_err(|error| InvalidField::Id("agent_id", error))?;
    if let Some(internal) =
        [thread.clone(), agent.thread()].into_iter().find(|place| place.follow_up().is_some())
    {
        return Err(InvalidOrder::Internal(internal));
    }
    if opened.run > MAX_RUN {
        return Err(InvalidOrder::RunNumber(opened.run));
    }
    check_input(&opened.content)?;
    short("actor", &opened.actor, MAX_ACTOR_BYTES)?;
    without_nul("correlation_id", &opened.correlation_id)?;
    let parameters = convert::metadata(opened.parameters)?;
    parameters.check_numbers().map_err(InvalidField::from)?;
    if parameters.size() > TurnOpened::MAX_PARAMETERS {
        let (field, bytes, most) = ("parameters", parameters.size(), TurnOpened::MAX_PARAMETERS);
        return Err(InvalidOrder::TooLong { field, bytes, most });
    }
    Ok(TurnOpened {
        turn,
        thread: thread.clone(),
        agent,
        run: opened.run,
        policy: numbered("policy", opened.policy, &BusyPolicy::ALL)?,
        content: opened.content,
        metadata: metadata(opened.metadata, is_heartbeat_of(&opened.turn_id))?,
        parameters,
        work_request: opened.work_request,
        memory: opened.memory,
        actor: (!opened.actor.is_empty()).then(|| opened.actor.into()),
        correlation_id: convert::correlation_id(&opened.correlation_id)?,
    })
}

/// Each kind of task has its queue: what follows turns must not stand before tasks, wherever it comes from.
pub(crate) fn in_its_queue(agent: &AgentId, kind: TaskKind) -> Result<TaskKind, InvalidOrder> {
    let queue = agent.queue_of(kind);
    match queue == *agent {
        true => Ok(kind),
        false => Err(InvalidOrder::WrongQueue { kind: kind.name(), queue }),
    }
}

/// A task on `tasks.<agent>`.
pub(crate) fn task(agent: &AgentId, task: pb::Task) -> Result<Task, InvalidOrder> {
    check_input(&task.content)?;
    Ok(Task {
        agent: agent.clone(),
        id: task_id(&task.task_id)?,
        kind: in_its_queue(agent, numbered("kind", task.kind, &TaskKind::ALL)?)?,
        metadata: metadata(task.metadata, is_heartbeat_of(&task.task_id))?,
        content: task.content,
    })
}

/// An act on a turn, on `chunks.<thread>`.
pub(crate) fn act_on_turn(thread: &ThreadId, act: pb::Control) -> Result<Act, InvalidOrder> {
    use pb::control::What;
    let what = act.what.ok_or(InvalidField::Missing("what"))?;
    let kind = match &what {
        What::StopTurn(turn) => ActKind::StopTurn(turn_of(thread, turn)?),
        What::DropFailedTurn(turn) => ActKind::DropFailedTurn(turn_of(thread, turn)?),
        What::EraseThread(_) => ActKind::EraseThread,
        other => return Err(InvalidOrder::WrongSubject(name_of(other))),
    };
    acted(&act.act_id, &act.actor, thread.agent(), kind)
}

/// An act on an agent or one of its tasks, on `tasks.<agent>`.
pub(crate) fn act_on_agent(agent: &AgentId, act: pb::Control) -> Result<Act, InvalidOrder> {
    use pb::control::What;
    let what = act.what.ok_or(InvalidField::Missing("what"))?;
    let kind = match what {
        What::Pause(_) => ActKind::Pause,
        What::Resume(_) => ActKind::Resume,
        What::ClearBackoff(_) => ActKind::ClearBackoff,
        What::RetryTask(task) => ActKind::RetryTask(task_id(&task)?),
        What::DropTask(task) => ActKind::DropTask(task_id(&task)?),
        What::EditTask(edit) => edited(edit)?,
        What::StopTurn(_) | What::DropFailedTurn(_) | What::EraseThread(_) => {
            return Err(InvalidOrder::WrongSubject(name_of(&what)));
        }
    };
    acted(&act.act_id, &act.actor, agent.clone(), kind)
}

fn edited(edit: pb::EditTask) -> Result<ActKind, InvalidOrder> {
    check_input(&edit.content)?;
    let (task, metadata) = (task_id(&edit.task_id)?, metadata(edit.metadata, false)?);
    Ok(ActKind::EditTask { task, content: edit.content, metadata })
}

fn acted(id: &str, actor: &str, subject: AgentId, what: ActKind) -> Result<Act, InvalidOrder> {
    short("actor", actor, MAX_ACTOR_BYTES)?;
    let id = ActId::parse(id).map_err(|error| InvalidField::Id("act_id", error))?;
    Ok(Act { id, actor: actor.into(), subject, what })
}

fn name_of(what: &pb::control::What) -> &'static str {
    use pb::control::What;
    match what {
        What::Pause(_) => "pause",
        What::Resume(_) => "resume",
        What::ClearBackoff(_) => "clear_backoff",
        What::StopTurn(_) => "stop_turn",
        What::RetryTask(_) => "retry_task",
        What::DropTask(_) => "drop_task",
        What::EditTask(_) => "edit_task",
        What::DropFailedTurn(_) => "drop_failed_turn",
        What::EraseThread(_) => "erase_thread",
    }
}

pub(crate) fn task_id(text: &str) -> Result<TaskId, InvalidField> {
    TaskId::parse(text).map_err(|error| InvalidField::Id("task_id", error))
}

/// The metadata of what becomes a message. What a chunk may not say, an input may not either; an owner says of a heartbeat that it has
/// made it up.
fn metadata(fields: Option<prost_types::Struct>, is_heartbeat: bool) -> Result<Metadata, InvalidField> {
    let metadata = convert::metadata(fields)?;
    metadata.tokens_used()?;
    match is_heartbeat && metadata.get("heartbeat").is_some() {
        true => metadata.check_numbers()?,
        false => metadata.check_said()?,
    }
    Ok(metadata)
}

/// The id of a heartbeat's input comes from the place of the answer that asked for it, that of a heartbeat's task from the turn.
fn is_heartbeat_of(id: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match (id.strip_suffix("-h"), id.split_once("-h")) {
        (Some(turn), _) => turn.starts_with('t') && TurnId::parse(turn).is_ok(),
        (None, Some((bucket, place))) => bucket.starts_with('u') && is_number(place),
        (None, None) => false,
    }
}

fn numbered<T: Copy>(field: &'static str, number: i32, all: &[T]) -> Result<T, InvalidField> {
    let known = usize::try_from(number).ok().and_then(|index| all.get(index).copied());
    known.ok_or_else(|| InvalidField::Enum(field, number.to_string()))
}

/// The payload that opens a turn, for `chunks.<thread>`.
pub fn encode_opened(opened: &TurnOpened) -> Bytes {
    let text = |text: &Option<Box<str>>| text.as_deref().unwrap_or_default().to_owned();
    let opened = pb::TurnOpened {
        turn_id: opened.turn.as_str().to_owned(),
        session_id: opened.thread.as_str().to_owned(),
        agent_id: opened.agent.as_str().to_owned(),
        run: opened.run,
        policy: opened.policy as i32,
        content: opened.content.clone(),
        metadata: convert::pb_metadata(&opened.metadata),
        work_request: opened.work_request,
        memory: opened.memory,
        actor: text(&opened.actor),
        correlation_id: text(&opened.correlation_id),
        parameters: convert::pb_metadata(&opened.parameters),
    };
    pb::Frame { opened: Some(opened), ..pb::Frame::default() }.encode_to_vec().into()
}

/// The payload of an act, for the subject that [`crate::subject::act_exact`] names.
pub fn encode_act(act: &Act) -> Bytes {
    let encoded = pb::Control {
        act_id: act.id.as_str().to_owned(),
        actor: act.actor.to_string(),
        what: Some(pb_what(&act.what)),
    };
    let payload = match is_about_turn(&act.what) {
        true => pb::Frame { act: Some(encoded), ..pb::Frame::default() }.encode_to_vec(),
        false => pb::TaskEntry { act: Some(encoded), task: None }.encode_to_vec(),
    };
    payload.into()
}

fn pb_what(what: &ActKind) -> pb::control::What {
    use pb::control::What;
    match what {
        ActKind::Pause => What::Pause(()),
        ActKind::Resume => What::Resume(()),
        ActKind::ClearBackoff => What::ClearBackoff(()),
        ActKind::StopTurn(turn) => What::StopTurn(turn.as_str().to_owned()),
        ActKind::RetryTask(task) => What::RetryTask(task.as_str().to_owned()),
        ActKind::DropTask(task) => What::DropTask(task.as_str().to_owned()),
        ActKind::EditTask { task, content, metadata } => What::EditTask(pb::EditTask {
            task_id: task.as_str().to_owned(),
            content: content.clone(),
            metadata: convert::pb_metadata(metadata),
        }),
        ActKind::DropFailedTurn(turn) => What::DropFailedTurn(turn.as_str().to_owned()),
        ActKind::EraseThread => What::EraseThread(()),
    }
}

/// The payload of a task, for `tasks.<agent>`.
pub fn encode_task(task: &Task) -> Bytes {
    let task = pb::Task {
        task_id: task.id.as_str().to_owned(),
        content: task.content.clone(),
        metadata: convert::pb_metadata(&task.metadata),
        kind: task.kind as i32,
    };
    pb::TaskEntry { task: Some(task), act: None }.encode_to_vec().into()
}

#[cfg(test)]
mod tests;
