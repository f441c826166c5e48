//! Queries the store, with many items per statement, until it answers or permanently refuses an
//! item.

use std::fmt::Display;
use std::sync::{Mutex, PoisonError};

use model::MessageKey;
use partition::isolate::parts;
use partition::{CommandKey, CommandVerdict, Input, Lookup};
use runtime::{Backoff, retry_until, spawn_named};
use store::{Applied, QueueRead, Store, StoreError};
use tokio::sync::mpsc;

use crate::context::Context;
use crate::refusals::{DamagedTries, Refusals, RefusedItem, is_refusal, note_item};

/// Maximum number of keys in one statement.
const MOST_KEYS: usize = 1_000;
/// Maximum number of queues in one statement: low enough to bound the memory for their texts.
const MOST_QUEUES: usize = 16;

/// Queries the store for a session, as long as the session can receive the answer.
#[derive(Debug, Clone)]
pub(super) struct StoreReader {
    pub(super) refusals: Refusals,
    pub(super) answered: mpsc::Sender<Input>,
}

impl StoreReader {
    /// Retries until the store answers; `None` when the session has ended. Meant for queries of
    /// which no part can fail alone: even a permanent refusal is retried, and reported meanwhile.
    pub(super) async fn until_answered<A, F: Future<Output = Result<A, StoreError>>>(
        &self,
        what: &'static str,
        ask: impl Fn() -> F,
    ) -> Option<A> {
        self.retried(what, || async { ask().await.map(Ok::<_, StoreError>) }).await?.ok()
    }

    /// Like [`StoreReader::until_answered`]. `Some(Err)`: the store permanently refuses the query
    /// with this error.
    pub(super) async fn unless_refused<A, F: Future<Output = Result<A, StoreError>>>(
        &self,
        what: &'static str,
        ask: impl Fn() -> F,
    ) -> Option<Result<A, StoreError>> {
        let damaged = DamagedTries::default();
        let ask = || async {
            match ask().await {
                Err(error) if damaged.is_final(&error) => Ok(Err(error)),
                Err(error) => Err(error),
                Ok(answer) => Ok(Ok(answer)),
            }
        };
        self.retried(what, ask).await
    }

    /// Queries all items in one statement, and in smaller statements if the store refuses one of
    /// them. Results are in the order of the items. An item that is refused alone gets the error as
    /// its result, and is counted under the kind `item`. `None` when the session has ended.
    pub(super) async fn each<'q, Q, A, F: Future<Output = Result<Vec<A>, StoreError>>>(
        &self,
        what: &'static str,
        items: &'q [Q],
        (item, name): (RefusedItem, impl Fn(&Q) -> &dyn Display),
        ask: impl Fn(&'q [Q]) -> F,
    ) -> Option<Vec<Result<A, StoreError>>> {
        let ask = &ask;
        let asked =
            parts(items, |part| async move { self.unless_refused(what, || ask(part)).await.ok_or(()) });
        let mut all = Vec::with_capacity(items.len());
        for (part, answer) in asked.await.ok()? {
            match answer {
                Ok(found) => all.extend(found.into_iter().map(Ok)),
                Err(error) => {
                    part.iter().for_each(|one| note_item(item, name(one), &error));
                    all.push(Err(error));
                }
            }
        }
        Some(all)
    }

    async fn retried<A, F: Future<Output = Result<A, StoreError>>>(
        &self,
        what: &'static str,
        ask: impl Fn() -> F,
    ) -> Option<A> {
        let refused = Mutex::new(None);
        let answer = retry_until(self.answered.closed(), Backoff::default(), what, || async {
            ask().await.inspect_err(|error| {
                if is_refusal(error) {
                    let mut refused = refused.lock().unwrap_or_else(PoisonError::into_inner);
                    refused.get_or_insert_with(|| self.refusals.retrying(what, error));
                }
            })
        });
        answer.await.ok()
    }
}

