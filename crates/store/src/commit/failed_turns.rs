//! Failed turns that are kept or dropped: rows of `failed_turns`.

use super::columns::{bucket_of, integer, object, storable};
use super::rows::{Given, TableParts, row};
use crate::outbox::options;
use crate::row::stored_turn_origin;

pub(super) const TABLE: TableParts =
    TableParts::new(&[FailedTurnRow::ROWS], include_str!("failed_turns.sql"));
pub(super) const DROPPED: TableParts =
    TableParts::new(&[DroppedTurnRow::ROWS], include_str!("dropped_turns.sql"));

row! {
    /// A failed turn with its input.
    struct FailedTurnRow<'a> as failed_turn_rows of failed_turns {
        bucket: i16,
        thread_id: &'a str,
        turn_id: &'a str,
        agent_id: &'a str,
        run: i32,
        content: &'a str,
        metadata: String,
        options: String,
        origin: Option<String>,
        code: String,
        text: String,
        is_retryable: bool,
        partial: String,
        /// True if no person has written the input.
        is_synthetic: bool,
    }
}

fn failed_turns(given: Given<'_>) -> impl Iterator<Item = FailedTurnRow<'_>> {
    let commit = given.submission.commit;
    commit.failed_turns.iter().filter(|failed| !commit.drops(failed)).map(|failed| {
        let input = &failed.opened;
        FailedTurnRow {
            bucket: bucket_of(&input.thread),
            thread_id: input.thread.as_str(),
            turn_id: input.turn.as_str(),
            agent_id: input.agent.as_str(),
            run: integer(input.run),
            content: input.content.as_str(),
            metadata: object(&input.input_metadata()),
            options: options(&input.options),
            origin: stored_turn_origin(&input.origin),
            code: storable(&failed.code),
            text: storable(&failed.text),
            is_retryable: failed.is_retryable,
            partial: storable(&failed.partial),
            is_synthetic: input.origin.is_synthetic(),
        }
    })
}

row! {
    /// A failed turn that is dropped.
    struct DroppedTurnRow<'a> as dropped_turn_rows of dropped_turns {
        bucket: i16,
        thread_id: &'a str,
        turn_id: &'a str,
    }
}

fn dropped_turns(given: Given<'_>) -> impl Iterator<Item = DroppedTurnRow<'_>> {
    given.submission.commit.dropped_turns.iter().map(|(thread, turn)| DroppedTurnRow {
        bucket: bucket_of(thread),
        thread_id: thread.as_str(),
        turn_id: turn.as_str(),
    })
}
