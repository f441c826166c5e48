//! Messages and the heads of their threads: rows of `messages` and `threads`.

use model::{AgentId, Message};
use partition::TurnWrite;
use serde_json::Value;

use super::columns::{object, smallint};
use super::rows::{Checks, Given, TableParts, row};

/// Messages in a statement without turns.
pub(super) const WITHOUT_TURNS: TableParts = TableParts::new(
    &[NewMessageRow::ROWS],
    concat!(include_str!("new_messages.sql"), include_str!("messages.sql"), ")\n"),
);

/// Messages with and without turns.
pub(super) const TABLE: TableParts = TableParts::new(
    &[NewMessageRow::ROWS],
    concat!(include_str!("new_messages_of_turns.sql"), include_str!("messages.sql"), ")\n"),
);

/// As [`TABLE`], for [`Checks::Stored`]. Only here is a conflict allowed, because it costs a second
/// WAL record for each message. It covers only this key: two messages at one position would be a
/// defect and must not pass silently.
pub(super) const CHECKED: TableParts = TableParts::new(
    &[NewMessageRow::ROWS],
    concat!(
        include_str!("new_messages_of_turns.sql"),
        include_str!("messages.sql"),
        "    ON CONFLICT (bucket, thread_id, message_id) DO NOTHING\n)\n"
    ),
);

row! {
    /// A message. Times are in ms since 1970.
    struct NewMessageRow<'a> as message_rows of messages {
        bucket: i16,
        thread_id: &'a str,
        position: i64,
        message_id: &'a str,
        batch_id: i64,
        sequence_num: i32,
        batch_type: &'a str,
        role: &'a str,
        content: &'a str,
        tool_calls: Option<String>,
        tool_call_id: Option<&'a str>,
        metadata: String,
        token_count: Option<i64>,
        attempt: i64,
        created_ms: Option<i64>,
        started_ms: Option<i64>,
        /// Only of the first message of a turn: see [`TurnWrite::answered_by`].
        agent_id: Option<&'a str>,
        /// The turn's row.
        turn: Option<i64>,
        /// Position of the first message of the turn.
        first_position: i64,
        /// True if the message is written only while it is not stored.
        is_checked: bool,
    }
}

fn messages(given: Given<'_>) -> impl Iterator<Item = NewMessageRow<'_>> {
    let commit = given.submission.commit;
    let bare = commit.messages.iter().map(move |message| message_row(given, None, None, message));
    let of_turns = commit.turns.iter().enumerate().flat_map(move |(index, write)| {
        let turn = Some(given.item(index));
        write.messages.iter().map(move |message| message_row(given, turn, Some(write), message))
    });
    bare.chain(of_turns)
}

fn message_row<'a>(
    given: Given<'_>,
    turn: Option<i64>,
    write: Option<&'a TurnWrite>,
    message: &'a Message,
) -> NewMessageRow<'a> {
    let first = write.and_then(|write| write.messages.first()).unwrap_or(message);
    let is_first = first.placement.position == message.placement.position;
    let agent = write.and_then(|write| write.answered_by.as_ref()).filter(|_| is_first);
    NewMessageRow {
        bucket: smallint(message.bucket().get()),
        thread_id: message.key.thread.as_str(),
        position: message.placement.position.get(),
        message_id: message.key.message.as_str(),
        batch_id: message.placement.batch_id.get(),
        sequence_num: message.placement.sequence_num,
        batch_type: message.placement.batch_type.name(),
        role: message.role.name(),
        content: message.content.as_str(),
        tool_calls: message.tool_calls.as_ref().map(Value::to_string),
        tool_call_id: message.tool_call_id.as_deref(),
        metadata: object(&message.metadata),
        token_count: message.token_count,
        attempt: i64::from(message.attempt),
        created_ms: message.times.created_at.map(|at| at.0),
        started_ms: message.times.started_at.map(|at| at.0),
        agent_id: agent.map(AgentId::as_str),
        turn,
        first_position: first.placement.position.get(),
        is_checked: given.checks == Checks::Stored,
    }
}