pub(super) async fn look_up_all(
    context: Context,
    owner: Applied,
    mut asked: mpsc::UnboundedReceiver<Vec<MessageKey>>,
    reader: StoreReader,
) {
    while let Some(keys) = gather(&mut asked).await {
        let create = context.config.create_threads;
        let name = (RefusedItem::Message, name_of_message as fn(&MessageKey) -> &dyn Display);
        let ask = |keys| context.store.lookup(Some(owner), keys, create);
        let Some(found) = reader.each("a look-up", &keys, name, ask).await else { return };
        let mut all = Vec::with_capacity(keys.len());
        for (found, key) in found.into_iter().zip(&keys) {
            let Ok(found) = found else {
                // The message fails unless it has failed before.
                let ask = || context.store.has_failed(owner, key);
                let Some(has_failed) = reader.unless_refused("a look-up of a failure", ask).await else {
                    return;
                };
                let known = if matches!(has_failed, Ok(true)) { Lookup::Ended } else { Lookup::Refused };
                all.push((key.clone(), known));
                continue;
            };
            all.push(found);
        }
        if reader.answered.send(Input::Found(all)).await.is_err() {
            return;
        }
    }
}

pub(super) async fn check_all(
    context: Context,
    owner: Applied,
    mut asked: mpsc::UnboundedReceiver<Vec<CommandKey>>,
    reader: StoreReader,
) {
    while let Some(keys) = gather(&mut asked).await {
        let create = context.config.limits.create_agents;
        let name = (RefusedItem::Command, name_of_command as fn(&CommandKey) -> &dyn Display);
        let ask = |keys| context.store.check(Some(owner), keys, create);
        let Some(found) = reader.each("a check of commands", &keys, name, ask).await else { return };
        let refused = |key: &CommandKey| (key.clone(), CommandVerdict::Refused);
        let found = found.into_iter().zip(&keys).map(|(found, key)| found.unwrap_or_else(|_| refused(key)));
        if reader.answered.send(Input::Checked(found.collect())).await.is_err() {
            return;
        }
    }
}

fn name_of_message(key: &MessageKey) -> &dyn Display {
    key
}

fn name_of_queue(queue: &QueueRead) -> &dyn Display {
    &queue.agent
}

fn name_of_command(key: &CommandKey) -> &dyn Display {
    match key {
        CommandKey::Turn(_, turn, _) => turn,
        CommandKey::Task(_, task, _) => task,
        CommandKey::Control(_, command, _) => command,
    }
}

pub(super) async fn load_all(
    store: Store,
    owner: Applied,
    mut asked: mpsc::UnboundedReceiver<Vec<QueueRead>>,
    reader: StoreReader,
) {
    while let Some(all) = gather(&mut asked).await {
        for queues in all.chunks(MOST_QUEUES) {
            let name = (RefusedItem::Queue, name_of_queue as fn(&QueueRead) -> &dyn Display);
            let ask = |queues| store.load_tasks(owner, queues);
            let Some(loaded) = reader.each("reading queues", queues, name, ask).await else { return };
            for (queue, loaded) in queues.iter().zip(loaded) {
                let Ok((tasks, more)) = loaded else {
                    spawn_named(
                        "refused queue",
                        load_alone(store.clone(), owner, queue.clone(), reader.clone()),
                    );
                    continue;
                };
                let (agent, after) = (queue.agent.clone(), queue.after);
                if reader.answered.send(Input::Tasks { agent, after, tasks, more }).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Reads a queue that the store refuses, and retries until the queue is repaired, without delaying
/// other queues. There is at most one query per queue.
async fn load_alone(store: Store, owner: Applied, queue: QueueRead, reader: StoreReader) {
    let queues = [queue];
    let ask = || store.load_tasks(owner, &queues);
    let Some(loaded) = reader.until_answered("reading a queue", ask).await else { return };
    let [QueueRead { agent, after, .. }] = queues;
    if let Some((tasks, more)) = loaded.into_iter().next() {
        let _ = reader.answered.send(Input::Tasks { agent, after, tasks, more }).await;
    }
}

/// Returns the next query, merged with all others that wait; `None` when the session has ended.
async fn gather<Q>(asked: &mut mpsc::UnboundedReceiver<Vec<Q>>) -> Option<Vec<Q>> {
    let mut all = asked.recv().await?;
    while all.len() < MOST_KEYS
        && let Ok(more) = asked.try_recv()
    {
        all.extend(more);
    }
    Some(all)
}
