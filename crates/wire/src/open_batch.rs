//! The batch of a running turn, in the reply to a status query.

use model::{MessageTimes, OpenBatch, OpenBatchMessage, Position, Timestamp};
use serde_json::Value;

use crate::{InvalidField, convert, pb};

pub(crate) fn encode(batch: &OpenBatch) -> pb::OpenBatch {
    let message = |message: &OpenBatchMessage| pb::OpenBatchMessage {
        message_id: message.id.as_str().to_owned(),
        role: message.role as i32,
        content: message.content.clone(),
        tool_calls: message.tool_calls.as_ref().map(Value::to_string).unwrap_or_default(),
        tool_call_id: message.tool_call_id.clone(),
        metadata: convert::pb_metadata(&message.metadata),
        created_ms: message.times.created_at.map(|at| at.0),
        started_ms: message.times.started_at.map(|at| at.0),
    };
    pb::OpenBatch {
        continues: batch.continues.map(Position::get),
        batch_type: batch.batch_type as i32,
        messages: batch.messages.iter().map(message).collect(),
        is_cut: batch.is_cut,
    }
}

pub(crate) fn decode(batch: pb::OpenBatch) -> Result<OpenBatch, InvalidField> {
    let message = |message: pb::OpenBatchMessage| {
        Ok(OpenBatchMessage {
            id: convert::message_id(&message.message_id)?,
            role: convert::role(message.role)?,
            content: message.content,
            // The fleet encodes the calls as an array.
            tool_calls: serde_json::from_str(&message.tool_calls).ok(),
            tool_call_id: message.tool_call_id,
            metadata: convert::metadata(message.metadata)?,
            times: MessageTimes {
                created_at: message.created_ms.map(Timestamp),
                started_at: message.started_ms.map(Timestamp),
            },
        })
    };
    Ok(OpenBatch {
        continues: batch.continues.map(Position::from_stored),
        batch_type: convert::batch_type(batch.batch_type)?,
        messages: batch.messages.into_iter().map(message).collect::<Result<_, InvalidField>>()?,
        is_cut: batch.is_cut,
    })
}
