//! Saving what is open, beside the commits, until the store has it.

use std::sync::Arc;

use partition::{Input, Save};
use store::{Applied, Store};
use tokio::sync::mpsc;

use super::store_lookups::until_answered;

/// What is saved, and what the store had acknowledged when that was decided: one that has gone back since takes nothing.
#[derive(Debug)]
pub(super) struct SaveTask {
    pub(super) applied: Applied,
    pub(super) save: Save,
}

pub(super) async fn run(
    store: Store,
    incarnation: Arc<str>,
    mut tasks: mpsc::UnboundedReceiver<SaveTask>,
    answered: mpsc::Sender<Input>,
) {
    while let Some(SaveTask { applied, save }) = tasks.recv().await {
        // A doubtful statement holds the row that a grant waits for, and repeating it changes nothing.
        let ask = || store.save(applied, &incarnation, &save);
        let Some(()) = until_answered(ask, "saving what is open", &answered).await else { return };
        if answered.send(Input::Saved).await.is_err() {
            return;
        }
    }
}
