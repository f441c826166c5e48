//! What gateways ask owners on `ask.<p>`: the open text of a thread beyond what they have. Why something waits is asked
//! on the same subject; see [`explain`].

use bytes::Bytes;
use model::{MessageId, OpenText, ThreadId};
use prost::Message as _;

use crate::explain::{self, About};
use crate::{DecodeError, InvalidField, convert, pb};

/// A question: the thread, and what the asker has (message, attempt, next id).
#[derive(Debug, Clone, PartialEq)]
pub struct Ask {
    /// The thread.
    pub thread: ThreadId,
    /// Chunks below the id, of this attempt, are known to the asker.
    pub have: Vec<(MessageId, u32, u32)>,
}

/// One page of an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct AskReply {
    /// The epoch of the owner's lease.
    pub epoch: u64,
    /// Messages that are open in the thread.
    pub open: Vec<OpenText>,
    /// True when the page was cut by size: ask again with later cursors.
    pub more: bool,
}

/// What an owner is asked.
#[derive(Debug, Clone, PartialEq)]
pub enum Question {
    /// What is open in a thread.
    Open(Ask),
    /// Why something waits; answered with [`explain::encode_explanation`].
    Why(About),
}

/// The payload of a question for open text.
pub fn encode_ask(ask: &Ask) -> Bytes {
    let have = ask.have.iter().map(|(message, attempt, next)| pb::Cursor {
        message_id: message.as_str().to_owned(),
        attempt: *attempt,
        next: *next,
    });
    let session_id = ask.thread.as_str().to_owned();
    pb::Ask { session_id, have: have.collect(), about: None }.encode_to_vec().into()
}

/// Reads a question of either kind.
///
/// # Errors
/// The bytes are not a question, or an id breaks its rule.
pub fn decode_question(payload: &Bytes) -> Result<Question, DecodeError> {
    let ask = pb::Ask::decode(payload.as_ref())?;
    if let Some(about) = ask.about {
        return Ok(Question::Why(explain::about(about)?));
    }
    let cursor =
        |cursor: pb::Cursor| Ok((convert::message_id(&cursor.message_id)?, cursor.attempt, cursor.next));
    Ok(Question::Open(Ask {
        thread: ThreadId::parse(&ask.session_id).map_err(|error| InvalidField::Id("session_id", error))?,
        have: ask.have.into_iter().map(cursor).collect::<Result<_, InvalidField>>()?,
    }))
}

/// The payload of an answer.
pub fn encode_reply(reply: &AskReply) -> Bytes {
    let open = reply.open.iter().map(|open| pb::OpenMessage {
        message_id: open.message.as_str().to_owned(),
        attempt: open.attempt,
        role: open.role as i32,
        chunks: open.chunks.iter().map(|chunk| convert::pb_chunk(chunk)).collect(),
        next: open.next,
    });
    let (epoch, open) = (reply.epoch, open.collect());
    pb::AskReply { epoch, open, more: reply.more, explanation: None }.encode_to_vec().into()
}

/// Reads an answer.
///
/// # Errors
/// The bytes are not an answer, or a field breaks a rule of the model.
pub fn decode_reply(payload: &Bytes) -> Result<AskReply, DecodeError> {
    let reply = pb::AskReply::decode(payload.as_ref())?;
    let open = |open: pb::OpenMessage| {
        Ok(OpenText {
            message: convert::message_id(&open.message_id)?,
            attempt: open.attempt,
            role: convert::role(open.role)?,
            chunks: open
                .chunks
                .into_iter()
                .map(|mut it| convert::chunk((&mut it).into()))
                .collect::<Result<_, _>>()?,
            next: open.next,
        })
    };
    let open = reply.open.into_iter().map(open).collect::<Result<_, InvalidField>>()?;
    Ok(AskReply { epoch: reply.epoch, open, more: reply.more })
}
