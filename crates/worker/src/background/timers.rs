//! Timers that are due: what decides about them is read for many at once, and the rules are asked before anything is sent.

use model::{DelayedTask, Seq, TimerId};
use partition::{Input, Start, TimerPage, decide_timer};
use store::{Applied, Store};
use tokio::sync::mpsc;

use super::store_lookups::until_answered;

/// What the machine wants.
#[derive(Debug)]
pub(super) enum TimerTask {
    /// What becomes of these.
    Decide(Vec<TimerId>),
    /// The timers that are due in so many ms or later.
    Load { from_ms: i64, limit: usize },
    /// The task enters its queue later.
    Delay(Seq, DelayedTask),
}

pub(super) async fn run(
    store: Store,
    owner: Applied,
    mut tasks: mpsc::UnboundedReceiver<TimerTask>,
    answered: mpsc::Sender<Input>,
) {
    while let Some(task) = tasks.recv().await {
        let answer = match task {
            TimerTask::Decide(timers) => decided(&store, owner, timers, &answered).await,
            TimerTask::Delay(seq, delayed) => {
                let ask = || store.delay_task(&delayed);
                let outcome = until_answered(ask, "delaying a task", &answered).await;
                outcome.map(|outcome| Input::TaskDelayed { seq, outcome })
            }
            TimerTask::Load { from_ms, limit } => loaded(&store, owner, from_ms, limit, &answered).await,
        };
        let Some(answer) = answer else { return };
        if answered.send(answer).await.is_err() {
            return;
        }
    }
}

/// `None` when the session has ended.
async fn decided(
    store: &Store,
    owner: Applied,
    timers: Vec<TimerId>,
    answered: &mpsc::Sender<Input>,
) -> Option<Input> {
    let ask = || store.due_timers(Some(owner), &timers);
    let found = until_answered(ask, "reading timers", answered).await?;
    let decisions = timers.into_iter().zip(found).map(|(id, found)| {
        let mut complaints = Vec::new();
        let decision = decide_timer(id, found, &mut complaints);
        for complaint in complaints {
            tracing::error!(timer = %decision.id, complaint, "a timer makes no sense");
        }
        tracing::debug!(timer = %decision.id, verdict = ?decision.verdict, "a timer was due");
        decision
    });
    Some(Input::TimersDecided(decisions.collect()))
}

async fn loaded(
    store: &Store,
    owner: Applied,
    from_ms: i64,
    limit: usize,
    answered: &mpsc::Sender<Input>,
) -> Option<Input> {
    let ask = || store.load_timers(owner, Some(from_ms), limit);
    let page: TimerPage = until_answered(ask, "reading timers", answered).await?;
    tracing::debug!(from_ms, timers = page.timers.len(), is_all = page.is_all, "timers were read");
    Some(Input::Timers(page))
}

/// The timer that has fired this turn, of a follow-up.
pub(super) fn timer_of(start: &Start) -> Option<TimerId> {
    let is_synthetic = start.metadata.is_synthetic();
    let timer = start.metadata.get("timer_id").filter(|_| is_synthetic && start.task.is_none())?;
    TimerId::parse(timer.as_str()?).ok()
}
