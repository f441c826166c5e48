//! Why something waits: what gateways ask owners on `query.<p>`, and the answer.

use bytes::Bytes;
use model::{AgentId, IdRange, MessageId, Seq, TaskId, ThreadId, TurnId};
use prost::Message as _;

use crate::{DecodeError, InvalidField, convert, order, pb};

/// What is asked about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum About {
    /// An agent's queue.
    Agent(AgentId),
    /// A thread's turns.
    Thread(ThreadId),
    /// One turn.
    Turn(TurnId),
}

/// What the owner of a partition knows of an agent, a thread or a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The turn that is under way, if there is one.
    pub active: Option<ActiveTurn>,
    /// Inputs that wait for the thread, in their order.
    pub waiting: Vec<WaitingTurn>,
    /// Why the agent's head does not start; `None` when there is no head or it is under way.
    pub reason: Option<WaitReason>,
    /// The agent is paused.
    pub paused: bool,
    /// The head of the queue.
    pub head: Option<TaskId>,
    /// Whatever an entry of the stream up to here has ordered is known to the owner.
    pub known_up_to: Seq,
    /// Messages of the thread that have begun and not ended, the oldest first; at most 64.
    pub open: Vec<OpenMessage>,
}

/// A message that has begun and not ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenMessage {
    /// Which.
    pub message: MessageId,
    /// The chunk that is released next.
    pub expected: u32,
    /// How many chunks have come.
    pub received: u32,
    /// How many of them were released.
    pub released: u32,
    /// Chunks that are missing below the highest that has come; at most 64 ranges.
    pub missing: Vec<IdRange>,
    /// While a chunk is missing: for how long it is waited for still, ms.
    pub gap_for_ms: Option<i64>,
}

/// An input that waits for its thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WaitingTurn {
    /// Its turn.
    pub turn: TurnId,
    /// Why it does not begin.
    pub reason: WaitReason,
    /// For how long its owner has known of it, ms.
    pub age_ms: i64,
    /// A postponed background turn: foreground inputs pass it.
    pub steps_aside: bool,
}

/// A turn under way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActiveTurn {
    /// Which.
    pub turn: TurnId,
    /// Where.
    pub thread: ThreadId,
    /// Its run.
    pub run: u32,
    /// The answer's id.
    pub message: MessageId,
    /// What it waits for; `None` while chunks come.
    pub waits_for: Option<WaitReason>,
    /// For how long nothing has come, ms.
    pub idle_ms: i64,
}

/// Why something waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitReason {
    /// The agent backs off for so long still, ms.
    Backoff {
        /// How long still.
        for_ms: i64,
    },
    /// Something before it is under way.
    HeadOfLine,
    /// A chunk of the answer is missing.
    Gap,
    /// The agent is paused.
    Paused,
    /// No workflow has taken the request yet.
    NoWorkflow,
    /// So many turns are under way that this one has to wait for room.
    Capacity,
    /// A new owner is reading what happened before it.
    CatchingUp,
}

impl WaitReason {
    /// The name in JSON and for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Backoff { .. } => "backoff until",
            Self::HeadOfLine => "head of line",
            Self::Gap => "gap",
            Self::Paused => "paused",
            Self::NoWorkflow => "no workflow",
            Self::Capacity => "capacity",
            Self::CatchingUp => "catching up",
        }
    }
}

/// The payload of a question.
pub fn encode_question(about: &About) -> Bytes {
    use pb::about::What;
    let what = match about {
        About::Agent(agent) => What::AgentId(agent.as_str().to_owned()),
        About::Thread(thread) => What::ThreadId(thread.as_str().to_owned()),
        About::Turn(turn) => What::TurnId(turn.as_str().to_owned()),
    };
    let about = pb::About { what: Some(what) };
    pb::Query { about: Some(about), ..pb::Query::default() }.encode_to_vec().into()
}

pub(crate) fn about(about: pb::About) -> Result<About, InvalidField> {
    use pb::about::What;
    Ok(match about.what.ok_or(InvalidField::Missing("about"))? {
        What::AgentId(agent) => {
            About::Agent(AgentId::parse(&agent).map_err(|error| InvalidField::Id("agent_id", error))?)
        }
        What::ThreadId(thread) => About::Thread(thread_id(&thread)?),
        What::TurnId(turn) => About::Turn(turn_id(&turn)?),
    })
}

/// The payload of an answer, by the owner of that epoch.
pub fn encode_explanation(epoch: u64, explanation: &Explanation) -> Bytes {
    let active = explanation.active.as_ref().map(|active| pb::ActiveTurn {
        turn_id: active.turn.as_str().to_owned(),
        session_id: active.thread.as_str().to_owned(),
        run: active.run,
        message_id: active.message.as_str().to_owned(),
        waits_for: active.waits_for.map(pb_reason),
        idle_ms: active.idle_ms,
    });
    let explanation = pb::Explanation {
        active,
        waiting: explanation.waiting.iter().map(pb_waiting).collect(),
        reason: explanation.reason.map(pb_reason),
        paused: explanation.paused,
        head_task_id: explanation.head.as_ref().map(TaskId::as_str).unwrap_or_default().to_owned(),
        known_up_to: explanation.known_up_to.0,
        open: explanation.open.iter().map(pb_open).collect(),
    };
    let reply = pb::QueryReply { epoch, explanation: Some(explanation), ..pb::QueryReply::default() };
    reply.encode_to_vec().into()
}

