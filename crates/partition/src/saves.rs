//! State of saving open messages and turns.

use model::{MessageKey, TurnId};

/// Items of the save in progress.
#[derive(Debug)]
pub(crate) struct SaveUnderWay {
    pub(crate) messages: Vec<MessageKey>,
    pub(crate) turns: Vec<TurnId>,
}

/// The save in progress, and whether another one is due.
#[derive(Debug, Default)]
pub(crate) struct Saving {
    pub(crate) under_way: Option<SaveUnderWay>,
    /// The replay would take too long, and the items that need its first half are not saved yet.
    pub(crate) is_due: bool,
    /// The last try found nothing to save; no other try before the next tick.
    pub(crate) is_resting: bool,
}
