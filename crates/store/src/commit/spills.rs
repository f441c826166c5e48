//! Saved messages and inputs that have ended: rows of `spilled_messages` and `spilled_turns`.

use super::columns::{bucket, bucket_of};
use super::rows::{Given, TableParts, row};

pub(super) const MESSAGES: TableParts =
    TableParts::new(&[EndedSpillRow::ROWS], include_str!("ended_spills.sql"));
pub(super) const TURNS: TableParts = TableParts::new(&[EndedTurnRow::ROWS], include_str!("ended_turns.sql"));

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