/// Reads an answer.
///
/// # Errors
/// The bytes are no explanation, or a field breaks a rule of the model.
pub fn decode_explanation(payload: &Bytes) -> Result<Explanation, DecodeError> {
    let reply = pb::QueryReply::decode(payload.as_ref())?;
    let explained = reply.explanation.ok_or(InvalidField::Missing("explanation"))?;
    let head = (!explained.head_task_id.is_empty()).then(|| order::task_id(&explained.head_task_id));
    Ok(Explanation {
        active: explained.active.map(active).transpose()?,
        waiting: explained.waiting.into_iter().map(waiting).collect::<Result<_, _>>()?,
        reason: explained.reason.map(reason).transpose()?,
        paused: explained.paused,
        head: head.transpose()?,
        known_up_to: Seq(explained.known_up_to),
        open: explained.open.into_iter().map(open).collect::<Result<_, _>>()?,
    })
}

fn pb_open(open: &OpenMessage) -> pb::OpenMessageState {
    pb::OpenMessageState {
        message_id: open.message.as_str().to_owned(),
        expected: open.expected,
        received: open.received,
        released: open.released,
        missing: open.missing.iter().map(|ids| pb::IdRange { first: ids.first, last: ids.last }).collect(),
        gap_for_ms: open.gap_for_ms,
    }
}

fn open(open: pb::OpenMessageState) -> Result<OpenMessage, InvalidField> {
    Ok(OpenMessage {
        message: convert::message_id(&open.message_id)?,
        expected: open.expected,
        received: open.received,
        released: open.released,
        missing: open.missing.iter().map(|ids| IdRange { first: ids.first, last: ids.last }).collect(),
        gap_for_ms: open.gap_for_ms,
    })
}

fn pb_waiting(waiting: &WaitingTurn) -> pb::WaitingTurn {
    pb::WaitingTurn {
        turn_id: waiting.turn.as_str().to_owned(),
        reason: Some(pb_reason(waiting.reason)),
        age_ms: waiting.age_ms,
        steps_aside: waiting.steps_aside,
    }
}

fn waiting(waiting: pb::WaitingTurn) -> Result<WaitingTurn, InvalidField> {
    Ok(WaitingTurn {
        turn: turn_id(&waiting.turn_id)?,
        reason: reason(waiting.reason.ok_or(InvalidField::Missing("reason"))?)?,
        age_ms: waiting.age_ms,
        steps_aside: waiting.steps_aside,
    })
}

fn active(active: pb::ActiveTurn) -> Result<ActiveTurn, InvalidField> {
    Ok(ActiveTurn {
        turn: turn_id(&active.turn_id)?,
        thread: thread_id(&active.session_id)?,
        run: active.run,
        message: convert::message_id(&active.message_id)?,
        waits_for: active.waits_for.map(reason).transpose()?,
        idle_ms: active.idle_ms,
    })
}

fn turn_id(text: &str) -> Result<TurnId, InvalidField> {
    TurnId::parse(text).map_err(InvalidField::Turn)
}

fn thread_id(text: &str) -> Result<ThreadId, InvalidField> {
    ThreadId::parse(text).map_err(|error| InvalidField::Id("session_id", error))
}

fn pb_reason(reason: WaitReason) -> pb::WaitReason {
    use pb::wait_reason::Kind;
    let (kind, for_ms) = match reason {
        WaitReason::Backoff { for_ms } => (Kind::Backoff, for_ms),
        WaitReason::HeadOfLine => (Kind::HeadOfLine, 0),
        WaitReason::Gap => (Kind::Gap, 0),
        WaitReason::Paused => (Kind::Paused, 0),
        WaitReason::NoWorkflow => (Kind::NoWorkflow, 0),
        WaitReason::Capacity => (Kind::Capacity, 0),
        WaitReason::CatchingUp => (Kind::CatchingUp, 0),
    };
    pb::WaitReason { kind: kind.into(), for_ms }
}

fn reason(reason: pb::WaitReason) -> Result<WaitReason, InvalidField> {
    use pb::wait_reason::Kind;
    Ok(match Kind::try_from(reason.kind) {
        Ok(Kind::Backoff) => WaitReason::Backoff { for_ms: reason.for_ms },
        Ok(Kind::HeadOfLine) => WaitReason::HeadOfLine,
        Ok(Kind::Gap) => WaitReason::Gap,
        Ok(Kind::Paused) => WaitReason::Paused,
        Ok(Kind::NoWorkflow) => WaitReason::NoWorkflow,
        Ok(Kind::Capacity) => WaitReason::Capacity,
        Ok(Kind::CatchingUp) => WaitReason::CatchingUp,
        Ok(Kind::Unspecified) | Err(_) => {
            return Err(InvalidField::Enum("reason", reason.kind.to_string()));
        }
    })
}
