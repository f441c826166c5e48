//! Asking the store what it knows of messages, many in one statement.

use std::time::Duration;

use model::MessageKey;
use partition::Known;
use runtime::{Backoff, spawn_named};
use store::Store;
use tokio::sync::mpsc;

/// Keys of one statement.
const MOST_KEYS: usize = 1_000;

/// The questions and answers of one session. Questions are bounded by the messages that may be open: each is asked for
/// once, when it opens.
#[derive(Debug)]
pub(crate) struct LookUps {
    questions: mpsc::UnboundedSender<Vec<MessageKey>>,
    answers: mpsc::Receiver<Vec<(MessageKey, Known)>>,
}

impl LookUps {
    pub(crate) fn start(store: Store, create_threads: bool) -> Self {
        let (questions, asked) = mpsc::unbounded_channel();
        let (answered, answers) = mpsc::channel(4);
        spawn_named("look-ups", answer_all(store, create_threads, asked, answered));
        Self { questions, answers }
    }

    pub(crate) fn ask(&self, keys: Vec<MessageKey>) {
        // The task ends only with this value.
        let _ = self.questions.send(keys);
    }

    /// The next answers. Cancel-safe; pends for ever when there will be none.
    pub(crate) async fn next(&mut self) -> Vec<(MessageKey, Known)> {
        match self.answers.recv().await {
            Some(found) => found,
            None => std::future::pending().await,
        }
    }
}

async fn answer_all(
    store: Store,
    create_threads: bool,
    mut asked: mpsc::UnboundedReceiver<Vec<MessageKey>>,
    answered: mpsc::Sender<Vec<(MessageKey, Known)>>,
) {
    let mut keys = Vec::new();
    while let Some(first) = asked.recv().await {
        keys.extend(first);
        while keys.len() < MOST_KEYS
            && let Ok(more) = asked.try_recv()
        {
            keys.extend(more);
        }
        let found = look_up(&store, create_threads, &keys, &answered).await;
        keys.clear();
        if answered.send(found).await.is_err() {
            return;
        }
    }
}

/// Tries until the store answers or nobody waits any more.
async fn look_up(
    store: &Store,
    create_threads: bool,
    keys: &[MessageKey],
    answered: &mpsc::Sender<Vec<(MessageKey, Known)>>,
) -> Vec<(MessageKey, Known)> {
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
    loop {
        match store.look_up(keys, create_threads).await {
            Ok(found) => return found,
            Err(error) => tracing::debug!(%error, "a look-up failed and is tried again"),
        }
        tokio::select! {
            () = backoff.wait() => {}
            () = answered.closed() => return Vec::new(),
        }
    }
}
