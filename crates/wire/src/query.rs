//! What gateways ask owners on `query.<p>`: how a thread stands, as one consistent cut, with the open text beyond what they have; and of
//! which threads frames were sent lately. Why something waits is asked on the same subject; see [`explain`].

use bytes::Bytes;
use model::{Cut, MessageId, OpenText, Position, ThreadId};
use prost::Message as _;

use crate::explain::{self, About};
use crate::{DecodeError, InvalidField, convert, pb};

/// A question: the thread, and what the asker has (message, attempt, next id).
#[derive(Debug, Clone, PartialEq)]
pub struct Query {
    /// The thread.
    pub thread: ThreadId,
    /// Chunks below the id, of this attempt, are known to the asker.
    pub have: Vec<(MessageId, u32, u32)>,
    /// At most so many open messages, and all that the asker has.
    pub most_messages: u32,
}

/// An answer: one cut of the thread.
#[derive(Debug, Clone, PartialEq)]
pub struct QueryReply {
    /// As of when.
    pub cut: Cut,
    /// Messages that are open in the thread.
    pub open: Vec<OpenText>,
    /// More are open than it names.
    pub left_out: bool,
    /// Text was left out, for size: ask again with later cursors.
    pub more: bool,
}

/// A frame that a gateway has heard of: of which threads were others sent after it?
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SentAfter {
    /// The epoch in which the number counts.
    pub epoch: u64,
    /// The frame.
    pub number: u64,
}

/// What was sent lately.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    /// The epoch of the owner's lease.
    pub epoch: u64,
    /// The last frame of all.
    pub number: u64,
    /// Threads with later frames than the one that was named, and the last of each.
    pub threads: Vec<(ThreadId, u64)>,
    /// False when there may be other threads.
    pub are_all: bool,
}

/// What an owner is asked.
#[derive(Debug, Clone, PartialEq)]
pub enum Question {
    /// How a thread stands.
    Open(Query),
    /// Of which threads frames were sent.
    Sent(SentAfter),
    /// Why something waits; answered with [`explain::encode_explanation`].
    Why(About),
}

/// The payload of a question for open text.
pub fn encode_query(ask: &Query) -> Bytes {
    let have = ask.have.iter().map(|(message, attempt, next)| pb::KnownChunks {
        message_id: message.as_str().to_owned(),
        attempt: *attempt,
        next: *next,
    });
    let session_id = ask.thread.as_str().to_owned();
    let (have, most_messages) = (have.collect(), ask.most_messages);
    pb::Query { session_id, have, most_messages, ..pb::Query::default() }.encode_to_vec().into()
}

/// The payload of a question for what was sent.
pub fn encode_sent_after(after: &SentAfter) -> Bytes {
    let sent = pb::SentAfter { epoch: after.epoch, number: after.number };
    pb::Query { sent: Some(sent), ..pb::Query::default() }.encode_to_vec().into()
}

/// Reads a question of either kind.
///
/// # Errors
/// The bytes are not a question, or an id breaks its rule.
pub fn decode_question(payload: &Bytes) -> Result<Question, DecodeError> {
    let ask = pb::Query::decode(payload.as_ref())?;
    if let Some(about) = ask.about {
        return Ok(Question::Why(explain::about(about)?));
    }
    if let Some(sent) = ask.sent {
        return Ok(Question::Sent(SentAfter { epoch: sent.epoch, number: sent.number }));
    }
    let cursor =
        |cursor: pb::KnownChunks| Ok((convert::message_id(&cursor.message_id)?, cursor.attempt, cursor.next));
    Ok(Question::Open(Query {
        thread: thread(&ask.session_id)?,
        most_messages: ask.most_messages,
        have: ask.have.into_iter().map(cursor).collect::<Result<_, InvalidField>>()?,
    }))
}

/// The payload of an answer.
pub fn encode_reply(reply: &QueryReply) -> Bytes {
    let open = reply.open.iter().map(|open| pb::OpenMessage {
        message_id: open.message.as_str().to_owned(),
        attempt: open.attempt,
        role: open.role as i32,
        chunks: open.chunks.iter().map(|chunk| convert::pb_chunk(chunk)).collect(),
        next: open.next,
        batch_type: open.batch_type as i32,
    });
    let Cut { epoch, number, committed, is_current } = reply.cut;
    let reply = pb::QueryReply {
        epoch,
        number,
        committed: committed.get(),
        current: is_current,
        open: open.collect(),
        left_out: reply.left_out,
        more: reply.more,
        ..pb::QueryReply::default()
    };
    reply.encode_to_vec().into()
}

/// The payload of what was sent.
pub fn encode_sent(sent: &Sent) -> Bytes {
    let named = |(thread, number): &(ThreadId, u64)| pb::SentThread {
        session_id: thread.as_str().to_owned(),
        number: *number,
    };
    let reply = pb::QueryReply {
        epoch: sent.epoch,
        number: sent.number,
        threads: sent.threads.iter().map(named).collect(),
        not_all: !sent.are_all,
        ..pb::QueryReply::default()
    };
    reply.encode_to_vec().into()
}

/// Reads what was sent.
///
/// # Errors
/// The bytes are not such an answer, or an id breaks its rule.
pub fn decode_sent(payload: &Bytes) -> Result<Sent, DecodeError> {
    let reply = pb::QueryReply::decode(payload.as_ref())?;
    let named = |sent: pb::SentThread| Ok((thread(&sent.session_id)?, sent.number));
    Ok(Sent {
        epoch: reply.epoch,
        number: reply.number,
        threads: reply.threads.into_iter().map(named).collect::<Result<_, InvalidField>>()?,
        are_all: !reply.not_all,
    })
}

fn thread(id: &str) -> Result<ThreadId, InvalidField> {
    ThreadId::parse(id).map_err(|error| InvalidField::Id("session_id", error))
}

/// Reads an answer.
///
/// # Errors
/// The bytes are not an answer, or a field breaks a rule of the model.
pub fn decode_reply(payload: &Bytes) -> Result<QueryReply, DecodeError> {
    let reply = pb::QueryReply::decode(payload.as_ref())?;
    let open = |open: pb::OpenMessage| {
        Ok(OpenText {
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
        })
    };
    let open = reply.open.into_iter().map(open).collect::<Result<_, InvalidField>>()?;
    let cut = Cut {
        epoch: reply.epoch,
        number: reply.number,
        committed: Position::from_stored(reply.committed),
        is_current: reply.current,
    };
    Ok(QueryReply { cut, open, left_out: reply.left_out, more: reply.more })
}
