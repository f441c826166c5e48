//! The events of a person's input.

use model::{MessageId, Metadata, OpenInput, Role, Timestamp, TurnId};
use serde::Serialize;
use utoipa::ToSchema;

use super::StreamError;
use crate::schemas;

/// A person's input is accepted. Its answer follows; until the answer has ended, the history does
/// not have the input.
#[derive(Debug, Serialize, ToSchema)]
pub struct InputEvent<'a> {
    #[schema(value_type = schemas::ThreadIdSchema)]
    thread_id: &'a str,
    /// Id of the input, under which the history shows it later.
    #[schema(value_type = schemas::MessageIdSchema)]
    message_id: &'a str,
    #[schema(value_type = schemas::TurnIdSchema)]
    turn_id: &'a str,
    /// Id of the answer. If the turn is tried again after a failure, its answer has another id.
    #[schema(value_type = schemas::MessageIdSchema)]
    answer_id: &'a str,
    #[schema(value_type = schemas::RoleSchema)]
    role: &'static str,
    content: &'a str,
    #[schema(value_type = Object)]
    metadata: &'a Metadata,
    /// Time of acceptance, RFC 3339 in UTC.
    #[schema(value_type = String, format = DateTime)]
    accepted_at: Option<String>,
}

/// An input will not be in the history, because its turn has failed. The failure follows.
#[derive(Debug, Serialize, ToSchema)]
pub struct InputWithdrawnEvent<'a> {
    #[schema(value_type = schemas::ThreadIdSchema)]
    thread_id: &'a str,
    /// Id of the input.
    #[schema(value_type = schemas::MessageIdSchema)]
    message_id: Option<&'a str>,
    #[schema(value_type = schemas::TurnIdSchema)]
    turn_id: Option<&'a str>,
    /// Code of the failure.
    reason: &'a str,
    /// Whether a retry of the turn may succeed.
    retryable: bool,
}

impl<'a> InputEvent<'a> {
    pub(super) fn new(
        thread_id: &'a str,
        message: &'a MessageId,
        answer: &'a MessageId,
        input: &'a OpenInput,
    ) -> Self {
        Self {
            thread_id,
            message_id: message.as_str(),
            turn_id: input.turn.as_str(),
            answer_id: answer.as_str(),
            role: Role::User.name(),
            content: &input.content,
            metadata: &input.metadata,
            accepted_at: rfc3339(input.accepted_at),
        }
    }
}

impl<'a> InputWithdrawnEvent<'a> {
    pub(super) fn new(
        thread_id: &'a str,
        message: Option<&'a MessageId>,
        turn: Option<&'a TurnId>,
        failure: &'a StreamError,
    ) -> Self {
        Self {
            thread_id,
            message_id: message.map(MessageId::as_str),
            turn_id: turn.map(TurnId::as_str),
            reason: &failure.code,
            retryable: failure.is_retryable,
        }
    }
}

fn rfc3339(at: Timestamp) -> Option<String> {
    let at = time::OffsetDateTime::from_unix_timestamp_nanos(i128::from(at.0) * 1_000_000).ok()?;
    at.format(&time::format_description::well_known::Rfc3339).ok()
}
