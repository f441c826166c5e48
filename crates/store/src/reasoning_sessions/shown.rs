//! Builds the visible state of a session from pieces: blocks of messages, and messages that belong
//! to no block yet.

use std::borrow::Cow;
use std::ops::Range;

use model::ReasoningSessionId;
use reasoning::{Number, ReasoningRole, SessionCall, ShownMessage, TOOL_RESULT_SHOWN_CHARS};
use serde::Deserialize;
use sqlx::Row;
use sqlx::postgres::PgRow;

use super::values::{bucket, number, role_of, stored};
use crate::error::StoreError;
use crate::row::column_error;
use crate::statement::Statement;
use crate::store::Store;

/// Messages per block. Larger blocks make long threads faster to read, but more messages of an
/// unfinished block are read one by one.
pub(super) const BLOCK_MESSAGES: u64 = 256;

/// The visible entries, in order.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct ShownPieces {
    pub(super) entries: Vec<ShownMessage>,
    /// The tools of results, in the same order as the entries, as named by the results.
    pub(super) tools: Vec<Option<String>>,
    texts: Vec<String>,
    /// The place of each entry's text: index in `texts`, and range.
    places: Vec<(usize, Range<usize>)>,
}

impl ShownPieces {
    /// The text of an entry. Empty if texts were not requested, or if views show only its size.
    pub(super) fn text(&self, index: usize) -> &str {
        let text =
            self.places.get(index).and_then(|(piece, range)| self.texts.get(*piece)?.get(range.clone()));
        text.unwrap_or_default()
    }

    /// Builds the state from the row of the session and the rows of its pieces, each with its first
    /// number.
    pub(super) fn of(row: &PgRow, mut pieces: Vec<(Number, &PgRow)>) -> Result<Self, StoreError> {
        pieces.sort_unstable_by_key(|(first, _)| *first);
        let mut shown = Self::default();
        let runs: Vec<i64> = row.try_get::<Option<_>, _>("shown")?.unwrap_or_default();
        let through = number(row.try_get::<Option<_>, _>("summary_number")?.unwrap_or(0));
        let at = |number: Number| pieces.partition_point(|(first, _)| *first < number);
        for run in runs.chunks_exact(2) {
            for (first, piece) in &pieces[at(number(run[0]))..at(number(run[1]) + 1)] {
                shown.add(*first, piece, true)?;
            }
        }
        for (first, piece) in &pieces[at(through + 1)..] {
            shown.add(*first, piece, false)?;
        }
        Ok(shown)
    }

    /// Adds a piece. Summaries come only from the layers, because the summary of an undone layer is
    /// not visible.
    fn add(&mut self, first: Number, row: &PgRow, with_summaries: bool) -> Result<(), StoreError> {
        let (outline, piece): (&str, usize) = (row.try_get("outline")?, self.texts.len());
        self.texts.push(row.try_get::<Option<String>, _>("texts")?.unwrap_or_default());
        let mut start = 0;
        for (number, line) in (first..).zip(outline.split('\n')) {
            let line = OutlineLine::parse(line)
                .ok_or_else(|| column_error("outline", &"a line without its parts"))?;
            let role = role_of(line.role)?;
            let place = start..start + line.shown_bytes;
            start = place.end;
            if role == ReasoningRole::Summary && !with_summaries {
                continue;
            }
            self.entries.push(ShownMessage {
                number,
                in_temp: line.in_temp,
                role,
                chars: line.chars,
                calls: line.calls()?,
                answers: json_text(line.answers)?,
            });
            self.tools.push(json_text(line.tool)?);
            self.places.push((piece, place));
        }
        Ok(())
    }
}

struct OutlineLine<'a> {
    role: &'a str,
    in_temp: bool,
    chars: u32,
    shown_bytes: usize,
    /// The calls as JSON; empty if there are none. The other two fields have the same form.
    calls: &'a str,
    answers: &'a str,
    tool: &'a str,
}

impl<'a> OutlineLine<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut parts = line.split('\t');
        let mut part = || parts.next();
        Some(Self {
            role: part()?,
            in_temp: part()?.parse().ok()?,
            chars: part()?.parse().ok()?,
            shown_bytes: part()?.parse().ok()?,
            calls: part()?,
            answers: part()?,
            tool: part()?,
        })
    }

    fn calls(&self) -> Result<Vec<SessionCall>, StoreError> {
        #[derive(Deserialize)]
        struct Call<'a> {
            #[serde(borrow)]
            id: Cow<'a, str>,
            #[serde(borrow)]
            name: Cow<'a, str>,
        }
        if self.calls.is_empty() {
            return Ok(Vec::new());
        }
        let calls: Vec<Call<'_>> =
            serde_json::from_str(self.calls).map_err(|error| column_error("calls", &error))?;
        let owned = |call: Call<'_>| SessionCall::new(call.id, call.name);
        Ok(calls.into_iter().map(owned).collect())
    }
}

fn json_text(json: &str) -> Result<Option<String>, StoreError> {
    if json.is_empty() {
        return Ok(None);
    }
    serde_json::from_str(json).map(Some).map_err(|error| column_error("outline", &error))
}

impl Store {
    /// Writes the blocks of a session that are complete and not written yet.
    pub(super) async fn seal_reasoning(&self, id: &ReasoningSessionId) {
        let sealed = self.rows(sealing(id)).await;
        if let Err(error) = sealed {
            // The append itself is stored. Until the next append tries again, views read more rows.
            tracing::warn!(%error, session = id.as_str(), "no block of a reasoning session was made");
        }
    }
}

fn sealing(id: &ReasoningSessionId) -> Statement {
    sqlx::query(include_str!("seal.sql"))
        .bind(bucket(id))
        .bind(id.as_str().to_owned())
        .bind(stored(BLOCK_MESSAGES))
        .bind(longest_result())
}

/// The maximum length of a result that is shown with its text.
pub(super) fn longest_result() -> i32 {
    i32::try_from(TOOL_RESULT_SHOWN_CHARS).unwrap_or(i32::MAX)
}
