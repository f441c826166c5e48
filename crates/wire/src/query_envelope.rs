//! The envelopes of all queries and of their replies.

use bytes::Bytes;
use prost::Message as _;

use crate::{DecodeError, InvalidField, pb};

pub(crate) fn pb_query(kind: pb::query::Kind) -> Bytes {
    pb::Query { kind: Some(kind) }.encode_to_vec().into()
}

pub(crate) fn pb_reply(epoch: u64, reply: pb::query_reply::Reply) -> Bytes {
    pb::QueryReply { epoch, reply: Some(reply) }.encode_to_vec().into()
}

/// The epoch of the owner, and its reply.
pub(crate) fn read_reply(payload: &Bytes) -> Result<(u64, pb::query_reply::Reply), DecodeError> {
    let reply = pb::QueryReply::decode(payload.as_ref())?;
    Ok((reply.epoch, reply.reply.ok_or(InvalidField::Missing("reply"))?))
}
