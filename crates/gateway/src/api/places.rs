//! Places in line: how many are ahead of what waits, and when it is expected to begin.

use model::{AgentId, QueryTarget, QueueStatus, ThreadId, TurnId, WaitReason, WaitingTurn};
use store::{StoreError, TaskRow, TaskStatus};

use crate::api::views;
use crate::api::views::PlaceView;
use crate::backend::Backend;
use crate::commands::owner_query;

/// Places of the turns that wait in a thread.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct WaitingLine {
    /// Usual duration of a turn, ms; `None` if none has ended yet.
    usual_ms: Option<i64>,
    /// Time for which the turn in progress runs already, ms; `None` if there is none.
    running_ms: Option<i64>,
}

impl WaitingLine {
    /// The line of a thread whose owner reports this. Without waiting turns nothing is read.
    pub(crate) async fn read(
        backend: &Backend,
        thread: &ThreadId,
        explained: &QueueStatus,
    ) -> Result<Self, StoreError> {
        if explained.waiting.is_empty() {
            return Ok(Self::default());
        }
        let now = backend.now();
        let active = explained.active.as_ref();
        let running_ms = active.map(|active| active.started_at.map_or(0, |at| now.since_ms(at)).max(0));
        Ok(Self { usual_ms: backend.store().usual_turn_ms(thread).await?, running_ms })
    }

    /// The place of a waiting turn; `None` if it does not wait.
    pub(crate) fn place(
        &self,
        backend: &Backend,
        explained: &QueueStatus,
        turn: &TurnId,
    ) -> Option<PlaceView> {
        let waiting = &explained.waiting;
        let own = waiting.iter().position(|other| other.turn == *turn)?;
        let yields = waiting[own].yields;
        let is_before = |(index, other): (usize, &WaitingTurn)| match (other.yields, yields) {
            (true, false) => false,
            (false, true) => true,
            (true, true) | (false, false) => index < own,
        };
        let ahead: Vec<&WaitingTurn> =
            waiting.iter().enumerate().filter(|other| is_before(*other)).map(|(_, other)| other).collect();
        let before = ahead.len() as u64;
        let active = explained.active.as_ref().and_then(|active| active.waits_for);
        let reasons = ahead.iter().map(|other| other.reason).chain([waiting[own].reason]).chain(active);
        let expected_ms = until_ms(reasons).and_then(|until_ms| match self.expected_ms(before) {
            Some(expected_ms) => Some(expected_ms.max(until_ms)),
            // The cause of the wait has an end of its own: a backoff, a limit, a budget.
            None => Some(until_ms).filter(|until_ms| *until_ms > 0),
        });
        let now = backend.now();
        Some(PlaceView {
            ahead: before + u64::from(self.running_ms.is_some()),
            expected_at: expected_ms.and_then(|ms| views::rfc3339(now.plus_ms(ms))),
        })
    }

    /// Expected time until `before` waiting turns and the one in progress have ended, ms.
    fn expected_ms(&self, before: u64) -> Option<i64> {
        let usual_ms = self.usual_ms?;
        let rest_ms = self.running_ms.map_or(0, |running_ms| (usual_ms - running_ms).max(0));
        Some(rest_ms.saturating_add(usual_ms.saturating_mul(before.try_into().unwrap_or(i64::MAX))))
    }
}

/// Time after which all of these reasons have ended, ms; `None` if that is not known. Turns in
/// progress end by themselves.
fn until_ms(reasons: impl Iterator<Item = WaitReason>) -> Option<i64> {
    let of_reason = |reason: WaitReason| match reason {
        WaitReason::HeadOfLine
        | WaitReason::Capacity
        | WaitReason::Gap
        | WaitReason::Requested
        | WaitReason::Taken => Some(0),
        other => other.for_ms(),
    };
    reasons.map(of_reason).try_fold(0, |longest, ms| Some(longest.max(ms?)))
}

/// The place of a turn that waits in a thread; `None` if the owner of the thread does not answer,
/// or if the turn does not wait any more.
pub(crate) async fn of_turn(
    backend: &Backend,
    thread: &ThreadId,
    turn: &TurnId,
) -> Result<Option<PlaceView>, StoreError> {
    let about = QueryTarget::Thread(thread.clone());
    let Some(explained) = owner_query::explain(backend, thread.bucket(), &about).await else {
        return Ok(None);
    };
    Ok(WaitingLine::read(backend, thread, &explained).await?.place(backend, &explained, turn))
}

/// The place of a pending task in the queue of its agent; `None` if the task does not wait.
pub(crate) async fn of_task(
    backend: &Backend,
    agent: &AgentId,
    row: &TaskRow,
) -> Result<Option<PlaceView>, StoreError> {
    if row.status != TaskStatus::Pending {
        return Ok(None);
    }
    let store = backend.store();
    let ahead = store.tasks_ahead(agent, row.position).await?;
    let usual_ms = store.usual_turn_ms(&agent.thread()).await?;
    let queue = store.agent(agent).await?;
    let is_paused = queue.as_ref().is_some_and(|queue| queue.paused);
    let backoff_ms = queue.and_then(|queue| queue.backoff_left_ms).unwrap_or_default();
    let ahead_ms = |usual_ms: i64| usual_ms.saturating_mul(ahead.try_into().unwrap_or(i64::MAX));
    let expected_ms = match ahead {
        0 => Some(backoff_ms).filter(|backoff_ms| *backoff_ms > 0),
        _ => usual_ms.map(|usual_ms| ahead_ms(usual_ms).saturating_add(backoff_ms)),
    };
    let expected_ms = expected_ms.filter(|_| !is_paused);
    let expected_at = expected_ms.and_then(|ms| views::rfc3339(backend.now().plus_ms(ms)));
    Ok(Some(PlaceView { ahead, expected_at }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expected_time_counts_the_rest_of_the_active_turn() {
        let line = |usual_ms, running_ms| WaitingLine { usual_ms, running_ms };
        assert_eq!(line(Some(1_000), Some(400)).expected_ms(0), Some(600));
        assert_eq!(line(Some(1_000), Some(400)).expected_ms(2), Some(2_600));
        assert_eq!(line(Some(1_000), Some(5_000)).expected_ms(1), Some(1_000), "it takes longer than usual");
        assert_eq!(line(Some(1_000), None).expected_ms(1), Some(1_000));
        assert_eq!(line(None, Some(400)).expected_ms(1), None);
        assert_eq!(line(Some(i64::MAX), None).expected_ms(7), Some(i64::MAX));
    }

    #[test]
    fn an_unknown_wait_hides_the_expected_time() {
        let until = |reasons: &[WaitReason]| until_ms(reasons.iter().copied());
        assert_eq!(until(&[WaitReason::HeadOfLine, WaitReason::Taken]), Some(0));
        let budget = WaitReason::Budget { for_ms: 7_000 };
        assert_eq!(until(&[WaitReason::Backoff { for_ms: 10 }, budget, WaitReason::HeadOfLine]), Some(7_000));
        for unknown in [WaitReason::Paused, WaitReason::NoWorkflow, WaitReason::CatchingUp] {
            assert_eq!(until(&[budget, unknown]), None, "{unknown:?}");
        }
    }
}
