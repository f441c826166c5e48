//! Saves open messages and inputs independently of commits, retrying until they are stored.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use partition::isolate::parts;
use partition::{Input, OpenTurn, Save, SavedItem, SpilledMessage};
use store::{Applied, Store};
use tokio::sync::mpsc;

use super::store_lookups::StoreReader;
use crate::refusals::{RefusedItem, note_item};

/// A save, and the state that the store had acknowledged when the save was decided. A store that
/// has gone back in time since then refuses the save.
#[derive(Debug)]
pub(super) struct SaveTask {
    pub(super) applied: Applied,
    pub(super) save: Save,
}

/// A row of a save.
#[derive(Debug)]
enum SavedRow {
    Message(SpilledMessage),
    Turn(OpenTurn),
}

impl SavedRow {
    fn item(&self) -> SavedItem {
        match self {
            Self::Message(part) => SavedItem::Message(part.key.clone()),
            Self::Turn(open) => SavedItem::Turn(open.opened.turn.clone()),
        }
    }
}

/// `acknowledged`: number of the partition's saves acknowledged by the store. It is updated before
/// the machine receives the answer.
pub(super) async fn run(
    store: Store,
    incarnation: Arc<str>,
    acknowledged: Arc<AtomicU64>,
    mut tasks: mpsc::UnboundedReceiver<SaveTask>,
    reader: StoreReader,
) {
    while let Some(SaveTask { applied, save }) = tasks.recv().await {
        let messages = save.messages.into_iter().map(SavedRow::Message);
        let rows: Vec<SavedRow> = messages.chain(save.turns.into_iter().map(SavedRow::Turn)).collect();
        let save = |part| {
            let (save, store, incarnation) = (save_of(part), store.clone(), Arc::clone(&incarnation));
            let reader = reader.clone();
            async move {
                // A retry after an unknown result is safe: a grant waits for the row that the
                // statement locks, and repeating the save changes nothing.
                let ask = || store.save(applied, &incarnation, &save);
                reader.unless_refused("saving what is open", ask).await.ok_or(())
            }
        };
        let Ok(saved) = parts(&rows, save).await else { return };
        let mut refused = Vec::new();
        for (part, outcome) in saved {
            let error = match outcome {
                Ok(saves) => {
                    acknowledged.fetch_max(saves, Ordering::Relaxed);
                    continue;
                }
                Err(error) => error,
            };
            for row in part {
                let item = row.item();
                note_item(RefusedItem::Save, &item, &error);
                refused.push((item, error.to_string()));
            }
        }
        if reader.answered.send(Input::Saved(refused)).await.is_err() {
            return;
        }
    }
}

fn save_of(rows: &[SavedRow]) -> Save {
    let mut save = Save::default();
    for row in rows {
        match row {
            SavedRow::Message(part) => save.messages.push(part.clone()),
            SavedRow::Turn(open) => save.turns.push(open.clone()),
        }
    }
    save
}
