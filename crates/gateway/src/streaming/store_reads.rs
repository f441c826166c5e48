//! Reads a thread from the store in the form that feeds take.

use std::sync::Arc;

use feed::{EndKind, EndedMessage, StorePage, StoreRead};
use model::{MessageId, Metadata, OpenInput, Position, ThreadId, TurnId};
use protocols::{MessageHeader, StoredAnswer, StreamError, stored};
use store::{EndContent, EndRow, EndRows, Store, StoreError};

/// Rows of one page, and the growth factor of the limit when one answer alone has more.
const PAGE: u32 = 256;
const GROWTH: u32 = 8;

/// The result of a feed's read.
#[derive(Debug)]
pub(crate) enum Fetched {
    Last(Position),
    Page(StorePage),
}

/// The position of the thread's last end; 0 when it has none.
pub(crate) async fn tip(store: &Store, thread: &ThreadId) -> Result<Position, StoreError> {
    last(store, thread, Position::MAX).await
}

async fn last(store: &Store, thread: &ThreadId, through: Position) -> Result<Position, StoreError> {
    Ok(store.last_end(thread, through).await?.unwrap_or(Position::from_stored(0)))
}

/// The position just before this message's end, so that a reader is shown the whole message and
/// what ends after it.
pub(crate) async fn before(
    store: &Store,
    thread: &ThreadId,
    message: &MessageId,
) -> Result<Position, StoreError> {
    // The tip is read first: a message that ends between the two reads is above the tip.
    let tip = tip(store, thread).await?;
    match store.end_of(thread, message).await? {
        Some(end) => last(store, thread, Position::from_stored(end.get() - 1)).await,
        None => Ok(tip),
    }
}

/// Whether a message had ended at this position of the thread.
pub(crate) async fn has_ended_by(
    store: &Store,
    thread: &ThreadId,
    message: &MessageId,
    at: Position,
) -> Result<bool, StoreError> {
    Ok(store.end_of(thread, message).await?.is_some_and(|end| end <= at))
}

/// Runs the read that a feed wants.
pub(crate) async fn fetch(store: &Store, thread: &ThreadId, read: StoreRead) -> Result<Fetched, StoreError> {
    match read {
        StoreRead::Last(through) => Ok(Fetched::Last(last(store, thread, through).await?)),
        StoreRead::Ends { after, through, is_checked } => {
            Ok(Fetched::Page(page(store, thread, after, through, is_checked).await?))
        }
    }
}

/// One page of the ends in the thread after one position and up to another.
pub(crate) async fn page(
    store: &Store,
    thread: &ThreadId,
    after: Position,
    through: Position,
    is_checked: bool,
) -> Result<StorePage, StoreError> {
    let mut limit = PAGE;
    loop {
        let EndRows { has_after, rows } = store.ends(thread, after, through, limit).await?;
        let is_whole = rows.len() < limit as usize;
        let ends = grouped(rows);
        let last = ends.last().map(|ended| ended.position);
        if last.is_none() && !is_whole {
            // One answer has more rows than the limit.
            limit = limit.saturating_mul(GROWTH);
            continue;
        }
        // `Position::MAX` includes what is still to come, so the page cannot be complete up to it.
        let is_all = is_whole && through < Position::MAX;
        let through = if is_all { through } else { last.unwrap_or(after) };
        let back_to = match has_after || !is_checked {
            true => None,
            false => store.end_to_go_back_to(thread, after).await?,
        };
        return Ok(StorePage { after, back_to, ends, through });
    }
}

/// Groups answers with their inputs and steps; the last answer is left out when some of its rows
/// are missing.
fn grouped(rows: Vec<EndRow>) -> Vec<EndedMessage> {
    let (mut ends, mut steps, mut asked) = (Vec::new(), Vec::new(), None);
    for row in rows {
        if let Some(turn) = TurnId::of_input(&row.message_id) {
            asked = Some((turn, row));
            continue;
        }
        let header = MessageHeader::new(row.message_id.clone(), row.attempt, row.role, row.batch_type);
        if matches!(row.said, EndContent::Message { .. }) && TurnId::is_reserved(&row.message_id) {
            steps.push(row);
            continue;
        }
        let (position, attempt) = (row.position, row.attempt);
        let how = match row.said {
            EndContent::Failure { code, text, missing, is_retryable } => {
                EndKind::Failed(StreamError { code, text, missing, is_retryable })
            }
            EndContent::Message { .. } => {
                let of_answer = format!("{}-s", row.message_id);
                let is_of = |step: &EndRow| step.message_id.as_str().starts_with(&of_answer);
                let answer_steps: Vec<EndRow> =
                    std::mem::take(&mut steps).into_iter().filter(is_of).collect();
                let messages = answer_steps.iter().chain([&row]).filter_map(stored_message);
                EndKind::Stored(StoredAnswer::new(messages, header.is_answer(), attempt, position))
            }
        };
        let input =
            asked.take_if(|(turn, _)| TurnId::of_answer(&row.message_id).is_some_and(|(of, _)| of == *turn));
        let input = input.and_then(|(turn, asked)| open_input(turn, &header.message, asked)).map(Arc::new);
        ends.push(EndedMessage { header, position, how, input });
    }
    ends
}

fn open_input(turn: TurnId, answer: &MessageId, row: EndRow) -> Option<OpenInput> {
    let (_, run) = TurnId::of_answer(answer)?;
    let EndContent::Message { content, metadata, created_at, .. } = row.said else { return None };
    Some(OpenInput { turn, run, content, metadata, accepted_at: created_at })
}

/// The answer that a message belongs to: the message itself, or the answer of which it is a step.
pub(crate) fn answer_of(message: &MessageId) -> MessageId {
    let of_step = || MessageId::parse(message.as_str().rsplit_once("-s")?.0).ok();
    match TurnId::is_reserved(message) {
        true => of_step().unwrap_or_else(|| message.clone()),
        false => message.clone(),
    }
}

/// Builds an answer from rows of the history, its steps first.
pub(crate) fn answer_of_rows(answer: &MessageId, rows: &[store::StoredMessage]) -> StoredAnswer {
    let messages = rows.iter().map(|row| stored::StoredMessage {
        role: row.role,
        content: &row.content,
        tool_calls: row.tool_calls.as_ref(),
        tool_call_id: row.tool_call_id.as_deref(),
        metadata: &row.metadata,
    });
    let position = rows.last().map_or(Position::from_stored(0), |row| row.position);
    StoredAnswer::new(messages, TurnId::of_answer(answer).is_some(), 0, position)
}

fn stored_message(row: &EndRow) -> Option<stored::StoredMessage<'_>> {
    let EndContent::Message { content, tool_calls, tool_call_id, metadata, .. } = &row.said else {
        return None;
    };
    Some(stored::StoredMessage {
        role: row.role,
        content,
        tool_calls: tool_calls.as_ref(),
        tool_call_id: tool_call_id.as_deref(),
        metadata: if metadata.is_empty() { &Metadata::EMPTY } else { metadata },
    })
}

/// An answer in the history, with its steps; `None` when it is not there.
pub(crate) async fn answer(
    store: &Store,
    thread: &ThreadId,
    message: &MessageId,
) -> Result<Option<StoredAnswer>, StoreError> {
    let Some(end) = store.end_of(thread, message).await? else { return Ok(None) };
    let after = last(store, thread, Position::from_stored(end.get() - 1)).await?;
    let mut page = page(store, thread, after, end, false).await?;
    Ok(match page.ends.pop().map(|ended| ended.how) {
        Some(EndKind::Stored(answer)) => Some(answer),
        Some(EndKind::Failed(_)) | None => None,
    })
}
