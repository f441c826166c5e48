//! Undo of the newest compression, for every interface: once for each request id.

use model::ReasoningSessionId;
use reasoning::{Reason, Refusal, Valid, message_id};

use super::ReasoningThread;
use super::changes::EarlierReturn;
use crate::error::StoreError;
use crate::store::Store;

/// An undone compression.
#[derive(Debug, Clone, PartialEq)]
pub struct UndoneReasoning {
    /// The id of its summary message.
    pub summary_id: String,
    /// An earlier call of the same request undid the compression.
    pub is_repeated: bool,
    /// The session after it, without texts.
    pub now: ReasoningThread,
}

impl Store {
    /// Undoes the newest compression of a session. With `wanted`, undoes it only if it has that
    /// summary message; with a `request`, undoes once. `None`: there is no such session.
    pub async fn undo_newest_reasoning(
        &self,
        id: &ReasoningSessionId,
        wanted: Option<&str>,
        request: Option<&str>,
        actor: &str,
    ) -> Result<Option<Result<UndoneReasoning, Refusal>>, StoreError> {
        let Some(seen) = self.restorable_reasoning(id).await? else { return Ok(None) };
        if let Some(earlier) = self.earlier_undo(id, wanted, request).await? {
            return self.undone(id, earlier, true).await;
        }
        let Some(summary) = seen.summary.map(message_id) else {
            return Ok(Some(Err(Reason::NothingToUndo.into())));
        };
        if let Some(wanted) = wanted.filter(|wanted| *wanted != summary) {
            let reason = Reason::NotNewest(wanted.to_owned());
            return Ok(Some(Err(Refusal { reason, valid: Valid::Names(vec![summary]) })));
        }
        if self.undo_reasoning(id, &seen, request, actor).await? {
            return self.undone(id, Ok(summary), false).await;
        }
        // The same request may have been executed concurrently.
        match self.earlier_undo(id, wanted, request).await? {
            Some(earlier) => self.undone(id, earlier, true).await,
            None => {
                let now = self.reasoning_thread(id, false, None).await?;
                Ok(now.map(|now| Err(Reason::Stale { messages: now.thread.len() }.into())))
            }
        }
    }

    /// The summary that the same request has undone before, if it was executed.
    async fn earlier_undo(
        &self,
        id: &ReasoningSessionId,
        wanted: Option<&str>,
        request: Option<&str>,
    ) -> Result<Option<Result<String, Refusal>>, StoreError> {
        let Some(request) = request else { return Ok(None) };
        let earlier = self.earlier_return(id, request).await?;
        Ok(earlier.map(|EarlierReturn { is_undo, oldest }| {
            let is_same = |summary: &String| is_undo && wanted.is_none_or(|wanted| wanted == summary);
            oldest.filter(is_same).ok_or_else(|| Reason::RequestReused(request.to_owned()).into())
        }))
    }

    async fn undone(
        &self,
        id: &ReasoningSessionId,
        undone: Result<String, Refusal>,
        is_repeated: bool,
    ) -> Result<Option<Result<UndoneReasoning, Refusal>>, StoreError> {
        let summary_id = match undone {
            Ok(summary) => summary,
            Err(refusal) => return Ok(Some(Err(refusal))),
        };
        let now = self.reasoning_thread(id, false, None).await?;
        Ok(now.map(|now| Ok(UndoneReasoning { summary_id, is_repeated, now })))
    }
}
