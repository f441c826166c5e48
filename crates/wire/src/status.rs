//! Encodes status queries and their replies: the running turns of a queue or a thread, and why
//! others wait.

use bytes::Bytes;
use model::{
    ActiveTurn, AgentId, BusyThread, BusyThreads, IdRange, OpenInputs, OpenMessageStatus, QueryTarget,
    QueueStatus, RequestInfo, Seq, TaskId, Tenant, ThreadId, Timestamp, TurnId, WaitReason, WaitingTurn,
};

use crate::query_envelope::{pb_query, pb_reply, read_reply};
use crate::{DecodeError, InvalidField, command, convert, open_batch, pb};

/// The payload of a status query.
pub fn encode_query(about: &QueryTarget) -> Bytes {
    use pb::status_query::Target;
    let target = match about {
        QueryTarget::Agent(agent) => Target::AgentId(agent.as_str().to_owned()),
        QueryTarget::Thread(thread) => Target::ThreadId(thread.as_str().to_owned()),
        QueryTarget::Turn(turn) => Target::TurnId(turn.as_str().to_owned()),
        QueryTarget::Batch(thread) | QueryTarget::Inputs(thread) => {
            Target::ThreadId(thread.as_str().to_owned())
        }
        QueryTarget::BusyThreads(tenant) => Target::BusyThreads(pb::BusyThreadsQuery {
            tenant: tenant.as_ref().map(Tenant::as_str).unwrap_or_default().to_owned(),
        }),
    };
    let with_batch = matches!(about, QueryTarget::Batch(_));
    let with_inputs = matches!(about, QueryTarget::Inputs(_));
    pb_query(pb::query::Kind::Status(pb::StatusQuery { target: Some(target), with_batch, with_inputs }))
}

pub(crate) fn target(query: pb::StatusQuery) -> Result<QueryTarget, InvalidField> {
    use pb::status_query::Target;
    Ok(match query.target.ok_or(InvalidField::Missing("target"))? {
        Target::AgentId(agent) => {
            QueryTarget::Agent(AgentId::parse(&agent).map_err(|error| InvalidField::Id("agent_id", error))?)
        }
        Target::ThreadId(thread) if query.with_batch => QueryTarget::Batch(thread_id(&thread)?),
        Target::ThreadId(thread) if query.with_inputs => QueryTarget::Inputs(thread_id(&thread)?),
        Target::ThreadId(thread) => QueryTarget::Thread(thread_id(&thread)?),
        Target::TurnId(turn) => QueryTarget::Turn(turn_id(&turn)?),
        Target::BusyThreads(pb::BusyThreadsQuery { tenant }) if tenant.is_empty() => {
            QueryTarget::BusyThreads(None)
        }
        Target::BusyThreads(pb::BusyThreadsQuery { tenant }) => QueryTarget::BusyThreads(Some(
            Tenant::parse(&tenant).map_err(|error| InvalidField::Id("tenant", error))?,
        )),
    })
}

/// The payload of a reply, sent by the owner with that epoch.
pub fn encode_reply(epoch: u64, status: &QueueStatus) -> Bytes {
    let active = status.active.as_ref().map(|active| pb::ActiveTurn {
        turn_id: active.turn.as_str().to_owned(),
        session_id: active.thread.as_str().to_owned(),
        run: active.run,
        message_id: active.message.as_str().to_owned(),
        waits_for: active.waits_for.map(pb_reason),
        idle_ms: active.idle_ms,
        request: Some(pb_request(active.request)),
        accepted_ms: active.accepted_at.0,
        started_ms: active.started_at.map(|at| at.0),
        batch: active.batch.as_deref().map(open_batch::encode),
    });
    let status = pb::QueueStatus {
        active,
        waiting: status.waiting.iter().map(pb_waiting).collect(),
        reason: status.reason.map(pb_reason),
        paused: status.paused,
        head_task_id: status.head.as_ref().map(TaskId::as_str).unwrap_or_default().to_owned(),
        applied_seq: status.applied_seq.0,
        open: status.open.iter().map(pb_open).collect(),
        inputs: status.inputs.as_ref().map(pb_inputs),
        busy: status.busy.as_ref().map(pb_busy),
    };
    pb_reply(epoch, pb::query_reply::Reply::Status(status))
}

