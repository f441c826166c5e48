//! Asking the store, many questions in one statement, until it answers.

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use model::{AgentId, MessageKey, Position};
use partition::{CommandKey, Input};
use runtime::{Backoff, retry_until};
use store::{Applied, Disposition, Store, StoreError};
use tokio::sync::mpsc;

use crate::context::Context;

/// Keys of one statement.
const MOST_KEYS: usize = 1_000;
/// Queues that are read at once.
const MOST_LOADS: usize = 8;

/// The next tasks of an agent.
#[derive(Debug)]
pub(super) struct LoadTasks {
    pub(super) agent: AgentId,
    pub(super) after: Position,
    pub(super) limit: usize,
}

pub(super) async fn look_up_all(
    context: Context,
    owner: Applied,
    mut asked: mpsc::UnboundedReceiver<Vec<MessageKey>>,
    answered: mpsc::Sender<Input>,
) {
    while let Some(keys) = gather(&mut asked).await {
        let create = context.config.create_threads;
        let ask = || context.store.lookup(Some(owner), &keys, create);
        let Some(found) = until_answered(ask, "a look-up", &answered).await else { return };
        if answered.send(Input::Found(found)).await.is_err() {
            return;
        }
    }
}

pub(super) async fn check_all(
    context: Context,
    owner: Applied,
    mut asked: mpsc::UnboundedReceiver<Vec<CommandKey>>,
    answered: mpsc::Sender<Input>,
) {
    while let Some(keys) = gather(&mut asked).await {
        let create = context.config.limits.create_agents;
        let ask = || context.store.check(Some(owner), &keys, create);
        let Some(verdicts) = until_answered(ask, "a check of commands", &answered).await else { return };
        if answered.send(Input::Checked(verdicts)).await.is_err() {
            return;
        }
    }
}

pub(super) async fn load_all(
    store: Store,
    owner: Applied,
    mut asked: mpsc::UnboundedReceiver<LoadTasks>,
    answered: mpsc::Sender<Input>,
) {
    let mut loads = FuturesUnordered::new();
    loop {
        tokio::select! {
            load = asked.recv(), if loads.len() < MOST_LOADS => match load {
                Some(load) => loads.push(load_one(&store, owner, load, &answered)),
                None => return,
            },
            Some(()) = loads.next() => {}
        }
    }
}

async fn load_one(store: &Store, owner: Applied, load: LoadTasks, answered: &mpsc::Sender<Input>) {
    let LoadTasks { agent, after, limit } = load;
    let ask = || store.load_tasks(owner, &agent, after, limit);
    if let Some((tasks, more)) = until_answered(ask, "reading a queue", answered).await {
        // The session has ended.
        let _ = answered.send(Input::Tasks { agent, after, tasks, more }).await;
    }
}

/// What is asked next, with all that is asked by then; `None` when the session has ended.
async fn gather<Q>(asked: &mut mpsc::UnboundedReceiver<Vec<Q>>) -> Option<Vec<Q>> {
    let mut all = asked.recv().await?;
    while all.len() < MOST_KEYS
        && let Ok(more) = asked.try_recv()
    {
        all.extend(more);
    }
    Some(all)
}

/// Tries until the store answers; `None` when the session has ended.
pub(super) async fn until_answered<A, F: Future<Output = Result<A, StoreError>>>(
    ask: impl Fn() -> F,
    what: &'static str,
    answered: &mpsc::Sender<Input>,
) -> Option<A> {
    let answer = retry_until(answered.closed(), Backoff::default(), what, || async {
        ask().await.inspect_err(|error| {
            if error.disposition() == Disposition::Fatal {
                tracing::error!(%error, what, "refused, and tried again");
            }
        })
    });
    answer.await.ok()
}
