//! Asking the store, many questions in one statement, until it answers.

use model::MessageKey;
use partition::{CommandKey, Input};
use runtime::{Backoff, retry_until};
use store::{Applied, Disposition, QueueRead, Store, StoreError};
use tokio::sync::mpsc;

use crate::context::Context;

/// Keys of one statement.
const MOST_KEYS: usize = 1_000;
/// Queues of one statement: few enough that their texts are a bounded part of the worker's memory.
const MOST_QUEUES: usize = 16;

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
    mut asked: mpsc::UnboundedReceiver<Vec<QueueRead>>,
    answered: mpsc::Sender<Input>,
) {
    while let Some(all) = gather(&mut asked).await {
        for queues in all.chunks(MOST_QUEUES) {
            let ask = || store.load_tasks(owner, queues);
            let Some(loaded) = until_answered(ask, "reading queues", &answered).await else { return };
            for (queue, (tasks, more)) in queues.iter().zip(loaded) {
                let (agent, after) = (queue.agent.clone(), queue.after);
                if answered.send(Input::Tasks { agent, after, tasks, more }).await.is_err() {
                    return;
                }
            }
        }
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

/// Takes what neither waiting nor asking again cures for an answer.
pub(super) async fn unless_hopeless<A>(
    asked: impl Future<Output = Result<A, StoreError>>,
) -> Result<Result<A, String>, StoreError> {
    match asked.await {
        Ok(answer) => Ok(Ok(answer)),
        Err(error @ StoreError::Row(_)) => Ok(Err(error.to_string())),
        Err(error) => Err(error),
    }
}
