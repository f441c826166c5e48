//! Decides due timers: their data is read in one statement, and the rules are checked before
//! anything is sent.

use std::fmt::Display;

use model::{DelayedTask, Seq, TimerId};
use partition::{Input, TimerDecision, TimerPage, decide_timer};
use store::{Applied, DueTimer, Store, StoreError};
use tokio::sync::mpsc;

use super::store_lookups::StoreReader;
use crate::refusals::{RefusedItem, note_item};

/// A request of the machine.
#[derive(Debug)]
pub(super) enum TimerTask {
    /// Decide these timers.
    Decide(Vec<TimerId>),
    /// Load timers that are due in this many ms or later.
    Load { from_ms: i64, limit: usize },
    /// Store a task that enters its queue later.
    Delay(Seq, DelayedTask),
}

pub(super) async fn run(
    store: Store,
    owner: Applied,
    mut tasks: mpsc::UnboundedReceiver<TimerTask>,
    reader: StoreReader,
) {
    while let Some(task) = tasks.recv().await {
        let answer = match task {
            TimerTask::Decide(timers) => decided(&store, owner, timers, &reader).await,
            TimerTask::Delay(seq, delayed) => {
                let ask = || store.delay_task(&delayed);
                let outcome = reader.unless_refused("delaying a task", ask).await;
                outcome.map(|outcome| {
                    let noted = |error: &StoreError| note_item(RefusedItem::Command, &delayed.task.id, error);
                    Input::TaskDelayed { seq, outcome: outcome.inspect_err(noted).ok() }
                })
            }
            TimerTask::Load { from_ms, limit } => loaded(&store, owner, from_ms, limit, &reader).await,
        };
        let Some(answer) = answer else { return };
        if reader.answered.send(answer).await.is_err() {
            return;
        }
    }
}

/// Decides these timers. `None` when the session has ended.
async fn decided(store: &Store, owner: Applied, timers: Vec<TimerId>, reader: &StoreReader) -> Option<Input> {
    let found = due(reader, store, Some(owner), &timers).await?;
    let decisions = timers.into_iter().zip(found).map(|(id, found)| {
        let Ok(found) = found else { return TimerDecision::unreadable(id) };
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

/// Data of these timers in the same order; a timer that cannot be read has its error instead.
/// `None` when the session has ended.
pub(super) async fn due(
    reader: &StoreReader,
    store: &Store,
    owner: Option<Applied>,
    timers: &[TimerId],
) -> Option<Vec<Result<Option<DueTimer>, StoreError>>> {
    fn name(timer: &TimerId) -> &dyn Display {
        timer
    }
    let ask = |timers| store.due_timers(owner, timers);
    reader.each("reading timers", timers, (RefusedItem::Timer, name), ask).await
}

async fn loaded(
    store: &Store,
    owner: Applied,
    from_ms: i64,
    limit: usize,
    reader: &StoreReader,
) -> Option<Input> {
    let ask = || store.load_timers(owner, Some(from_ms), limit);
    let page: TimerPage = reader.until_answered("reading timers", ask).await?;
    tracing::debug!(from_ms, timers = page.timers.len(), is_all = page.is_all, "timers were read");
    Some(Input::Timers(page))
}
