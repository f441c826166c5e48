//! Queries of gateways on `query.<p>` and the owner's replies: snapshots of a thread, threads with
//! recent frames, and the statuses that [`status`] encodes. A snapshot is a consistent cut with the
//! open text that the gateway lacks.

use std::sync::Arc;

use bytes::Bytes;
use model::{Cut, GatewayId, KnownMessage, PartialText, Position, QueryTarget, ThreadId};
use prost::Message as _;

use crate::query_envelope::{pb_query, pb_reply, read_reply};
use crate::{DecodeError, InvalidField, convert, pb, status};

#[derive(Debug, Clone, PartialEq)]
pub enum Query {
    /// Requests a snapshot; the reply is [`encode_snapshot`]. From then on the gateway follows the
    /// thread.
    Snapshot(GatewayId, SnapshotRequest),
    /// Requests changed threads; the reply is [`encode_changed_threads`].
    ChangedThreads(GatewayId, ChangedThreadsQuery),
    /// Requests a status; the reply is [`status::encode_reply`].
    Status(QueryTarget),
}

/// Requests the open text of a thread.
#[derive(Debug, Clone, PartialEq)]
pub struct SnapshotRequest {
    pub thread: ThreadId,
    /// Messages that the gateway has.
    pub known: Vec<KnownMessage>,
    /// Maximum number of open messages in the reply; those in `known` are always included.
    pub max_messages: u32,
}

/// A consistent snapshot of a thread.
#[derive(Debug, Clone, PartialEq)]
pub struct SnapshotReply {
    /// The point of the snapshot.
    pub cut: Cut,
    /// Open messages of the thread.
    pub open: Vec<PartialText>,
    /// True if more messages are open than `open` has.
    pub left_out: bool,
    /// True if text was left out to limit the size. The gateway should query again with the updated
    /// `known`.
    pub more: bool,
}

/// Requests the threads with frames after a given one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChangedThreadsQuery {
    /// The epoch that the number belongs to: the highest one that the gateway knows.
    pub epoch: u64,
    /// The number of that frame.
    pub number: u64,
    /// Threads that the gateway no longer follows.
    pub unfollowed: Vec<ThreadId>,
}

/// The threads with later frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedThreads {
    /// The epoch of the owner's lease.
    pub epoch: u64,
    /// The number of the owner's last frame.
    pub number: u64,
    /// Threads with later frames than the given one, with the number of the last frame of each.
    pub threads: Vec<(ThreadId, u64)>,
    /// False when other threads may have changed too.
    pub is_complete: bool,
}

/// The payload of a gateway's request for a snapshot.
pub fn encode_snapshot_request(gateway: &GatewayId, request: &SnapshotRequest) -> Bytes {
    let known = request.known.iter().map(|known| pb::KnownChunks {
        message_id: known.message.as_str().to_owned(),
        attempt: known.attempt,
        next: known.next,
        has_input: known.has_input,
    });
    pb_query(pb::query::Kind::Snapshot(pb::SnapshotRequest {
        session_id: request.thread.as_str().to_owned(),
        known: known.collect(),
        max_messages: request.max_messages,
        gateway: gateway.as_str().to_owned(),
    }))
}

/// The payload of a gateway's query for changed threads.
pub fn encode_changed_threads_query(gateway: &GatewayId, query: &ChangedThreadsQuery) -> Bytes {
    pb_query(pb::query::Kind::ChangedThreads(pb::ChangedThreadsQuery {
        epoch: query.epoch,
        number: query.number,
        gateway: gateway.as_str().to_owned(),
        unfollowed: query.unfollowed.iter().map(|thread| thread.as_str().to_owned()).collect(),
    }))
}

/// Decodes a query.
///
/// # Errors
/// The bytes are not a query, or an id is invalid.
pub fn decode_query(payload: &Bytes) -> Result<Query, DecodeError> {
    use pb::query::Kind;
    let query = pb::Query::decode(payload.as_ref())?;
    Ok(match query.kind.ok_or(InvalidField::Missing("kind"))? {
        Kind::Snapshot(request) => Query::Snapshot(gateway(&request.gateway)?, snapshot_request(request)?),
        Kind::Status(query) => Query::Status(status::target(query)?),
        Kind::ChangedThreads(query) => {
            Query::ChangedThreads(gateway(&query.gateway)?, changed_threads_query(query)?)
        }
    })
}

