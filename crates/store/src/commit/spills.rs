//! Open messages and inputs: rows of `spilled_messages` and `spilled_turns`. Those that have ended
//! are deleted, and inputs that a commit opens itself are added.

use super::columns::{bigint, bucket, bucket_of, integer, object};
use super::rows::{Given, TableParts, row};
use crate::outbox::options;
use crate::row::stored_turn_origin;

pub(super) const MESSAGES: TableParts =
    TableParts::new(&[EndedSpillRow::ROWS], include_str!("ended_spills.sql"));
pub(super) const TURNS: TableParts = TableParts::new(&[EndedTurnRow::ROWS], include_str!("ended_turns.sql"));
pub(super) const OPENED: TableParts =
    TableParts::new(&[OpenedTurnRow::ROWS], include_str!("opened_turns.sql"));

row! {
    /// A message that has ended.
    struct EndedSpillRow<'a> as ended_spill_rows of ended_spills {
        bucket: i16,
        thread_id: &'a str,
        message_id: &'a str,
    }
}

fn ended_spills(given: Given<'_>) -> impl Iterator<Item = EndedSpillRow<'_>> {
    given.submission.commit.ended_spills.iter().map(|key| EndedSpillRow {
        bucket: bucket(key),
        thread_id: key.thread.as_str(),
        message_id: key.message.as_str(),
    })
}

row! {
    /// An input whose turn has ended.
    struct EndedTurnRow<'a> as ended_turn_rows of ended_turns {
        bucket: i16,
        thread_id: &'a str,
        turn_id: &'a str,
    }
}

fn ended_turns(given: Given<'_>) -> impl Iterator<Item = EndedTurnRow<'_>> {
    given.submission.commit.ended_turns.iter().map(|(thread, turn)| EndedTurnRow {
        bucket: bucket_of(thread),
        thread_id: thread.as_str(),
        turn_id: turn.as_str(),
    })
}

row! {
    /// An input that the commit opens.
    struct OpenedTurnRow<'a> as opened_turn_rows of opened_turns {
        bucket: i16,
        thread_id: &'a str,
        turn_id: &'a str,
        agent_id: &'a str,
        run: i32,
        content: &'a str,
        metadata: String,
        options: String,
        origin: Option<String>,
        stream_seq: i64,
        /// Stream that the sequence belongs to.
        incarnation: &'a str,
    }
}

fn opened_turns(given: Given<'_>) -> impl Iterator<Item = OpenedTurnRow<'_>> {
    let incarnation = given.submission.incarnation;
    given.submission.commit.opened.iter().map(move |open| {
        let opened = &open.opened;
        OpenedTurnRow {
            bucket: bucket_of(&opened.thread),
            thread_id: opened.thread.as_str(),
            turn_id: opened.turn.as_str(),
            agent_id: opened.agent.as_str(),
            run: integer(opened.run),
            content: opened.content.as_str(),
            metadata: object(&opened.input_metadata()),
            options: options(&opened.options),
            origin: stored_turn_origin(&opened.origin),
            stream_seq: bigint(open.seq.0),
            incarnation,
        }
    })
}
