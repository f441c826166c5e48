//! Finished turns. Their messages are rows of `messages`; here the failed turns end whose retries
//! succeeded.

use model::ThreadId;

use super::columns::bucket_of;
use super::rows::{Checks, Given, TableParts, row};

pub(super) const TABLE: TableParts = TableParts::new(&[TurnRow::ROWS], include_str!("turns.sql"));

row! {
    /// A finished turn.
    struct TurnRow<'a> as turn_rows of turns {
        /// [`Given::item`] of the index in the commit.
        turn: i64,
        bucket: i16,
        turn_id: &'a str,
        thread_id: Option<&'a str>,
        first_id: Option<&'a str>,
        last_id: Option<&'a str>,
        /// The agent's row on which the turn depends.
        item: Option<i64>,
        /// True if a failed turn with this id is deleted.
        ends_failed: bool,
        /// True if the turn is written only while its messages are not stored.
        is_checked: bool,
    }
}

fn turns(given: Given<'_>) -> impl Iterator<Item = TurnRow<'_>> {
    let commit = given.submission.commit;
    commit.turns.iter().enumerate().map(move |(index, write)| {
        let (first, last) = (write.messages.first(), write.messages.last());
        let thread = first.map(|message| &message.key.thread).or(write.ends_failed.as_ref());
        // An index without an agent is a defect. Item 0 does not exist, so nothing of that turn is
        // written.
        let item = |index| if index < commit.agents.len() { given.item(index) } else { 0 };
        TurnRow {
            turn: given.item(index),
            bucket: thread.map_or(0, bucket_of),
            turn_id: write.turn.as_str(),
            thread_id: thread.map(ThreadId::as_str),
            first_id: first.map(|message| message.key.message.as_str()),
            last_id: last.map(|message| message.key.message.as_str()),
            item: write.agent.map(item),
            ends_failed: write.ends_failed.is_some(),
            is_checked: given.checks == Checks::Stored,
        }
    })
}