fn snapshot_request(request: pb::SnapshotRequest) -> Result<SnapshotRequest, InvalidField> {
    let known = |known: pb::KnownChunks| {
        let message = convert::message_id(&known.message_id)?;
        Ok(KnownMessage { message, attempt: known.attempt, next: known.next, has_input: known.has_input })
    };
    Ok(SnapshotRequest {
        thread: thread(&request.session_id)?,
        known: request.known.into_iter().map(known).collect::<Result<_, InvalidField>>()?,
        max_messages: request.max_messages,
    })
}

fn changed_threads_query(query: pb::ChangedThreadsQuery) -> Result<ChangedThreadsQuery, InvalidField> {
    let unfollowed = query.unfollowed.iter().map(|id| thread(id)).collect::<Result<_, _>>()?;
    Ok(ChangedThreadsQuery { epoch: query.epoch, number: query.number, unfollowed })
}

fn gateway(id: &str) -> Result<GatewayId, InvalidField> {
    GatewayId::parse(id).map_err(|error| InvalidField::Id("gateway", error))
}

/// The payload of a snapshot.
pub fn encode_snapshot(reply: &SnapshotReply) -> Bytes {
    let open = reply.open.iter().map(|open| pb::OpenMessage {
        message_id: open.message.as_str().to_owned(),
        attempt: open.attempt,
        role: open.role as i32,
        chunks: open.chunks.iter().map(|chunk| convert::pb_chunk(chunk)).collect(),
        next: open.next,
        batch_type: open.batch_type as i32,
        input: open.input.as_deref().map(convert::pb_open_input),
    });
    let Cut { epoch, number, committed, is_current } = reply.cut;
    let snapshot = pb::SnapshotReply {
        number,
        committed: committed.get(),
        current: is_current,
        open: open.collect(),
        left_out: reply.left_out,
        more: reply.more,
    };
    pb_reply(epoch, pb::query_reply::Reply::Snapshot(snapshot))
}

/// Decodes a snapshot.
///
/// # Errors
/// The bytes are not a snapshot, or a field breaks a rule of the model.
pub fn decode_snapshot(payload: &Bytes) -> Result<SnapshotReply, DecodeError> {
    let (epoch, reply) = read_reply(payload)?;
    let pb::query_reply::Reply::Snapshot(reply) = reply else {
        return Err(InvalidField::Missing("snapshot").into());
    };
    let open = |open: pb::OpenMessage| {
        Ok(PartialText {
            message: convert::message_id(&open.message_id)?,
            attempt: open.attempt,
            role: convert::role(open.role)?,
            batch_type: convert::batch_type(open.batch_type)?,
            chunks: open
                .chunks
                .into_iter()
                .map(|mut it| convert::chunk((&mut it).into()))
                .collect::<Result<_, _>>()?,
            next: open.next,
            input: open.input.map(convert::open_input).transpose()?.map(Arc::new),
        })
    };
    let open = reply.open.into_iter().map(open).collect::<Result<_, InvalidField>>()?;
    let committed = Position::from_stored(reply.committed);
    let cut = Cut { epoch, number: reply.number, committed, is_current: reply.current };
    Ok(SnapshotReply { cut, open, left_out: reply.left_out, more: reply.more })
}

/// The payload of a reply about changed threads.
pub fn encode_changed_threads(changed: &ChangedThreads) -> Bytes {
    let named = |(thread, number): &(ThreadId, u64)| pb::ChangedThread {
        session_id: thread.as_str().to_owned(),
        number: *number,
    };
    let reply = pb::ChangedThreads {
        number: changed.number,
        threads: changed.threads.iter().map(named).collect(),
        incomplete: !changed.is_complete,
    };
    pb_reply(changed.epoch, pb::query_reply::Reply::ChangedThreads(reply))
}

/// Decodes a reply about changed threads.
///
/// # Errors
/// The bytes are not such a reply, or an id is invalid.
pub fn decode_changed_threads(payload: &Bytes) -> Result<ChangedThreads, DecodeError> {
    let (epoch, reply) = read_reply(payload)?;
    let pb::query_reply::Reply::ChangedThreads(reply) = reply else {
        return Err(InvalidField::Missing("changed_threads").into());
    };
    let named = |changed: pb::ChangedThread| Ok((thread(&changed.session_id)?, changed.number));
    Ok(ChangedThreads {
        epoch,
        number: reply.number,
        threads: reply.threads.into_iter().map(named).collect::<Result<_, InvalidField>>()?,
        is_complete: !reply.incomplete,
    })
}

fn thread(id: &str) -> Result<ThreadId, InvalidField> {
    ThreadId::parse(id).map_err(|error| InvalidField::Id("session_id", error))
}
