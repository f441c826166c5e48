//! The outcome of the last turn with a person.

use http_server::error::Problem;
use model::{MessageId, ThreadId, Timestamp};
use store::{FailedTurnRow, RunFailure};

use crate::api::protocols::TurnAnswer;
use crate::backend::Backend;
use crate::streaming::store_reads;

/// Maximum number of failed turns that are searched for the last one.
const MOST_FAILED: u32 = 200;

/// An answer or a failure.
pub(crate) struct Last {
    pub(crate) message: MessageId,
    pub(crate) answer: TurnAnswer,
    pub(crate) at: Timestamp,
}

/// The last outcome; `None` if no person has been answered in the thread yet.
pub(crate) async fn answer(backend: &Backend, thread: &ThreadId) -> Result<Option<Last>, Problem> {
    let store = backend.store();
    let answered = store.last_answer(thread, true).await?;
    if let Some(failed) = failed_after(backend, thread, answered.as_ref().map(|(_, at)| *at)).await? {
        let message = failed.opened.turn.answer(failed.opened.run);
        let (code, text, is_retryable) = (failed.code, failed.text, failed.is_retryable);
        let answer = TurnAnswer::of_failure(RunFailure { code, text, is_retryable });
        return Ok(Some(Last { message, answer, at: failed.failed_at }));
    }
    let Some((message, at)) = answered else { return Ok(None) };
    let stored = store_reads::answer(store, thread, &message).await?;
    Ok(stored.map(|stored| Last { message, answer: TurnAnswer::Stored(stored), at }))
}

/// The last turn, if it failed.
pub(crate) async fn failed(backend: &Backend, thread: &ThreadId) -> Result<Option<FailedTurnRow>, Problem> {
    let answered = backend.store().last_answer(thread, true).await?;
    failed_after(backend, thread, answered.map(|(_, at)| at)).await
}

async fn failed_after(
    backend: &Backend,
    thread: &ThreadId,
    answered: Option<Timestamp>,
) -> Result<Option<FailedTurnRow>, Problem> {
    let failed = backend.store().failed_turns(thread, None, MOST_FAILED).await?.unwrap_or_default();
    let last = failed.into_iter().max_by_key(|failed| failed.failed_at);
    Ok(last.filter(|failed| answered.is_none_or(|at| failed.failed_at > at)))
}