/// Decodes a reply.
///
/// # Errors
/// The bytes are not a status, or a field breaks a rule of the model.
pub fn decode_reply(payload: &Bytes) -> Result<QueueStatus, DecodeError> {
    let (_, reply) = read_reply(payload)?;
    let pb::query_reply::Reply::Status(status) = reply else {
        return Err(InvalidField::Missing("status").into());
    };
    let head = (!status.head_task_id.is_empty()).then(|| command::task_id(&status.head_task_id));
    Ok(QueueStatus {
        active: status.active.map(active).transpose()?,
        waiting: status.waiting.into_iter().map(waiting).collect::<Result<_, _>>()?,
        reason: status.reason.map(reason).transpose()?,
        paused: status.paused,
        head: head.transpose()?,
        applied_seq: Seq(status.applied_seq),
        open: status.open.into_iter().map(open).collect::<Result<_, _>>()?,
        inputs: status.inputs.map(inputs).transpose()?,
        busy: status.busy.map(busy).transpose()?,
    })
}

fn pb_busy(busy: &BusyThreads) -> pb::BusyThreads {
    let thread = |busy: &BusyThread| pb::BusyThread {
        thread_id: busy.thread.as_str().to_owned(),
        is_running: busy.is_running,
    };
    pb::BusyThreads { threads: busy.threads.iter().map(thread).collect(), is_cut: busy.is_cut }
}

fn busy(busy: pb::BusyThreads) -> Result<BusyThreads, InvalidField> {
    let thread = |busy: pb::BusyThread| {
        Ok(BusyThread { thread: thread_id(&busy.thread_id)?, is_running: busy.is_running })
    };
    Ok(BusyThreads {
        threads: busy.threads.into_iter().map(thread).collect::<Result<_, InvalidField>>()?,
        is_cut: busy.is_cut,
    })
}

fn pb_inputs(open: &OpenInputs) -> pb::OpenInputs {
    pb::OpenInputs { inputs: open.inputs.iter().map(convert::pb_open_input).collect(), is_cut: open.is_cut }
}

fn inputs(open: pb::OpenInputs) -> Result<OpenInputs, InvalidField> {
    Ok(OpenInputs {
        inputs: open.inputs.into_iter().map(convert::open_input).collect::<Result<_, _>>()?,
        is_cut: open.is_cut,
    })
}

fn pb_open(open: &OpenMessageStatus) -> pb::OpenMessageStatus {
    pb::OpenMessageStatus {
        message_id: open.message.as_str().to_owned(),
        expected: open.expected,
        received: open.received,
        released: open.released,
        missing: open.missing.iter().map(|ids| pb::IdRange { first: ids.first, last: ids.last }).collect(),
        gap_for_ms: open.gap_for_ms,
    }
}

fn open(open: pb::OpenMessageStatus) -> Result<OpenMessageStatus, InvalidField> {
    Ok(OpenMessageStatus {
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
        yields: waiting.yields,
    }
}

fn waiting(waiting: pb::WaitingTurn) -> Result<WaitingTurn, InvalidField> {
    Ok(WaitingTurn {
        turn: turn_id(&waiting.turn_id)?,
        reason: reason(waiting.reason.ok_or(InvalidField::Missing("reason"))?)?,
        age_ms: waiting.age_ms,
        yields: waiting.yields,
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
        request: active.request.map(request).unwrap_or_default(),
        accepted_at: Timestamp(active.accepted_ms),
        started_at: active.started_ms.map(Timestamp),
        batch: active.batch.map(open_batch::decode).transpose()?.map(Box::new),
    })
}

fn pb_request(request: RequestInfo) -> pb::RequestInfo {
    let RequestInfo { deliveries, handed_back, again_ms, alive_ms, fails_ms } = request;
    pb::RequestInfo { deliveries, handed_back, again_ms, alive_ms, fails_ms }
}

fn request(request: pb::RequestInfo) -> RequestInfo {
    let pb::RequestInfo { deliveries, handed_back, again_ms, alive_ms, fails_ms } = request;
    RequestInfo { deliveries, handed_back, again_ms, alive_ms, fails_ms }
}

fn turn_id(text: &str) -> Result<TurnId, InvalidField> {
    TurnId::parse(text).map_err(InvalidField::Turn)
}

fn thread_id(text: &str) -> Result<ThreadId, InvalidField> {
    ThreadId::parse(text).map_err(|error| InvalidField::Id("session_id", error))
}

pub(crate) fn pb_reason(reason: WaitReason) -> pb::WaitReason {
    let is_this = |other: &WaitReason| other.name() == reason.name();
    let index = WaitReason::ALL.iter().position(is_this).unwrap_or_default();
    pb::WaitReason { kind: index as i32 + 1, for_ms: reason.for_ms().unwrap_or_default() }
}

pub(crate) fn reason(reason: pb::WaitReason) -> Result<WaitReason, InvalidField> {
    let index = usize::try_from(reason.kind).ok().and_then(|number| number.checked_sub(1));
    let known = index.and_then(|index| WaitReason::ALL.get(index));
    let known = known.ok_or_else(|| InvalidField::Enum("reason", reason.kind.to_string()))?;
    Ok(known.lasting(reason.for_ms))
}
